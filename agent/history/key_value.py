"""One history store over keys and values. The memory and the JSON files are two of its back-ends, see `Storage`.

A conversation is one `Item`, which is replaced as a whole, with logs that only grow: its entries, and the events of
each of its runs. Links and runs are parts of their conversation's item, so that each change is a change of one item.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import Protocol, TypeVar

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import (
    dump_record,
    dumped,
    in_steps,
    load_entries,
    next_revision,
    place_at,
    reload_record,
)
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, too_many
from agent.history.records import (
    CHANGED_ELSEWHERE,
    NO_CONVERSATION,
    NO_ENTRY,
    Entry,
    Record,
    following_of,
    new_id,
    versions_of,
)
from agent.history.run_events import (
    LEASE_SECONDS,
    NO_RUN,
    RENEWED_SECONDS,
    RUN_CONFLICT,
    WATCHED_SECONDS,
    RunEvent,
    RunEvents,
    UnfinishedRun,
)
from agent.history.search import SearchHit, fold, hit_in, words_of

BATCH = 200
"""Records that `add_expiry` writes at once."""
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run: the numbers of its last event and of the last one that the entries contain.

    `length` is that of the log with its events, in the units of the storage, which sets it. For the rest, see
    `UnfinishedRun`.
    """

    last: int = 0
    saved: int = 0
    length: int = 0
    ended_at: float | None = None
    leased_until: float = 0.0
    is_stopped: bool = False
    watched_until: float = 0.0

    def is_leased(self, at: datetime) -> bool:
        """Return True if the lease has not expired then. One from the far future is from before a clock was set."""
        return 0 <= self.leased_until - at.timestamp() <= LEASE_SECONDS + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A stored conversation: its record, None if that is damaged, and what must be known without it.

    `place` orders an owner's conversations by their newest messages: it has the microseconds since 1970, and more where
    the clock stands still or steps back. `length` is that of the log with the entries, in the units of the storage,
    which sets it. `entries_size` and `record_size` are the bytes of their texts. `born` is new for each conversation,
    also for a second one with the same id.
    """

    id: str
    owner: str
    revision: int
    head_id: str | None
    place: int
    pinned: bool
    expires_at: float | None
    entries_size: int
    length: int
    record_size: int = 0
    runs: Mapping[str, RunState] = field(default_factory=dict[str, RunState])
    links: Mapping[str, Link] = field(default_factory=dict[str, Link])
    born: str = ""
    record: Record | None = None

    @property
    def size(self) -> int:
        """The number of bytes of its text."""
        return self.entries_size + self.record_size

    def is_live(self, at: datetime) -> bool:
        """Return True if the conversation has not expired then."""
        return self.expires_at is None or self.expires_at > at.timestamp()


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored. `searched` is its text as `agent.history.search.fold` makes it."""

    id: str
    parent_id: str | None
    searched: str
    json: str


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of an entry in the log, in the units of the storage."""

    parent_id: str | None
    start: int
    end: int


class View(Protocol):
    """The items as one piece of work sees and changes them. No method awaits."""

    clock: Callable[[], datetime]

    def get(self, owner: str, id_: str) -> Item | None:
        """Return this owner's conversation, expired or not. Raises `HistoryError` if it is damaged."""
        ...

    def is_taken(self, id_: str) -> bool:
        """Return True if any owner has a conversation with this id."""
        ...

    def with_run(self, run_id: str) -> Item | None:
        """Return the conversation that has this run."""
        ...

    def with_link(self, digest: str) -> Item | None:
        """Return the conversation that has this link."""
        ...

    def of(self, owner: str) -> Sequence[Item]:
        """Return an owner's conversations, the highest place first. Damaged ones are logged and left out."""
        ...

    def all(self, owners: str) -> Iterator[Item]:
        """Yield the conversations of the owners that begin so, in no particular order."""
        ...

    def runs(self) -> Iterator[tuple[str, Item]]:
        """Yield the id of each run and its conversation, the oldest first."""
        ...

    def places(self, item: Item) -> Mapping[str, EntryPlace]:
        """Return the places of the entries by their ids, in the order of their storage. The mapping can grow later."""
        ...

    def texts(self, item: Item, places: Sequence[EntryPlace]) -> list[str]:
        """Return the entries at these places, as JSON objects."""
        ...

    def entries(self, item: Item) -> Sequence[StoredEntry]:
        """Return all entries in the order of their storage."""
        ...

    def events(self, item: Item, run_id: str, after: int) -> list[str]:
        """Return the events of a run without the first `after` ones, as JSON objects."""
        ...

    def put(self, item: Item, entries: Sequence[StoredEntry] = (), events: RunEvents | None = None) -> None:
        """Replace a conversation and add to its logs, all or nothing, also if the process is killed meanwhile.

        The logs of runs that the item does not have any more are removed. Call it in `write`.
        """
        ...

    def remove(self, items: Sequence[Item]) -> None:
        """Remove conversations with their logs. Call it in `write`."""
        ...

    def damaged(self, item: Item) -> HistoryError:
        """Return the error that this conversation cannot be read, and log where it is."""
        ...


