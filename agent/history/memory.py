"""Conversations in this process's memory. They are gone when it ends. For one event loop only."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, islice

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import dump_record, dumped, in_steps, load_entries, next_revision, reload_record
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, too_many
from agent.history.records import (
    CHANGED_ELSEWHERE,
    NO_CONVERSATION,
    NO_ENTRY,
    Entry,
    Record,
    following_of,
    now,
    versions_of,
)
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun
from agent.history.search import SearchHit, fold, hit_in, words_of
from agent.system.threads import DECODING


@dataclass(frozen=True, slots=True)
class MemoryLinks:
    """The `LinkStore` of a store in memory. `_find` raises `NotFound` if an owner does not have a conversation."""

    _links: dict[str, Link]
    _find: Callable[[str, str], object]
    _clock: Callable[[], datetime]

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        self._find(link.conversation_id, link.owner)
        dump_link(link)
        if link.digest in self._links:
            raise Conflict(USED_DIGEST)
        for expired in [one for one in self._of(link.conversation_id) if not one.is_live(self._clock())]:
            del self._links[expired.digest]
        if most is not None and len(self._of(link.conversation_id)) >= most:
            raise too_many(most)
        self._links[link.digest] = link

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        link = self._links.get(digest)
        if link is None or not link.is_live(self._clock()):
            raise NotFound(NO_LINK)
        try:
            self._find(link.conversation_id, link.owner)
        except NotFound as error:
            raise NotFound(NO_LINK) from error
        return link

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        self._find(conversation_id, owner)
        return live_links(self._of(conversation_id), self._clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        if (await self.get(digest)).owner != owner:
            raise NotFound(NO_LINK)
        del self._links[digest]

    def _of(self, conversation_id: str) -> list[Link]:
        return [link for link in self._links.values() if link.conversation_id == conversation_id]


_Entries = dict[str, tuple[str | None, str, str]]
"""For each entry id the parent's id, the JSON text, and the text that is searched. No such value ever changes."""


@dataclass(slots=True)
class _Conversation:
    """A stored record and its entries."""

    record: Record
    entries: _Entries = field(default_factory=dict[str, tuple[str | None, str, str]])

    @property
    def size(self) -> int:
        """The number of bytes of its text."""
        return len(dump_record(self.record).encode()) + sum(len(text.encode()) for _, text, _ in self.entries.values())


@dataclass(slots=True)
class _StoredRun:
    """The events of a run. `saved` is the number of the last event that the conversation's entries contain."""

    conversation_id: str
    owner: str
    events: list[RunEvent] = field(default_factory=list[RunEvent])
    saved: int = 0
    ended_at: datetime | None = None


class _Data:
    """The conversations and runs. The order of the conversations is the order of their last saves."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.conversations: dict[str, _Conversation] = {}
        self.runs: dict[str, _StoredRun] = {}
        self.links: dict[str, Link] = {}

    def find_owned(self, conversation_id: str, owner: str) -> _Conversation:
        kept = self.conversations.get(conversation_id)
        if kept is None or kept.record.owner != owner or self.is_expired(kept.record):
            raise NotFound(NO_CONVERSATION)
        return kept

    def is_expired(self, record: Record) -> bool:
        return record.expires_at is not None and record.expires_at.timestamp() <= self.clock().timestamp()

    def listed(self, owner: str) -> Iterator[_Conversation]:
        """Yield the owner's conversations that have not expired, in the order of the list."""
        for kept in reversed(self.conversations.values()):
            if kept.record.owner == owner and not self.is_expired(kept.record):
                yield kept

    def sort(self) -> None:
        """Give a conversation with old messages its place."""
        self.conversations = dict(sorted(self.conversations.items(), key=lambda pair: pair[1].record.updated_at))

    def same(self, record: Record) -> _Conversation | None:
        """Return the stored conversation if it was not saved since `record` was loaded, expired or not."""
        kept = self.conversations.get(record.id)
        unchanged = kept is not None and kept.record.owner == record.owner and kept.record.revision == record.revision
        return kept if unchanged else None

    def delete(self, conversation_id: str) -> None:
        del self.conversations[conversation_id]
        for id_ in [id_ for id_, run in self.runs.items() if run.conversation_id == conversation_id]:
            del self.runs[id_]
        for digest in [digest for digest, link in self.links.items() if link.conversation_id == conversation_id]:
            del self.links[digest]

    def append(self, events: RunEvents) -> _StoredRun:
        """Add the events to those of their run. Raises `Conflict`."""
        run = self.runs.get(events.run_id) or _StoredRun(events.conversation_id, events.owner)
        same = (run.conversation_id, run.owner) == (events.conversation_id, events.owner)
        if not same or run.ended_at is not None or events.first != len(run.events) + 1:
            raise Conflict(RUN_CONFLICT)
        self.runs[events.run_id] = run
        run.events.extend(events.events)
        if events.has_ended:
            run.ended_at = self.clock()
        return run


