"""Conversations in JSON files, in a folder for each owner. Several processes of one machine can share them.

People and their tools can read these files. A save waits for the disk, and all saves of a folder wait for each other.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Self, TypeVar

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
from agent.history.json_conversation import (
    ENTRIES,
    Addition,
    EntryPlace,
    RunState,
    State,
    StoredEntry,
    damaged,
    entry_lines,
    events_file,
    read_at,
    read_entries,
    read_events,
    read_places,
)
from agent.history.json_folder import FOLDER_LOCK_SECONDS, JsonFolder, find_live, load_stored
from agent.history.json_retention import JsonRetention
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, too_many
from agent.history.records import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, following_of, now
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun, join_events
from agent.history.search import SearchHit, fold, hit_in, words_of


@dataclass(frozen=True, slots=True)
class JsonRuns:
    """The `RunStore` of a JSON history."""

    _folder: JsonFolder

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        await self._folder.write(partial(_append, self._folder, events))

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        return await self._folder.read(partial(_events, self._folder, run_id, owner, max(after, 0)))

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return (await self._folder.read(partial(_unfinished, self._folder)))[: max(limit, 0)]

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`, one conversation at a time, so that other writers get their turn."""
        old = await self._folder.read(partial(_conversations_to_clean, self._folder, before.timestamp()))
        removed = 0
        for owner, id_ in old:
            removed += await self._folder.write(partial(_remove_events, self._folder, owner, id_, before.timestamp()))
        return removed


def add_events(folder: JsonFolder, state: State, events: RunEvents, *, saved: bool) -> tuple[State, Addition]:
    """Return the state with new events, and what to write. With `saved`, the entries contain what they say.

    Raises `Conflict`.
    """
    run = state.runs.get(events.run_id, RunState())
    is_other = (state.id, state.owner) != (events.conversation_id, events.owner)
    if is_other or run.ended_at is not None or events.first != run.last + 1:
        raise Conflict(RUN_CONFLICT)
    if events.run_id not in state.runs:
        if folder.find_run(events.run_id) is not None:
            raise Conflict(RUN_CONFLICT)
        folder.add_run(events.run_id, state)
    addition = Addition(events_file(events.run_id), run.length, f"{join_events(events.events)}\n".encode())
    run = RunState(
        last=events.last,
        saved=events.last if saved else run.saved,
        length=run.length + len(addition.data),
        ended_at=folder.clock().timestamp() if events.has_ended else None,
    )
    return replace(state, runs={**state.runs, events.run_id: run}), addition


def _append(folder: JsonFolder, events: RunEvents) -> None:
    before, _ = find_live(folder, events.owner, events.conversation_id)
    state, addition = add_events(folder, before, events, saved=False)
    _rewrite_events(folder, state, [addition])


def _events(folder: JsonFolder, run_id: str, owner: str, after: int) -> list[RunEvent]:
    state = folder.find_run(run_id)
    if state is None or state.owner != owner or not state.is_live(folder.clock()):
        raise NotFound(NO_RUN)
    try:
        lines = read_events(folder.folder_of(owner, state.id), run_id, state.runs[run_id])
    except FileNotFoundError:
        raise NotFound(NO_RUN) from None  # deleted meanwhile
    return [RunEvent(number, line) for number, line in enumerate(lines, 1) if number > after]


def _unfinished(folder: JsonFolder) -> list[UnfinishedRun]:
    at = folder.clock()
    return [
        UnfinishedRun(run_id=id_, conversation_id=state.id, owner=state.owner, saved=state.runs[id_].saved)
        for id_, state in folder.runs()
        if state.runs[id_].ended_at is None and state.is_live(at)
    ]


def _conversations_to_clean(folder: JsonFolder, before: float) -> list[tuple[str, str]]:
    found = ((state.owner, state.id) for id_, state in folder.runs() if _has_ended(state.runs[id_], before))
    return list(dict.fromkeys(found))


def _remove_events(folder: JsonFolder, owner: str, id_: str, before: float) -> int:
    """Remove the old runs of one conversation, whose files `write_record` then drops."""
    found = folder.find(owner, id_)
    if found is None:
        return 0
    state, _ = found
    old = [id_ for id_, run in state.runs.items() if _has_ended(run, before)]
    kept = replace(state, runs={id_: run for id_, run in state.runs.items() if id_ not in old})
    _rewrite_events(folder, kept)
    folder.remove_runs(old)
    return len(old)


def _rewrite_events(folder: JsonFolder, state: State, additions: Sequence[Addition] = ()) -> None:
    """Replace the state of a conversation and leave its record as it is."""
    found = folder.find(state.owner, state.id)
    if found is not None:
        folder.write_record(state, found[1], additions, is_new=False)


def _has_ended(run: RunState, before: float) -> bool:
    return run.ended_at is not None and run.ended_at < before


@dataclass(frozen=True, slots=True)
class JsonLinks:
    """The `LinkStore` of a JSON history."""

    _folder: JsonFolder

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        await self._folder.write(partial(_put, self._folder, link, most))

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        return (await self._folder.read(partial(_find_link, self._folder, digest)))[1]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        state, _ = await self._folder.read(partial(find_live, self._folder, owner, conversation_id))
        return live_links(state.links.values(), self._folder.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        await self._folder.write(partial(_remove_link, self._folder, digest, owner))


def _put(folder: JsonFolder, link: Link, most: int | None) -> None:
    state, _ = find_live(folder, link.owner, link.conversation_id)
    dump_link(link)
    if folder.find_link(link.digest) is not None:
        raise Conflict(USED_DIGEST)
    live = {one.digest: one for one in live_links(state.links.values(), folder.clock())}
    if most is not None and len(live) >= most:
        raise too_many(most)
    folder.add_link(link.digest, state)
    _rewrite_links(folder, state, {**live, link.digest: link})


def _find_link(folder: JsonFolder, digest: str) -> tuple[State, Link]:
    state, at = folder.find_link(digest), folder.clock()
    if state is None or not state.is_live(at) or not state.links[digest].is_live(at):
        raise NotFound(NO_LINK)
    return state, state.links[digest]


def _remove_link(folder: JsonFolder, digest: str, owner: str) -> None:
    state, _ = _find_link(folder, digest)
    if state.owner != owner:
        raise NotFound(NO_LINK)
    _rewrite_links(folder, state, {key: link for key, link in state.links.items() if key != digest})


def _rewrite_links(folder: JsonFolder, state: State, links: Mapping[str, Link]) -> None:
    """Replace the links of a conversation, and leave its record as it is."""
    found = folder.find(state.owner, state.id)
    if found is None:
        raise NotFound(NO_LINK)
    folder.write_record(replace(found[0], links=links), found[1], is_new=False)
    folder.remove_links(found[0].links.keys() - links.keys())


EntryT = TypeVar("EntryT", StoredEntry, EntryPlace)


class JsonStore:
    """A `HistoryStore` in a folder; `open` makes one.

    A killed process or a power cut loses no acknowledged save. A cancelled save has stored everything or nothing.
    """

    def __init__(self, folder: JsonFolder) -> None:
        self._folder = folder
        self.runs: RunStore = JsonRuns(folder)
        self.links: LinkStore = JsonLinks(folder)
        self.retention: RetentionStore = JsonRetention(folder)

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, patience: float = FOLDER_LOCK_SECONDS, clock: Callable[[], datetime] = now
    ) -> Self:
        """Open the folder, or create it for this user alone. `patience` is the number of seconds to wait for its lock.

        Raises `ConfigError` if the folder cannot be used.
        """
        folder = JsonFolder(Path(path), patience, clock)
        await folder.open()
        return cls(folder)

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`. `events` must be of a run of this conversation."""
        texts, searched = await dumped(entries)
        at = self._folder.clock()
        saved, _ = next_revision(record, entries, at)
        added = [
            StoredEntry(entry.id, entry.parent_id, found, text)
            for entry, text, found in zip(entries, texts, searched, strict=True)
        ]
        return await self._folder.write(partial(_save, self._folder, saved, added, events, at))

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        return (await self._folder.read(partial(find_live, self._folder, owner, conversation_id)))[1]

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        state, texts = await self._folder.read(partial(_history, self._folder, record, limit))
        return await _load_in_steps(self._folder, state, texts)

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        state, texts = await self._folder.read(partial(_find, self._folder, record))
        return await _load_in_steps(self._folder, state, texts)

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        state, texts = await self._folder.read(partial(_find, self._folder, record, {*ids}, {*after}))
        return await _load_in_steps(self._folder, state, texts)

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        return await self._folder.read(partial(_following, self._folder, record, entry_id))

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`. Reads the records of this page, and what has changed of the owner's others."""
        first = max(offset, 0)
        page = slice(first, first + max(limit, 0))
        return await self._folder.read(partial(_list, self._folder, owner, page, pinned))

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`. Reads all text of the owner."""
        words = words_of(query)
        return await self._folder.read(partial(_search, self._folder, owner, words, max(limit, 0))) if words else []

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

        return await self._folder.write(partial(_label, self._folder, conversation_id, owner, change))

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        await delete_vectors(self, conversation_id, owner)
        await self._folder.write(partial(_delete, self._folder, conversation_id, owner))

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Saves in progress are finished first."""
        await self._folder.aclose()


def _save(
    folder: JsonFolder, record: Record, added: Sequence[StoredEntry], events: RunEvents | None, at: datetime
) -> Record:
    """Store `record`, which has its new revision already, at this time. Return it with its stored label."""
    before = _to_replace(folder, record)
    if before:
        record = replace(record, title=before[1].title or record.title, pinned=before[1].pinned)
    old = before[0] if before else None
    _check_links(folder, old, added, record)
    lines = entry_lines(added)
    is_old = record.updated_at < at
    place = place_at(record.updated_at) if is_old else folder.next_place(record.owner, at)
    start, size = (old.length, old.entries_size) if old else (0, 0)
    state = State(
        id=record.id,
        owner=record.owner,
        revision=record.revision,
        head_id=record.head_id,
        place=old.place if old and not added else place,
        pinned=record.pinned,
        expires_at=record.expires_at.timestamp() if record.expires_at else None,
        entries_size=size + sum(len(one.json.encode()) for one in added),
        length=start + len(lines),
        runs=old.runs if old else {},
        links=old.links if old else {},
    )
    additions = [Addition(ENTRIES, start, lines)] if lines else []
    if events is not None:
        state, addition = add_events(folder, state, events, saved=True)
        additions.append(addition)
    folder.write_record(state, dump_record(record), additions, is_new=old is None)
    return record


def _to_replace(folder: JsonFolder, record: Record) -> tuple[State, Record] | None:
    """Return what `record` replaces, None if it is new. Raises `NotFound` and `Conflict`."""
    if record.revision == 1 and folder.find(record.owner, record.id) is None:
        if folder.is_taken(record.owner, record.id):
            raise NotFound(NO_CONVERSATION)
        return None
    state, stored = find_live(folder, record.owner, record.id)
    if state.revision != record.revision - 1:
        raise Conflict(CHANGED_ELSEWHERE)
    return state, stored


def _check_links(folder: JsonFolder, state: State | None, added: Sequence[StoredEntry], record: Record) -> None:
    """Raise `HistoryError` if an id or a link is wrong. Reads the stored entries only if it must."""
    if not added and record.head_id in (None, state.head_id if state else None):
        return
    linked = {*_stored_places(folder, state)} if state else set[str]()
    for one in added:
        if one.id in linked:
            raise HistoryError(f"Entry {one.id!r} is stored already, and entries are never overwritten.")
        if one.parent_id is not None and one.parent_id not in linked:
            raise HistoryError(f"Entry {one.id!r} follows {one.parent_id!r}, which is not in its conversation.")
        linked.add(one.id)
    if record.head_id is not None and record.head_id not in linked:
        raise HistoryError(f"The newest entry {record.head_id!r} is not in the conversation.")


def _history(folder: JsonFolder, record: Record, limit: int | None) -> tuple[State | None, list[str]]:
    state, _ = find_live(folder, record.owner, record.id)
    if record.head_id is None or (limit is not None and limit <= 0):
        return state, []
    places = _stored_places(folder, state)
    if record.head_id not in places:
        raise NotFound(NO_ENTRY)
    newest_first = islice(_walk(places, record.head_id), limit)
    return state, _texts_at(folder, state, [*newest_first][::-1])


def _find(
    folder: JsonFolder, record: Record, ids: Set[str] | None = None, after: Set[str | None] = frozenset()
) -> tuple[State | None, list[str]]:
    """Return the state and the texts of the entries that are sought, or of all."""
    found = folder.find(record.owner, record.id)
    if not found:
        return None, []
    stored = _stored_places(folder, found[0]).items()
    sought = [place for id_, place in stored if ids is None or id_ in ids or place.parent_id in after]
    return found[0], _texts_at(folder, found[0], sought)


def _following(folder: JsonFolder, record: Record, entry_id: str) -> list[str]:
    found = folder.find(record.owner, record.id)
    stored = _stored_places(folder, found[0]) if found else dict[str, EntryPlace]()
    return following_of(entry_id, ((id_, place.parent_id) for id_, place in stored.items()))


def _list(folder: JsonFolder, owner: str, page: slice, pinned: bool | None) -> list[Record]:
    at = folder.clock()
    states = [state for state in folder.states(owner) if state.is_live(at) and pinned in (None, state.pinned)]
    found = (folder.find(owner, state.id) for state in states[page])
    return [load_stored(folder, *one) for one in found if one]


def _search(folder: JsonFolder, owner: str, words: Sequence[str], limit: int) -> list[SearchHit]:
    at = folder.clock()
    found = (_hit(folder, state, words) for state in folder.states(owner) if state.is_live(at))
    return [*islice((hit for hit in found if hit), limit)]


def _hit(folder: JsonFolder, state: State, words: Sequence[str]) -> SearchHit | None:
    """Return the newest message with all words, on the branch that is shown if possible, or the title, or None."""
    found = folder.find(state.owner, state.id)
    if found is None:
        return None
    record = load_stored(folder, *found)
    entries = _stored_entries(folder, found[0])
    shown = _walk({one.id: one for one in entries}, record.head_id) if record.branches else ()
    for one in chain(shown, reversed(entries)):
        if all(word in one.searched for word in words):
            return hit_in(record, _load(folder, state, [one.json])[0], words)
    title = fold(record.title)
    return hit_in(record, None, words) if all(word in title for word in words) else None


def _label(folder: JsonFolder, id_: str, owner: str, change: Callable[[Record], Record]) -> Record:
    state, stored = find_live(folder, owner, id_)
    record, text = reload_record(change(stored))
    folder.write_record(replace(state, pinned=record.pinned), text, is_new=False)
    return record


def _delete(folder: JsonFolder, id_: str, owner: str) -> None:
    state, _ = find_live(folder, owner, id_)
    folder.remove(state)


def _stored_entries(folder: JsonFolder, state: State) -> list[StoredEntry]:
    with _not_deleted():
        return read_entries(folder.folder_of(state.owner, state.id), state)


def _stored_places(folder: JsonFolder, state: State) -> Mapping[str, EntryPlace]:
    with _not_deleted():
        return read_places(folder.folder_of(state.owner, state.id), state)


def _texts_at(folder: JsonFolder, state: State, places: Sequence[EntryPlace]) -> list[str]:
    with _not_deleted():
        return read_at(folder.folder_of(state.owner, state.id), places) if places else []


@contextmanager
def _not_deleted() -> Generator[None]:
    """Raise `NotFound` instead of an error of a file that is gone."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(NO_CONVERSATION) from None


def _load(folder: JsonFolder, state: State, texts: Sequence[str]) -> list[Entry]:
    try:
        return load_entries(texts)
    except HistoryError as error:
        raise damaged(folder.folder_of(state.owner, state.id) / ENTRIES) from error


async def _load_in_steps(folder: JsonFolder, state: State | None, texts: Sequence[str]) -> list[Entry]:
    return await in_steps(partial(_load, folder, state), texts) if state else []


def _walk(entries: Mapping[str, EntryT], head_id: str | None) -> Iterator[EntryT]:
    """Yield the entries of a chain, newest first."""
    while head_id is not None:
        yield entries[head_id]
        head_id = entries[head_id].parent_id