class Storage(Protocol):
    """A back-end: it keeps items and logs, and knows nothing of what they mean."""

    clock: Callable[[], datetime]

    async def read(self, work: Callable[[View], T], *, is_long: bool = False) -> T:
        """Return the result of `work`, which changes nothing. If it `is_long`, others have their turn meanwhile."""
        ...

    async def write(self, work: Callable[[View], T]) -> T:
        """Return the result of `work` as if no other process had changed anything meanwhile.

        It ends even if the caller is cancelled.
        """
        ...

    async def aclose(self) -> None:
        """Finish the writes in progress and release what is open. A second call does nothing."""
        ...


class KeyValueStore:
    """A `HistoryStore` over a storage. A cancelled save has stored everything or nothing."""

    is_shared = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.runs: RunStore = KeyValueRuns(storage)
        self.links: LinkStore = KeyValueLinks(storage)
        self.retention: RetentionStore = KeyValueRetention(storage)

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`. `events` must be of a run of this conversation."""
        texts, searched = await dumped(entries)
        at = self._storage.clock()
        saved, text = next_revision(record, entries, at)
        added = [
            StoredEntry(entry.id, entry.parent_id, found, text)
            for entry, text, found in zip(entries, texts, searched, strict=True)
        ]
        return await self._storage.write(partial(_save, saved, text, added, events, at))

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        return await self._storage.read(partial(_get, owner, conversation_id))

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        return await _load(self._storage, partial(_history, record, limit))

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        return await _load(self._storage, partial(_find, record, None, frozenset()))

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        return await _load(self._storage, partial(_find, record, {*ids}, {*after}))

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        return await self._storage.read(partial(_following, record, entry_id))

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`. Leaves out damaged records."""
        first = max(offset, 0)
        return await self._storage.read(partial(_list, owner, pinned, first, first + max(limit, 0)))

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`. Reads all text of the owner, and leaves out damaged conversations."""
        words = words_of(query)
        work = partial(_search, owner, words, max(limit, 0))
        return await self._storage.read(work, is_long=True) if words else []

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

        def change(record: Record) -> Record:
            if title is not None and instead_of in (None, record.title):
                record = replace(record, title=title)
            return record if pinned is None else replace(record, pinned=pinned)

        return await self._storage.write(partial(_label, conversation_id, owner, change))

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        await delete_vectors(self, conversation_id, owner)
        await self._storage.write(lambda view: view.remove([_find_live(view, owner, conversation_id)]))

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Saves in progress are finished first."""
        await self._storage.aclose()


async def _load(storage: Storage, find: Callable[[View], tuple[Item | None, list[str]]]) -> list[Entry]:
    """Return the entries whose texts `find` returns, with their conversation."""
    item, texts = await storage.read(find)
    try:
        return await in_steps(load_entries, texts)
    except HistoryError as error:
        raise (await storage.read(lambda view: view.damaged(item)) if item else error) from error


@dataclass(frozen=True, slots=True)
class KeyValueRuns:
    """The `RunStore` of the store."""

    _storage: Storage

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""

        def work(view: View) -> None:
            item = _find_live(view, events.owner, events.conversation_id)
            runs = _runs_with(view, (item.owner, item.id), item.runs, events, saved=False)
            view.put(replace(item, runs=runs), events=events)

        await self._storage.write(work)

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""

        def work(view: View) -> list[RunEvent]:
            item, first = view.with_run(run_id), max(after, 0)
            if item is None or item.owner != owner or not item.is_live(view.clock()):
                raise NotFound(NO_RUN)
            return [RunEvent(number, line) for number, line in enumerate(view.events(item, run_id, first), first + 1)]

        return await self._storage.read(work)

    async def unfinished(
        self, *, owner: str | None = None, conversation_id: str | None = None, limit: int = 1000
    ) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""

        def work(view: View) -> list[UnfinishedRun]:
            item = view.get(owner, conversation_id) if owner is not None and conversation_id is not None else None
            runs = ((id_, item) for id_ in item.runs) if item else view.runs() if conversation_id is None else ()
            found = (_unfinished(view, id_, item) for id_, item in runs if owner in (None, item.owner))
            return [*islice((run for run in found if run), max(limit, 0))]

        return await self._storage.read(work)

    async def hold(self, run_ids: Collection[str], *, release: bool = False) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.hold`. Leases that were renewed a moment ago need no write."""

        def work(view: View) -> list[UnfinishedRun]:
            items = ((id_, item) for id_ in run_ids if (item := view.with_run(id_)))
            runs = [run for id_, item in items if (run := _unfinished(view, id_, item))]
            return [run for run in runs if run.leased_until > 0]

        def renew(runs: Collection[UnfinishedRun], view: View) -> None:
            until = 0.0 if release else view.clock().timestamp() + LEASE_SECONDS
            for run in runs:
                _change_run(view, run.run_id, run.owner, lambda state: replace(state, leased_until=until))

        held = await self._storage.read(work)
        soon = self._storage.clock().timestamp() + RENEWED_SECONDS
        if due := [run for run in held if release or run.is_lost or run.leased_until < soon]:
            await self._storage.write(partial(renew, due))
        return held

    async def look(self, run_id: str, *, owner: str, stop: bool = False) -> UnfinishedRun | None:
        """Implement `RunStore.look`."""

        def change(state: RunState) -> RunState:
            until = self._storage.clock().timestamp() + WATCHED_SECONDS
            return replace(state, watched_until=until, is_stopped=state.is_stopped or stop)

        def work(view: View) -> UnfinishedRun | None:
            item = _change_run(view, run_id, owner, change)
            return _unfinished(view, run_id, item) if item else None

        return await self._storage.write(work)

    async def would_lose(self, record: Record) -> bool:
        """Implement `RunStore.would_lose`."""

        def work(view: View) -> bool:
            item = view.get(record.owner, record.id)
            return item is not None and _is_answered(item, view.clock())

        return await self._storage.read(work)

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`, one conversation at a time, so that other writers get their turn."""

        def has_ended(run: RunState) -> bool:
            return run.ended_at is not None and run.ended_at < before.timestamp()

        def to_clean(view: View) -> list[tuple[str, str]]:
            found = ((item.owner, item.id) for id_, item in view.runs() if has_ended(item.runs[id_]))
            return [*dict.fromkeys(found)]

        def clean(owner: str, id_: str, view: View) -> int:
            item = view.get(owner, id_)
            kept = {id_: run for id_, run in item.runs.items() if not has_ended(run)} if item else {}
            if item is not None and len(kept) < len(item.runs):
                view.put(replace(item, runs=kept))
            return len(item.runs) - len(kept) if item else 0

        old = await self._storage.read(to_clean)
        return sum([await self._storage.write(partial(clean, *one)) for one in old])


@dataclass(frozen=True, slots=True)
class KeyValueLinks:
    """The `LinkStore` of the store."""

    _storage: Storage

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""

        def work(view: View) -> None:
            item = _find_live(view, link.owner, link.conversation_id)
            dump_link(link)
            if view.with_link(link.digest) is not None:
                raise Conflict(USED_DIGEST)
            live = {one.digest: one for one in live_links(item.links.values(), view.clock())}
            if most is not None and len(live) >= most:
                raise too_many(most)
            view.put(replace(item, links={**live, link.digest: link}))

        await self._storage.write(work)

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        return await self._storage.read(lambda view: _with_link(view, digest).links[digest])

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        item = await self._storage.read(lambda view: _find_live(view, owner, conversation_id))
        return live_links(item.links.values(), self._storage.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""

        def work(view: View) -> None:
            item = _with_link(view, digest)
            if item.owner != owner:
                raise NotFound(NO_LINK)
            view.put(replace(item, links={key: link for key, link in item.links.items() if key != digest}))

        await self._storage.write(work)


@dataclass(frozen=True, slots=True)
class KeyValueRetention:
    """The `RetentionStore` of the store."""

    _storage: Storage

    async def time(self) -> datetime:
        """Implement `RetentionStore.time`."""
        return self._storage.clock()

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""

        def work(view: View) -> list[Record]:
            found = [
                (item.expires_at, item)
                for item in view.all(owners)
                if item.expires_at is not None and item.expires_at <= by.timestamp() and item.id not in skip
            ]
            return [_known_of(item) for _, item in sorted(found, key=lambda pair: pair[0])[: max(limit, 0)]]

        return await self._storage.read(work)

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        return bool(await self._storage.write(partial(_set_expiry, [(record, expires_at)], only_missing=False)))

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in batches, so that other writers get their turn."""

        def work(view: View) -> list[tuple[Record, datetime | None]]:
            records = (item.record for item in view.all(owners) if item.expires_at is None and item.record)
            return [(record, end) for record in records if (end := until(record)) is not None]

        ending = await self._storage.read(work)
        batches = (ending[start : start + BATCH] for start in range(0, len(ending), BATCH))
        return sum([await self._storage.write(partial(_set_expiry, one, only_missing=True)) for one in batches])

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        return await self._storage.read(lambda view: sum(item.size for item in view.all(owners)))

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""

        def work(view: View) -> Mapping[str, int]:
            sizes, ends = dict[str, int](), dict[str, float]()
            for item in view.all(owners):
                end = float("inf") if item.expires_at is None else item.expires_at
                sizes[item.owner] = sizes.get(item.owner, 0) + item.size
                ends[item.owner] = max(ends.get(item.owner, end), end)
            return {owner: sizes[owner] for owner in sorted(sizes, key=lambda owner: ends[owner])}

        return await self._storage.read(work)

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads one conversation at a time."""

        def work(id_: str, view: View) -> list[str]:
            item = view.get(owner, id_)
            try:
                return [one.json for one in view.entries(item)] if item else []
            except NotFound:
                return []  # deleted meanwhile

        for id_ in await self._storage.read(lambda view: [item.id for item in view.of(owner)]):
            for text in await self._storage.read(partial(work, id_)):
                yield text

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""

        def work(view: View) -> bool:
            item = _same(view, record)
            if item is None or item.expires_at != _seconds(record.expires_at):
                return False
            view.remove([item])
            return True

        return await self._storage.write(work)

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`. A process that is killed meanwhile can leave some of them whole."""

        def work(view: View) -> bool:
            items, at = view.of(owner), view.clock()
            found = {(item.owner, item.id, item.revision, item.expires_at) for item in items}
            if not items or found != versions_of(records) or any(_is_answered(item, at) for item in items):
                return False
            view.remove(items)
            return True

        return await self._storage.write(work)

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. What is removed from memory or from files leaves nothing behind."""


