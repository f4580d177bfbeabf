"""Containers without a container engine: Debian's packages as base image, overlays as layers, and namespaces.

`build` follows a Dockerfile. `Container` runs the result as an engine with `--read-only --tmpfs /tmp` does: a read-only
tree, the image's user and environment, process id 1, and a network with loopback only. This needs root and Linux, and
for the base image apt's access to Debian's packages.
"""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.dockerfile import Step, context, needed, settings, stages

CACHE = Path(__file__).resolve().parents[2] / ".cache"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# The variables that Python's image sets.
PYTHON = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
# The variables that an engine passes to a build.
BUILDER = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_CERT", "SSL_CERT_FILE"),
)
MOUNT = """
set -eu
mount -t overlay overlay -o "$1" "$2"
mount --rbind /dev "$2/dev"
mount -t proc proc "$2/proc"
"""
NETWORK = f"""
cat /etc/resolv.conf > "$2/etc/resolv.conf"
[ ! -e {BUNDLE} ] || mount --bind {BUNDLE} "$2{BUNDLE}"
"""


class Unavailable(Exception):
    """The machine lacks something that this needs. The message says what."""


@dataclass(frozen=True)
class Image:
    """The state of a build stage: its layers, the newest first, and what its instructions set."""

    layers: tuple[Path, ...]
    env: Mapping[str, str]
    workdir: str = "/"
    user: str = "0"
    volumes: tuple[str, ...] = ()
    health: Sequence[str] = ()
    cmd: Sequence[str] = ()
    args: tuple[str, ...] = ()

    @property
    def below(self) -> str:
        """The layers as an option of an overlay mount."""
        return "lowerdir=" + ":".join(map(str, self.layers))


def base(tag: str) -> Path:
    """Return a folder that can replace the official Python image `tag`, such as python:3.11-slim-bookworm.

    It holds Debian's own Python under the names that the image has, and stays in the project's cache. Raises
    `Unavailable`.
    """
    version, suite = re.fullmatch(r"python:(\d+\.\d+)-slim-(\w+)", tag).groups()
    if os.geteuid() != 0:
        raise Unavailable("it needs root: namespaces, overlays and Debian's installer")
    root = CACHE / f"debian-{suite}"
    python = root / "usr" / "local" / "bin" / "python"
    with _alone(root):
        if not root.exists():
            _debian(root, suite)
        if not python.is_symlink():
            if not (root / "usr" / "bin" / f"python{version}").exists():
                raise Unavailable(f"Debian {suite} has no Python {version}")
            python.symlink_to(f"/usr/bin/python{version}")
    return root


def _debian(root: Path, suite: str) -> None:
    tool = package("mmdebstrap") / "usr" / "bin" / "mmdebstrap"
    with tempfile.TemporaryDirectory(dir=root.parent) as made:
        options = ["--mode=root", "--variant=apt", "--dpkgopt=force-unsafe-io"]
        options += ["--include=python3,python3-venv,ca-certificates"]
        _asked([str(tool), *options, suite, "root"], Path(made))
        (Path(made) / "root").rename(root)


def package(name: str) -> Path:
    """Return the folder in the project's cache with Debian's package `name` unpacked. Raises `Unavailable`."""
    unpacked = CACHE / "packages" / name
    with _alone(unpacked.parent):  # apt's lists allow one process at a time
        if not unpacked.exists():
            _unpack(name, unpacked)
    return unpacked


def _unpack(name: str, unpacked: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_folder(unpacked.parent)) as made:
        try:
            _asked(["apt-get", "download", "-qq", name], Path(made))
        except Unavailable:  # the lists can be old, or missing
            _asked(["apt-get", "update", "-qq"], Path(made))
            _asked(["apt-get", "download", "-qq", name], Path(made))
        _asked(["sh", "-c", "dpkg -x *.deb out"], Path(made))
        (Path(made) / "out").rename(unpacked)


