"""The promise of every ledger: exactly one use of an id is the first, across callers and processes."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from agent.errors import ConfigError
from agent.history import new_id, now
from agent.settings import ROOT
from agent.suspension.ledgers import Ledger, MemoryLedger
from agent.suspension.ledgers.files import FileLedger
from agent.suspension.ledgers.sqlite import SqliteLedger

pytestmark = pytest.mark.slow

LEDGERS: dict[str, Callable[[Path], Ledger]] = {
    "memory": lambda _: MemoryLedger(),
    "files": lambda path: FileLedger(path / "used"),
    "sqlite": lambda path: SqliteLedger(path / "used.db"),
}


@pytest.fixture(params=LEDGERS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return LEDGERS[request.param](tmp_path)


async def test_id_is_used_once(ledger: Ledger) -> None:
    later = now() + timedelta(hours=1)
    for expires_at in (later, None):
        id_ = new_id()
        assert [await ledger.use(id_, expires_at) for _ in range(3)] == [True, False, False]
    assert await ledger.use("../../with/slashes\u00e9'--", None)
    assert not await ledger.use("../../with/slashes\u00e9'--", later)


async def test_one_of_many_concurrent_uses_wins(ledger: Ledger) -> None:
    for _ in range(5):
        id_ = new_id()
        assert sum(await asyncio.gather(*(ledger.use(id_, None) for _ in range(10)))) == 1


async def test_only_expired_ids_are_forgotten(ledger: Ledger) -> None:
    gone, kept, for_ever = new_id(), new_id(), new_id()
    assert await ledger.use(gone, now() - timedelta(seconds=1))
    assert await ledger.use(kept, now() + timedelta(hours=1))
    assert await ledger.use(for_ever, None)
    assert await ledger.use(gone, None), "the caller refuses expired ids, so they need not be stored"
    assert not await ledger.use(kept, None)
    assert not await ledger.use(for_ever, None)


async def test_new_ledger_knows_earlier_uses(tmp_path: Path) -> None:
    for name in ("files", "sqlite"):
        id_ = new_id()
        assert await LEDGERS[name](tmp_path).use(id_, None)
        assert not await LEDGERS[name](tmp_path).use(id_, None)


RACE = """
import asyncio, sys
from pathlib import Path
from tests.core.test_ledgers import LEDGERS

async def main(name, path, ids):
    ledger = LEDGERS[name](Path(path))
    print("ready", flush=True)
    sys.stdin.readline()
    print(*[id for id in ids.split(",") if await ledger.use(id, None)])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["files", "sqlite"])
def test_two_processes_never_both_use_an_id(name: str, tmp_path: Path) -> None:
    ids = [new_id() for _ in range(60)]
    command = [sys.executable, "-c", RACE, name, str(tmp_path), ",".join(ids)]
    racers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        used = [racer.communicate(timeout=60)[0].split() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert sorted(used[0] + used[1]) == sorted(ids)


async def test_unusable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        await FileLedger(tmp_path / "file").use("a", None)
    with pytest.raises(ConfigError, match="no-such"):
        await SqliteLedger(tmp_path / "no-such" / "used.db").use("a", None)
