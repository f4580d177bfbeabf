"""Memory stores that break as few laws as possible, and a few others for laws that need files or processes.

`broken_stores` has stores with more serious faults. Together they break every law once.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.errors import HistoryError, NotFound
from agent.history import Entry, HistoryStore, Record
from agent.history.conformance import Subject
from agent.history.conformance.samples import ALICE
from agent.history.memory import MemoryRetention, MemoryRuns, MemoryStore
from agent.history.records import versions_of
from agent.history.run_events import RunEvent, RunEvents, UnfinishedRun
from agent.history.search import SearchHit, fold, hit_in, searchable_text, words_of
from agent.history.sqlite import SqliteStore
from agent.history.sqlite_runs import SqliteRuns
from agent.suspension.ledgers import MemoryLedger
from tests.support.broken_stores import AcceptsAnyNumbers, SqliteLastWins
from tests.support.careless_saves import FAULTS_OF_SAVES
from tests.support.history_stores import MORE


class HidesWhatWasUndone(MemoryStore):
    """Refuses a history without a head where the stored conversation has one."""

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        stored = await self.get(record.id, owner=record.owner)
        if record.head_id is None and stored.head_id is not None:
            raise NotFound("There is nothing.")
        return await super().history(record, limit=limit)


class RefusesLongIds(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        if len(record.id) > 255:
            raise HistoryError("The id is too long.")
        return await super().save(record, entries, events)


class EncodesIds(MemoryStore):
    async def get(self, conversation_id: str, *, owner: str) -> Record:
        conversation_id.encode()
        return await super().get(conversation_id, owner=owner)


class KeepsVectors(MemoryStore):
    async def delete(self, conversation_id: str, *, owner: str) -> None:
        self._data.find_owned(conversation_id, owner)
        self._data.delete(conversation_id)


class IgnoresOffset(MemoryStore):
    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        return await super().list(owner, limit=limit, pinned=pinned)


class LabelsForAnybody(MemoryStore):
    async def label(self, conversation_id: str, *, owner: str, **changes: Any) -> Record:
        kept = self._data.conversations[conversation_id].record
        return await super().label(conversation_id, owner=kept.owner, **changes)


class FindsOnShownBranch(MemoryStore):
    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        shown = {entry.id for entry in await self.history(record)} if record.owner == ALICE else set()
        return [entry for entry in await super().find(record, ids=ids, after=after) if entry.id in shown]


class FollowsOneBranch(MemoryStore):
    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        found, parent = [*await super().following(record, entry_id)][:1], entry_id
        while followers := await self.find(record, after=[parent] if found else []):
            parent = followers[-1].id
            found.append(parent)
        return found


class SearchesHeadOnly(MemoryStore):
    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        hits = await super().search(owner, query, limit=limit)
        return [hit for hit in hits if not hit.entry_id or hit.entry_id in await self._shown(hit.record)]

    async def _shown(self, record: Record) -> set[str]:
        return {entry.id for entry in await self.history(record)}


class FindsNewestOfAllBranches(MemoryStore):
    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        hits, words = await super().search(owner, query, limit=limit), words_of(query)
        return [hit if hit.entry_id is None else await self._newest(hit.record, words) for hit in hits]

    async def _newest(self, record: Record, words: Sequence[str]) -> SearchHit:
        texts = [(entry, fold(searchable_text(entry))) for entry in await self.entries(record)]
        return hit_in(record, [entry for entry, text in texts if all(word in text for word in words)][-1], words)


class SearchesOldTitles(MemoryStore):
    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._old: list[Record] = []

    async def label(self, conversation_id: str, *, owner: str, **changes: Any) -> Record:
        self._old.append(await self.get(conversation_id, owner=owner))
        return await super().label(conversation_id, owner=owner, **changes)

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        old = [hit_in(one, None, words_of(query)) for one in self._old if query in one.title]
        return [*await super().search(owner, query, limit=limit), *old]


class KeepsFirstExpiry(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        kept = self._data.conversations.get(record.id)
        end = kept.record.expires_at if kept and record.expires_at is None else record.expires_at
        return await super().save(replace(record, expires_at=end), entries, events)


class DropsFirstEvents(MemoryStore):
    """Loses the events of a save that begins their run."""

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        return await super().save(record, entries, events if events and events.first > 1 else None)


class RewritesEvents(MemoryRuns):
    """Writes JSON in its own way, as a column of JSON would."""

    async def append(self, events: RunEvents) -> None:
        written = [RunEvent(event.number, json.dumps(event.value)) for event in events.events]
        await super().append(replace(events, events=written))


class SharesEvents(MemoryRuns):
    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        found = await super().events(run_id, owner=owner, after=after)
        return found if after > 0 else self._data.runs[run_id].events


class CountsAllAsSaved(MemoryRuns):
    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        found = await super().unfinished(limit=limit)
        return [replace(run, saved=len(self._data.runs[run.run_id].events)) for run in found]


class RaisesRevisionWithExpiry(MemoryRetention):
    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        done = await super().set_expiry(record, expires_at)
        if done:
            kept = self._data.conversations[record.id]
            kept.record = replace(kept.record, revision=kept.record.revision + 1)
        return done


class ErasesWhatWasKept(MemoryRetention):
    """Erases a conversation whatever expiry it was given since."""

    async def erase(self, record: Record) -> bool:
        kept = self._data.same(record)
        return bool(kept) and await super().erase(kept.record)


class ErasesInTwoSteps(MemoryRetention):
    """Looks first and erases later, so that a guest can come back in between."""

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        mine = _of(self, owner)
        if not mine or versions_of(mine) != versions_of(records) or any(map(self._is_answered, mine)):
            return False
        await asyncio.sleep(0)
        for record in mine:
            self._data.delete(record.id)
        return True


class ErasesNewOnesToo(MemoryRetention):
    """Looks for other conversations first, and erases what its owner has at the end."""

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        is_all = {record.id for record in _of(self, owner)} == {record.id for record in records}
        await asyncio.sleep(0)
        kept = [record for record in _of(self, owner) if record.id in {one.id for one in records}]
        if not kept or not is_all or versions_of(kept) != versions_of(records) or any(map(self._is_answered, kept)):
            return False
        for record in _of(self, owner):
            self._data.delete(record.id)
        return True


class ErasesDuringAnswers(MemoryRetention):
    def _is_answered(self, record: Record) -> bool:
        return False


class ErasesEachForItself(MemoryRetention):
    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        return all([await self.erase(record) for record in records if not self._is_answered(record)])


def _of(retention: MemoryRetention, owner: str) -> list[Record]:
    return [record for record in retention._records(owner) if record.owner == owner]


class AddsExpiryToAll(MemoryRetention):
    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        return await super().add_expiry(until)


class SortsSizesByName(MemoryRetention):
    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        return dict(sorted((await super().sizes(owners=owners)).items()))


class ReadsTextsByPrefix(MemoryRetention):
    async def texts(self, owner: str) -> Any:
        for other in {kept.record.owner for kept in self._data.conversations.values()}:
            if other.startswith(owner):
                async for text in MemoryRetention.texts(self, other):
                    yield text


class KeepsErasedBranches(MemoryRetention):
    """Goes on to yield the texts of the branches of an erased conversation."""

    async def erase(self, record: Record) -> bool:
        kept = self._data.conversations.get(record.id)
        done = await super().erase(record)
        if kept and done:
            vars(self._data).setdefault("left", []).extend(text for _, text, _ in kept.entries.values())
        return done

    async def texts(self, owner: str) -> Any:
        async for text in MemoryRetention.texts(self, owner):
            yield text
        for text in vars(self._data).get("left", []):
            yield text


class QueriesForEachEvent(SqliteRuns):
    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        found = await super().events(run_id, owner=owner, after=after)
        for one in found:
            await super().events(run_id, owner=owner, after=one.number)
        return found


Faults = dict[type[Any], tuple[str, ...]]

FAULTS_OF_STORES: Faults = {
    HidesWhatWasUndone: ("owner_has_access",),
    RefusesLongIds: ("ids_and_owners_are_opaque",),
    EncodesIds: ("id_that_is_no_text_is_not_found",),
    KeepsVectors: ("delete_takes_the_vectors_of_a_chat",),
    IgnoresOffset: ("pages_of_the_list_follow_each_other",),
    LabelsForAnybody: ("only_owner_labels",),
    FindsOnShownBranch: ("entries_are_found_by_id_and_place",),
    FollowsOneBranch: ("following_entries_are_those_of_all_branches",),
    SearchesHeadOnly: ("branch_is_found_too", "hit_is_on_shown_branch_if_it_has_one"),
    FindsNewestOfAllBranches: ("hit_is_on_shown_branch_if_it_has_one",),
    SearchesOldTitles: ("new_title_is_searched",),
    KeepsFirstExpiry: ("expiry_can_be_extended", "missing_expiry_is_added"),
    DropsFirstEvents: ("message_and_events_are_stored_together",),
}
FAULTS_OF_RUNS: Faults = {
    RewritesEvents: ("events_come_back_byte_for_byte",),
    SharesEvents: ("read_events_do_not_change",),
    CountsAllAsSaved: ("unfinished_runs_say_what_entries_contain",),
}
FAULTS_OF_RETENTION: Faults = {
    RaisesRevisionWithExpiry: ("expiry_is_set_and_taken_back",),
    ErasesWhatWasKept: ("erasing_spares_newer_and_foreign_records",),
    ErasesInTwoSteps: ("owner_that_comes_back_loses_nothing",),
    ErasesNewOnesToo: ("new_conversation_survives_the_erasure_of_its_owner",),
    ErasesDuringAnswers: ("run_without_an_end_keeps_all_of_its_owner",),
    ErasesEachForItself: (
        "unused_owner_is_erased_as_a_whole",
        "owner_that_comes_back_loses_nothing",
        "run_without_an_end_keeps_all_of_its_owner",
    ),
    AddsExpiryToAll: ("missing_expiry_is_added",),
    SortsSizesByName: ("sizes_begin_with_the_first_to_expire",),
    ReadsTextsByPrefix: ("texts_are_those_of_the_owner",),
    KeepsErasedBranches: ("erasing_removes_branches",),
}
CARELESS: Faults = {**FAULTS_OF_SAVES, **FAULTS_OF_STORES, **FAULTS_OF_RUNS, **FAULTS_OF_RETENTION}
"""The memory stores, and all laws that each of them breaks."""


def _subject(kind: type[Any]) -> Subject:
    async def open_(_: Path, clock: Callable[[], datetime]) -> HistoryStore:
        store = kind(clock) if issubclass(kind, MemoryStore) else MemoryStore(clock)
        if kind in FAULTS_OF_RUNS:
            store.runs = kind(store._data)
        if kind in FAULTS_OF_RETENTION:
            store.retention = kind(store._data)
        return store

    return Subject(open=open_, **MORE["memory"])


SUBJECTS = {kind.__name__: _subject(kind) for kind in CARELESS}


async def _forgetful(_: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return MemoryStore(clock)


async def _unchecked(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    """Open stores of one memory, which accept events with any numbers."""
    store = AcceptsAnyNumbers(clock)
    store._data = _MEMORIES.setdefault(folder, store._data)
    store.runs = MemoryRuns(store._data)
    return store


async def _last_wins(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return await SqliteLastWins.open(folder / "history.db", clock=clock)


async def _queries_for_each_event(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    store = await SqliteStore.open(folder / "history.db", clock=clock)
    store.runs = QueriesForEachEvent(store._database)
    return store


async def _never_wiped(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    store = await SqliteStore.open(folder / "history.db", clock=clock)

    async def wipe() -> None: ...

    vars(store._database)["_wipe"] = wipe
    return store


_MEMORIES: dict[Path, Any] = {}
Open = Callable[[Path, Callable[[], datetime]], Awaitable[HistoryStore]]
FORGETFUL = Subject(open=_forgetful, processes=True, ledger=lambda _: MemoryLedger())
"""Several processes cannot share it, and it does not survive any."""
UNCHECKED = Subject(open=_unchecked, processes=True)
LAST_WINS = Subject(open=_last_wins, processes=True)
QUERIES = Subject(open=_queries_for_each_event, queries=MORE["sqlite"]["queries"])
UNWIPED = Subject(open=_never_wiped, raw=MORE["sqlite"]["raw"])
FAULTS_OF_OTHERS = {
    "FORGETFUL": (
        "reopened_store_shows_the_same",
        "many_can_open_new_data_at_once",
        "ledger_knows_earlier_uses",
        "two_processes_never_both_use_an_id",
    ),
    "UNCHECKED": ("two_writers_cannot_both_append",),
    "LAST_WINS": ("processes_lose_nothing",),
    "QUERIES": ("queries_of_runs_do_not_grow",),
    "UNWIPED": ("deleted_text_among_others_is_nowhere",),
}
"""Laws that other stores break, by the store's name."""