def _find_live(view: View, owner: str, id_: str) -> Item:
    """Return a conversation that has not expired. Raises `NotFound`."""
    item = view.get(owner, id_)
    if item is None or not item.is_live(view.clock()):
        raise NotFound(NO_CONVERSATION)
    return item


def _record_of(view: View, item: Item) -> Record:
    """Return the record of a conversation. Raises `HistoryError` if it is damaged."""
    if item.record is None:
        raise view.damaged(item)
    return item.record


def _get(owner: str, id_: str, view: View) -> Record:
    return _record_of(view, _find_live(view, owner, id_))


def _save(
    record: Record, text: str, added: Sequence[StoredEntry], events: RunEvents | None, at: datetime, view: View
) -> Record:
    """Store `record`, which has its new revision already, at this time. Return it with its stored label."""
    old = _to_replace(view, record)
    if old:
        stored = _record_of(view, old)
        label = {"title": stored.title or record.title, "pinned": stored.pinned}
        if label != {"title": record.title, "pinned": record.pinned}:
            record = replace(record, title=stored.title or record.title, pinned=stored.pinned)
            text = dump_record(record)
    _check_links(view, old, added, record)
    if added or old is None:
        place = place_at(record.updated_at) if record.updated_at < at else _next_place(view, record.owner, at)
    else:
        place = old.place
    runs: Mapping[str, RunState] = old.runs if old else {}
    if events is not None:
        runs = _runs_with(view, (record.owner, record.id), runs, events, saved=True)
    item = Item(
        id=record.id,
        owner=record.owner,
        revision=record.revision,
        head_id=record.head_id,
        place=place,
        pinned=record.pinned,
        expires_at=_seconds(record.expires_at),
        entries_size=(old.entries_size if old else 0) + sum(len(one.json.encode()) for one in added),
        length=old.length if old else 0,
        record_size=len(text.encode()),
        runs=runs,
        links=old.links if old else {},
        born=old.born if old else new_id(),
        record=record,
    )
    view.put(item, added, events)
    return record


