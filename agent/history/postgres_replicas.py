"""The replicas of a PostgreSQL history.

Each replica holds a session-level advisory lock on a connection of its own. The server releases it with the connection
of a dead process, and so notices a death without clocks. The row with the last sign of life, by the server's clock, is
for what the lock cannot show: a connection that breaks for a moment, a stopped process, a proxy in between.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import AsyncConnection

from agent.history.records import new_id
from agent.history.replicas import (
    DEAD_SECONDS,
    SILENT_SECONDS,
    STEADY_GAP_SECONDS,
    WATCHED_SECONDS,
    OwnRun,
    Steadiness,
    dump_sizes,
    sum_of_sizes,
)
from agent.history.run_events import UnfinishedRun
from agent.history.sql.database import LIVE, Steps, Values
from agent.history.sql.postgres_database import NOW, PostgresDatabase, fetch

LEAVE_SECONDS = 2.0
"""Seconds that leaving may take."""
FORGOTTEN = "1 day"
"""The age of the last sign of life after which a replica's row is removed."""

_LOCKS = 721459367
"""The first half of the keys of all replicas' locks. The number is arbitrary, and the same in all versions."""
_BEAT = """
INSERT INTO replicas (id, seen_at) VALUES (%(replica)s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at RETURNING number, extract(epoch FROM seen_at)::float8
"""
_FORGET = f"DELETE FROM replicas WHERE seen_at < clock_timestamp() - interval '{FORGOTTEN}'"
_LEAVE = "DELETE FROM replicas WHERE id = %(replica)s"
_IS_LOCKED = f"""
EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = {_LOCKS} AND objid = replicas.number
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
"""
# A sign of life from the future is one from before the clock was set back.
_IS_ALIVE = f"""
abs(extract(epoch FROM clock_timestamp() - seen_at)) < {SILENT_SECONDS}
AND (seen_at > clock_timestamp() - interval '{DEAD_SECONDS} s' OR {_IS_LOCKED})
"""
_MAY_JUDGE = f"""
%(is_steady)s AND EXISTS (
    SELECT FROM replicas AS mine WHERE mine.id = %(replica)s
    AND mine.seen_at > clock_timestamp() - interval '{STEADY_GAP_SECONDS} s'
)
"""
_IS_LOST = f"""
ended_at IS NULL AND runs.replica <> %(replica)s AND NOT EXISTS (
    SELECT FROM replicas WHERE replicas.id = runs.replica AND (({_IS_ALIVE}) OR NOT ({_MAY_JUDGE}))
)
"""
_LOST = f"""
SELECT runs.id, conversation_id, owner, saved FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE {_IS_LOST} AND {LIVE} ORDER BY runs.rowid LIMIT %(limit)s
"""
# A run that another replica is just taking is skipped.
_TAKE = f"""
UPDATE runs SET replica = %(replica)s
WHERE id = (SELECT id FROM runs WHERE id = %(id)s AND {_IS_LOST} FOR UPDATE SKIP LOCKED) RETURNING 1
"""
_UNFINISHED = f"""
SELECT runs.id FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = %(id)s AND owner = %(owner)s AND ended_at IS NULL AND {LIVE} ORDER BY runs.rowid DESC LIMIT 1
"""
_IS_ANSWERING = f"""
SELECT runs.id FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = ANY(%(ids)s::text[]) AND ended_at IS NULL
    AND ({LIVE} OR (runs.replica <> %(replica)s AND NOT ({_IS_LOST}))) LIMIT 1
"""
_ANSWERED = f"""
SELECT DISTINCT conversation_id FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND owner = %(owner)s AND {LIVE}
"""
_REQUEST_STOP = f"""
UPDATE runs SET is_stopped = TRUE FROM conversations
WHERE runs.id = %(id)s AND ended_at IS NULL AND conversations.id = conversation_id AND owner = %(owner)s AND {LIVE}
RETURNING 1
"""
_WATCH = f"""
UPDATE runs SET watched_at = clock_timestamp() FROM conversations
WHERE runs.id = %(id)s AND ended_at IS NULL AND conversations.id = conversation_id AND owner = %(owner)s AND {LIVE}
"""
_OWN = f"""
SELECT runs.id, conversation_id, owner, saved, is_stopped,
    coalesce(watched_at > clock_timestamp() - interval '{WATCHED_SECONDS} s', FALSE)
FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND replica = %(replica)s AND {LIVE} ORDER BY runs.rowid
"""
_RESERVE = "UPDATE replicas SET reserved = %(reserved)s WHERE id = %(replica)s"
_RESERVED = f"SELECT reserved FROM replicas WHERE reserved <> '' AND id <> %(replica)s AND {_IS_ALIVE}"

log = logging.getLogger(__name__)


