"""Conversations in one SQLite file, which several processes of one machine may share.

Reads and writes have a connection each, so that a reader sees what is committed and never half a save.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

import aiosqlite

from agent.errors import AgentError, ConfigError, Conflict, HistoryError, NotFound, named
from agent.history import Entry, Record, now
from agent.history.codec import dump_entries, dump_record, load_entries, load_records
from agent.history.sentences import SENTENCES
from agent.sayings import Saying

T = TypeVar("T")

# One tuple of statements per version of the file; `user_version` counts those it has seen. Never edit one that was
# released: add the next.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `place` orders an owner's conversations by their last save. A clock would not do: it can stand or step back.
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            place INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            head_id TEXT,
            expires_at REAL,
            record TEXT NOT NULL,
            FOREIGN KEY (id, head_id) REFERENCES entries (conversation_id, id) DEFERRABLE INITIALLY DEFERRED
        )""",
        # The key begins with the conversation, so that no chain can lead out of it. The text stands last: a walk
        # along the links then reads no page of a large message.
        """CREATE TABLE entries (
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            id TEXT NOT NULL,
            parent_id TEXT CHECK (parent_id <> id),
            entry TEXT NOT NULL,
            PRIMARY KEY (conversation_id, id),
            FOREIGN KEY (conversation_id, parent_id) REFERENCES entries (conversation_id, id)
        )""",
        "CREATE INDEX conversations_by_owner ON conversations (owner, place)",
        "CREATE INDEX conversations_by_expiry ON conversations (expires_at) WHERE expires_at IS NOT NULL",
        # Without it, deleting a conversation would look for the children of each entry among all entries.
        "CREATE INDEX entries_by_parent ON entries (conversation_id, parent_id)",
    ),
)

_LIVE = "(expires_at IS NULL OR expires_at > :now)"
_OWNED = f"SELECT record FROM conversations WHERE id = :id AND owner = :owner AND {_LIVE}"
_LISTED = f"SELECT record FROM conversations WHERE owner = :owner AND {_LIVE} ORDER BY place DESC LIMIT :limit"
_DELETE = f"DELETE FROM conversations WHERE id = :id AND owner = :owner AND {_LIVE}"
_PURGE = "DELETE FROM conversations WHERE expires_at <= :now"
_STORED = f"SELECT owner = :owner AND {_LIVE} AS owned, revision FROM conversations WHERE id = :id"
_PUT_RECORD = """
INSERT INTO conversations (id, owner, place, revision, head_id, expires_at, record)
VALUES (:id, :owner, (SELECT coalesce(max(place), 0) + 1 FROM conversations WHERE owner = :owner),
        :revision, :head_id, :expires_at, :record)
ON CONFLICT (id) DO UPDATE SET place = excluded.place, revision = excluded.revision, head_id = excluded.head_id,
    expires_at = excluded.expires_at, record = excluded.record
"""
_PUT_ENTRY = "INSERT INTO entries (conversation_id, id, parent_id, entry) VALUES (?, ?, ?, ?)"
_CHAIN = f"""
WITH RECURSIVE chain (row, parent_id, depth) AS (
    SELECT entries.rowid, parent_id, 1 FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = :id AND owner = :owner AND {_LIVE} AND entries.id = :head_id
    UNION ALL
    SELECT entries.rowid, entries.parent_id, depth + 1 FROM chain
    JOIN entries ON conversation_id = :id AND entries.id = chain.parent_id
    LIMIT :limit
)
SELECT entry FROM chain JOIN entries ON entries.rowid = chain.row ORDER BY depth DESC
"""

_REASONS = {
    sqlite3.SQLITE_BUSY: "file_locked",
    sqlite3.SQLITE_CANTOPEN: "file_closed",
    sqlite3.SQLITE_CORRUPT: "file_damaged",
    sqlite3.SQLITE_FULL: "file_full",
    sqlite3.SQLITE_NOTADB: "file_other",
    sqlite3.SQLITE_READONLY: "file_fixed",
}


