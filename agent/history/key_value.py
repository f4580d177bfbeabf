"""One history store over keys and values. Memory, JSON files and a Redis server are its back-ends, see `Storage`.

A conversation is one `Item`, which is replaced as a whole, with logs that only grow: its entries, and the events of
each of its runs. Links and runs are parts of their conversation's item, so that each change is a change of one item.
"""

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import (
    dump_conversation,
    dumped,
    in_steps,
    load_entries,
    next_revision,
    place_at,
    reload_conversation,
)
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.search import ConversationHit, fold, groups, hit_in, words_of
from agent.history.values import (
    CHANGED_ELSEWHERE,
    ENTRY_BYTES,
    KEPT_FOLLOWS,
    LEASE_SECONDS,
    NO_CONVERSATION,
    NO_ENTRY,
    NO_LINK,
    NO_RUN,
    RENEWED_SECONDS,
    RUN_CONFLICT,
    USED_DIGEST,
    WATCHED_SECONDS,
    Conversation,
    Entry,
    Link,
    RunEvent,
    RunEvents,
    UnfinishedRun,
    dump_link,
    following_of,
    live_links,
    new_id,
    steady_of,
    too_many,
    versions_of,
)

BATCH = 200
"""Records that `add_expiry` writes at once."""
TEXT_BYTES = 1 << 20
"""Bytes of messages that `texts` reads at once."""
REMEMBERED = 128
"""Conversations whose places of entries are remembered, so that a message costs as much in a long one as in a new."""
ENDED_RUN_SECONDS = 24 * 3600
"""Seconds that the events of an ended run are kept if nobody removes them and its conversation goes on."""
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
    begun_at: float = 0.0
    ended_at: float | None = None
    leased_until: float = 0.0
    is_stopped: bool = False
    watched_until: float = 0.0

    def is_leased(self, at: datetime) -> bool:
        """Return True if the lease has not expired then. One from the far future is from before a clock was set."""
        return 0 <= self.leased_until - at.timestamp() <= LEASE_SECONDS + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A stored conversation: its value, None if that is damaged, and what must be known without it.

    `place` orders an owner's conversations by their newest messages: it has the microseconds since 1970, and more where
    the clock stands still or steps back. `length` is that of the log with the entries, in the units of the storage,
    which sets it. `entries_size` and `record_size` are the bytes of their texts, and `text` is that of the
    conversation. `born` is new for each log of entries: for each conversation, also for a second one with the same id,
    and after entries were erased. `cuts` counts how often that happened.
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
    cuts: int = 0
    conversation: Conversation | None = None
    text: str = ""

    @property
    def size(self) -> int:
        """The number of bytes of its text."""
        return self.entries_size + self.record_size

    def is_live(self, at: datetime) -> bool:
        """Return True if the conversation has not expired then."""
        return self.expires_at is None or self.expires_at > at.timestamp()

    def with_conversation(self, conversation: Conversation, text: str) -> "Item":
        """Return the item with this conversation, whose JSON is `text`."""
        return replace(
            self,
            revision=conversation.revision,
            head_id=conversation.head_id,
            pinned=conversation.pinned,
            expires_at=_seconds(conversation.expires_at),
            conversation=conversation,
            text=text,
            record_size=len(text.encode()),
        )


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored. `searched` is its text as `agent.history.search.fold` makes it."""

    id: str
    parent_id: str | None
    searched: str
    json: str


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of an entry in the log, in the units of the storage. `end - start` is the bytes of its text."""

    parent_id: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SearchedEntry:
    """The text of an entry as `agent.history.search.fold` makes it, and its place."""

    id: str
    parent_id: str | None
    text: str
    place: EntryPlace


@dataclass(slots=True)
class KnownLog:
    """The places of the entries in the first `length` units of a log."""

    length: int = 0
    places: dict[str, EntryPlace] = field(default_factory=dict[str, EntryPlace])


class KnownLogs:
    """The logs that a process has read. They only grow, so what is known of one never changes, whoever writes it."""

    def __init__(self) -> None:
        self._logs = OrderedDict[tuple[str, str, str], KnownLog]()

    def of(self, item: Item) -> KnownLog:
        """Return what is known of the log of this conversation."""
        key = item.owner, item.id, item.born
        log = self._logs[key] = self._logs.pop(key, None) or KnownLog()
        if len(self._logs) > REMEMBERED:
            self._logs.popitem(last=False)
        return log


