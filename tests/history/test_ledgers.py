"""The faults of ledgers: two processes race for one suspended run, a clock jumps, a place or a server is missing.

What all ledgers promise is in `tests.history.conversation_laws`.
"""

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ConfigError, HistoryError, StoreUnavailable
from agent.history import now
from agent.suspension.ledger import Ledger, MemoryLedger, SqliteLedger, open_ledger
from agent.suspension.postgres_ledger import PostgresLedger
from agent.suspension.redis_ledger import RedisLedger
from agent.suspension.seals import Seals, ledger_of
from agent.suspension.suspended_run import Suspension
from tests.support import postgres_server, redis_servers
from tests.support.gate_rows import gate_rows
from tests.support.history_stores import SERVERS

ROOT = Path(__file__).parents[2]
PLACES = {"sqlite": lambda folder: f"sqlite:///{folder}/used", **SERVERS}
KEYS = {"k1": "a secret that all processes have"}

RESUMER = """
import asyncio, sys
from agent.errors import SuspensionError
from agent.suspension.seals import Seals

async def main(sealed):
    seals = Seals(keys={"k1": "a secret that all processes have"})
    suspension = seals.open(sealed)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        await seals.use(suspension)
    except SuspensionError as refused:
        print(refused.reason)
    else:
        print("resumed")

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", gate_rows({kind: kind for kind in PLACES}, ("sqlite", "redis")))
def test_one_of_two_processes_resumes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUSPENSION_LEDGER", PLACES[kind](tmp_path))
    sealed = Seals(keys=KEYS).seal(Suspension(session_id="s", messages=(), pending=()))
    command = [sys.executable, "-c", RESUMER, sealed]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    racers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert sorted(racer.communicate(timeout=60)[0] for racer in racers) == ["resumed\n", "used\n"]


@pytest.mark.slow
async def test_refusing_server_is_named_without_password(tmp_path: Path) -> None:
    with (
        redis_servers.running(tmp_path / "redis", "--requirepass", "right") as url,
        pytest.raises(HistoryError, match="cannot be used") as refused,
    ):
        await RedisLedger(url.replace("unix://", "unix://:wrong-word@")).use("a", None)
    assert "wrong-word" not in str(refused.value)
    url = postgres_server.url_of(tmp_path)
    with pytest.raises(HistoryError, match="cannot be used") as refused:
        await PostgresLedger(f"{url.partition('?')[0]}?options=-cdefault_transaction_read_only%3Don").use("a", None)


@pytest.mark.parametrize("url", ["redis://:wrong-word@127.0.0.1:1/0", "postgresql://ann:wrong-word@127.0.0.1:1/used"])
async def test_missing_server_is_named(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1 cannot be reached.*SUSPENSION_LEDGER") as away:
        await open_ledger(url).use("a", None)
    assert "wrong-word" not in str(away.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:wrong-word/@host:port/0",
        "redis://host:6379/?db=x",
        "postgresql://ann:wrong-word@x@host/a",
        "mysql://:wrong-word@a",
    ],
)
def test_unreadable_url_is_refused_without_password(url: str) -> None:
    with pytest.raises(ConfigError, match="SUSPENSION_LEDGER is") as refused:
        ledger_of({"SUSPENSION_LEDGER": url})
    assert "wrong-word" not in str(refused.value)


async def test_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"used\.db"):
        await SqliteLedger(tmp_path / "no-such" / "used.db").use("a", None)


LEDGERS: dict[str, Callable[[Path], Ledger]] = {
    "memory": lambda _: MemoryLedger(),
    "sqlite": lambda folder: SqliteLedger(folder / "used.db"),
}


@pytest.mark.parametrize("kind", LEDGERS)
async def test_jump_of_the_clock_frees_no_used_id(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, ahead, end = LEDGERS[kind](tmp_path), timedelta(), now() + timedelta(hours=1)

    class Jumping:
        @staticmethod
        def now(zone: tzinfo) -> datetime:
            return datetime.now(zone) + ahead

    monkeypatch.setattr("agent.history.values.datetime", Jumping)
    assert await ledger.use("a", end)
    for ahead, other in ((timedelta(days=365), "b"), (timedelta(), "c")):  # noqa: B007
        assert await ledger.use(other, end)
        assert not await ledger.use("a", end)