class MemoryStore:
    """A `HistoryStore` in memory. It owns its conversations; values go in and out as copies.

    It needs no lock: no method awaits between its looks at the data. It keeps messages as JSON
    because they are mutable objects, and so that this store answers exactly like the others.
    """

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._data = data = _Data(clock)
        self.runs: RunStore = MemoryRuns(data)
        self.links: LinkStore = MemoryLinks(data.links, data.find_owned, clock)
        self.retention: RetentionStore = MemoryRetention(data)

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`."""
        texts, searched = await dumped(entries)
        at = self._data.clock()
        saved, _ = next_revision(record, entries, at)
        before = self._to_replace(record)
        if before:
            saved = replace(saved, title=before.record.title or saved.title, pinned=before.record.pinned)
        linked = _link(before.entries if before else {}, saved, entries, zip(texts, searched, strict=True))
        if events is not None:
            self._data.append(events).saved = events.last
        if entries:  # inserted again instead of replaced: the dict has the order of the list
            self._data.conversations.pop(record.id, None)
        self._data.conversations[record.id] = _Conversation(saved, linked)
        if (entries or not before) and saved.updated_at < at:
            self._data.sort()
        return saved

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        return self._data.find_owned(conversation_id, owner).record

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        entries = self._data.find_owned(record.id, record.owner).entries
        if record.head_id is not None and record.head_id not in entries:
            raise NotFound(NO_ENTRY)
        newest_first = islice(_walk(entries, record.head_id), None if limit is None else max(limit, 0))
        return await in_steps(load_entries, [text for text, _ in newest_first][::-1])

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        return await in_steps(load_entries, [text for _, text, _ in self._stored(record).values()])

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        stored = self._stored(record).items()
        texts = [text for id_, (parent, text, _) in stored if id_ in ids or parent in after]
        return await in_steps(load_entries, texts)

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        links = ((id_, parent) for id_, (parent, _, _) in self._stored(record).items())
        return following_of(entry_id, links)

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`."""
        found = (kept.record for kept in self._data.listed(owner) if pinned in (None, kept.record.pinned))
        return [*islice(found, max(offset, 0), max(offset, 0) + max(limit, 0))]

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`."""
        words = words_of(query)
        kept = [(one.record, one.entries) for one in self._data.listed(owner)] if words else []
        return await DECODING.run(_search, kept, words, max(limit, 0))

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Record:
        """Implement `HistoryStore.label`."""
        kept = self._data.find_owned(conversation_id, owner)
        record = kept.record if pinned is None else replace(kept.record, pinned=pinned)
        if title is not None and instead_of in (None, record.title):
            record = replace(record, title=title)
        kept.record, _ = reload_record(record)
        return kept.record

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        await delete_vectors(self, conversation_id, owner)
        self._data.find_owned(conversation_id, owner)
        self._data.delete(conversation_id)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""

    def _stored(self, record: Record) -> Mapping[str, tuple[str | None, str, str]]:
        """Return what is stored of all entries, nothing if the record's owner does not own the conversation."""
        kept = self._data.conversations.get(record.id)
        return kept.entries if kept is not None and kept.record.owner == record.owner else {}

    def _to_replace(self, record: Record) -> _Conversation | None:
        """Return the conversation that `record` replaces, None for a new one. Raises `NotFound` and `Conflict`."""
        if record.revision == 0 and record.id not in self._data.conversations:
            return None
        kept = self._data.find_owned(record.id, record.owner)
        if kept.record.revision != record.revision:
            raise Conflict(CHANGED_ELSEWHERE)
        return kept


