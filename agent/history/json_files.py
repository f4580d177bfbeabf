"""Conversations in JSON files, in a folder for each owner. Several processes of one machine can share them.

People and their tools can read these files. A save waits for the disk, and all saves of a folder wait for each other.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
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
    State,
    StoredEntry,
    damaged,
    entry_lines,
    read_at,
    read_entries,
    read_places,
)
from agent.history.json_folder import FOLDER_LOCK_SECONDS, JsonFolder, find_live, load_stored
from agent.history.json_links import JsonLinks
from agent.history.json_retention import JsonRetention
from agent.history.json_runs import JsonRuns, add_events
from agent.history.records import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, following_of, now
from agent.history.run_events import RunEvents
from agent.history.search import SearchHit, fold, hit_in, words_of

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