class View(Protocol):
    """The items as one piece of work sees and changes them.

    Only a back-end on a server makes its callers wait: for the others, no method that is awaited ever waits.
    """

    def clock(self) -> datetime:
        """Return the current time. Call it after the first read."""
        ...

    def steady(self) -> datetime:
        """Return the time by which items and links expire: a jump of this machine's clock counts after a day."""
        ...

    async def get(self, owner: str, id_: str) -> Item | None:
        """Return this owner's conversation, expired or not. Raises `HistoryError` if it is damaged."""
        ...

    async def is_taken(self, id_: str) -> bool:
        """Return True if any owner has a conversation with this id."""
        ...

    async def with_run(self, run_id: str) -> Item | None:
        """Return the conversation that has this run."""
        ...

    async def with_link(self, digest: str) -> Item | None:
        """Return the conversation that has this link."""
        ...

    async def of(self, owner: str) -> Sequence[Item]:
        """Return an owner's conversations, the highest place first. Damaged ones are logged and left out."""
        ...

    async def page(self, owner: str, pinned: bool | None, first: int, count: int) -> Sequence[Item]:
        """Return up to `count` live conversations in the same order, without the first ones. `pinned` as in `list`."""
        ...

    def searched(self, owner: str, words: Sequence[str]) -> AsyncGenerator[tuple[Item, Sequence[SearchedEntry]]]:
        """Yield live conversations in the same order, with their texts. Those without one of the words can be missing.

        Damaged ones are logged and left out.
        """
        ...

    async def expiring(self, by: float, owners: str, limit: int, skip: Collection[str]) -> Sequence[Item]:
        """Return the conversations that `RetentionStore.expiring` returns."""
        ...

    async def endless(self, owners: str) -> Sequence[Item]:
        """Return the conversations without an expiry of the owners that begin so."""
        ...

    async def sizes(self, owners: str) -> Iterable[tuple[str, int, float]]:
        """Return these owners, the bytes of each, and when their last conversation expires. One can come repeatedly."""
        ...

    async def unfinished(self, owner: str | None, limit: int) -> Sequence[tuple[str, Item]]:
        """Return runs without an end of live conversations, of all owners or this one, the oldest first."""
        ...

    async def ended(self, before: float) -> Collection[tuple[str, str]]:
        """Return the owners and ids of the conversations with runs that ended before then."""
        ...

    async def places(self, item: Item) -> Mapping[str, EntryPlace]:
        """Return the places of the entries by their ids, in the order of their storage. The mapping can grow later."""
        ...

    async def texts(self, wanted: Sequence[tuple[Item, EntryPlace]]) -> list[str]:
        """Return the entries at these places, as JSON objects."""
        ...

    async def events(self, run_id: str, after: int) -> tuple[Item, list[str]] | None:
        """Return the conversation of a run, and its events without the first `after` ones, as JSON objects."""
        ...

    def put(
        self,
        item: Item,
        entries: Sequence[StoredEntry] = (),
        events: RunEvents | None = None,
        *,
        is_newest: bool = False,
    ) -> None:
        """Replace a conversation and add to its logs, all or nothing, also if the process is killed meanwhile.

        The logs of runs that the item does not have any more are removed. If it `is_newest`, its place becomes higher
        than those of the owner's other conversations. Call it in `write`, after the conversation was read.
        """
        ...

    async def searched_in(self, item: Item) -> Sequence[SearchedEntry]:
        """Return all entries of a conversation in the order of their storage."""
        ...

    def rewrite(self, item: Item, entries: Sequence[StoredEntry]) -> None:
        """Replace a conversation by this item, which has a log of these entries alone, and no runs. Nothing else stays.

        All or nothing, also if the process is killed meanwhile. Call it in `write`, after the conversation was read.
        """
        ...

    def remove(self, items: Sequence[Item]) -> None:
        """Remove conversations with their logs. Call it in `write`."""
        ...

    def damaged(self, item: Item) -> HistoryError:
        """Return the error that this conversation cannot be read, and log where it is."""
        ...


Work = Callable[[View], Coroutine[Any, Any, T]]


class Storage(Protocol):
    """A back-end: it keeps items and logs, and knows nothing of what they mean."""

    clock: Callable[[], datetime]

    async def time(self) -> datetime:
        """Return the time by which items expire."""
        ...

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        """Return the result of `work`, which changes nothing. If it `is_long`, others have their turn meanwhile."""
        ...

    async def write(self, work: Work[T], *, is_end: bool = False) -> T:
        """Return the result of `work` as if no other process had changed anything meanwhile. It can run repeatedly.

        It ends even if the caller is cancelled. See `LockWait` for `is_end`.
        """
        ...

    async def aclose(self) -> None:
        """Finish the writes in progress and release what is open. A second call does nothing."""
        ...


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, such as work on a `LocalView`."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the work waits")


