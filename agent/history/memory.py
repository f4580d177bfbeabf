"""Conversations in this process's memory. They are gone when it ends. For one event loop only."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice

from agent.errors import Conflict, HistoryError, NotFound
from agent.history import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, now
from agent.history.codec import dump_entries, dump_record, load_entries, load_records
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun


@dataclass(slots=True)
class _Conversation:
    """A stored record, and for each entry id the parent's id and the JSON text."""

    record: Record
    entries: dict[str, tuple[str | None, str]] = field(default_factory=dict[str, tuple[str | None, str]])

    @property
    def size(self) -> int:
        """The number of bytes of its text."""
        return len(dump_record(self.record).encode()) + sum(len(text.encode()) for _, text in self.entries.values())


@dataclass(slots=True)
class _StoredRun:
    """The events of a run. `saved` is the number of the last event that the conversation's entries contain."""

    conversation_id: str
    owner: str
    events: list[RunEvent] = field(default_factory=list[RunEvent])
    saved: int = 0
    ended_at: datetime | None = None


class MemoryStore:
    """A `HistoryStore` in memory. It owns its conversations; values go in and out as copies.

    It needs no lock: no method awaits, so no other task can run between the steps of a call. It keeps messages as JSON
    because they are mutable objects, and so that this store answers exactly like the others.
    """

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock
        self._conversations: dict[str, _Conversation] = {}
        self._runs: dict[str, _StoredRun] = {}

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`."""
        texts = dump_entries(entries)
        raised = replace(record, revision=record.revision + 1, updated_at=self._clock())
        (saved,) = load_records([dump_record(raised)])
        before = self._to_replace(record)
        linked = _link(before.entries if before else {}, saved, entries, texts)
        if events is not None:
            self._append(events).saved = events.last
        # Insert again instead of replacing: the order of the dict is the order of the saves.
        self._conversations.pop(record.id, None)
        self._conversations[record.id] = _Conversation(saved, linked)
        return saved

    async def append_events(self, events: RunEvents) -> None:
        """Implement `HistoryStore.append_events`."""
        self._find_owned(events.conversation_id, events.owner)
        self._append(events)

    async def run_events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `HistoryStore.run_events`."""
        run = self._runs.get(run_id)
        if run is None or run.owner != owner or self._missing(run):
            raise NotFound(NO_RUN)
        return run.events[max(after, 0) :]

    async def unfinished_runs(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `HistoryStore.unfinished_runs`."""
        return [
            UnfinishedRun(run_id=id_, conversation_id=run.conversation_id, owner=run.owner, saved=run.saved)
            for id_, run in self._runs.items()
            if run.ended_at is None and not self._missing(run)
        ][: max(limit, 0)]

    async def remove_events(self, before: datetime) -> int:
        """Implement `HistoryStore.remove_events`."""
        over = [id_ for id_, run in self._runs.items() if run.ended_at is not None and run.ended_at < before]
        for id_ in over:
            del self._runs[id_]
        return len(over)

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        return self._find_owned(conversation_id, owner).record

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        entries = self._find_owned(record.id, record.owner).entries
        if record.head_id is not None and record.head_id not in entries:
            raise NotFound(NO_ENTRY)
        newest_first = islice(_walk(entries, record.head_id), None if limit is None else max(limit, 0))
        return load_entries(reversed([*newest_first]))

    async def list(self, owner: str, *, limit: int = 50) -> list[Record]:
        """Implement `HistoryStore.list`."""
        newest_first = (kept.record for kept in reversed(self._conversations.values()))
        owned = [record for record in newest_first if record.owner == owner and not self._is_expired(record)]
        return owned[: max(limit, 0)]

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        self._find_owned(conversation_id, owner)
        self._delete(conversation_id)

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `HistoryStore.expiring`."""
        found = [
            (kept.record.expires_at, kept.record)
            for kept in self._conversations.values()
            if kept.record.expires_at is not None and kept.record.expires_at <= by
            if kept.record.owner.startswith(owners) and kept.record.id not in skip
        ]
        return [record for _, record in sorted(found, key=lambda pair: pair[0])[: max(limit, 0)]]

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `HistoryStore.add_expiry`."""
        added = 0
        for kept in self._conversations.values():
            if kept.record.expires_at is None and kept.record.owner.startswith(owners):
                kept.record = replace(kept.record, expires_at=until(kept.record))
                added += kept.record.expires_at is not None
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `HistoryStore.size`."""
        return sum(kept.size for kept in self._conversations.values() if kept.record.owner.startswith(owners))

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `HistoryStore.sizes`."""
        sizes, ends = dict[str, int](), dict[str, datetime]()
        for kept in self._conversations.values():
            owner, end = kept.record.owner, kept.record.expires_at or datetime.max.replace(tzinfo=UTC)
            if owner.startswith(owners):
                sizes[owner] = sizes.get(owner, 0) + kept.size
                ends[owner] = max(ends.get(owner, end), end)
        return {owner: sizes[owner] for owner in sorted(sizes, key=lambda owner: ends[owner])}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `HistoryStore.texts`."""
        for text in [
            text
            for kept in self._conversations.values()
            if kept.record.owner == owner
            for _, text in kept.entries.values()
        ]:
            yield text

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        kept = self._conversations.get(record.id)
        mine = kept is not None and kept.record.owner == record.owner
        return load_entries(text for _, text in kept.entries.values()) if kept and mine else []

    async def erase(self, record: Record) -> bool:
        """Implement `HistoryStore.erase`."""
        kept = self._conversations.get(record.id)
        if kept is None or (kept.record.owner, kept.record.revision) != (record.owner, record.revision):
            return False
        self._delete(record.id)
        return True

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""

    def _append(self, events: RunEvents) -> _StoredRun:
        """Add the events to those of their run. Raises `Conflict`."""
        run = self._runs.get(events.run_id) or _StoredRun(events.conversation_id, events.owner)
        same = (run.conversation_id, run.owner) == (events.conversation_id, events.owner)
        if not same or run.ended_at is not None or events.first != len(run.events) + 1:
            raise Conflict(RUN_CONFLICT)
        self._runs[events.run_id] = run
        run.events.extend(events.events)
        if events.has_ended:
            run.ended_at = self._clock()
        return run

    def _missing(self, run: _StoredRun) -> bool:
        """Return True if the conversation of the run has expired."""
        kept = self._conversations.get(run.conversation_id)
        return kept is None or self._is_expired(kept.record)

    def _delete(self, conversation_id: str) -> None:
        del self._conversations[conversation_id]
        for id_ in [id_ for id_, run in self._runs.items() if run.conversation_id == conversation_id]:
            del self._runs[id_]

    def _find_owned(self, conversation_id: str, owner: str) -> _Conversation:
        kept = self._conversations.get(conversation_id)
        if kept is None or kept.record.owner != owner or self._is_expired(kept.record):
            raise NotFound(NO_CONVERSATION)
        return kept

    def _is_expired(self, record: Record) -> bool:
        return record.expires_at is not None and record.expires_at.timestamp() <= self._clock().timestamp()

    def _to_replace(self, record: Record) -> _Conversation | None:
        """Return the conversation that `record` replaces, None for a new one. Raises `NotFound` and `Conflict`."""
        if record.revision == 0 and record.id not in self._conversations:
            return None
        kept = self._find_owned(record.id, record.owner)
        if kept.record.revision != record.revision:
            raise Conflict(CHANGED_ELSEWHERE)
        return kept


def _link(
    stored: dict[str, tuple[str | None, str]], record: Record, entries: Sequence[Entry], texts: Sequence[str]
) -> dict[str, tuple[str | None, str]]:
    """Return the stored entries and the new ones. Raises `HistoryError` if an id or a link is wrong."""
    linked = dict(stored)
    for entry, text in zip(entries, texts, strict=True):
        if entry.id in linked:
            raise HistoryError(f"Entry {entry.id!r} is stored already, and entries are never overwritten.")
        if entry.parent_id is not None and entry.parent_id not in linked:
            raise HistoryError(f"Entry {entry.id!r} follows {entry.parent_id!r}, which is not in its conversation.")
        linked[entry.id] = entry.parent_id, text
    if record.head_id is not None and record.head_id not in linked:
        raise HistoryError(f"The newest entry {record.head_id!r} is not in the conversation.")
    return linked


def _walk(entries: dict[str, tuple[str | None, str]], head_id: str | None) -> Iterator[str]:
    """Yield the JSON texts of a chain, newest first."""
    while head_id is not None:
        head_id, text = entries[head_id]
        yield text
