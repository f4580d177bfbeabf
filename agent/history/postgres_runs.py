"""The events of runs in a PostgreSQL history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import AsyncConnection

from agent.errors import Conflict, NotFound
from agent.history.postgres_database import LIVE, NOW, PostgresDatabase, Value, fetch
from agent.history.postgres_replicas import PostgresReplicas
from agent.history.postgres_text import escape, unescape
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun, join_events, split_events

_EVENTS = f"""
SELECT first, events FROM runs JOIN conversations ON conversations.id = conversation_id
LEFT JOIN run_events ON run_id = runs.id AND run_events.last > %(after)s
WHERE runs.id = %(id)s AND owner = %(owner)s AND {LIVE} ORDER BY run_events.last
"""
_UNFINISHED = f"""
SELECT runs.id, conversation_id, owner, saved FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND {LIVE} ORDER BY runs.number LIMIT %(limit)s
"""
_REMOVE = """
WITH removed AS (DELETE FROM runs WHERE ended_at < %(before)s RETURNING 1) SELECT count(*) FROM removed
"""
_ENDED_AT = f"CASE WHEN %(has_ended)s THEN {NOW} END"
# The lock keeps the conversation until the events are stored.
_PUT = f"""
WITH owned AS (
    SELECT id FROM conversations WHERE id = %(conversation)s AND owner = %(owner)s AND {LIVE} FOR KEY SHARE
), moved AS ({{move}}), stored AS (
    INSERT INTO run_events (run_id, last, first, events)
    SELECT id, %(last)s, %(first)s, %(events)s FROM moved RETURNING 1
)
SELECT EXISTS (SELECT FROM owned), EXISTS (SELECT FROM stored)
"""
_BEGIN = _PUT.format(
    move=f"""
    INSERT INTO runs (id, conversation_id, last, saved, ended_at, replica)
    SELECT %(id)s, id, %(last)s, %(saved)s, {_ENDED_AT}, %(replica)s FROM owned
    ON CONFLICT (id) DO NOTHING RETURNING id
    """
)
_CONTINUE = _PUT.format(
    move=f"""
    UPDATE runs SET last = %(last)s, saved = greatest(saved, %(saved)s), ended_at = {_ENDED_AT} FROM owned
    WHERE runs.id = %(id)s AND conversation_id = owned.id AND last = %(first)s - 1 AND ended_at IS NULL
        AND replica = %(replica)s
    RETURNING runs.id
    """
)


@dataclass(frozen=True, slots=True)
class PostgresRuns:
    """The `RunStore` of a PostgreSQL history."""

    _database: PostgresDatabase
    _replicas: PostgresReplicas

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        replica, shift = self._replicas.id, self._database.shift
        await self._database.write(lambda connection: put_events(connection, events, replica, shift, saved=False))

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        rows = await self._database.rows(_EVENTS, id=escape(run_id), owner=escape(owner), after=after)
        if not rows:
            raise NotFound(NO_RUN)
        found = [event for row in rows if row[1] is not None for event in split_events(row[1], row[0])]
        return [event for event in found if event.number > after]

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return [
            UnfinishedRun(run_id=unescape(id_), conversation_id=unescape(of), owner=unescape(owner), saved=saved)
            for id_, of, owner, saved in await self._database.rows(_UNFINISHED, limit=max(limit, 0))
        ]

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`."""
        return (await self._database.change(_REMOVE, before=before.timestamp()))[0][0]


async def put_events(
    connection: AsyncConnection, events: RunEvents, replica: str, shift: float, *, saved: bool
) -> None:
    """Store events within a transaction, as this replica. With `saved`, the entries contain what they say.
    `shift` is the parameter of `NOW`.

    Raises `Conflict` and `NotFound`.
    """
    values: dict[str, Value] = {
        "id": escape(events.run_id),
        "conversation": escape(events.conversation_id),
        "owner": escape(events.owner),
        "first": events.first,
        "last": events.last,
        "saved": events.last if saved else 0,
        "has_ended": events.has_ended,
        "events": join_events(events.events),
        "replica": replica,
        "shift": shift,
    }
    ((is_owned, is_stored),) = await fetch(connection, _BEGIN if events.first == 1 else _CONTINUE, values)
    if not is_owned:
        raise NotFound(NO_RUN)
    if not is_stored:
        raise Conflict(RUN_CONFLICT)