class LocalView(ABC):
    """The part of a `View` that looks at all items, for a back-end that has them at hand."""

    clock: Callable[[], datetime]

    async def time(self) -> datetime:
        return self.steady()

    def steady(self) -> datetime:
        return steady_of(self.clock)()

    @abstractmethod
    def items_of(self, owner: str) -> Sequence[Item]:
        """Return what `of` returns."""

    @abstractmethod
    def all(self, owners: str) -> Iterator[Item]:
        """Yield the conversations of the owners that begin so, in no particular order."""

    @abstractmethod
    def runs(self) -> Iterator[tuple[str, Item]]:
        """Yield the id of each run and its conversation, the oldest first."""

    @abstractmethod
    def searched_entries(self, item: Item) -> Sequence[SearchedEntry]:
        """Return all entries in the order of their storage. Raises `HistoryError`."""

    async def searched_in(self, item: Item) -> Sequence[SearchedEntry]:
        return self.searched_entries(item)

    async def of(self, owner: str) -> Sequence[Item]:
        return self.items_of(owner)

    async def page(self, owner: str, pinned: bool | None, first: int, count: int) -> Sequence[Item]:
        found = (item for item in self._live(owner) if pinned in (None, item.pinned))
        return [*islice(found, first, first + count)]

    async def searched(self, owner: str, words: Sequence[str]) -> AsyncGenerator[tuple[Item, Sequence[SearchedEntry]]]:
        for item in self._live(owner):
            try:
                entries = self.searched_entries(item)
            except NotFound:
                continue  # deleted meanwhile
            except HistoryError as error:
                log.warning("a conversation is not searched: %s", error)
                continue
            yield item, entries

    async def expiring(self, by: float, owners: str, limit: int, skip: Collection[str]) -> Sequence[Item]:
        found = ((item.expires_at, item) for item in self.all(owners) if item.id not in skip)
        due = [(end, item) for end, item in found if end is not None and end <= by]
        return [item for _, item in sorted(due, key=lambda pair: pair[0])[:limit]]

    async def endless(self, owners: str) -> Sequence[Item]:
        return [item for item in self.all(owners) if item.expires_at is None]

    async def sizes(self, owners: str) -> Iterable[tuple[str, int, float]]:
        ends = ((item, float("inf") if item.expires_at is None else item.expires_at) for item in self.all(owners))
        return ((item.owner, item.size, end) for item, end in ends)

    async def unfinished(self, owner: str | None, limit: int) -> Sequence[tuple[str, Item]]:
        at = self.steady()
        runs = ((id_, item) for id_, item in self.runs() if owner in (None, item.owner))
        found = ((id_, item) for id_, item in runs if item.runs[id_].ended_at is None and item.is_live(at))
        return [*islice(found, limit)]

    async def ended(self, before: float) -> Collection[tuple[str, str]]:
        found = ((item, item.runs[id_].ended_at) for id_, item in self.runs())
        return [*dict.fromkeys((item.owner, item.id) for item, end in found if end is not None and end < before)]

    def place_for(self, item: Item, *, is_newest: bool) -> int:
        """Return the place that the item gets."""
        return max([item.place, *(one.place + 1 for one in self.items_of(item.owner)[: int(is_newest)])])

    def _live(self, owner: str) -> Iterator[Item]:
        at = self.steady()
        return (item for item in self.items_of(owner) if item.conversation and item.is_live(at))


class KeyValueStore:
    """A `HistoryStore` over a storage. A cancelled save has stored everything or nothing."""

    is_shared = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.runs: RunStore = KeyValueRuns(storage)
        self.links: LinkStore = KeyValueLinks(storage)
        self.retention: RetentionStore = KeyValueRetention(storage)

    async def save(
        self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
    ) -> Conversation:
        """Implement `HistoryStore.save`. `events` must be of a run of this conversation."""
        texts, searched = await dumped(entries)
        at = self._storage.clock()
        saved, text = next_revision(conversation, entries, at)
        added = [
            StoredEntry(entry.id, entry.parent_id, found, text)
            for entry, text, found in zip(entries, texts, searched, strict=True)
        ]
        is_end = events is not None and events.has_ended
        return await self._storage.write(partial(_save, saved, text, added, events, at), is_end=is_end)

    async def remove(self, conversation: Conversation, entry_ids: Collection[str]) -> Conversation:
        saved, text = next_revision(conversation, (), self._storage.clock())
        return await self._storage.write(partial(_remove_entries, saved, text, {*entry_ids}))

    async def get(self, conversation_id: str, *, owner: str) -> Conversation:
        return await self._storage.read(partial(_get, owner, conversation_id))

    async def history(
        self, conversation: Conversation, *, limit: int | None = None, most_bytes: int | None = None
    ) -> list[Entry]:
        return await _load(self._storage, partial(_history, conversation, limit, most_bytes))

    async def entries(self, conversation: Conversation) -> Sequence[Entry]:
        return await _load(self._storage, partial(_find, conversation, None, frozenset(), None))

    async def find(
        self,
        conversation: Conversation,
        *,
        ids: Collection[str] = (),
        after: Collection[str | None] = (),
        most_bytes: int | None = None,
    ) -> Sequence[Entry]:
        return await _load(self._storage, partial(_find, conversation, {*ids}, {*after}, most_bytes))

    async def following(self, conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        return await self._storage.read(partial(_following, conversation, entry_id))

    async def list(
        self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None
    ) -> list[Conversation]:
        """Implement `HistoryStore.list`. Leaves out damaged conversations."""

        async def work(view: View) -> list[Conversation]:
            found = await view.page(owner, pinned, max(offset, 0), max(limit, 0))
            return [item.conversation for item in found if item.conversation]

        return await self._storage.read(work)

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[ConversationHit]:
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
    ) -> Conversation:
        def change(conversation: Conversation) -> Conversation:
            if title is not None and instead_of in (None, conversation.title):
                conversation = replace(conversation, title=title)
            return conversation if pinned is None else replace(conversation, pinned=pinned)

        return await self._storage.write(partial(_label, conversation_id, owner, change))

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        await delete_vectors(self, conversation_id, owner)

        async def work(view: View) -> None:
            view.remove([await _find_live(view, owner, conversation_id)])

        await self._storage.write(work)

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Saves in progress are finished first."""
        await self._storage.aclose()


async def _load(storage: Storage, find: Work[tuple[Item | None, list[str]]]) -> list[Entry]:
    """Return the entries whose texts `find` returns, with their conversation."""
    item, texts = await storage.read(find)
    try:
        return await in_steps(load_entries, texts)
    except HistoryError as error:
        if item is None:
            raise

        async def damaged(view: View) -> HistoryError:
            return view.damaged(item)

        raise await storage.read(damaged) from error


P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the store, whose methods are each one piece of work."""

    storage: Storage


