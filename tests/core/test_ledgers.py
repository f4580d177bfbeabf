"""The faults of a ledger's place. What all ledgers promise is in `tests.history.conversation_laws`."""

from pathlib import Path

import pytest

from agent.errors import HistoryError
from agent.suspension.ledgers import FileLedger, SqliteLedger


async def test_unusable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="file"):
        await FileLedger(tmp_path / "file").use("a", None)
    with pytest.raises(HistoryError, match=r"used\.db"):
        await SqliteLedger(tmp_path / "no-such" / "used.db").use("a", None)
