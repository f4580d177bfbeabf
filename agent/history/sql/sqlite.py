"""Conversations in one SQLite file. Several processes of one machine can share it.

One connection writes, one transaction at a time, one reads, and one searches. A reader sees only committed data and
never half a save. A search of one visitor delays no reads of the others.
"""

import asyncio
import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Self, TypeVar

from agent.errors import AgentError, ConfigError, HistoryError, OtherVersion, reason_of
from agent.history.sql.database import LEASE, TABLES, VERSION, Row, Value, Values, Work
from agent.history.sql.sqlite_wipe import (
    HIDE,
    deletions,
    empty_log,
    forget_deletions,
    has_free_pages,
    is_unwiped,
    note_deletion,
    remove_hidden,
    shrink,
    transaction,
    wipe_pages,
)
from agent.history.sql.store import SqlStore
from agent.history.uninterrupted import LockWait, UninterruptedWork
from agent.history.values import now, steady_of
from agent.i18n.text import _

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

LOCK_SECONDS = 2.5
"""Seconds that a write waits for other processes, from its call on if the write before it waited in vain."""
RESERVE_BYTES = 4 << 20
"""The room that deletions have on a full disk. It holds the log of a step, see `agent.history.sql.sqlite_wipe`."""
WIPE_SECONDS, WIPE_SHARE = 2.0, 0.05
"""Seconds until the file is wiped after a deletion, and the most of the time that this takes, as a fraction."""
STEP_PAUSE_SECONDS = 0.15
"""Seconds between the steps of this. A process that waits for the lock looks every 0.1 s whether it is free."""
REMOVE_SECONDS = 0.04
"""Seconds of removing deleted text between two such pauses."""
ERASE_SECONDS = 1.0
"""The most seconds for which a deletion waits until its text is removed. A longer text goes after its end."""
DISK_FULL_SECONDS = 60.0
"""Seconds until this is tried again if the disk is full."""
SHRINK_SECONDS = 1.0
"""The most seconds for which closing makes the file smaller. The next process goes on."""
OLDEST = 6
"""The oldest version of a file that can be opened."""

log = logging.getLogger(__name__)
_DIALECT = (
    (re.compile(r"IN LIST\((:\w+)\)"), r"IN (SELECT value FROM json_each(\1))"),
    (re.compile(r"CONTAINS\((\w+), (:\w+)\)"), r"instr(\1, \2) > 0"),
    (re.compile(r"octet_length\((\w+)\)"), r"length(CAST(\1 AS BLOB))"),
    (re.compile(r"greatest\("), "max("),
    (re.compile(r"IS NOT DISTINCT FROM"), "IS"),
    (re.compile(r" FOR (?:KEY SHARE|NO KEY UPDATE|UPDATE OF conversations|UPDATE)\b"), ""),
    (re.compile(r"DELETE FROM conversations"), HIDE),
    (re.compile(r"\bROWID,"), ""),
)
"""SQLite's words for the fragments of dialect; see `agent.history.sql.database`."""
_FIND_HIDDEN = "SELECT 1 FROM conversations WHERE expires_at < 0 AND id = :id"
_REASONS = {
    sqlite3.SQLITE_BUSY: _("another process keeps it locked"),
    sqlite3.SQLITE_CANTOPEN: _("it cannot be opened"),
    sqlite3.SQLITE_CORRUPT: _("it is damaged"),
    sqlite3.SQLITE_FULL: _("the disk is full"),
    sqlite3.SQLITE_NOTADB: _("it is not a SQLite database"),
    sqlite3.SQLITE_READONLY: _("it cannot be written"),
}


class SqliteStore(SqlStore):
    """A `HistoryStore` in a file; `open` makes one.

    A killed process loses no acknowledged save. A power cut can lose the last moments, but never consistency. A
    cancelled save has stored everything or nothing: a transaction that has begun is always completed.
    """

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, busy_timeout: float = LOCK_SECONDS, clock: Callable[[], datetime] = now
    ) -> Self:
        """Open the file, or create it for this user alone. `busy_timeout` is the number of seconds to wait for a lock.

        Raises `ConfigError` if the file cannot be used or was written by a newer version, or by one that is too old.
        """
        return cls(await SqliteDatabase.open(Path(path), busy_timeout, clock))


