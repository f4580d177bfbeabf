"""One connection to the file of a SQLite history, and the thread that alone uses it."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


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
        for pragma in (
            "auto_vacuum = INCREMENTAL",
            "foreign_keys = ON",
            "synchronous = NORMAL",
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection
