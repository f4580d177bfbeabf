"""Conversations in this process's memory. They are gone when it ends. For one event loop only."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from agent.errors import HistoryError, NotFound
from agent.history.key_value import EntryPlace, Item, KeyValueStore, LocalView, SearchedEntry, StoredEntry, Work, finish
from agent.history.values import NO_CONVERSATION, Link, RunEvents, now
from agent.system.threads import DECODING

T = TypeVar("T")


class MemoryStore(KeyValueStore):
    """A `HistoryStore` in memory. It keeps messages as JSON, because they are mutable objects."""

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        super().__init__(MemoryStorage(clock))


class MemoryStorage(LocalView):
    """A `Storage` of dicts. It needs no lock: no work waits, and what a long reading work sees never changes.

    The conversations of each owner are in the order of their places.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self._items: dict[str, dict[str, Item]] = {}
        self._owners: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._entries: dict[str, list[StoredEntry]] = {}
        self._places: dict[str, dict[str, EntryPlace]] = {}
        self._events: dict[str, list[str]] = {}

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        """Implement `Storage.read`. Long work runs in a thread."""
        return await DECODING.run(lambda: finish(work(self))) if is_long else finish(work(self))

    async def write(self, work: Work[T], *, is_end: bool = False) -> T:
        return finish(work(self))

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""

    async def get(self, owner: str, id_: str) -> Item | None:
        return self._items.get(owner, {}).get(id_)

    async def is_taken(self, id_: str) -> bool:
        return id_ in self._owners

    async def with_run(self, run_id: str) -> Item | None:
        return self._named(self._runs.get(run_id))

    async def with_link(self, digest: str) -> Item | None:
        return self._named(self._links.get(digest))

    def items_of(self, owner: str) -> Sequence[Item]:
        return [*self._items.get(owner, {}).values()][::-1]

    def all(self, owners: str) -> Iterator[Item]:
        for owner, items in self._items.items():
            if owner.startswith(owners):
                yield from items.values()

    def runs(self) -> Iterator[tuple[str, Item]]:
        return ((run_id, self._items[self._owners[id_]][id_]) for run_id, id_ in self._runs.items())

    def searched_entries(self, item: Item) -> Sequence[SearchedEntry]:
        pairs = zip([*self._entries.get(item.id, ())], [*self._places.get(item.id, {}).values()], strict=False)
        return [SearchedEntry(one.id, one.parent_id, one.searched, place) for one, place in pairs]

    async def places(self, item: Item) -> Mapping[str, EntryPlace]:
        return self._places[item.id]

    async def texts(self, wanted: Sequence[tuple[Item, EntryPlace]]) -> list[str]:
        try:
            return [self._entries[item.id][place.start].json for item, place in wanted]
        except (KeyError, IndexError):
            raise NotFound(NO_CONVERSATION) from None

    async def events(self, run_id: str, after: int) -> tuple[Item, list[str]] | None:
        item = self._named(self._runs.get(run_id))
        return (item, self._events[run_id][after:]) if item else None

    def put(
        self,
        item: Item,
        entries: Sequence[StoredEntry] = (),
        events: RunEvents | None = None,
        *,
        is_newest: bool = False,
    ) -> None:
        before = self._items.get(item.owner, {}).get(item.id)
        item = replace(item, place=self.place_for(item, is_newest=is_newest))
        stored, places = self._entries.setdefault(item.id, []), self._places.setdefault(item.id, {})
        for number, one in enumerate(entries, len(stored)):
            places[one.id] = EntryPlace(one.parent_id, number, number + len(one.json.encode()))
        stored.extend(entries)
        if events is not None:
            self._runs.setdefault(events.run_id, item.id)
            self._events.setdefault(events.run_id, []).extend(event.json for event in events.events)
        self._forget_runs(before, item)
        self._set_links(before, item)
        self._owners[item.id] = item.owner
        items = self._items.setdefault(item.owner, {})
        if before and before.place != item.place:
            del items[item.id]  # inserted again instead of replaced: the dict has the order of the places
        last = next(reversed(items.values()), item)
        items[item.id] = item
        if last.place > item.place:
            self._items[item.owner] = dict(sorted(items.items(), key=lambda pair: pair[1].place))

    def rewrite(self, item: Item, entries: Sequence[StoredEntry]) -> None:
        self.remove([self._items[item.owner][item.id]])
        self.put(item, entries)

    def remove(self, items: Sequence[Item]) -> None:
        for item in items:
            empty = replace(item, runs={}, links={})
            self._forget_runs(item, empty)
            self._set_links(item, empty)
            del self._entries[item.id], self._places[item.id], self._owners[item.id], self._items[item.owner][item.id]
            if not self._items[item.owner]:
                del self._items[item.owner]

    def damaged(self, item: Item) -> HistoryError:
        """Implement `View.damaged`. Memory is never damaged."""
        return HistoryError(f"The conversation {item.id!r} is damaged.")

    def _named(self, id_: str | None) -> Item | None:
        return None if id_ is None else self._items[self._owners[id_]].get(id_)

    def _forget_runs(self, before: Item | None, item: Item) -> None:
        if before is not None and before.runs is not item.runs:
            for run_id in before.runs.keys() - item.runs.keys():
                del self._runs[run_id], self._events[run_id]

    def _set_links(self, before: Item | None, item: Item) -> None:
        old: Mapping[str, Link] = before.links if before else {}
        if old is not item.links:
            for digest in old.keys() - item.links.keys():
                del self._links[digest]
            self._links.update(dict.fromkeys(item.links, item.id))
