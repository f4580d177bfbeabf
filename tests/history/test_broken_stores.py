"""The conformance suite finds the fault of each deliberately broken store, with the law that is about it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Conflict, NotFound
from agent.history import Entry, HistoryStore, Record
from agent.history.conformance import CAPABILITIES, LAWS, Broken, Subject, check
from agent.history.memory import MemoryRetention, MemoryStore
from agent.history.run_events import RunEvents
from agent.history.sqlite import SqliteStore
from agent.suspension.ledgers import MemoryLedger
from tests.support.history_stores import MORE


class ForgetsOwners(MemoryStore):
    async def get(self, conversation_id: str, *, owner: str) -> Record:
        return self._data.conversations[conversation_id].record


class ListsAllOwners(MemoryStore):
    async def list(self, owner: str, **page: Any) -> list[Record]:
        owners = {kept.record.owner for kept in self._data.conversations.values()}
        return [record for one in owners for record in await MemoryStore.list(self, one, **page)]


class SearchesAllOwners(MemoryStore):
    async def search(self, owner: str, query: str, *, limit: int = 20) -> Any:
        owners = {kept.record.owner for kept in self._data.conversations.values()}
        return [hit for one in owners for hit in await MemoryStore.search(self, one, query, limit=limit)]


class IgnoresRevisions(MemoryStore):
    def _to_replace(self, record: Record) -> Any:
        return self._data.conversations.get(record.id)


class ReversesEntries(MemoryStore):
    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        return (await super().history(record, limit=limit))[::-1]


class LimitsToOldest(MemoryStore):
    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        entries = await super().history(record)
        return entries if limit is None else entries[: max(limit, 0)]


class ForgetsBranches(MemoryStore):
    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        stored = await self.get(record.id, owner=record.owner)
        return await super().history(replace(record, head_id=stored.head_id), limit=limit)


class KeepsTextAfterDelete(MemoryStore):
    async def delete(self, conversation_id: str, *, owner: str) -> None:
        kept = self._data.find_owned(conversation_id, owner)
        kept.record = replace(kept.record, owner="deleted")


class KeepsRunsAfterDelete(MemoryStore):
    async def delete(self, conversation_id: str, *, owner: str) -> None:
        runs = dict(self._data.runs)
        await super().delete(conversation_id, owner=owner)
        self._data.runs.update(runs)


class RestoresDeleted(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        try:
            return await super().save(record, entries, events)
        except NotFound:
            return await super().save(replace(record, revision=0, head_id=None), entries, events)


class StoresEventsFirst(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        if events is not None:
            await self.runs.append(events)
        return await super().save(record, entries)


class OverwritesTitles(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        saved = await super().save(record, entries, events)
        return await self.label(saved.id, owner=saved.owner, title=record.title, pinned=record.pinned)


class RaisesRevisionWithLabel(MemoryStore):
    async def label(self, conversation_id: str, *, owner: str, **changes: Any) -> Record:
        return await self.save(await super().label(conversation_id, owner=owner, **changes))


class StripsNul(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        entries = deepcopy(entries)
        for entry in entries:
            for part in entry.message.parts:
                if isinstance(content := getattr(part, "content", None), str):
                    part.content = content.replace("\0", "")  # type: ignore[union-attr]
        return await super().save(record, entries, events)


class NeverExpires(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._data.is_expired = lambda _: False  # type: ignore[method-assign]


class ErasesNewer(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._data.same = lambda record: self._data.conversations.get(record.id)  # type: ignore[method-assign]


@dataclass(frozen=True)
class SizesInCharacters(MemoryRetention):
    async def size(self, *, owners: str = "") -> int:
        return await super().size(owners=owners) - 1


class WrongSizes(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.retention = SizesInCharacters(self._data)


class SavesInTwoSteps(MemoryStore):
    """A cancellation between the steps leaves the record without its entries."""

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        if not entries or record.revision == 0:
            return await super().save(record, entries, events)
        half = await super().save(replace(record, head_id=None), entries[:1])
        await asyncio.sleep(0)
        return await super().save(replace(half, head_id=record.head_id, revision=half.revision), entries[1:], events)


class SqliteInTwoTransactions(SqliteStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        saved = await super().save(record, entries)
        if events is not None:
            await self.runs.append(events)
        return saved


class SqliteLastWins(SqliteStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        try:
            return await super().save(record, entries, events)
        except Conflict:
            stored = await self.get(record.id, owner=record.owner)
            return await super().save(replace(record, revision=stored.revision), entries)


class SqliteQueriesEach(SqliteStore):
    async def list(self, owner: str, **page: Any) -> list[Record]:
        return [await self.get(record.id, owner=owner) for record in await super().list(owner, **page)]


class SqliteHidesDeleted(SqliteStore):
    async def delete(self, conversation_id: str, *, owner: str) -> None:
        record = await self.get(conversation_id, owner=owner)
        await self.retention.set_expiry(record, datetime.fromtimestamp(0, self._database.clock().tzinfo))


class ForgetfulLedger(MemoryLedger):
    async def use(self, id: str, expires_at: datetime | None) -> bool:
        await asyncio.sleep(0)
        first = id not in self._used
        await asyncio.sleep(0)
        await super().use(id, expires_at)
        return first


FAULTS: dict[type[MemoryStore] | type[SqliteStore], tuple[str, ...]] = {
    ForgetsOwners: ("foreign_object_looks_missing",),
    ListsAllOwners: ("list_starts_with_last_saved", "foreign_object_looks_missing"),
    SearchesAllOwners: ("only_owner_searches",),
    IgnoresRevisions: (
        "old_revision_conflicts_and_changes_nothing",
        "only_stored_revision_is_accepted",
        "one_concurrent_save_wins",
        "new_conversation_cannot_take_foreign_id",
    ),
    ReversesEntries: ("entries_come_oldest_first",),
    LimitsToOldest: ("limit_keeps_newest",),
    ForgetsBranches: ("old_branch_remains",),
    KeepsTextAfterDelete: ("deleted_text_is_nowhere",),
    KeepsRunsAfterDelete: ("deleted_conversation_has_no_events", "deleted_text_is_nowhere"),
    RestoresDeleted: ("save_does_not_restore_deleted",),
    StoresEventsFirst: ("refused_save_stores_neither",),
    OverwritesTitles: ("save_keeps_the_label",),
    RaisesRevisionWithLabel: ("label_keeps_revision_and_place",),
    StripsNul: ("unicode_comes_back_byte_for_byte", "stored_text_is_that_of_the_codec"),
    NeverExpires: ("expired_record_is_hidden_before_erasure", "expired_conversation_shows_no_events"),
    ErasesNewer: ("erasing_spares_newer_and_foreign_records",),
    WrongSizes: ("size_counts_stored_text",),
    SavesInTwoSteps: ("cancelled_save_stores_all_or_nothing",),
    SqliteInTwoTransactions: ("refused_save_stores_neither", "kill_in_mid_save_stores_all_or_nothing"),
    SqliteLastWins: ("one_process_wins_a_revision", "zombie_writer_is_refused"),
    SqliteQueriesEach: ("queries_do_not_grow",),
    SqliteHidesDeleted: ("deleted_text_is_nowhere",),
}
"""Broken stores, and the laws that find their faults."""


def _opened(kind: Any) -> Callable[[Path, Callable[[], datetime]], Awaitable[HistoryStore]]:
    async def open_(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
        return await kind.open(folder / "history.db", clock=clock) if issubclass(kind, SqliteStore) else kind(clock)

    return open_


BROKEN = {
    kind.__name__: Subject(open=_opened(kind), **MORE["sqlite" if issubclass(kind, SqliteStore) else "memory"])
    for kind in FAULTS
}
LEDGER = Subject(open=_opened(MemoryStore), ledger=lambda _: ForgetfulLedger())
BY_NAME = {law.name: law for law in LAWS}


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        pytest.param(
            kind, law, id=f"{kind.__name__}-{law}", marks=pytest.mark.slow if "processes" in BY_NAME[law].needs else ()
        )
        for kind, laws in FAULTS.items()
        for law in laws
    ],
)
async def test_fault_is_found(kind: type[HistoryStore], law: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        await check(BY_NAME[law], f"{__name__}:BROKEN.{kind.__name__}", tmp_path)


async def test_fault_of_a_ledger_is_found(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="first uses of ten"):
        await check(BY_NAME["one_of_many_concurrent_uses_is_first"], f"{__name__}:LEDGER", tmp_path)


def test_laws_are_described() -> None:
    assert len(BY_NAME) == len(LAWS)
    assert all(law.sentence.endswith(".") for law in LAWS)
    assert {law.capability for law in LAWS} == set(CAPABILITIES)
    assert "pytest" not in {name.partition(".")[0] for law in LAWS for name in vars(sys.modules[law.check.__module__])}