class SqliteConnection:
    """A connection in a thread of its own, until `aclose`. It overwrites deleted rows.

    The thread does one piece of work at a time, in their order, each from its beginning to its end. So a transaction
    costs the event loop no more than one statement.
    """

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._connection, self._thread = connection, thread
        self._is_closed = False

    @classmethod
    async def open(cls, path: Path, busy_timeout: float) -> "SqliteConnection":
        """Open the file. Statements wait up to `busy_timeout` seconds for another process. Raises `sqlite3.Error`."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite-connection")
        try:
            opening = asyncio.get_running_loop().run_in_executor(thread, _connect, path, busy_timeout)
            return cls(await opening, thread)
        except BaseException:
            thread.shutdown(wait=False)
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` returns. If the caller is cancelled, work that has begun is still finished."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)

    async def aclose(self) -> None:
        """Finish the work that was given, and close the connection. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await self.run(sqlite3.Connection.close)
            self._thread.shutdown()


def _connect(path: Path, busy_timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
    try:
        # In WAL mode, NORMAL keeps every commit through a crash of the process, without waiting for the disk each time.
        # `auto_vacuum` has an effect on a new file only, and on one that is copied.
        for pragma in ("auto_vacuum = INCREMENTAL", "foreign_keys = ON", "synchronous = NORMAL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


Times = Mapping[str, float]
"""The values of `:now` and `:steady` in seconds of Unix time."""


class SqliteDatabase:
    """The three connections to one file, until `aclose`. `clock` returns the current time."""

    def __init__(
        self, path: Path, connections: Sequence[SqliteConnection], patience: float, clock: Callable[[], datetime]
    ) -> None:
        self.path, self.clock, self._lock_wait = path, clock, LockWait(patience)
        self._writer, self._reader, self._searcher = connections
        self._writes = UninterruptedWork()
        self._has_left_text, self._has_hidden, self._pause = False, False, WIPE_SECONDS
        self._wiping: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._one_wipe, self._one_removal, self._is_closing = asyncio.Lock(), asyncio.Lock(), asyncio.Event()

    @classmethod
    async def open(cls, path: Path, busy_timeout: float, clock: Callable[[], datetime]) -> "SqliteDatabase":
        """Open or create the file, and bring it to the newest schema. Raises `ConfigError`."""
        connections: list[SqliteConnection] = []
        with naming_errors(path, ConfigError):
            await asyncio.to_thread(create_private, path)
            try:
                connections.append(await SqliteConnection.open(path, busy_timeout))
                await enable_wal(connections[0], busy_timeout)
                await connections[0].run(partial(_migrate, path))
                await connections[0].run(empty_log)
                connections += [await SqliteConnection.open(path, busy_timeout) for _ in range(2)]
            except BaseException:
                for connection in connections:
                    await connection.aclose()
                raise
            await asyncio.to_thread(make_reserve, path)
        database = cls(path, connections, busy_timeout, clock)
        if await connections[0].run(is_unwiped):  # A killed process has deleted and not wiped.
            database._wipe_soon()
        return database

    def _times(self) -> Times:
        return {"now": self.clock().timestamp(), "steady": steady_of(self.clock)().timestamp()}

    async def rows(self, sql: str, **values: Value) -> Sequence[Row]:
        return await self._rows(self._reader, sql, values)

    async def search(self, sql: str, **values: Value) -> Sequence[Row]:
        return await self._rows(self._searcher, sql, values)

    async def write(self, work: Work[T], *, frees_space: bool = False, is_end: bool = False) -> T:
        """Implement `Database.write`. See `make_reserve` for `frees_space`."""
        job = partial(_transact, work, self._times(), notes_deletion=False)
        return await self._writes.run(self._in_turn(job, frees_space=frees_space, is_end=is_end))

    async def erase(self, work: Work[T]) -> T:
        """Implement `Database.erase`: deleted conversations are hidden at first, and then nobody can read them.

        What is hidden is removed step by step, and other writers have their turn in between. This returns when that is
        done, or after `ERASE_SECONDS`. The text is overwritten in the file. Copies of it can be left in the unused
        parts of pages, until `wipe`.
        """
        erased = await self._writes.run(self._erase(partial(_transact, work, self._times(), notes_deletion=True)))
        if erased and self._removing is not None:
            await asyncio.wait([self._removing], timeout=ERASE_SECONDS)
        return erased

    async def finish_erasing(self, id_: str) -> bool:
        """Implement `Database.finish_erasing`, also for what another process has hidden.

        It does not wait for the text of others: a removal of all can take minutes.
        """
        if not await self.rows(_FIND_HIDDEN, id=id_):
            return False
        await self._writes.run(self._remove_hidden_of(id_))
        return True

    async def wipe(self) -> None:
        """Implement `Database.wipe`: look at each page of the file, in steps of 20 ms."""
        await self._writes.run(self._wipe())

    def load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        try:
            return load(texts)
        except HistoryError as error:
            log.warning("%s: %s", self.path, error)
            raise HistoryError(unusable(Path(self.path.name), error.text)) from error

    async def aclose(self) -> None:
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        await self._writes.finish()
        for task in (self._wiping, self._removing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        try:
            await self._wipe()
            await self._shrink(SHRINK_SECONDS)
        finally:
            for connection in (self._searcher, self._reader, self._writer):
                await connection.aclose()

    async def _rows(self, connection: SqliteConnection, sql: str, values: Values) -> Sequence[Row]:
        self._writes.check_open()
        with naming_errors(self.path, HistoryError):
            return await connection.run(partial(_execute, self._times(), sql, values))

    async def _in_turn(self, work: Job[T], *, frees_space: bool = False, is_end: bool = False) -> T:
        with naming_errors(self.path, HistoryError):
            in_time = partial(self._in_time, work, self._lock_wait.deadline(), is_end)
            try:
                return await self._writer.run(in_time)
            except sqlite3.OperationalError as error:
                if not frees_space or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                    raise
                await asyncio.to_thread(reserve_of(self.path).unlink, missing_ok=True)
                return await self._writer.run(in_time)

    def _in_time(self, work: Job[T], deadline: float, is_end: bool, connection: sqlite3.Connection) -> T:
        """Run `work`, which waits for the lock."""
        left = self._lock_wait.left(deadline, is_end=is_end)
        connection.execute(f"PRAGMA busy_timeout = {round(left * 1000)}")
        try:
            done = work(connection)
        except sqlite3.OperationalError as error:
            self._lock_wait.end(is_in_vain=error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY)
            raise
        self._lock_wait.end(is_in_vain=False)
        return done

    async def _erase(self, delete: Job[T]) -> T:
        if erased := await self._in_turn(delete, frees_space=True):
            self._wipe_soon()
            self._has_hidden = True
            if self._removing is None or self._removing.done():
                self._removing = asyncio.create_task(self._remove_soon(), context=Context())
        return erased

    async def _remove_soon(self) -> None:
        while self._has_hidden and not self._is_closing.is_set():
            self._has_hidden = False
            try:
                await self._writes.run(self._remove_hidden())
            except HistoryError as error:
                log.warning("deleted text could not be removed; this is tried again: %s", error)

    async def _remove_hidden(self) -> None:
        async with self._one_removal:
            while await self._in_turn(_remove_hidden, frees_space=True):
                await self._rest()

    async def _remove_hidden_of(self, id_: str) -> None:
        while await self._in_turn(partial(_remove_hidden, id_=id_), frees_space=True):
            await self._rest()

    def _wipe_soon(self) -> None:
        self._has_left_text = True
        if self._wiping is None or self._wiping.done():
            self._wiping = asyncio.create_task(self._wipe_later(), context=Context())

    async def _wipe_later(self) -> None:
        while self._has_left_text:
            await asyncio.sleep(self._pause)
            await self.wipe()
        await self._writes.run(self._shrink())
        await asyncio.to_thread(make_reserve, self.path)

    async def _wipe(self) -> None:
        """Wipe the file step by step. It is tried again if the disk is full or another process reads the log."""
        async with self._one_wipe:
            if not self._has_left_text:
                return
            began = time.monotonic()
            try:
                self._has_left_text = not await self._steps()
            except (sqlite3.Error, OSError, HistoryError):
                log.warning("deleted text could not be wiped from %s; this is tried again", self.path, exc_info=True)
                self._pause = DISK_FULL_SECONDS
            else:
                self._pause = max(WIPE_SECONDS, (time.monotonic() - began) / WIPE_SHARE)

    async def _steps(self) -> bool:
        """Wipe all pages, and return whether that is done. Between two steps other writers have their turn."""
        await self._remove_hidden()
        number, page, wiped, is_again = await self._writer.run(deletions), 1, 0, False
        while step := await self._writer.run(partial(wipe_pages, page)):
            page, wiped = step[0], wiped + step[1]
            if not page and (is_again or not wiped):
                return await self._writer.run(partial(forget_deletions, number))
            if not page:  # Writers can have moved a page from those ahead to those behind, so look once more.
                page, is_again = 1, True
            await self._rest()
        return False

    async def _shrink(self, most: float = float("inf")) -> None:
        """Give free pages back to the disk, step by step, for `most` seconds. The next start goes on."""
        ends = time.monotonic() + most
        with suppress(sqlite3.OperationalError):
            while await self._writer.run(has_free_pages) and time.monotonic() < ends:
                if self._is_closing.is_set() and most == float("inf"):
                    return
                await self._writer.run(shrink)
                await self._rest()

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_closing.wait(), STEP_PAUSE_SECONDS)


def _transact(work: Work[T], times: Times, connection: sqlite3.Connection, *, notes_deletion: bool) -> T:
    """Run `work` in a transaction. With `notes_deletion`, it has deleted something if it returns something true."""
    with transaction(connection):
        steps, rows = work(), None
        while True:
            try:
                sql, values = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                if notes_deletion and end.value:
                    note_deletion(connection)
                return end.value
            rows = _execute(times, sql, values, connection)


def _execute(
    times: Times, sql: str, values: Values | Sequence[Values], connection: sqlite3.Connection
) -> Sequence[Row]:
    sql = _translated(sql)
    if not isinstance(values, Mapping):
        return [(connection.executemany(sql, values).rowcount,)]
    lists = {name: json.dumps(value) for name, value in values.items() if isinstance(value, list)}
    try:
        return connection.execute(sql, {**times, **values, **lists}).fetchall()
    except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
        return ()


@lru_cache(maxsize=200)
def _translated(sql: str) -> str:
    for pattern, replacement in _DIALECT:
        sql = pattern.sub(replacement, sql)
    return sql


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    """Make the tables, or bring those of an earlier version to this one. Raises `OtherVersion`."""
    # Read the version inside the transaction: another process may be doing the same.
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise OtherVersion(
                f"The history file {str(path)!r} has schema {version}, and this version knows {VERSION}: "
                "use a newer version, or name another file."
            )
        if 0 < version < OLDEST:
            raise OtherVersion(
                f"The history file {str(path)!r} has schema {version}, and this version reads {OLDEST} to {VERSION}: "
                "open it once with version 0.1.0, or name another file."
            )
        for column in LEASE if 0 < version < VERSION else ():
            connection.execute(f"ALTER TABLE runs ADD COLUMN {column}")
        if version == 7:
            connection.execute("ALTER TABLE runs DROP COLUMN replica")
        for statement in TABLES if version == 0 else ():
            connection.execute(_translated(statement))
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _remove_hidden(connection: sqlite3.Connection, id_: str | None = None) -> bool:
    """Remove parts of what is hidden for a moment, and return whether there is more. See `remove_hidden`."""
    ends = time.monotonic() + REMOVE_SECONDS
    while True:
        has_more = remove_hidden(connection, id_)
        empty_log(connection)  # If another process reads the log, `_wipe` tries again.
        if not has_more or time.monotonic() >= ends:
            return has_more


def create_private(path: Path) -> None:
    """Make sure that the file exists and is readable by this user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        # Don't open the file here: closing it would drop the locks that this process has through another store.
        # https://www.sqlite.org/howtocorrupt.html section 2.2
        mode = path.stat().st_mode
        if path.is_file() and mode & 0o077:
            with suppress(PermissionError):  # Another user owns the file and must protect it.
                path.chmod(mode & 0o700)


def make_reserve(file: Path) -> None:
    """Take some room on the disk beside a history file, if there is some. Without any, nothing could be deleted."""
    reserve, is_taken = reserve_of(file), False
    with suppress(OSError):
        opened = os.open(reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for _ in range(RESERVE_BYTES >> 16):
                os.write(opened, bytes(1 << 16))
            is_taken = os.fstat(opened).st_size == RESERVE_BYTES
        finally:
            os.close(opened)
            if not is_taken:
                reserve.unlink()


def reserve_of(file: Path) -> Path:
    """Return the file whose room a deletion takes on a full disk."""
    return file.with_name(f"{file.name}-reserve")


async def enable_wal(connection: SqliteConnection, patience: float) -> None:
    """Switch the file to a write-ahead log, trying for `patience` seconds.

    Two processes that do this to a new file at once would wait for each other, so SQLite refuses one immediately.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return await connection.run(_enable_wal)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(0.01)


def _enable_wal(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")


@contextmanager
def naming_errors(path: Path, raised: type[AgentError]) -> Generator[None, None, None]:
    """Turn errors of the file or the disk into a sentence that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        known = _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        reason = known or reason_of(error)
        if raised is HistoryError:  # a visitor can read it
            log.warning("%s cannot be used: %s", path, reason)
            path = Path(path.name)
        raise raised(unusable(path, reason)) from error


def unusable(path: Path, reason: str) -> str:
    """Return the sentence that the file cannot be used."""
    return _("The history file {path!r} cannot be used: {error}.", path=str(path), error=reason)