@dataclass(frozen=True, slots=True)
class MemoryRuns:
    """The `RunStore` of a store in memory."""

    _data: _Data

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        self._data.find_owned(events.conversation_id, events.owner)
        self._data.append(events)

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        run = self._data.runs.get(run_id)
        if run is None or run.owner != owner or self._is_missing(run):
            raise NotFound(NO_RUN)
        return run.events[max(after, 0) :]

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return [
            UnfinishedRun(run_id=id_, conversation_id=run.conversation_id, owner=run.owner, saved=run.saved)
            for id_, run in self._data.runs.items()
            if run.ended_at is None and not self._is_missing(run)
        ][: max(limit, 0)]

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`."""
        over = [id_ for id_, run in self._data.runs.items() if run.ended_at is not None and run.ended_at < before]
        for id_ in over:
            del self._data.runs[id_]
        return len(over)

    def _is_missing(self, run: _StoredRun) -> bool:
        """Return True if the conversation of the run has expired."""
        kept = self._data.conversations.get(run.conversation_id)
        return kept is None or self._data.is_expired(kept.record)


@dataclass(frozen=True, slots=True)
class MemoryRetention:
    """The `RetentionStore` of a store in memory."""

    _data: _Data

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        found = [
            (record.expires_at, record)
            for record in self._records(owners)
            if record.expires_at is not None and record.expires_at <= by and record.id not in skip
        ]
        return [record for _, record in sorted(found, key=lambda pair: pair[0])[: max(limit, 0)]]

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        kept = self._data.same(record)
        if kept is not None:
            kept.record = replace(kept.record, expires_at=expires_at)
        return kept is not None

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`."""
        added = 0
        for kept in self._data.conversations.values():
            if kept.record.expires_at is None and kept.record.owner.startswith(owners):
                kept.record = replace(kept.record, expires_at=until(kept.record))
                added += kept.record.expires_at is not None
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        return sum(kept.size for kept in self._data.conversations.values() if kept.record.owner.startswith(owners))

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""
        sizes, ends = dict[str, int](), dict[str, datetime]()
        for kept in self._data.conversations.values():
            owner, end = kept.record.owner, kept.record.expires_at or datetime.max.replace(tzinfo=UTC)
            if owner.startswith(owners):
                sizes[owner] = sizes.get(owner, 0) + kept.size
                ends[owner] = max(ends.get(owner, end), end)
        return {owner: sizes[owner] for owner in sorted(sizes, key=lambda owner: ends[owner])}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`."""
        for text in [
            text
            for kept in self._data.conversations.values()
            if kept.record.owner == owner
            for _, text, _ in kept.entries.values()
        ]:
            yield text

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""
        kept = self._data.same(record)
        if kept is None or kept.record.expires_at != record.expires_at:
            return False
        self._data.delete(record.id)
        return True

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        mine = [record for record in self._records(owner) if record.owner == owner]
        if not mine or versions_of(mine) != versions_of(records) or any(map(self._is_answered, mine)):
            return False
        for record in mine:
            self._data.delete(record.id)
        return True

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. Nothing is left."""

    def _is_answered(self, record: Record) -> bool:
        runs = (run for run in self._data.runs.values() if run.conversation_id == record.id)
        return not self._data.is_expired(record) and any(run.ended_at is None for run in runs)

    def _records(self, owners: str) -> Iterator[Record]:
        return (one.record for one in self._data.conversations.values() if one.record.owner.startswith(owners))


def _link(stored: _Entries, record: Record, entries: Sequence[Entry], texts: Iterable[tuple[str, str]]) -> _Entries:
    """Return the stored entries and the new ones. Raises `HistoryError` if an id or a link is wrong."""
    linked = dict(stored)
    for entry, stored_texts in zip(entries, texts, strict=True):
        if entry.id in linked:
            raise HistoryError(f"Entry {entry.id!r} is stored already, and entries are never overwritten.")
        if entry.parent_id is not None and entry.parent_id not in linked:
            raise HistoryError(f"Entry {entry.id!r} follows {entry.parent_id!r}, which is not in its conversation.")
        linked[entry.id] = entry.parent_id, *stored_texts
    if record.head_id is not None and record.head_id not in linked:
        raise HistoryError(f"The newest entry {record.head_id!r} is not in the conversation.")
    return linked


def _walk(entries: _Entries, head_id: str | None) -> Iterator[tuple[str, str]]:
    """Yield the JSON texts of a chain with the texts that are searched, newest first."""
    while head_id is not None:
        head_id, text, searched = entries[head_id]
        yield text, searched


def _search(kept: Sequence[tuple[Record, _Entries]], words: Sequence[str], limit: int) -> list[SearchHit]:
    hits = (_hit(record, entries, words) for record, entries in kept)
    return [*islice((hit for hit in hits if hit), limit)]


def _hit(record: Record, entries: _Entries, words: Sequence[str]) -> SearchHit | None:
    """Return the newest message with all words, on the branch that is shown if possible, or the title, or None."""
    shown = _walk(entries, record.head_id) if record.branches else ()
    newest = ((text, searched) for _, text, searched in reversed(entries.values()))
    for text, searched in chain(shown, newest):
        if all(word in searched for word in words):
            return hit_in(record, load_entries([text])[0], words)
    title = fold(record.title)
    return hit_in(record, None, words) if all(word in title for word in words) else None
