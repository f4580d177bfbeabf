"""Expiry and sizes of the conversations in a JSON history."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from agent.history.codec import dump_record, load_undamaged
from agent.history.json_conversation import State, read_entries
from agent.history.json_folder import JsonFolder
from agent.history.records import Record, versions_of

BATCH = 200
"""Records that `add_expiry` reads or writes at once."""


@dataclass(frozen=True, slots=True)
class JsonRetention:
    """The `RetentionStore` of a JSON history."""

    _folder: JsonFolder

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        return await self._folder.read(
            partial(_expiring, self._folder, by.timestamp(), owners, max(limit, 0), frozenset(skip))
        )

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        return bool(await self._folder.write(partial(_set_expiry, self._folder, [(record, expires_at)])))

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in batches, so that other writers get their turn."""
        states = await self._folder.read(lambda: [*self._folder.all_states(owners)])
        without, added = [state for state in states if state.expires_at is None], 0
        for start in range(0, len(without), BATCH):
            records = await self._folder.read(partial(_records, self._folder, without[start : start + BATCH]))
            ending = [(record, end) for record in records if (end := until(record)) is not None]
            if ending:
                added += await self._folder.write(partial(_set_expiry, self._folder, ending, only_missing=True))
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        return sum((await self.sizes(owners=owners)).values())

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""
        return await self._folder.read(partial(_sizes, self._folder, owners))

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads one conversation at a time."""
        for state in await self._folder.read(partial(self._folder.states, owner)):
            for text in await self._folder.read(partial(_texts, self._folder, state)):
                yield text

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""
        return await self._folder.write(partial(_erase, self._folder, record))

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`. A process that is killed meanwhile can leave some of them whole."""
        return await self._folder.write(partial(_erase_unused, self._folder, owner, records))

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. A deleted file leaves nothing that can be read."""


def _expiring(folder: JsonFolder, by: float, owners: str, limit: int, skip: Collection[str]) -> list[Record]:
    found = [
        (state.expires_at, state)
        for state in folder.all_states(owners)
        if state.expires_at is not None and state.expires_at <= by and state.id not in skip
    ]
    states = [state for _, state in sorted(found, key=lambda pair: pair[0])[:limit]]
    records = [record for state in states if (record := _record(folder, state))]
    # One can have got another expiry since its state was read: an import has shown it, and it is no longer hidden.
    return [record for record in records if record.expires_at and record.expires_at.timestamp() <= by]


def _record(folder: JsonFolder, state: State) -> Record | None:
    """Return the record, with only what the state has if its text is damaged, or None if it is gone."""
    found = folder.find(state.owner, state.id)
    if found is None:
        return None
    state, text = found
    ends = datetime.fromtimestamp(state.expires_at, UTC) if state.expires_at is not None else None
    return load_undamaged(text) or Record(
        id=state.id, owner=state.owner, revision=state.revision, head_id=state.head_id, expires_at=ends
    )


def _records(folder: JsonFolder, states: Sequence[State]) -> list[Record]:
    """Return the records that are not damaged."""
    found = (folder.find(state.owner, state.id) for state in states)
    return [record for one in found if one and (record := load_undamaged(one[1]))]


def _same(folder: JsonFolder, record: Record) -> tuple[State, str] | None:
    """Return what is stored if the conversation was not saved since `record` was loaded."""
    found = folder.find(record.owner, record.id)
    return found if found and found[0].revision == record.revision else None


def _set_expiry(
    folder: JsonFolder, ending: Sequence[tuple[Record, datetime | None]], *, only_missing: bool = False
) -> int:
    """Set the expiry of each record that was not saved in the meantime; return their number."""
    stored = 0
    for record, expires_at in ending:
        found = _same(folder, record)
        same = load_undamaged(found[1]) if found else None
        if found is None or same is None or (only_missing and found[0].expires_at is not None):
            continue
        changed = replace(found[0], expires_at=expires_at.timestamp() if expires_at else None)
        folder.write_record(changed, dump_record(replace(same, expires_at=expires_at)), is_new=False)
        stored += 1
    return stored


def _sizes(folder: JsonFolder, owners: str) -> Mapping[str, int]:
    sizes, ends = dict[str, int](), dict[str, float]()
    for state in folder.all_states(owners):
        end = float("inf") if state.expires_at is None else state.expires_at
        sizes[state.owner] = sizes.get(state.owner, 0) + state.size
        ends[state.owner] = max(ends.get(state.owner, end), end)
    return {owner: sizes[owner] for owner in sorted(sizes, key=lambda owner: ends[owner])}


def _texts(folder: JsonFolder, state: State) -> list[str]:
    found = folder.find(state.owner, state.id)
    try:
        return [one.json for one in read_entries(folder.folder_of(state.owner, state.id), found[0])] if found else []
    except FileNotFoundError:
        return []  # deleted meanwhile


def _erase(folder: JsonFolder, record: Record) -> bool:
    found = _same(folder, record)
    if found is None or found[0].expires_at != (record.expires_at.timestamp() if record.expires_at else None):
        return False
    folder.remove(found[0])
    return True


def _erase_unused(folder: JsonFolder, owner: str, records: Sequence[Record]) -> bool:
    states, at = folder.states(owner), folder.clock()
    found = {(state.owner, state.id, state.revision, state.expires_at) for state in states}
    if not states or found != versions_of(records) or any(_is_answered(state, at) for state in states):
        return False
    for state in states:
        folder.remove(state)
    return True


def _is_answered(state: State, at: datetime) -> bool:
    return state.is_live(at) and any(run.ended_at is None for run in state.runs.values())