@contextmanager
def _alone(kept: Path) -> Iterator[None]:
    """Lock `kept` in the project's cache against the other processes of the tests."""
    with (_folder(kept.parent) / f"{kept.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _asked(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError as error:
        raise Unavailable(f"this system has no {command[0]}") from error
    if done.returncode:
        said = (done.stderr.strip() or "nothing said").splitlines()[-1]
        raise Unavailable(f"{' '.join(command)} ended with {done.returncode}: {said}")


def build(dockerfile: Path, target: str, work: Path) -> Image:
    """Build `target` of the Dockerfile in `work`. Raises `Unavailable`, or `RuntimeError` with a log."""
    files = work / "context"
    for path in context(dockerfile.parent):
        _folder((files / path).parent)
        shutil.copy2(dockerfile.parent / path, files / path)
        (files / path).chmod(0o644)  # not every source of a build keeps the executable bit
    images: dict[str, Image] = {}
    for stage in needed(stages(dockerfile.read_text()), target):
        begun = images.get(stage.parent) or Image((base(stage.parent),), PYTHON)
        image = replace(begun, layers=(_folder(work / stage.name / "layer"), *begun.layers), args=())
        for step in stage.steps:
            image = _followed(step, image, images, files)
        images[stage.name] = image
    return images[target]


def _followed(step: Step, image: Image, images: Mapping[str, Image], files: Path) -> Image:
    match step.name:
        case "RUN":
            _run(step, image)
        case "COPY":
            _copy(step, image, images, files)
        case "ENV":
            return replace(image, env={**image.env, **settings(step, image.env)})
        case "ARG":
            return replace(image, args=(*image.args, step.rest))
        case "WORKDIR":
            _in_layer(image, 'mkdir -p "$2$3"', step.rest)
            return replace(image, workdir=step.rest)
        case "USER":
            return replace(image, user=step.rest)
        case "VOLUME":
            return replace(image, volumes=tuple(step.words))
        case "HEALTHCHECK":
            return replace(image, health=Step("CMD", {}, step.rest.removeprefix("CMD ")).words)
        case "CMD":
            return replace(image, cmd=step.words)
        case _:
            pass  # EXPOSE changes nothing
    return image


def _run(step: Step, image: Image) -> None:
    if image.user != "0":
        raise ValueError(f"a RUN as user {image.user} is not known here: {step.rest!r}")
    env = {name: os.environ[name] for name in BUILDER if name in os.environ} | dict(image.env)
    env |= {name: value for name in image.args if (value := _argument(name))}
    mount = ""
    for name, value in step.flags.items():
        cache = re.fullmatch(r"type=cache,target=(\S+)", value)
        if name != "mount" or not cache:
            raise ValueError(f"--{name}={value} is not known here")
        kept = subprocess.run([CACHE.parent / ".ci" / "uv", "cache", "dir"], capture_output=True, text=True, check=True)
        mount = f'mkdir -p "$2{cache[1]}"; mount --bind {_folder(Path(kept.stdout.strip()))} "$2{cache[1]}"\n'
    given = [f"{name}={value}" for name, value in env.items()]
    inside = f'cd {image.workdir} && exec /bin/sh -c "$0"'
    _in_layer(
        image,
        NETWORK + mount + 'root=$2; shift 2; exec chroot "$root" env -i "$@"',
        *given, "/bin/sh", "-c", inside, step.rest,
    )  # fmt: skip


def _argument(name: str) -> str:
    """Return the value for `--build-arg NAME`: from the environment, and for the package index also from pip."""
    if name == "PIP_INDEX_URL" and name not in os.environ:
        asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get(name, "")


def _copy(step: Step, image: Image, images: Mapping[str, Image], files: Path) -> None:
    *sources, to = step.words
    target = os.path.join(image.workdir, to)
    copy = """
to=$2$3 mode=$4 from=$5; shift 5; mkdir -p "${to%/*}"
for each; do
    if [ -d "$from/$each" ]; then cp -dRT --preserve=mode,timestamps,links "$from/$each" "$to"
    else cp --preserve=mode,timestamps "$from/$each" "$to"; [ -z "$mode" ] || chmod "$mode" "$to${each##*/}"; fi
done
"""
    mode = step.flags.get("chmod", "")
    if "from" in step.flags:
        source = images[step.flags["from"]]
        with tempfile.TemporaryDirectory() as seen:
            _in_layer(
                image, f"mount -t overlay overlay -o '{source.below}' {seen}\n" + copy, target, mode, seen, *sources
            )
    else:
        _in_layer(image, copy, target, mode, str(files), *sources)


def _in_layer(image: Image, script: str, *given: str) -> None:
    """Run a shell script with the image mounted writable at $2. `given` begins at $3."""
    layer = image.layers[0]
    over = f"lowerdir={':'.join(map(str, image.layers[1:]))},upperdir={layer},workdir={_folder(layer.parent / 'work')}"
    root = _folder(layer.parent / "root")
    done = subprocess.run(
        [*_NAMESPACES, "sh", "-c", MOUNT + script, "sh", over, str(root), *given],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"{script[len(NETWORK) :][:200]}\n{given}\nended with {done.returncode}:\n{done.stdout[-3000:]}"
        )


_NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]


