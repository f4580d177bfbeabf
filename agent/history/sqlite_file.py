"""The file of a SQLite history: creates it for one user alone, writes to it in transactions, and names errors."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.errors import AgentError, HistoryError, reason_of
from agent.history.sqlite_connection import SqliteConnection
from agent.i18n import _

LOCK_SECONDS = 2.5
"""Seconds that a write waits for other processes, from its call on if the write before it waited in vain."""
RESERVE_BYTES = 4 << 20
"""The room that deletions have on a full disk. It holds the log of a step, see `agent.history.sqlite_wipe`."""
LIVE = "(expires_at IS NULL OR expires_at > :now)"
"""The condition for a conversation that has not expired."""

log = logging.getLogger(__name__)
_REASONS = {
    sqlite3.SQLITE_BUSY: _("another process keeps it locked"),
    sqlite3.SQLITE_CANTOPEN: _("it cannot be opened"),
    sqlite3.SQLITE_CORRUPT: _("it is damaged"),
    sqlite3.SQLITE_FULL: _("the disk is full"),
    sqlite3.SQLITE_NOTADB: _("it is not a SQLite database"),
    sqlite3.SQLITE_READONLY: _("it cannot be written"),
}


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
def transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """Write from here to the end of the block, all or nothing."""
    # IMMEDIATE: a transaction that reads first and writes later cannot wait for another writer, only fail.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


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
