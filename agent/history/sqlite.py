"""Conversations in one SQLite file. Several processes of one machine can share it.

Reads and writes have separate connections, so that a reader sees only committed data and never half a save.
"""

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import aiosqlite

from agent.errors import ConfigError, Conflict, HistoryError, NotFound
from agent.history import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, now, sqlite_runs
from agent.history.codec import dump_entries, dump_record, load_entries, load_records, load_undamaged
from agent.history.run_events import RunEvent, RunEvents, UnfinishedRun
from agent.history.sqlite_file import (
    LIVE,
    connect,
    create_private,
    enable_wal,
    migrate,
    naming_errors,
    transaction,
    unusable,
)

T = TypeVar("T")

_OWNED = f"SELECT record FROM conversations WHERE id = :id AND owner = :owner AND {LIVE}"
_LISTED = f"SELECT record FROM conversations WHERE owner = :owner AND {LIVE} ORDER BY place DESC LIMIT :limit"
_DELETE = f"DELETE FROM conversations WHERE id = :id AND owner = :owner AND {LIVE}"
_PREFIX = "owner >= :owners AND owner < :owners || char(0x10FFFF)"  # unlike substr(), this uses an index
_EXPIRING = """
SELECT record, id, owner, revision, head_id, expires_at FROM conversations
WHERE expires_at <= :by AND id NOT IN (SELECT value FROM json_each(:skip)) ORDER BY expires_at LIMIT :limit
"""
_EXPIRING_OF = _EXPIRING.replace("WHERE expires_at", f"WHERE {_PREFIX} AND +expires_at")  # by the index of owners
_WITHOUT_EXPIRY = """
SELECT rowid, record FROM conversations
WHERE expires_at IS NULL AND substr(owner, 1, length(:owners)) = :owners AND rowid > :after ORDER BY rowid LIMIT 500
"""
_PUT_EXPIRY = """
UPDATE conversations SET expires_at = :expires_at, record = :record,
    size = size - length(CAST(record AS BLOB)) + length(CAST(:record AS BLOB))
WHERE id = :id AND revision = :revision AND expires_at IS NULL
"""
_SIZE = f"SELECT coalesce(sum(size), 0) FROM conversations WHERE {_PREFIX}"
_SIZES = f"""
SELECT owner, sum(size) FROM conversations WHERE {_PREFIX}
GROUP BY owner ORDER BY max(coalesce(expires_at, 9e999))
"""
_IDS = "SELECT id FROM conversations WHERE owner = :owner"
_ENTRIES = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = :id AND owner = :owner
"""
_ERASE = "DELETE FROM conversations WHERE id = :id AND owner = :owner AND revision = :revision"
_STORED = f"SELECT owner = :owner AND {LIVE} AS owned, revision FROM conversations WHERE id = :id"
_PUT_RECORD = """
INSERT INTO conversations (id, owner, place, revision, head_id, expires_at, record, size)
VALUES (:id, :owner, (SELECT coalesce(max(place), 0) + 1 FROM conversations WHERE owner = :owner),
        :revision, :head_id, :expires_at, :record, length(CAST(:record AS BLOB)) + :added)
ON CONFLICT (id) DO UPDATE SET place = excluded.place, revision = excluded.revision, head_id = excluded.head_id,
    expires_at = excluded.expires_at, record = excluded.record,
    size = conversations.size - length(CAST(conversations.record AS BLOB)) + excluded.size