class SqliteStore:
    """A `HistoryStore` in a file; `open` makes one. It owns its two connections until `aclose`.

    A killed process loses no save that was acknowledged. A power cut may lose the last moments, never consistency.
    A cancelled save has stored everything or nothing: once begun, its transaction is waited for.
    """

    def __init__(self, path: Path, writer: aiosqlite.Connection, reader: aiosqlite.Connection) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._turn = asyncio.Lock()  # One connection holds one transaction at a time.
        self._writes: set[asyncio.Task[Any]] = set()
        self._closed = False

    @classmethod
    async def open(cls, path: str | os.PathLike[str], *, busy_timeout: float = 5.0) -> Self:
        """Open the file, or create it for this user alone; `busy_timeout` is how many seconds to wait for a lock.

        Raises `ConfigError` where the file cannot be used or was written by a newer version.
        """
        path = Path(path)
        with _naming(path, ConfigError):
            await asyncio.to_thread(_claim, path)
            writer = await _connect(path, busy_timeout)
            try:
                await _log_ahead(writer, busy_timeout)
                await _migrate(writer, path)
                reader = await _connect(path, busy_timeout)
            except BaseException:
                await writer.close()
                raise
        return cls(path, writer, reader)

    async def save(self, record: Record, entries: Sequence[Entry] = ()) -> Record:
        """As in `HistoryStore.save`."""
        texts = dump_entries(entries)
        text = dump_record(replace(record, revision=record.revision + 1, updated_at=now()))
        (saved,) = load_records([text])
        rows = [(record.id, entry.id, entry.parent_id, json) for entry, json in zip(entries, texts, strict=True)]
        await self._write(partial(_save, self._writer, saved, text, rows))
        return saved

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """As in `HistoryStore.get`."""
        texts = await self._read(_OWNED, id=conversation_id, owner=owner)
        if not texts:
            raise named(NotFound, SENTENCES, "no_conversation")
        return self._loaded(load_records, texts)[0]

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """As in `HistoryStore.history`."""
        if record.head_id is None or (limit is not None and limit <= 0):
            await self.get(record.id, owner=record.owner)
            return []
        texts = await self._read(
            _CHAIN, id=record.id, owner=record.owner, head_id=record.head_id, limit=-1 if limit is None else limit
        )
        if not texts:
            raise named(NotFound, SENTENCES, "no_entry")
        return self._loaded(load_entries, texts)

    async def list(self, owner: str, *, limit: int = 50) -> list[Record]:
        """As in `HistoryStore.list`."""
        return self._loaded(load_records, await self._read(_LISTED, owner=owner, limit=max(limit, 0)))

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """As in `HistoryStore.delete`; the text is also wiped from the file."""
        if not await self._write(partial(_erase, self._writer, _DELETE, id=conversation_id, owner=owner)):
            raise named(NotFound, SENTENCES, "no_conversation")

    async def purge(self) -> int:
        """As in `HistoryStore.purge`; the text is also wiped from the file."""
        return await self._write(partial(_erase, self._writer, _PURGE))

    async def aclose(self) -> None:
        """As in `HistoryStore.aclose`; saves under way are finished first."""
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes)
        await self._reader.close()
        await self._writer.close()

    async def _read(self, sql: str, **values: str | int) -> Sequence[str]:
        self._check_open()
        with _naming(self._path, HistoryError):
            try:
                rows = await self._reader.execute_fetchall(sql, {**values, "now": now().timestamp()})
            except UnicodeEncodeError:  # An id or owner that is no text: nothing has that name.
                return ()
        return [row[0] for row in rows]

    async def _write(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` in its turn, in a task that cancelling the caller does not touch."""
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
        async with self._turn:
            with _naming(self._path, HistoryError):
                return await work()

    def _loaded(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        try:
            return load(texts)
        except HistoryError as error:
            raise named(
                HistoryError, SENTENCES, "history_file", path=str(self._path), error=error.sayings[0]
            ) from error

    def _check_open(self) -> None:
        if self._closed:
            raise HistoryError("The history store is closed.")


def _claim(path: Path) -> None:
    """Make sure that the file exists and is readable by this user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        # Never opened here: closing it would drop the locks this process may hold through another store.
        # https://www.sqlite.org/howtocorrupt.html section 2.2
        mode = path.stat().st_mode
        if path.is_file() and mode & 0o077:
            with suppress(PermissionError):  # Somebody else's file is theirs to guard.
                path.chmod(mode & 0o700)


async def _connect(path: Path, busy_timeout: float) -> aiosqlite.Connection:
    connection = aiosqlite.connect(path, timeout=busy_timeout, isolation_level=None)
    # aiosqlite's thread would keep a script alive for ever that forgot `aclose`.
    thread: Thread | None = vars(connection).get("_thread")
    if thread is not None:
        thread.daemon = True
    await connection
    try:
        # In WAL mode NORMAL keeps every commit through a crash of the process, without waiting for the disk each time.
        for pragma in ("foreign_keys = ON", "synchronous = NORMAL", "secure_delete = ON"):
            await connection.execute_fetchall(f"PRAGMA {pragma}")
    except BaseException:
        await connection.close()
        raise
    return connection


async def _log_ahead(connection: aiosqlite.Connection, patience: float) -> None:
    """Switch the file to a write-ahead log, trying for `patience` seconds.

    Of two that do this to a new file at once each would wait for the other, so SQLite refuses one without any wait.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            await connection.execute_fetchall("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(0.01)


async def _migrate(connection: aiosqlite.Connection, path: Path) -> None:
    # Asked inside the transaction: another process may be migrating the same file.
    async with _transaction(connection):
        ((version,),) = await connection.execute_fetchall("PRAGMA user_version")
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"The history file {str(path)!r} has schema {version}, and this version knows {len(MIGRATIONS)}: "
                "use a newer version, or name another file."
            )
        for statement in (statement for migration in MIGRATIONS[version:] for statement in migration):
            await connection.execute_fetchall(statement)
        await connection.execute_fetchall(f"PRAGMA user_version = {len(MIGRATIONS)}")


async def _save(
    connection: aiosqlite.Connection, record: Record, text: str, rows: Sequence[tuple[str, str, str | None, str]]
) -> None:
    """Store `text`, which is `record` with its new revision, and the entries' rows."""
    expires_at = record.expires_at.timestamp() if record.expires_at else None
    values = {"id": record.id, "owner": record.owner, "revision": record.revision, "head_id": record.head_id}
    try:
        async with _transaction(connection):
            stored = await connection.execute_fetchall(_STORED, {**values, "now": now().timestamp()})
            _check([*stored], record.revision - 1)
            await connection.execute_fetchall(_PUT_RECORD, {**values, "expires_at": expires_at, "record": text})
            await connection.executemany(_PUT_ENTRY, rows)
    except sqlite3.IntegrityError as error:
        raise HistoryError(_broken_link(error, record)) from error


def _check(stored: Sequence[sqlite3.Row], revision: int) -> None:
    """Compare what is stored with the revision that the caller had loaded."""
    if not stored and revision == 0:
        return
    if not stored or not stored[0][0]:
        raise named(NotFound, SENTENCES, "no_conversation")
    if stored[0][1] != revision:
        raise named(Conflict, SENTENCES, "changed_elsewhere")


def _broken_link(error: sqlite3.IntegrityError, record: Record) -> str:
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
        return f"Conversation {record.id!r} was not saved: an entry is stored already, and none is ever overwritten."
    return f"Conversation {record.id!r} was not saved: it would point at an entry that is not in it."


async def _erase(connection: aiosqlite.Connection, sql: str, **values: str) -> int:
    """Delete conversations, wipe their text from the file, and return how many they were."""
    try:
        async with _transaction(connection), connection.execute(sql, {**values, "now": now().timestamp()}) as cursor:
            erased = cursor.rowcount
    except UnicodeEncodeError:  # An id or owner that is no text: nothing has that name.
        return 0
    if erased:
        # The log still holds the old pages. Where a reader stands in the way, a later checkpoint does this.
        with suppress(sqlite3.OperationalError):
            await connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
    return erased


@asynccontextmanager
async def _transaction(connection: aiosqlite.Connection) -> AsyncGenerator[None, None]:
    """Write from here to the end of the block, all or nothing."""
    # IMMEDIATE: a transaction that reads first and writes later could not wait for another writer, only fail.
    await connection.execute_fetchall("BEGIN IMMEDIATE")
    try:
        yield
        await connection.commit()
    except BaseException:
        await connection.rollback()
        raise


@contextmanager
def _naming(path: Path, raised: type[AgentError]) -> Generator[None, None, None]:
    """Turn what the file or the disk refuses into a sentence that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        known = _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        reason = Saying(known) if known else getattr(error, "strerror", None) or str(error)
        raise named(raised, SENTENCES, "history_file", path=str(path), error=reason) from error
