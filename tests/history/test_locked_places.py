"""A SQLite file, and a folder of JSON files, that another process keeps locked: who waits, how long, what is said."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import lock_descriptor

from agent.errors import HistoryError
from agent.history.json_files import JsonStore
from agent.history.sql.sqlite import SqliteStore
from tests.support.history_stores import ALICE, KINDS, started
from tests.support.history_writer import events_of

EACH = pytest.mark.parametrize("kind", KINDS)


async def opened(kind: str, folder: Path, seconds: float) -> Any:
    """Open a store whose writes wait so long for others."""
    if kind == "json":
        return await JsonStore.open(folder, patience=seconds)
    return await SqliteStore.open(folder / "history.db", busy_timeout=seconds)


@contextmanager
def locked(kind: str, folder: Path) -> Iterator[None]:
    """Lock the store as another process does."""
    if kind == "json":
        with (folder / "lock").open("rb") as other:
            assert lock_descriptor(other.fileno(), blocking=False)
            yield
    else:
        with closing(sqlite3.connect(folder / "history.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


@EACH
async def test_locked_store_is_awaited_then_named(tmp_path: Path, kind: str) -> None:
    async with aclosing(await opened(kind, tmp_path, 0.05)) as store:
        conversation, _ = await started(store)
        with locked(kind, tmp_path):
            with pytest.raises(HistoryError, match="locked") as caught:
                await store.save(conversation)
            assert str(tmp_path) not in str(caught.value), "a visitor sees the path"
            assert await store.get(conversation.id, owner=ALICE) == conversation  # Readers need no lock.
        assert (await store.save(conversation)).revision == 2


@EACH
@pytest.mark.slow
async def test_writes_after_one_that_waited_in_vain_hardly_wait(tmp_path: Path, kind: str) -> None:
    """A message makes three writes one after the other. Each waited for itself, so the refusal took 7.5 seconds."""
    async with aclosing(await opened(kind, tmp_path, 2.0)) as store:
        conversation, _ = await started(store)
        with locked(kind, tmp_path):
            began = time.monotonic()
            for _ in range(10):
                with pytest.raises(HistoryError, match="locked"):
                    await store.save(conversation)
            assert time.monotonic() - began < 15, "each write waited for itself"
        assert (await store.save(conversation)).revision == 2


@EACH
async def test_end_of_an_answer_waits_after_one_in_vain(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.history.uninterrupted.AFTER_LOCK_SECONDS", 60.0)
    async with aclosing(await opened(kind, tmp_path, 30.0)) as store:
        conversation, _ = await started(store)
        wait = (store._storage if kind == "json" else store._database)._lock_wait
        with locked(kind, tmp_path):
            wait._seconds = 0.1
            with pytest.raises(HistoryError, match="locked"):
                await store.save(conversation)
            wait._seconds = 30.0
            ending = asyncio.create_task(store.save(conversation, (), events_of(conversation, 1, ended=True)))
            await asyncio.wait({ending}, timeout=0.5)
            assert not ending.done()
        assert (await ending).revision == 2
