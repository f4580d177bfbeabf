"""The events of runs in a SQLite history."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from agent.errors import Conflict, NotFound
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun, join_events, split_events
from agent.history.sqlite_database import SqliteDatabase
from agent.history.sqlite_file import LIVE, transaction

_EVENTS = f"""
SELECT first, events FROM runs JOIN conversations ON conversations.id = conversation_id
LEFT JOIN run_events ON run_id = runs.id AND run_events.last > :after
WHERE runs.id = :id AND owner = :owner AND {LIVE} ORDER BY run_events.last
"""
_UNFINISHED = f"""
SELECT runs.id, conversation_id, owner, saved FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND {LIVE} ORDER BY runs.rowid LIMIT :limit
"""
_REMOVE = "DELETE FROM runs WHERE rowid IN (SELECT rowid FROM runs WHERE ended_at < :before LIMIT :most)"
_MOST_RUNS = 50
"""The most runs that are removed at once."""
_OWNED = f"SELECT 1 FROM conversations WHERE id = :conversation AND owner = :owner AND {LIVE}"
_PUT_RUN = """
INSERT INTO runs (id, conversation_id, last, saved, ended_at)
SELECT :id, :conversation, :last, :saved, :ended_at WHERE :first = 1
ON CONFLICT (id) DO NOTHING
"""
_MOVE_RUN = """
UPDATE runs SET last = :last, saved = max(saved, :saved), ended_at = :ended_at
WHERE id = :id AND conversation_id = :conversation AND last = :first - 1 AND ended_at IS NULL
"""
_PUT_EVENTS = "INSERT INTO run_events (run_id, last, first, events) VALUES (:id, :last, :first, :events)"


@dataclass(frozen=True, slots=True)
class SqliteRuns:
    """The `RunStore` of a SQLite history."""

    _database: SqliteDatabase

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        await self._database.write(partial(_append, events, self._database.clock()))

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        rows = await self._database.rows(_EVENTS, id=run_id, owner=owner, after=after)
        if not rows:
            raise NotFound(NO_RUN)
        found = [event for row in rows if row[1] is not None for event in split_events(row[1], row[0])]
        return [event for event in found if event.number > after]

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return [_unfinished(row) for row in await self._database.rows(_UNFINISHED, limit=max(limit, 0))]

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`. The text is overwritten in the file."""
        removed = some = await self._database.erase(_REMOVE, before=before.timestamp(), most=_MOST_RUNS)
        while some == _MOST_RUNS:
            removed += (some := await self._database.erase(_REMOVE, before=before.timestamp(), most=_MOST_RUNS))
        return removed


def put_events(connection: sqlite3.Connection, events: RunEvents, at: datetime, *, saved: bool) -> None:
    """Store events within a transaction. With `saved`, the entries contain what they say.

    Raises `Conflict` and `NotFound`.
    """
    values = {
        "id": events.run_id,
        "conversation": events.conversation_id,
        "owner": events.owner,
        "first": events.first,
        "last": events.last,
        "saved": events.last if saved else 0,
        "ended_at": at.timestamp() if events.has_ended else None,
        "events": join_events(events.events),
        "now": at.timestamp(),
    }
    if connection.execute(_OWNED, values).fetchone() is None:
        raise NotFound(NO_RUN)
    for statement in (_PUT_RUN, _MOVE_RUN) if events.first == 1 else (_MOVE_RUN,):
        if connection.execute(statement, values).rowcount == 1:
            connection.execute(_PUT_EVENTS, values)
            return
    raise Conflict(RUN_CONFLICT)


def _append(events: RunEvents, at: datetime, connection: sqlite3.Connection) -> None:
    """Store events in a transaction of their own."""
    with transaction(connection):
        put_events(connection, events, at, saved=False)


def _unfinished(row: sqlite3.Row) -> UnfinishedRun:
    return UnfinishedRun(run_id=row[0], conversation_id=row[1], owner=row[2], saved=row[3])