def _to_replace(view: View, record: Record) -> Item | None:
    """Return what `record` replaces, None if it is new. Raises `NotFound` and `Conflict`."""
    if record.revision == 1 and view.get(record.owner, record.id) is None:
        if view.is_taken(record.id):
            raise NotFound(NO_CONVERSATION)
        return None
    item = _find_live(view, record.owner, record.id)
    if item.revision != record.revision - 1:
        raise Conflict(CHANGED_ELSEWHERE)
    return item


def _next_place(view: View, owner: str, at: datetime) -> int:
    """Return the place for a conversation that this owner saves now, and that is to be the first."""
    return max([place_at(at), *(item.place + 1 for item in view.of(owner)[:1])])


def _check_links(view: View, item: Item | None, added: Sequence[StoredEntry], record: Record) -> None:
    """Raise `HistoryError` if an id or a link is wrong. Reads the stored entries only if it must."""
    if not added and record.head_id in (None, item.head_id if item else None):
        return
    stored: Mapping[str, EntryPlace] = view.places(item) if item else {}
    new = set[str]()
    for one in added:
        if one.id in stored or one.id in new:
            raise HistoryError(f"Entry {one.id!r} is stored already, and entries are never overwritten.")
        if one.parent_id is not None and one.parent_id not in stored and one.parent_id not in new:
            raise HistoryError(f"Entry {one.id!r} follows {one.parent_id!r}, which is not in its conversation.")
        new.add(one.id)
    if record.head_id is not None and record.head_id not in stored and record.head_id not in new:
        raise HistoryError(f"The newest entry {record.head_id!r} is not in the conversation.")


