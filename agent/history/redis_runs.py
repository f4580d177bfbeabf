"""The events of runs in a Redis history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.errors import Conflict, NotFound
from agent.history import redis_scripts as scripts
from agent.history.records import new_id
from agent.history.redis_replicas import RedisReplicas
from agent.history.redis_server import Argument, RedisServer
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun

REMOVED_RUNS = 100
"""Runs that one script removes."""
UNFINISHED_RUNS = 200
"""Runs that one script looks at, to find those without an end."""


@dataclass(frozen=True, slots=True)
class RedisRuns:
    """The `RunStore` of a Redis history."""

    _server: RedisServer
    _replicas: RedisReplicas

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        arguments = event_arguments(events, self._server.clock(), self._replicas.id)
        match await self._server.run(scripts.APPEND, *arguments):
            case b"missing":
                raise NotFound(NO_RUN)
            case b"run":
                raise Conflict(RUN_CONFLICT)
            case _:
                pass

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        found, *events = await self._server.run(scripts.EVENTS, run_id, owner, max(after, 0))
        if not found:
            raise NotFound(NO_RUN)
        return [RunEvent(number, text.decode()) for number, text in enumerate(events[0], max(after, 0) + 1)]

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`, in portions, so that other calls get their turn."""
        start, runs = b"-inf", list[UnfinishedRun]()
        while start and len(runs) < limit:
            left = limit - len(runs)
            start, found = await self._server.run(scripts.UNFINISHED, start, UNFINISHED_RUNS, left)
            runs += [
                UnfinishedRun(run_id=run.decode(), conversation_id=id_.decode(), owner=owner.decode(), saved=int(saved))
                for run, id_, owner, saved in found
            ]
        return runs

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`, in portions, so that other calls get their turn."""
        removed = 0
        while True:
            count = await self._server.run(scripts.REMOVE, before.timestamp(), REMOVED_RUNS)
            removed += count
            if count < REMOVED_RUNS:
                return removed


def event_arguments(events: RunEvents | None, at: datetime, replica: str) -> list[Argument]:
    """Return the arguments of a script for a replica's events, with a name by which it recognises its repetition."""
    if events is None:
        return [0]
    ended = at.timestamp() if events.has_ended else ""
    head: list[Argument] = [len(events.events), events.run_id, events.conversation_id, events.owner, replica]
    return [*head, events.first, ended, new_id(), *(event.json for event in events.events)]
