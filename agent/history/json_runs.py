"""The events of runs in a JSON history."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from agent.errors import Conflict, NotFound
from agent.history.json_conversation import Addition, RunState, State, events_file, read_events
from agent.history.json_folder import JsonFolder, find_live
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun, join_events


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
            removed += await self._folder.write(partial(_remove, self._folder, owner, id_, before.timestamp()))
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
    _rewrite(folder, state, [addition])


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


def _remove(folder: JsonFolder, owner: str, id_: str, before: float) -> int:
    """Remove the old runs of one conversation, whose files `write_record` then drops."""
    found = folder.find(owner, id_)
    if found is None:
        return 0
    state, _ = found
    old = [id_ for id_, run in state.runs.items() if _has_ended(run, before)]
    kept = replace(state, runs={id_: run for id_, run in state.runs.items() if id_ not in old})
    _rewrite(folder, kept)
    folder.remove_runs(old)
    return len(old)


def _rewrite(folder: JsonFolder, state: State, additions: Sequence[Addition] = ()) -> None:
    """Replace the state of a conversation and leave its record as it is."""
    found = folder.find(state.owner, state.id)
    if found is not None:
        folder.write_record(state, found[1], additions, is_new=False)


def _has_ended(run: RunState, before: float) -> bool:
    return run.ended_at is not None and run.ended_at < before
