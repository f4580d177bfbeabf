"""The connections to a SQLite history: one that writes, one transaction at a time, one that reads, one that searches.

A reader sees only committed data and never half a save. A search of one visitor delays no reads of the others.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from agent.errors import ConfigError, HistoryError
from agent.history.sqlite_file import connect, create_private, enable_wal, naming_errors, transaction, unusable
from agent.history.sqlite_schema import migrate
from agent.history.uninterrupted import UninterruptedWork

T = TypeVar("T")

FREED_PAGES = 10_000
"""The most pages that one deletion gives back to the disk. The next deletion, or new entries, use the others."""
WIPE_SECONDS = 1.0, 60.0
"""Seconds until the next attempt to wipe deleted text from the file: first and most. They double."""

log = logging.getLogger(__name__)


class SqliteDatabase:
    """The three connections to one file, until `aclose`. `clock` returns the current time."""

    def __init__(self, path: Path, connections: Sequence[aiosqlite.Connection], clock: Callable[[], datetime]) -> None:
        self.path, self.clock = path, clock
        self._writer, self._reader, self._searcher = connections
        self._lock = asyncio.Lock()  # One connection holds one transaction at a time.
        self._writes = UninterruptedWork()
        self._wiping: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, busy_timeout: float, clock: Callable[[], datetime]) -> "SqliteDatabase":
        """Open or create the file, and bring it to the newest schema. Raises `ConfigError`."""
        connections: list[aiosqlite.Connection] = []
        with naming_errors(path, ConfigError):
            await asyncio.to_thread(create_private, path)
            try:
                connections.append(await connect(path, busy_timeout))
                await enable_wal(connections[0], busy_timeout)
                await migrate(connections[0], path)
                await _wipe(connections[0])  # A killed process can have deleted without wiping.
                connections += [await connect(path, busy_timeout) for _ in range(2)]
            except BaseException:
                for connection in connections:
                    await connection.close()
                raise
        return cls(path, connections, clock)

    async def rows(self, sql: str, **values: str | float | None) -> Sequence[sqlite3.Row]:
        """Return the rows of a query. `:now` is the current time."""
        return await self._rows(self._reader, sql, values)

    async def texts(self, sql: str, **values: str | float | None) -> Sequence[str]:
        """Return the first column of a query."""
        return [row[0] for row in await self.rows(sql, **values)]

    async def search(self, sql: str, **values: str | float | None) -> Sequence[sqlite3.Row]:
        """Return the rows of a query that can take long."""
        return await self._rows(self._searcher, sql, values)

    async def write(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        """Run `work` in its turn, in a task that survives the caller's cancellation."""
        return await self._writes.run(self._in_turn(work))

    async def erase(self, sql: str, **values: str | float | None) -> int:
        """Delete rows, wipe their text from the file, and return their number. `:now` is the current time.

        If another process reads for longer than the busy timeout, the text is wiped as soon as it has read.
        """
        return await self.write(partial(self._erase, sql, {"now": self.clock().timestamp(), **values}))

    def load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        """Return what `load` makes of stored texts. An error names the file."""
        try:
            return load(texts)
        except HistoryError as error:
            raise HistoryError(unusable(self.path, error.text)) from error

    async def aclose(self) -> None:
        """Close the connections. Writes in progress are finished first."""
        if self._wiping is not None:
            self._wiping.cancel()
            await asyncio.wait([self._wiping])
        await self._writes.finish()
        for connection in (self._searcher, self._reader, self._writer):
            await connection.close()

    async def _rows(
        self, connection: aiosqlite.Connection, sql: str, values: dict[str, str | float | None]
    ) -> Sequence[sqlite3.Row]:
        self._writes.check_open()
        with naming_errors(self.path, HistoryError):
            try:
                return [*await connection.execute_fetchall(sql, {"now": self.clock().timestamp(), **values})]
            except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
                return ()

    async def _in_turn(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        async with self._lock:
            with naming_errors(self.path, HistoryError):
                return await work(self._writer)

    async def _erase(self, sql: str, values: dict[str, Any], connection: aiosqlite.Connection) -> int:
        try:
            async with transaction(connection), connection.execute(sql, values) as cursor:
                erased = cursor.rowcount
        except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
            return 0
        if erased and not await _wipe(connection) and (self._wiping is None or self._wiping.done()):
            self._wiping = asyncio.create_task(self._wipe_later(), context=Context())
        return erased

    async def _wipe_later(self) -> None:
        """Wipe deleted text as soon as no reader prevents it."""
        pause, most = WIPE_SECONDS
        wiped = False
        while not wiped:
            log.warning("deleted text is still in %s; it is wiped again in %d s", self.path, pause)
            await asyncio.sleep(pause)
            wiped, pause = await self.write(_wipe), min(2 * pause, most)


async def _wipe(connection: aiosqlite.Connection) -> bool:
    """Give free pages back to the disk, and empty the log, which holds deleted text. Return False if that failed.

    The main file holds it too, until the log is copied into it. A reader of an older state prevents both.
    """
    try:
        # `execute` would free only one page: this statement has one step for each page, and no row to fetch.
        await connection.executescript(f"PRAGMA incremental_vacuum({FREED_PAGES})")
    except sqlite3.OperationalError:  # only the size of the file depends on it
        log.warning("free pages could not be given back to the disk", exc_info=True)
    try:
        ((busy, _frames, _copied),) = await connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.OperationalError:
        log.warning("the log of the history file could not be emptied", exc_info=True)
        return False
    return not busy
