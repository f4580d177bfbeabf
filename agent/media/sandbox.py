"""The sandbox: runs a program in a process of its own, without our keys, within limits of memory and time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from types import ModuleType

from agent.errors import InputError
from agent.media import sandbox_worker
from agent.media.images import KINDS, ImageLimits
from agent.media.mime import ConvertedMedia, detect_mime, label
from agent.media.sentences import refused

_ENV = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""The only variables of our environment that a sandboxed process gets; others may hold keys."""
_LAUNCHER = Path(__file__).with_name("sandbox_limits.py")


@dataclass(frozen=True, slots=True)
class SandboxProgram:
    """A module whose `main` runs in the sandbox.

    `memory` is in bytes of data and `seconds` is processor time, both kept by the system. `patience` is in seconds of
    the clock, after which the process is killed.
    """

    module: ModuleType
    memory: int
    seconds: int
    timeout_seconds: int

    def command(self, *arguments: str) -> list[str]:
        """The command line that starts it."""
        limits = (str(self.memory), str(self.seconds))
        return [sys.executable, "-I", "-B", str(_LAUNCHER), self.module.__name__, *limits, *arguments]


class SandboxJob:
    """One run of a program in the sandbox. Owner of its process."""

    def __init__(self, program: SandboxProgram, *arguments: str) -> None:
        self._program, self._arguments = program, arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._killed, self._lock = False, Lock()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, which waits for its input. Raises `OSError` if the system can't start it."""
        with self._lock:
            self._process = subprocess.Popen(
                self._program.command(*self._arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                cwd=_LAUNCHER.anchor,
            )
            if self._killed:
                self._process.kill()
            return self._process

    def run(self, data: bytes) -> tuple[int, bytes]:
        """Run it on `data`; return the exit status and the output.

        Raises `TimeoutError` when the process takes longer than the program's `patience`.
        """
        with self.start() as process:
            try:
                out, _ = process.communicate(data, timeout=self._program.timeout_seconds)
            except subprocess.TimeoutExpired as error:
                raise TimeoutError(f"{self._program.module.__name__} took too long") from error
            finally:
                process.kill()
        return process.returncode, out

    def kill(self) -> None:
        """End the process now. May be called from any thread, also before the process starts."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


def environment() -> dict[str, str]:
    """The environment of a sandboxed process."""
    few = {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    return few | {name: os.environ[name] for name in _ENV if name in os.environ}


DECODING = SandboxProgram(sandbox_worker, memory=400 * 1024 * 1024, seconds=20, timeout_seconds=60)
"""The libraries take 120 MB before anything is decoded. The longest sound that is taken needs a few seconds."""


def convert_image(
    data: bytes, limits: ImageLimits, *, began: Callable[[SandboxJob], None] = lambda _: None
) -> ConvertedMedia:
    """The picture as a model with these limits takes it, decoded in the sandbox (see `images.normalised`).

    `began` is given the job, which may be killed. Raises `InputError` where it isn't taken.
    """
    found = detect_mime(data)
    if found not in KINDS:
        raise refused("no_readable_picture")
    try:
        out = run_decoder("picture", json.dumps(asdict(limits)), data=data, began=began)
        return _normal(out, limits)
    except ValueError as error:
        raise refused("broken_picture", kind=label(found)) from error


def open_image(data: bytes) -> tuple[str, bytes]:
    """The media type of a picture, and its bytes where it had to become PNG. Raises `ValueError` for what is none."""
    media_type, _, png = run_decoder("open", data=data).partition(b"\n")
    if media_type.decode() not in KINDS or (png and detect_mime(png) != "image/png"):
        raise ValueError("the decoder said what it cannot say")
    return media_type.decode(), png


def _normal(out: bytes, limits: ImageLimits) -> ConvertedMedia:
    """The picture that a process says it made; it may have been taken over. Raises `ValueError` for any other."""
    head, _, body = out.partition(b"\n")
    try:
        said = json.loads(head)
        done = tuple(_refused(json.dumps(one).encode()).sayings[0] for one in said["done"])
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the decoder said what it cannot say") from error
    found = detect_mime(body)
    if found not in (*limits.types, "image/png", "image/jpeg") or len(body) > limits.max_bytes:
        raise ValueError("the decoder made what was not asked for")
    return ConvertedMedia(data=body, media_type=found, done=done)


def run_decoder(name: str, *args: str, data: bytes, began: Callable[[SandboxJob], None] = lambda _: None) -> bytes:
    """What `decoding` makes of the data. Raises `InputError` for what it refuses, `ValueError` for the broken."""
    job = SandboxJob(DECODING, name, *args)
    began(job)
    try:
        status, out = job.run(data)
    except TimeoutError as error:
        raise ValueError("it took too long") from error
    if status == sandbox_worker.REFUSED:
        raise _refused(out.rpartition(b"\n")[2])
    if status:
        raise ValueError(f"the decoder ended with {status}")
    return out


def _refused(said: bytes) -> InputError:
    """What the process says of a file, which may have taken it over. Raises `ValueError` for what it could not say."""
    try:
        key, values = json.loads(said)
        plain = {name: one if isinstance(one, int | float) else str(one)[:40] for name, one in values.items()}
        return refused(key, **plain)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the decoder said what it cannot say") from error