def _runs_with(
    view: View, place: tuple[str, str], runs: Mapping[str, RunState], events: RunEvents, *, saved: bool
) -> Mapping[str, RunState]:
    """Return the runs of this owner's conversation with new events. With `saved`, the entries contain what they say.

    Raises `Conflict`.
    """
    run = runs.get(events.run_id)
    if run is None and view.with_run(events.run_id) is not None:
        raise Conflict(RUN_CONFLICT)
    clock, run = view.clock(), run or RunState(leased_until=math.inf)
    may_write = not run.is_leased(clock) if events.of_lost else run.leased_until > 0
    if place != (events.owner, events.conversation_id) or run.ended_at is not None or events.first != run.last + 1:
        raise Conflict(RUN_CONFLICT)
    if not may_write:
        raise Conflict(RUN_CONFLICT)
    at = clock.timestamp()
    new = replace(
        run,
        last=events.last,
        saved=events.last if saved else run.saved,
        ended_at=at if events.has_ended else None,
        leased_until=at + LEASE_SECONDS,
    )
    return {**runs, events.run_id: new}


def _with_link(view: View, digest: str) -> Item:
    """Return the conversation to which a live link leads. Raises `NotFound`."""
    item, at = view.with_link(digest), view.clock()
    if item is None or not item.is_live(at) or not item.links[digest].is_live(at):
        raise NotFound(NO_LINK)
    return item


def _history(record: Record, limit: int | None, view: View) -> tuple[Item, list[str]]:
    item = _find_live(view, record.owner, record.id)
    if record.head_id is None or (limit is not None and limit <= 0):
        return item, []
    places = view.places(item)
    if record.head_id not in places:
        raise NotFound(NO_ENTRY)
    newest_first = islice(_walk(places, record.head_id), limit)
    return item, view.texts(item, [*newest_first][::-1])


def _find(record: Record, ids: Set[str] | None, after: Set[str | None], view: View) -> tuple[Item | None, list[str]]:
    """Return the conversation and the texts of the entries that are sought, or of all if `ids` is None."""
    item = view.get(record.owner, record.id)
    if item is None:
        return None, []
    places = view.places(item)
    if ids is not None and not after and len(ids) <= 1:
        sought = [places[id_] for id_ in ids if id_ in places]
    else:
        sought = [one for id_, one in [*places.items()] if ids is None or id_ in ids or one.parent_id in after]
    return item, view.texts(item, sought)


def _following(record: Record, entry_id: str, view: View) -> list[str]:
    item = view.get(record.owner, record.id)
    places = [*view.places(item).items()] if item else []
    return following_of(entry_id, ((id_, place.parent_id) for id_, place in places))


