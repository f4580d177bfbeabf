"""A ledger as a separate table in a SQLite file, which can be the file of the history."""

import asyncio
import os
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from agent.errors import HistoryError, reason_of
from agent.history import steady_now
from agent.i18n import _

_TABLE = "CREATE TABLE IF NOT EXISTS used (id TEXT PRIMARY KEY, expires_at REAL) WITHOUT ROWID"
_PURGE = "DELETE FROM used WHERE expires_at <= ?"
_USE = "INSERT OR IGNORE INTO used (id, expires_at) VALUES (?, ?)"


class SqliteLedger:
    """A `Ledger` in a file; the first use makes it. Uses are rare, so each opens its own connection."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = 5.0) -> None:
        self._path, self._timeout = Path(path), busy_timeout

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Implement `Ledger.use`. Raises `HistoryError` if the file cannot be used."""
        until = None if expires_at is None else expires_at.timestamp()
        try:
            return await asyncio.to_thread(self._use, id, until)
        except sqlite3.Error as error:
            sentence = _("The ledger {name} cannot be used: {error}.", name=self._path.name, error=reason_of(error))
            raise HistoryError(sentence) from error

    def _use(self, id: str, until: float | None) -> bool:
        with closing(sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)) as connection:
            connection.execute(_TABLE)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_PURGE, (steady_now().timestamp(),))
            first = connection.execute(_USE, (id, until)).rowcount == 1
            connection.execute("COMMIT")
            return first