class PostgresReplicas:
    """The `Replicas` of a PostgreSQL history. Owns the connection with this replica's lock."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._id = ""
        self._connection: AsyncConnection | None = None
        self._has_lock = False
        self._steadiness = Steadiness()
        self._beating = asyncio.Lock()

    @property
    def id(self) -> str:
        """Implement `Replicas.id`."""
        return self._id

    async def time(self) -> datetime:
        """Implement `Replicas.time`."""
        ((at,),) = await self._database.rows(f"SELECT {NOW}")
        return datetime.fromtimestamp(at, UTC)

    async def beat(self) -> None:
        """Implement `Replicas.beat`. A broken connection is replaced, and the lock with it."""
        async with self._beating:
            id_ = self._id or new_id()
            ((number, seen_at),) = await self._database.change(_BEAT, replica=id_)
            self._id = id_
            self._steadiness.add(seen_at)
            if not await self._is_connected():
                await self._close()
                self._connection = await self._database.connect()
                await self._database.change(_FORGET)
            if self._connection is not None and not self._has_lock:
                # It fails as long as the server has not noticed that this replica's last connection is broken.
                lock = f"SELECT pg_try_advisory_lock({_LOCKS}, {int(number)})"
                ((self._has_lock,),) = await fetch(self._connection, lock, {})

    async def leave(self) -> None:
        """Implement `Replicas.leave`."""
        async with self._beating:
            try:
                if self._id and self._connection is not None and not self._connection.closed:
                    async with asyncio.timeout(LEAVE_SECONDS):
                        await fetch(self._connection, _LEAVE, {"replica": self._id})
            except (psycopg.Error, TimeoutError) as error:
                log.info("the replica could not say that it leaves: %s", error)
            self._id = ""
            await self._close()

    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        """Implement `Replicas.lost_runs`."""
        is_steady = self._steadiness.is_steady
        rows = await self._database.rows(_LOST, replica=self._id, is_steady=is_steady, limit=max(limit, 0))
        return [_run(row) for row in rows]

    async def take(self, run_id: str) -> bool:
        """Implement `Replicas.take`."""
        is_steady = self._steadiness.is_steady
        return bool(await self._database.change(_TAKE, id=run_id, replica=self._id, is_steady=is_steady))

    async def unfinished_run(self, conversation_id: str, *, owner: str) -> str | None:
        """Implement `Replicas.unfinished_run`."""
        found = await self._database.rows(_UNFINISHED, id=conversation_id, owner=owner)
        return found[0][0] if found else None

    async def is_answering(self, conversation_id: str) -> bool:
        """Implement `Replicas.is_answering`."""
        return bool(await self._database.rows(_IS_ANSWERING, **self._answering([conversation_id])))

    async def unfinished_conversations(self, owner: str) -> Sequence[str]:
        """Implement `Replicas.unfinished_conversations`."""
        return [row[0] for row in await self._database.rows(_ANSWERED, owner=owner)]

    async def request_stop(self, run_id: str, *, owner: str) -> bool:
        """Implement `Replicas.request_stop`."""
        return bool(await self._database.change(_REQUEST_STOP, id=run_id, owner=owner))

    async def watch(self, run_id: str, *, owner: str) -> None:
        """Implement `Replicas.watch`."""
        await self._database.change(_WATCH, id=run_id, owner=owner)

    async def own_runs(self) -> Sequence[OwnRun]:
        """Implement `Replicas.own_runs`."""
        rows = await self._database.rows(_OWN, replica=self._id)
        return [OwnRun(_run(row), is_stopped=row[4], is_watched=row[5]) for row in rows]

    async def reserve(self, sizes: Mapping[str, int]) -> None:
        """Implement `Replicas.reserve`."""
        await self._database.change(_RESERVE, replica=self._id, reserved=dump_sizes(sizes))

    async def reserved(self) -> Mapping[str, int]:
        """Implement `Replicas.reserved`."""
        return sum_of_sizes(row[0] for row in await self._database.rows(_RESERVED, replica=self._id))

    def is_in_use(self, owner: str, conversation_ids: Sequence[str]) -> Steps[bool]:
        """Return True if a run would lose one of these conversations, or another replica stores a message of the owner.

        Call it in a transaction that has locked the conversations.
        """
        if (yield _IS_ANSWERING, self._answering(conversation_ids)):
            return True
        reserved = yield _RESERVED, {"replica": self._id}
        return owner in sum_of_sizes(row[0] for row in reserved)

    def _answering(self, conversation_ids: Sequence[str]) -> Values:
        """Return the values of `_IS_ANSWERING`."""
        return {"ids": conversation_ids, "replica": self._id, "is_steady": self._steadiness.is_steady}

    async def _is_connected(self) -> bool:
        """Return True if the connection for the lock still works."""
        if self._connection is None or self._connection.closed:
            return False
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await fetch(self._connection, "SELECT 1", {})
        except (psycopg.Error, TimeoutError):
            return False
        return True

    async def _close(self) -> None:
        connection, self._connection, self._has_lock = self._connection, None, False
        if connection is not None:
            await connection.close()


def _run(row: Sequence[Any]) -> UnfinishedRun:
    id_, conversation, owner, saved = row[:4]
    return UnfinishedRun(run_id=id_, conversation_id=conversation, owner=owner, saved=saved)