def _list(owner: str, pinned: bool | None, first: int, end: int, view: View) -> list[Record]:
    at = view.clock()
    found = (item for item in view.of(owner) if item.is_live(at) and pinned in (None, item.pinned))
    return [item.record for item in islice((item for item in found if item.record), first, end) if item.record]


def _search(owner: str, words: Sequence[str], limit: int, view: View) -> list[SearchHit]:
    at = view.clock()
    found = (_hit(item, words, view) for item in view.of(owner) if item.is_live(at))
    return [*islice((hit for hit in found if hit), limit)]


def _hit(item: Item, words: Sequence[str], view: View) -> SearchHit | None:
    """Return the newest message with all words, on the branch that is shown if possible, or the title, or None."""
    record = item.record
    if record is None:
        return None
    try:
        entries = view.entries(item)
        shown: Iterable[StoredEntry] = ()
        if record.branches:
            by_id = {one.id: one for one in entries}
            shown = _walk(by_id, record.head_id)
        for one in chain(shown, reversed(entries)):
            if all(word in one.searched for word in words):
                return hit_in(record, load_entries([one.json])[0], words)
    except NotFound:
        return None  # deleted meanwhile
    except HistoryError as error:
        log.warning("a conversation is not searched: %s", error)
        return None
    title = fold(record.title)
    return hit_in(record, None, words) if all(word in title for word in words) else None


def _label(id_: str, owner: str, change: Callable[[Record], Record], view: View) -> Record:
    item = _find_live(view, owner, id_)
    record, text = reload_record(change(_record_of(view, item)))
    view.put(replace(item, pinned=record.pinned, record=record, record_size=len(text.encode())))
    return record


def _known_of(item: Item) -> Record:
    """Return the record, or of a damaged one what the item has besides."""
    ends = datetime.fromtimestamp(item.expires_at, UTC) if item.expires_at is not None else None
    return item.record or Record(
        id=item.id, owner=item.owner, revision=item.revision, head_id=item.head_id, expires_at=ends
    )


def _same(view: View, record: Record) -> Item | None:
    """Return what is stored if the conversation was not saved since `record` was loaded."""
    item = view.get(record.owner, record.id)
    return item if item and item.revision == record.revision else None


def _set_expiry(ending: Sequence[tuple[Record, datetime | None]], view: View, *, only_missing: bool) -> int:
    """Set the expiry of each record that was not saved in the meantime; return their number."""
    stored = 0
    for record, expires_at in ending:
        item = _same(view, record)
        if item is None or item.record is None or (only_missing and item.expires_at is not None):
            continue
        changed = replace(item.record, expires_at=expires_at)
        size = len(dump_record(changed).encode())
        view.put(replace(item, expires_at=_seconds(expires_at), record=changed, record_size=size))
        stored += 1
    return stored


def _is_answered(item: Item, at: datetime) -> bool:
    runs = [run for run in item.runs.values() if run.ended_at is None]
    return any(item.is_live(at) or run.is_leased(at) for run in runs)


def _unfinished(view: View, run_id: str, item: Item) -> UnfinishedRun | None:
    """Return a run of this conversation, or None if it has ended or the conversation has expired."""
    run, at = item.runs[run_id], view.clock()
    if run.ended_at is not None or not item.is_live(at):
        return None
    return UnfinishedRun(
        run_id=run_id,
        conversation_id=item.id,
        owner=item.owner,
        saved=run.saved,
        leased_until=run.leased_until,
        is_lost=not run.is_leased(at),
        is_stopped=run.is_stopped,
        is_watched=run.watched_until > at.timestamp(),
    )


def _change_run(view: View, run_id: str, owner: str, change: Callable[[RunState], RunState]) -> Item | None:
    """Change what is known of a run. Return its conversation, or None if this owner has no such unfinished run."""
    item = view.with_run(run_id)
    if item is None or item.owner != owner or _unfinished(view, run_id, item) is None:
        return None
    view.put(item := replace(item, runs={**item.runs, run_id: change(item.runs[run_id])}))
    return item


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time else None


class _Linked(Protocol):
    @property
    def parent_id(self) -> str | None: ...


LinkedT = TypeVar("LinkedT", bound=_Linked)


def _walk(entries: Mapping[str, LinkedT], head_id: str | None) -> Iterator[LinkedT]:
    """Yield the entries of a chain, newest first."""
    while head_id is not None:
        yield entries[head_id]
        head_id = entries[head_id].parent_id
