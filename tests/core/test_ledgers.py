"""The faults of a ledger's place. What all ledgers promise is in `tests.history.conversation_laws`."""

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from agent.errors import HistoryError
from agent.history import now
from agent.suspension.ledger import Ledger, MemoryLedger, SqliteLedger


async def test_unusable_place_is_named(tmp_path: Path) -> None:
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
