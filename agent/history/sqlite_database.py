"""The connections to a SQLite history: one that writes, one transaction at a time, one that reads, one that searches.

A reader sees only committed data and never half a save. A search of one visitor delays no reads of the others.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent.errors import ConfigError, HistoryError
from agent.history.sqlite_connection import SqliteConnection
from agent.history.sqlite_file import (
    create_private,
    enable_wal,
    make_reserve,
    naming_errors,
    reserve_of,
    transaction,
    unusable,
)
from agent.history.sqlite_schema import migrate
from agent.history.sqlite_wipe import (
    deletions,
    empty_log,
    enable_shrinking,
    forget_deletions,
    has_free_pages,
    is_unwiped,
    note_deletion,
    remove_hidden,
    shrink,
    wipe_pages,
)
from agent.history.uninterrupted import UninterruptedWork

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Values = Mapping[str, str | float | None]

WIPE_SECONDS, WIPE_SHARE = 2.0, 0.05
"""Seconds until the file is wiped after a deletion, and the most of the time that this takes, as a fraction."""
STEP_PAUSE_SECONDS = 0.15
"""Seconds between the steps of this. A process that waits for the lock looks every 0.1 s whether it is free."""
DISK_FULL_SECONDS = 60.0
"""Seconds until this is tried again if the disk is full."""
SHRINK_SECONDS = 1.0
"""The most seconds for which closing makes the file smaller. The next process goes on."""

log = logging.getLogger(__name__)


class SqliteDatabase:
    """The three connections to one file, until `aclose`. `clock` returns the current time."""

    def __init__(
        self, path: Path, connections: Sequence[SqliteConnection], patience: float, clock: Callable[[], datetime]
    ) -> None:
        self.path, self.clock, self._patience = path, clock, patience
        self._was_locked = False
        self._writer, self._reader, self._searcher = connections
        self._writes = UninterruptedWork()
        self._has_left_text, self._pause = False, WIPE_SECONDS
        self._wiping: asyncio.Task[None] | None = None
        self._one_wipe, self._is_closing = asyncio.Lock(), asyncio.Event()

    @classmethod
    async def open(cls, path: Path, busy_timeout: float, clock: Callable[[], datetime]) -> "SqliteDatabase":
        """Open or create the file, and bring it to the newest schema. Raises `ConfigError`."""
        connections: list[SqliteConnection] = []
        with naming_errors(path, ConfigError):
            await asyncio.to_thread(create_private, path)
            try:
                connections.append(await SqliteConnection.open(path, busy_timeout))
                await enable_wal(connections[0], busy_timeout)
                await migrate(connections[0], path)
                await connections[0].run(empty_log)
                await connections[0].run(partial(_enable_shrinking, path))
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

    async def rows(self, sql: str, **values: str | float | None) -> Sequence[sqlite3.Row]:
        """Return the rows of a query. `:now` is the current time."""
        return await self._rows(self._reader, sql, values)

    async def texts(self, sql: str, **values: str | float | None) -> Sequence[str]:
        """Return the first column of a query."""
        return [row[0] for row in await self.rows(sql, **values)]

    async def search(self, sql: str, **values: str | float | None) -> Sequence[sqlite3.Row]:
        """Return the rows of a query that can take long."""
        return await self._rows(self._searcher, sql, values)

    async def write(self, work: Work[T], *, frees_space: bool = False) -> T:
        """Run `work` in its turn. It is finished even if the caller is cancelled. See `make_reserve` for the flag."""
        return await self._writes.run(self._in_turn(work, frees_space=frees_space))

    async def erase(self, sql: str, only_if: Work[bool] | None = None, /, **values: str | float | None) -> int:
        """Delete rows or hide conversations, and return their number. `:now` is the current time.

        With `only_if`, nothing is deleted unless that returns True in the same transaction. What is hidden is removed
        step by step before this returns, and other writers have their turn in between.
        Their text is overwritten in the file. Copies of it can be left in the unused parts of pages, until `wipe`.
        """
        values = {"now": self.clock().timestamp(), **values}
        return await self._writes.run(self._erase(partial(_delete, sql, values, only_if)))

    async def wipe(self) -> None:
        """Overwrite what deletions have left in the file. This also happens by itself, soon after them."""
        await self._writes.run(self._wipe())

    def load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        """Return what `load` makes of stored texts. An error names the file."""
        try:
            return load(texts)
        except HistoryError as error:
            log.warning("%s: %s", self.path, error)
            raise HistoryError(unusable(Path(self.path.name), error.text)) from error

    async def aclose(self) -> None:
        """Close the connections. Writes in progress are finished first."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        await self._writes.finish()
        if self._wiping is not None:
            self._wiping.cancel()
            await asyncio.wait([self._wiping])
        try:
            await self._wipe()
            await self._shrink(SHRINK_SECONDS)
        finally:
            for connection in (self._searcher, self._reader, self._writer):
                await connection.aclose()

    async def _rows(self, connection: SqliteConnection, sql: str, values: Values) -> Sequence[sqlite3.Row]:
        self._writes.check_open()
        with naming_errors(self.path, HistoryError):
            try:
                return await connection.run(partial(_fetch, sql, {"now": self.clock().timestamp(), **values}))
            except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
                return ()

    async def _in_turn(self, work: Work[T], *, frees_space: bool = False) -> T:
        with naming_errors(self.path, HistoryError):
            in_time = partial(self._in_time, work, time.monotonic() + self._patience)
            try:
                return await self._writer.run(in_time)
            except sqlite3.OperationalError as error:
                if not frees_space or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                    raise
                await asyncio.to_thread(reserve_of(self.path).unlink, missing_ok=True)
                return await self._writer.run(in_time)

    def _in_time(self, work: Work[T], deadline: float, connection: sqlite3.Connection) -> T:
        """Run `work`, which waits for the lock. If the write before it waited in vain, it waits until `deadline`."""
        wait = deadline - time.monotonic() if self._was_locked else self._patience
        connection.execute(f"PRAGMA busy_timeout = {max(0, round(wait * 1000))}")
        try:
            done, self._was_locked = work(connection), False
        except sqlite3.OperationalError as error:
            self._was_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            raise
        return done

    async def _erase(self, delete: Work[int]) -> int:
        if erased := await self._in_turn(delete, frees_space=True):
            self._wipe_soon()
            await self._remove_hidden()
        return erased

    async def _remove_hidden(self) -> None:
        began = time.monotonic()
        while await self._in_turn(_remove_hidden, frees_space=True):
            await asyncio.sleep(time.monotonic() - began)  # As long as the step: another process can have its turn.
            began = time.monotonic()

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


def _fetch(sql: str, values: Values, connection: sqlite3.Connection) -> Sequence[sqlite3.Row]:
    return connection.execute(sql, values).fetchall()


def _delete(sql: str, values: Values, only_if: Work[bool] | None, connection: sqlite3.Connection) -> int:
    """Delete or hide rows if the condition holds, and return their number."""
    erased = 0
    try:
        with transaction(connection):
            if only_if is None or only_if(connection):
                erased = connection.execute(sql, values).rowcount
            if erased:
                note_deletion(connection)
    except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
        return 0
    return erased


def _remove_hidden(connection: sqlite3.Connection) -> bool:
    has_more = remove_hidden(connection)
    empty_log(connection)  # If another process reads the log, `_wipe` tries again.
    return has_more


def _enable_shrinking(path: Path, connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.OperationalError):  # The disk is full, or another process uses the file.
        if not enable_shrinking(connection):
            log.info("%s does not shrink, because an older version made it. Free pages are used again.", path)