Part = TypeVar("Part", bound=_Part)
PartWork = Callable[Concatenate[Part, View, P], Coroutine[Any, Any, T]]


def _reads(work: PartWork[Part, P, T]) -> "Callable[Concatenate[Part, P], CoroutineType[Any, Any, T]]":
    """Make a method of its work on a view, which changes nothing."""

    async def method(part: Part, *args: P.args, **kwargs: P.kwargs) -> T:
        return await part.storage.read(lambda view: work(part, view, *args, **kwargs))

    return method


def _writes(work: PartWork[Part, P, T]) -> "Callable[Concatenate[Part, P], CoroutineType[Any, Any, T]]":
    """Make a method of its work on a view, which can run repeatedly."""

    async def method(part: Part, *args: P.args, **kwargs: P.kwargs) -> T:
        return await part.storage.write(lambda view: work(part, view, *args, **kwargs))

    return method


class KeyValueRuns(_Part):
    """The `RunStore` of the store."""

    @_writes
    async def append(self, view: View, events: RunEvents) -> None:
        item = await _find_live(view, events.owner, events.conversation_id)
        runs = await _runs_with(view, (item.owner, item.id), item.runs, events, saved=False)
        view.put(replace(item, runs=runs), events=events)

    @_reads
    async def events(self, view: View, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        first = max(after, 0)
        item, texts = await view.events(run_id, first) or (None, [])
        if item is None or item.owner != owner or not item.is_live(view.steady()):
            raise NotFound(NO_RUN)
        return [RunEvent(number, line) for number, line in enumerate(texts, first + 1)]

    @_reads
    async def unfinished(
        self, view: View, *, owner: str | None = None, conversation_id: str | None = None, limit: int = 1000
    ) -> Sequence[UnfinishedRun]:
        if owner is None or conversation_id is None:
            found = await view.unfinished(owner, max(limit, 0))
        else:
            item = await view.get(owner, conversation_id)
            found = [(run_id, item) for run_id in item.runs] if item else []
        runs = [_unfinished(view, run_id, item) for run_id, item in found]
        return [run for run in runs if run][: max(limit, 0)]

    async def hold(self, run_ids: Collection[str], *, release: bool = False) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.hold`. Leases that were renewed a moment ago need no write."""

        async def work(view: View) -> list[tuple[UnfinishedRun, bool]]:
            found = [(run_id, await view.with_run(run_id)) for run_id in run_ids]
            runs = [run for run_id, item in found if item and (run := _unfinished(view, run_id, item))]
            soon = view.clock().timestamp() + RENEWED_SECONDS if runs else 0.0
            return [(run, run.is_lost or run.leased_until < soon) for run in runs if run.leased_until > 0]

        async def renew(run: UnfinishedRun, view: View) -> None:
            def change(state: RunState, at: float) -> RunState:
                is_released = release or state.leased_until <= 0  # for ever
                return replace(state, leased_until=0.0 if is_released else at + LEASE_SECONDS)

            await _change_run(view, run.run_id, run.owner, change)

        held = await self.storage.read(work)
        for run, is_due in held:
            if is_due or release:
                await self.storage.write(partial(renew, run))
        return [run for run, _ in held]

    async def look(self, run_id: str, *, owner: str, stop: bool = False) -> UnfinishedRun | None:
        def change(state: RunState, at: float) -> RunState:
            return replace(state, watched_until=at + WATCHED_SECONDS, is_stopped=state.is_stopped or stop)

        async def work(view: View) -> UnfinishedRun | None:
            item = await _change_run(view, run_id, owner, change)
            return _unfinished(view, run_id, item) if item else None

        return await self.storage.write(work)

    @_reads
    async def would_lose(self, view: View, conversation: Conversation) -> bool:
        item = await view.get(conversation.owner, conversation.id)
        return item is not None and _would_lose(item, view)

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`, one conversation at a time, so that other writers get their turn."""

        async def clean(owner: str, id_: str, view: View) -> int:
            item = await view.get(owner, id_)
            if item is None:
                return 0
            kept = _runs_since(item.runs, before)
            if len(kept) < len(item.runs):
                view.put(replace(item, runs=kept))
            return len(item.runs) - len(kept)

        async def to_clean(view: View) -> Collection[tuple[str, str]]:
            return await view.ended(before.timestamp())

        old = await self.storage.read(to_clean)
        return sum([await self.storage.write(partial(clean, *one)) for one in old])


def _unfinished(view: View, run_id: str, item: Item) -> UnfinishedRun | None:
    """Return a run of this conversation, or None if it has ended or the conversation has expired."""
    run, at = item.runs[run_id], view.clock()
    if run.ended_at is not None or not item.is_live(view.steady()):
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


async def _change_run(
    view: View, run_id: str, owner: str, change: Callable[[RunState, float], RunState]
) -> Item | None:
    """Change what is known of a run, at this time. Return its conversation, or None if this owner has no such run."""
    item = await view.with_run(run_id)
    if item is None or item.owner != owner or _unfinished(view, run_id, item) is None:
        return None
    run = change(item.runs[run_id], view.clock().timestamp())
    view.put(item := replace(item, runs={**item.runs, run_id: run}))
    return item


def _would_lose(item: Item, view: View) -> bool:
    """Return True if a run would lose this conversation, see `RunStore.would_lose`."""
    runs = [run for run in item.runs.values() if run.ended_at is None]
    return any(item.is_live(view.steady()) or run.is_leased(view.clock()) for run in runs)


class KeyValueLinks(_Part):
    """The `LinkStore` of the store."""

    @_writes
    async def put(self, view: View, link: Link, *, most: int | None = None) -> None:
        item = await _find_live(view, link.owner, link.conversation_id)
        dump_link(link)
        if await view.with_link(link.digest) is not None:
            raise Conflict(USED_DIGEST)
        live = {one.digest: one for one in live_links(item.links.values(), view.steady())}
        if most is not None and len(live) >= most:
            raise too_many(most)
        view.put(replace(item, links={**live, link.digest: link}))

    @_reads
    async def get(self, view: View, digest: str) -> Link:
        return (await _with_link(view, digest)).links[digest]

    @_reads
    async def of(self, view: View, conversation_id: str, *, owner: str) -> Sequence[Link]:
        item = await _find_live(view, owner, conversation_id)
        return live_links(item.links.values(), view.steady())

    @_writes
    async def remove(self, view: View, digest: str, *, owner: str) -> None:
        item = await _with_link(view, digest)
        if item.owner != owner:
            raise NotFound(NO_LINK)
        view.put(replace(item, links={key: link for key, link in item.links.items() if key != digest}))


class KeyValueRetention(_Part):
    """The `RetentionStore` of the store."""

    async def time(self) -> datetime:
        return await self.storage.time()

    @_reads
    async def expiring(
        self, view: View, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Conversation]:
        return [_known_of(item) for item in await view.expiring(by.timestamp(), owners, max(limit, 0), skip)]

    async def set_expiry(self, conversation: Conversation, expires_at: datetime | None) -> bool:
        return bool(await self.storage.write(partial(_set_expiry, [(conversation, expires_at)], only_missing=False)))

    async def add_expiry(self, until: Callable[[Conversation], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in batches, so that other writers get their turn."""

        async def work(view: View) -> list[tuple[Conversation, datetime | None]]:
            conversations = (item.conversation for item in await view.endless(owners) if item.conversation)
            return [(conversation, end) for conversation in conversations if (end := until(conversation)) is not None]

        ending = await self.storage.read(work)
        batches = (ending[start : start + BATCH] for start in range(0, len(ending), BATCH))
        return sum([await self.storage.write(partial(_set_expiry, one, only_missing=True)) for one in batches])

    @_reads
    async def size(self, view: View, *, owners: str = "") -> int:
        return sum(size for _, size, _ in await view.sizes(owners))

    @_reads
    async def sizes(self, view: View, *, owners: str = "") -> Mapping[str, int]:
        sizes, ends = dict[str, int](), dict[str, float]()
        for owner, size, end in await view.sizes(owners):
            sizes[owner] = sizes.get(owner, 0) + size
            ends[owner] = max(ends.get(owner, end), end)
        return {owner: sizes[owner] for owner in sorted(sizes, key=lambda owner: ends[owner])}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads `TEXT_BYTES` of one conversation at a time."""

        async def ids(view: View) -> list[str]:
            return [item.id for item in await view.of(owner)]

        async def work(id_: str, after: int, view: View) -> tuple[list[str], int]:
            """Return the next texts, and the number of those that were read."""
            try:
                item = await view.get(owner, id_)
                places = [*(await view.places(item)).values()] if item else []
                page = [*_until(TEXT_BYTES, places[after:])]
                return (await view.texts([(item, place) for place in page]) if item else []), after + len(page)
            except NotFound:
                return [], after  # deleted meanwhile

        for id_ in await self.storage.read(ids):
            texts, read = await self.storage.read(partial(work, id_, 0))
            while texts:
                for text in texts:
                    yield text
                texts, read = await self.storage.read(partial(work, id_, read))

    @_writes
    async def erase(self, view: View, conversation: Conversation) -> bool:
        item = await _same(view, conversation)
        if item is None or item.expires_at != _seconds(conversation.expires_at):
            return False
        view.remove([item])
        return True

    @_writes
    async def erase_unused(self, view: View, owner: str, conversations: Sequence[Conversation]) -> bool:
        """Implement `RetentionStore.erase_unused`. A process that is killed meanwhile can leave some of them whole."""
        items = await view.of(owner)
        found = {(item.owner, item.id, item.revision, item.expires_at) for item in items}
        if not items or found != versions_of(conversations) or any(_would_lose(item, view) for item in items):
            return False
        view.remove(items)
        return True

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. What is removed from memory or from files leaves nothing behind."""


async def _find_live(view: View, owner: str, id_: str) -> Item:
    """Return a conversation that has not expired. Raises `NotFound`."""
    item = await view.get(owner, id_)
    if item is None or not item.is_live(view.steady()):
        raise NotFound(NO_CONVERSATION)
    return item


def _conversation_of(view: View, item: Item) -> Conversation:
    """Return the conversation. Raises `HistoryError` if it is damaged."""
    if item.conversation is None:
        raise view.damaged(item)
    return item.conversation


async def _get(owner: str, id_: str, view: View) -> Conversation:
    return _conversation_of(view, await _find_live(view, owner, id_))


async def _save(
    conversation: Conversation,
    text: str,
    added: Sequence[StoredEntry],
    events: RunEvents | None,
    at: datetime,
    view: View,
) -> Conversation:
    """Store `conversation`, which has its new revision already, at this time. Return it with its stored label."""
    old = await _to_replace(view, conversation)
    if old:
        stored = _conversation_of(view, old)
        label = {"title": stored.title or conversation.title, "pinned": stored.pinned}
        if label != {"title": conversation.title, "pinned": conversation.pinned}:
            conversation = replace(conversation, title=stored.title or conversation.title, pinned=stored.pinned)
            text = dump_conversation(conversation)
    await _check_links(view, old, added, conversation)
    is_placed = bool(added) or old is None
    item = (old or _new_item(conversation)).with_conversation(conversation, text)
    if is_placed:
        size = sum(len(one.json.encode()) for one in added)
        item = replace(item, place=place_at(conversation.updated_at), entries_size=item.entries_size + size)
    if events is not None:
        runs = await _runs_with(view, (conversation.owner, conversation.id), item.runs, events, saved=True)
        item = replace(item, runs=runs)
    view.put(item, added, events, is_newest=is_placed and conversation.updated_at >= at)
    return conversation


async def _remove_entries(conversation: Conversation, text: str, gone: Set[str], view: View) -> Conversation:
    """Store `conversation`, which has its new revision, without these entries. Return it with its stored label."""
    item = await _find_live(view, conversation.owner, conversation.id)
    stored = _conversation_of(view, item)
    if item.revision != conversation.revision - 1 or any(run.ended_at is None for run in item.runs.values()):
        raise Conflict(CHANGED_ELSEWHERE)
    kept = [one for one in await view.searched_in(item) if one.id not in gone]
    ids = {one.id for one in kept}
    if not {one.parent_id for one in kept} | {conversation.head_id} <= ids | {None}:
        raise HistoryError(KEPT_FOLLOWS)
    texts = await view.texts([(item, one.place) for one in kept])
    entries = [StoredEntry(one.id, one.parent_id, one.text, json) for one, json in zip(kept, texts, strict=True)]
    if (conversation.title, conversation.pinned) != (stored.title, stored.pinned):
        conversation = replace(conversation, title=stored.title, pinned=stored.pinned)
        text = dump_conversation(conversation)
    left = replace(
        item.with_conversation(conversation, text),
        runs={},
        links={digest: link for digest, link in item.links.items() if link.head_id not in gone},
        born=new_id(),
        cuts=item.cuts + 1,
        length=0,
        entries_size=sum(len(one.json.encode()) for one in entries),
    )
    view.rewrite(left, entries)
    return conversation


def _new_item(conversation: Conversation) -> Item:
    return Item(
        id=conversation.id,
        owner=conversation.owner,
        revision=0,
        head_id=None,
        place=0,
        pinned=False,
        expires_at=None,
        entries_size=0,
        length=0,
        born=new_id(),
    )


async def _to_replace(view: View, conversation: Conversation) -> Item | None:
    """Return what `conversation` replaces, None if it is new. Raises `NotFound` and `Conflict`."""
    if conversation.revision == 1 and await view.get(conversation.owner, conversation.id) is None:
        if await view.is_taken(conversation.id):
            raise NotFound(NO_CONVERSATION)
        return None
    item = await view.get(conversation.owner, conversation.id)
    at = view.steady()
    stays_expired = conversation.expires_at is not None and conversation.expires_at.timestamp() <= at.timestamp()
    if item is None or not (item.is_live(at) or stays_expired):
        raise NotFound(NO_CONVERSATION)
    if item.revision != conversation.revision - 1:
        raise Conflict(CHANGED_ELSEWHERE)
    return item


async def _check_links(view: View, item: Item | None, added: Sequence[StoredEntry], conversation: Conversation) -> None:
    """Raise `HistoryError` if an id or a link is wrong. Reads the stored entries only if it must."""
    if not added and conversation.head_id in (None, item.head_id if item else None):
        return
    stored: Mapping[str, EntryPlace] = await view.places(item) if item else {}
    new = set[str]()
    for one in added:
        if one.id in stored or one.id in new:
            raise HistoryError(f"Entry {one.id!r} is stored already, and entries are never overwritten.")
        if one.parent_id is not None and one.parent_id not in stored and one.parent_id not in new:
            raise HistoryError(f"Entry {one.id!r} follows {one.parent_id!r}, which is not in its conversation.")
        new.add(one.id)
    if conversation.head_id is not None and conversation.head_id not in stored and conversation.head_id not in new:
        raise HistoryError(f"The newest entry {conversation.head_id!r} is not in the conversation.")


async def _runs_with(
    view: View, place: tuple[str, str], runs: Mapping[str, RunState], events: RunEvents, *, saved: bool
) -> Mapping[str, RunState]:
    """Return the runs of this owner's conversation with new events. With `saved`, the entries contain what they say.

    Raises `Conflict`.
    """
    run = runs.get(events.run_id)
    if run is None and await view.with_run(events.run_id) is not None:
        raise Conflict(RUN_CONFLICT)
    clock = view.clock()
    at = clock.timestamp()
    run = run or RunState(begun_at=at, leased_until=at)
    if place != (events.owner, events.conversation_id) or run.ended_at is not None or events.first != run.last + 1:
        raise Conflict(RUN_CONFLICT)
    if run.is_leased(clock) if events.of_lost else run.leased_until <= 0:
        raise Conflict(RUN_CONFLICT)
    run = replace(run, last=events.last, saved=events.last if saved else run.saved, leased_until=at + LEASE_SECONDS)
    if not events.has_ended:
        return {**runs, events.run_id: run}
    run = replace(run, ended_at=at)
    return {**_runs_since(runs, clock - timedelta(seconds=ENDED_RUN_SECONDS)), events.run_id: run}


def _runs_since(runs: Mapping[str, RunState], before: datetime) -> Mapping[str, RunState]:
    """Return the runs that have no end or ended later."""
    return {id_: run for id_, run in runs.items() if run.ended_at is None or run.ended_at >= before.timestamp()}


async def _with_link(view: View, digest: str) -> Item:
    """Return the conversation to which a live link leads. Raises `NotFound`."""
    item = await view.with_link(digest)
    if item is None or not item.is_live(view.steady()) or not item.links[digest].is_live(view.steady()):
        raise NotFound(NO_LINK)
    return item


async def _history(
    conversation: Conversation, limit: int | None, most_bytes: int | None, view: View
) -> tuple[Item, list[str]]:
    item = await _find_live(view, conversation.owner, conversation.id)
    if conversation.head_id is None or (limit is not None and limit <= 0):
        return item, []
    places = await view.places(item)
    if conversation.head_id not in places:
        raise NotFound(NO_ENTRY)
    newest_first = _until(most_bytes, islice(_walk(places, conversation.head_id), limit))
    return item, await view.texts([(item, place) for place in [*newest_first][::-1]])


async def _find(
    conversation: Conversation, ids: Set[str] | None, after: Set[str | None], most_bytes: int | None, view: View
) -> tuple[Item | None, list[str]]:
    """Return the conversation and the texts of the entries that are sought, or of all if `ids` is None."""
    item = await view.get(conversation.owner, conversation.id)
    if item is None:
        return None, []
    places = await view.places(item)
    if ids is not None and not after and len(ids) <= 1:
        sought = [places[id_] for id_ in ids if id_ in places]
    else:
        sought = [one for id_, one in [*places.items()] if ids is None or id_ in ids or one.parent_id in after]
    return item, await view.texts([(item, place) for place in _until(most_bytes, sought)])


def _until(most_bytes: int | None, places: Iterable[EntryPlace]) -> Iterator[EntryPlace]:
    """Yield the places up to the one with which their texts have so many bytes."""
    size = 0
    for place in places:
        yield place
        size += place.end - place.start + ENTRY_BYTES
        if most_bytes is not None and size >= most_bytes:
            return


async def _following(conversation: Conversation, entry_id: str | None, view: View) -> list[str]:
    item = await view.get(conversation.owner, conversation.id)
    places = [*(await view.places(item)).items()] if item else []
    return (
        [id_ for id_, _ in places]
        if entry_id is None
        else following_of(entry_id, ((id_, place.parent_id) for id_, place in places))
    )


async def _search(owner: str, words: Sequence[str], limit: int, view: View) -> list[ConversationHit]:
    found = list[tuple[Item, Conversation, EntryPlace | None]]()
    async with aclosing(view.searched(owner, words)) as conversations:
        async for item, entries in conversations:
            if len(found) >= limit:
                break
            if (conversation := item.conversation) is not None:
                entry = _newest_with(words, conversation, entries)
                if entry is not None or all(word in fold(conversation.title) for word in words):
                    found.append((item, conversation, entry.place if entry else None))
    hits = list[ConversationHit]()
    for group in groups(found, lambda one: one[2].end - one[2].start if one[2] else 0):
        texts = iter(await _texts_of_hits(view, [(item, place) for item, _, place in group if place]))
        for item, conversation, place in group:
            try:
                hits.append(hit_in(conversation, load_entries(next(texts))[0] if place else None, words))
            except IndexError:
                continue  # deleted meanwhile, or damaged
            except HistoryError:
                log.warning("a conversation is not searched: %s", view.damaged(item))
    return hits


async def _texts_of_hits(view: View, wanted: Sequence[tuple[Item, EntryPlace]]) -> list[list[str]]:
    """Return a list with each text, an empty one if it cannot be read."""
    try:
        return [[text] for text in await view.texts(wanted)]
    except HistoryError as error:
        if len(wanted) == 1:
            log.warning("a conversation is not searched: %s", error)
            return [[]]
    return [text for one in wanted for text in await _texts_of_hits(view, [one])]


def _newest_with(
    words: Sequence[str], conversation: Conversation, entries: Sequence[SearchedEntry]
) -> SearchedEntry | None:
    """Return the newest message with all words, on the branch that is shown if possible."""
    shown: Iterable[SearchedEntry] = ()
    if conversation.branches:
        shown = _walk({one.id: one for one in entries}, conversation.head_id)
    return next((one for one in chain(shown, reversed(entries)) if all(word in one.text for word in words)), None)


async def _label(id_: str, owner: str, change: Callable[[Conversation], Conversation], view: View) -> Conversation:
    item = await _find_live(view, owner, id_)
    conversation, text = reload_conversation(change(_conversation_of(view, item)))
    view.put(item.with_conversation(conversation, text))
    return conversation


def _known_of(item: Item) -> Conversation:
    """Return the conversation, or of a damaged one what the item has besides."""
    ends = datetime.fromtimestamp(item.expires_at, UTC) if item.expires_at is not None else None
    return item.conversation or Conversation(
        id=item.id, owner=item.owner, revision=item.revision, head_id=item.head_id, expires_at=ends
    )


async def _same(view: View, conversation: Conversation) -> Item | None:
    """Return what is stored if the conversation was not saved since `conversation` was loaded."""
    item = await view.get(conversation.owner, conversation.id)
    return item if item and item.revision == conversation.revision else None


async def _set_expiry(ending: Sequence[tuple[Conversation, datetime | None]], view: View, *, only_missing: bool) -> int:
    """Set the expiry of each conversation that was not saved in the meantime; return their number."""
    stored = 0
    for conversation, expires_at in ending:
        item = await _same(view, conversation)
        if item is None or item.conversation is None or (only_missing and item.expires_at is not None):
            continue
        changed = replace(item.conversation, expires_at=expires_at)
        view.put(item.with_conversation(changed, dump_conversation(changed)))
        stored += 1
    return stored


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
