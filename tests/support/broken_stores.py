"""Deliberately broken stores and ledgers, and the laws that find their faults."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.errors import Conflict, NotFound
from agent.history import Entry, HistoryStore, Record
from agent.history.conformance import Subject
from agent.history.memory import MemoryRetention, MemoryRuns, MemoryStore, _StoredRun
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


class SizesInCharacters(MemoryRetention):
    async def size(self, *, owners: str = "") -> int:
        return await super().size(owners=owners) - 1


class WrongSizes(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.retention = SizesInCharacters(self._data)


class SharesObjects(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._given: dict[str, Entry] = {}

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        self._given |= {entry.id: entry for entry in entries}
        return await super().save(record, entries, events)

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        return [self._given[entry.id] for entry in await super().history(record, limit=limit)]


class ListsByClock(MemoryStore):
    async def list(self, owner: str, **page: Any) -> list[Record]:
        found = await super().list(owner, **page)
        return sorted(found, key=lambda record: (record.updated_at.replace(microsecond=0), record.id), reverse=True)


class RenamesAlways(MemoryStore):
    async def label(self, conversation_id: str, *, owner: str, instead_of: str | None = None, **new: Any) -> Record:
        return await super().label(conversation_id, owner=owner, **new)


class SearchesOldestFirst(MemoryStore):
    async def search(self, owner: str, query: str, *, limit: int = 20) -> Any:
        return [*await super().search(owner, query, limit=limit)][::-1]


class SearchesExactWords(MemoryStore):
    async def search(self, owner: str, query: str, *, limit: int = 20) -> Any:
        return [hit for hit in await super().search(owner, query, limit=limit) if query in hit.excerpt]


class UnsortedExpiry(MemoryRetention):
    async def expiring(self, by: datetime, **which: Any) -> Any:
        return [*await super().expiring(by, **which)][::-1]


class ExpiresLatestFirst(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.retention = UnsortedExpiry(self._data)


class CarelessRuns(MemoryRuns):
    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Any:
        return self._data.runs[run_id].events[after:]  # of any owner, and from the end if `after` is negative

    async def remove(self, before: datetime) -> int:
        over = [run for run in self._data.runs.values() if run.ended_at is not None and run.ended_at < before]
        for run in over:
            run.ended_at = before
        return len(over)


class WithCarelessRuns(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.runs = CarelessRuns(self._data)


class AcceptsAnyNumbers(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._data.append = self._append  # type: ignore[method-assign]

    def _append(self, events: RunEvents) -> Any:
        run = self._data.runs.setdefault(events.run_id, _StoredRun(events.conversation_id, events.owner))
        run.events.extend(events.events)
        return run


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


class SqliteWritesBehind(SqliteStore):
    """It acknowledges a save before it has begun."""

    _last: "asyncio.Task[Record] | None" = None

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        self._last = asyncio.create_task(self._save(self._last, record, entries, events))
        return replace(record, revision=record.revision + 1)

    async def _save(self, before: "asyncio.Task[Record] | None", *save: Any) -> Record:
        if before:
            await before
        await asyncio.sleep(0.1)
        return await super().save(*save)


class SqliteQueriesEach(SqliteStore):
    async def list(self, owner: str, **page: Any) -> list[Record]:
        return [await self.get(record.id, owner=owner) for record in await super().list(owner, **page)]


class SqliteHidesDeleted(SqliteStore):
    async def delete(self, conversation_id: str, *, owner: str) -> None:
        record = await self.get(conversation_id, owner=owner)
        await self.retention.set_expiry(record, datetime.fromtimestamp(0, self._database.clock().tzinfo))


class ForgetfulLedger(MemoryLedger):
    async def use(self, id: str, expires_at: datetime | None) -> bool:
        await super().use(id, expires_at)
        return True


class ShortLedger(MemoryLedger):
    """It keeps 10 ids."""

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        first = await super().use(id, expires_at)
        self._used = dict([*self._used.items()][-10:])
        return first


class LateLedger(MemoryLedger):
    """It looks first and writes later."""

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        first = id not in self._used
        await asyncio.sleep(0)
        await super().use(id, expires_at)
        return first


FAULTS: dict[type[MemoryStore] | type[SqliteStore], tuple[str, ...]] = {
    ForgetsOwners: ("foreign_object_looks_missing",),
    ListsAllOwners: ("list_starts_with_newest_entries", "foreign_object_looks_missing"),
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
    SharesObjects: ("changed_message_changes_nothing_stored",),
    ListsByClock: ("list_order_ignores_clocks",),
    RenamesAlways: ("title_is_replaced_only_if_it_is_the_expected_one",),
    SearchesOldestFirst: ("search_returns_last_saved_first_and_newest_message",),
    SearchesExactWords: ("search_finds_titles_prompts_and_answers",),
    ExpiresLatestFirst: ("earliest_expires_first",),
    WithCarelessRuns: (
        "events_are_read_from_any_number",
        "only_owner_reads_and_appends",
        "only_events_of_old_ended_runs_are_removed",
        "text_of_removed_runs_is_nowhere",
    ),
    AcceptsAnyNumbers: ("second_writer_gets_conflict", "refused_save_stores_neither"),
    SavesInTwoSteps: ("cancelled_save_stores_all_or_nothing",),
    SqliteInTwoTransactions: ("refused_save_stores_neither", "kill_in_mid_save_stores_all_or_nothing"),
    SqliteLastWins: ("one_process_wins_a_revision", "zombie_writer_is_refused"),
    SqliteWritesBehind: ("killed_process_loses_no_acknowledged_save",),
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
FAULTS_OF_LEDGERS: dict[type[MemoryLedger], str] = {
    ForgetfulLedger: "id_is_used_once",
    ShortLedger: "only_expired_ids_are_forgotten",
    LateLedger: "one_of_many_concurrent_uses_is_first",
}
LEDGERS = {
    kind.__name__: Subject(open=_opened(MemoryStore), ledger=lambda _, kind=kind: kind()) for kind in FAULTS_OF_LEDGERS
}