"""
_PUT_ENTRY = "INSERT INTO entries (conversation_id, id, parent_id, entry) VALUES (?, ?, ?, ?)"
_CHAIN = f"""
WITH RECURSIVE chain (row, parent_id, depth) AS (
    SELECT entries.rowid, parent_id, 1 FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = :id AND owner = :owner AND {LIVE} AND entries.id = :head_id
    UNION ALL
    SELECT entries.rowid, entries.parent_id, depth + 1 FROM chain
    JOIN entries ON conversation_id = :id AND entries.id = chain.parent_id
    LIMIT :limit
)
SELECT entry FROM chain JOIN entries ON entries.rowid = chain.row ORDER BY depth DESC
"""

FREED_PAGES = 10_000
"""The most pages that one deletion gives back to the disk. The next deletion, or new entries, use the others."""


class SqliteStore:
    """A `HistoryStore` in a file; `open` makes one. It owns its two connections until `aclose`.

    A killed process loses no acknowledged save. A power cut can lose the last moments, but never consistency. A
    cancelled save has stored everything or nothing: a transaction that has begun is always completed.
    """

    def __init__(
        self, path: Path, writer: aiosqlite.Connection, reader: aiosqlite.Connection, clock: Callable[[], datetime]
    ) -> None:
        self._path, self._clock = path, clock
        self._writer = writer
        self._reader = reader
        self._lock = asyncio.Lock()  # One connection holds one transaction at a time.
        self._writes: set[asyncio.Task[Any]] = set()
        self._closed = False

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, busy_timeout: float = 5.0, clock: Callable[[], datetime] = now
    ) -> Self:
        """Open the file, or create it for this user alone. `busy_timeout` is the number of seconds to wait for a lock.

        Raises `ConfigError` if the file cannot be used or was written by a newer version.
        """
        path = Path(path)
        with naming_errors(path, ConfigError):
            await asyncio.to_thread(create_private, path)
            writer = await connect(path, busy_timeout)
            try:
                await enable_wal(writer, busy_timeout)
                await migrate(writer, path)
                reader = await connect(path, busy_timeout)
            except BaseException:
                await writer.close()
                raise
        return cls(path, writer, reader, clock)

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`."""
        texts = dump_entries(entries)
        text = dump_record(replace(record, revision=record.revision + 1, updated_at=self._clock()))
        (saved,) = load_records([text])
        rows = [(record.id, entry.id, entry.parent_id, json) for entry, json in zip(entries, texts, strict=True)]
        await self._write(partial(_save, self._writer, saved, text, rows, events))
        return saved

    async def append_events(self, events: RunEvents) -> None:
        """Implement `HistoryStore.append_events`."""
        await self._write(partial(sqlite_runs.append, self._writer, events, self._clock()))

    async def run_events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `HistoryStore.run_events`."""
        rows = await self._rows(sqlite_runs.EVENTS, id=run_id, owner=owner, after=after)
        return sqlite_runs.events_of(rows, after)

    async def unfinished_runs(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `HistoryStore.unfinished_runs`."""
        return sqlite_runs.unfinished(await self._rows(sqlite_runs.UNFINISHED, limit=max(limit, 0)))

    async def remove_events(self, before: datetime) -> int:
        """Implement `HistoryStore.remove_events`. The text is also wiped from the file."""
        return await self._write(partial(_erase, self._writer, sqlite_runs.REMOVE, before))

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        texts = await self._read(_OWNED, id=conversation_id, owner=owner)
        if not texts:
            raise NotFound(NO_CONVERSATION)
        return self._load(load_records, texts)[0]

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        if record.head_id is None or (limit is not None and limit <= 0):
            await self.get(record.id, owner=record.owner)
            return []
        texts = await self._read(
            _CHAIN, id=record.id, owner=record.owner, head_id=record.head_id, limit=-1 if limit is None else limit
        )
        if not texts:
            raise NotFound(NO_ENTRY)
        return self._load(load_entries, texts)

    async def list(self, owner: str, *, limit: int = 50) -> list[Record]:
        """Implement `HistoryStore.list`."""
        return self._load(load_records, await self._read(_LISTED, owner=owner, limit=max(limit, 0)))

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`. The text is also wiped from the file."""
        if not await self._write(
            partial(_erase, self._writer, _DELETE, self._clock(), id=conversation_id, owner=owner)
        ):
            raise NotFound(NO_CONVERSATION)

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `HistoryStore.expiring`."""
        values = {"by": by.timestamp(), "owners": owners, "limit": max(limit, 0), "skip": json.dumps([*skip])}
        rows = await self._rows(_EXPIRING_OF if owners else _EXPIRING, **values)
        return [load_undamaged(row[0]) or _from_columns(row) for row in rows]

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `HistoryStore.add_expiry`, in batches, so that other writers get their turn."""
        added, after = 0, 0
        while rows := await self._rows(_WITHOUT_EXPIRY, owners=owners, after=after):
            after = rows[-1][0]
            records = [record for row in rows if (record := load_undamaged(row[1]))]
            ending = [replace(record, expires_at=end) for record in records if (end := until(record)) is not None]
            if ending:
                added += await self._write(partial(_put_expiry, self._writer, ending))
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `HistoryStore.size`."""
        rows = await self._rows(_SIZE, owners=owners)
        return rows[0][0] if rows else 0

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `HistoryStore.sizes`."""
        return {row[0]: row[1] for row in await self._rows(_SIZES, owners=owners)}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `HistoryStore.texts`. Reads one conversation at a time."""
        for id_ in await self._read(_IDS, owner=owner):
            for text in await self._read(_ENTRIES, id=id_, owner=owner):
                yield text

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        return self._load(load_entries, await self._read(_ENTRIES, id=record.id, owner=record.owner))

    async def erase(self, record: Record) -> bool:
        """Implement `HistoryStore.erase`. The text is also wiped from the file."""
        values = {"id": record.id, "owner": record.owner, "revision": record.revision}
        return bool(await self._write(partial(_erase, self._writer, _ERASE, self._clock(), **values)))

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Saves in progress are finished first."""
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes)
        await self._reader.close()
        await self._writer.close()

    async def _read(self, sql: str, **values: str | float) -> Sequence[str]:
        return [row[0] for row in await self._rows(sql, **values)]

    async def _rows(self, sql: str, **values: str | float) -> Sequence[sqlite3.Row]:
        self._check_open()
        with naming_errors(self._path, HistoryError):
            try:
                return [*await self._reader.execute_fetchall(sql, {**values, "now": self._clock().timestamp()})]
            except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
                return ()

    async def _write(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in its turn, in a task that survives the caller's cancellation."""
        self._check_open()
        task = asyncio.create_task(self._in_turn(work))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            with naming_errors(self._path, HistoryError):
                return await work()

    def _load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        try:
            return load(texts)
        except HistoryError as error:
            raise HistoryError(unusable(self._path, error.text)) from error

    def _check_open(self) -> None:
        if self._closed:
            raise HistoryError("The history store is closed.")


def _from_columns(row: sqlite3.Row) -> Record:
    """Return a record with the columns of a row of `_EXPIRING`, because the record's text is damaged."""
    ends = datetime.fromtimestamp(row[5], UTC)
    return Record(id=row[1], owner=row[2], revision=row[3], head_id=row[4], expires_at=ends)


async def _save(
    connection: aiosqlite.Connection,
    record: Record,
    text: str,
    rows: Sequence[tuple[str, str, str | None, str]],
    events: RunEvents | None,
) -> None:
    """Store the entries' rows, `text`, which is `record` with its new revision, and the events."""
    expires_at = record.expires_at.timestamp() if record.expires_at else None
    values = {"id": record.id, "owner": record.owner, "revision": record.revision, "head_id": record.head_id}
    try:
        async with transaction(connection):
            stored = await connection.execute_fetchall(_STORED, {**values, "now": record.updated_at.timestamp()})
            _check([*stored], record.revision - 1)
            added = sum(len(row[3].encode()) for row in rows)
            put = {**values, "expires_at": expires_at, "record": text, "added": added}
            await connection.execute_fetchall(_PUT_RECORD, put)
            await connection.executemany(_PUT_ENTRY, rows)
            if events is not None:
                await sqlite_runs.put(connection, events, record.updated_at, saved=True)
    except sqlite3.IntegrityError as error:
        raise HistoryError(_broken_link(error, record)) from error


async def _put_expiry(connection: aiosqlite.Connection, records: Sequence[Record]) -> int:
    """Store the expiry of each record that was not saved in the meantime; return their number."""
    stored = 0
    async with transaction(connection):
        for record in records:
            ends = record.expires_at.timestamp() if record.expires_at else None
            values = {"id": record.id, "revision": record.revision, "expires_at": ends, "record": dump_record(record)}
            async with connection.execute(_PUT_EXPIRY, values) as cursor:
                stored += cursor.rowcount
    return stored


def _check(stored: Sequence[sqlite3.Row], revision: int) -> None:
    """Compare the stored revision with the caller's. Raises `NotFound` and `Conflict`."""
    if not stored and revision == 0:
        return
    if not stored or not stored[0][0]:
        raise NotFound(NO_CONVERSATION)
    if stored[0][1] != revision:
        raise Conflict(CHANGED_ELSEWHERE)


def _broken_link(error: sqlite3.IntegrityError, record: Record) -> str:
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
        return f"Conversation {record.id!r} was not saved: an entry is stored already, and none is ever overwritten."
    return f"Conversation {record.id!r} was not saved: it would point at an entry that is not in it."


async def _erase(connection: aiosqlite.Connection, sql: str, at: datetime, **values: str | int) -> int:
    """Delete conversations, wipe their text from the file, and return their number."""
    try:
        async with transaction(connection), connection.execute(sql, {**values, "now": at.timestamp()}) as cursor:
            erased = cursor.rowcount
    except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
        return 0
    if erased:
        # The log still holds the old pages. If a reader blocks the checkpoint, a later one does this.
        with suppress(sqlite3.OperationalError):
            # `execute` would free only one page: this statement has one step for each page, and no row to fetch.
            await connection.executescript(f"PRAGMA incremental_vacuum({FREED_PAGES})")
            await connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
    return erased