class Loopback:
    """A network namespace that has only 127.0.0.1. Its own thread does all work in it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._enter).result()
        self.path = f"/proc/{os.getpid()}/task/{self._thread.submit(_thread_id).result()}/ns/net"

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x40000000):  # CLONE_NEWNET, for this thread and the threads it starts
            raise Unavailable(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        with socket.socket() as any_socket:  # SIOCSIFFLAGS: up and running
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))

    def do(self, work: Callable[..., Any], *given: Any) -> Any:
        """Call `work(*given)` in the network and return the result."""
        return self._thread.submit(work, *given).result()

    def close(self) -> None:
        """Leave the network. It ends with the last process in it."""
        self._thread.shutdown()


def _thread_id() -> int:
    return ctypes.CDLL(None).gettid()


@dataclass
class Container:
    """A process that runs an image. `volume` keeps the data of the image's volume after the container ends."""

    image: Image
    network: Loopback
    volume: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    log: Path = field(default_factory=lambda: Path(tempfile.mkstemp(suffix=".log")[1]))
    process: "subprocess.Popen[bytes] | None" = None

    def start(self, *command: str) -> "Container":
        """Run the image's command, or another one."""
        root = _folder(self.volume.parent / f"{self.volume.name}-root")
        script = MOUNT + 'mount -t tmpfs -o mode=1777,noexec,nosuid tmpfs "$2/tmp"\n'
        for place in self.image.volumes:
            # A new volume starts with the image's files at that path, with their owners.
            script += f'[ -e "$3" ] || cp -a "$2{place}" "$3"; mount --bind "$3" "$2{place}"\n'
        user = f'"{self.image.user}:$(awk -F: -v u={self.image.user} \'$3 == u {{ print $4 }}\' "$2/etc/passwd")"'
        script += f'root=$2; user={user}; shift 3; exec chroot --userspec="$user" --groups= "$root" env -i "$@"'
        given = [f"{name}={value}" for name, value in {**self.image.env, **self.env}.items()]
        given += ["/bin/sh", "-c", f'cd {self.image.workdir} && exec "$0" "$@"', *(command or self.image.cmd)]
        # An empty second layer, because a read-only overlay needs at least two.
        layers = f"{self.image.below}:{_folder(root.parent / 'nothing')}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["nsenter", f"--net={self.network.path}", *_NAMESPACES,
                 "sh", "-c", script, "sh", layers, str(root), str(self.volume), *given],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        return self

    @property
    def pid(self) -> int:
        """The machine's id of the process that is number 1 inside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in the container as its user. Return the exit status and the output."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        uid, gid = (re.search(rf"{name}:\t(\d+)", status)[1] for name in ("Uid", "Gid"))
        enter = ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-r", "-w", "-S", uid, "-G", gid, "env", "-i"]
        given = [f"{name}={value}" for name, value in {**self.image.env, **self.env}.items()]
        done = subprocess.run(
            [*enter, *given, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def healthy(self, seconds: float = 40.0) -> bool:
        """Return True if the image's health check passes within `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            with suppress(IndexError, OSError):
                if self.run(*self.image.health)[0] == 0:
                    return True
            time.sleep(0.5)
        return False

    def stop(self, seconds: float = 10.0) -> int:
        """Stop as `docker stop` does: SIGTERM to process 1, SIGKILL after `seconds`. Return the exit status."""
        with suppress(IndexError, OSError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextmanager
def container(image: Image, network: Loopback, volume: Path, **env: str) -> Iterator[Container]:
    """Run the image's command in a container until the block ends."""
    running = Container(image, network, volume, env, _folder(volume.parent) / f"{volume.name}.log").start()
    try:
        yield running
    finally:
        running.stop()


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
