"""The contract of a ledger, which remembers used ids, and the ledgers that need no driver: memory and SQLite."""

import asyncio
import os
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Protocol

from agent.errors import ConfigError, HistoryError, StoreUnavailable, reason_of
from agent.history import needing_driver, steady_now
from agent.history.server_errors import connection_reason, words_of
from agent.i18n.text import _


class Ledger(Protocol):
    """Remembers used ids."""

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Return True if this is the first use of the id. Of any uses at once, in any processes, exactly one is first.

        The id can be forgotten after `expires_at` (None: never), because callers refuse expired ids themselves.
        Raises an `AgentError` if the ledger cannot be read or written.
        """
        ...


class MemoryLedger:
    """A `Ledger` in this process's memory. It needs no lock: it never awaits, so no other use can interrupt it."""

    def __init__(self) -> None:
        self._used: dict[str, datetime | None] = {}

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        moment = steady_now()
        for gone in [key for key, until in self._used.items() if until is not None and until <= moment]:
            del self._used[gone]
        first = id not in self._used
        self._used.setdefault(id, expires_at)
        return first


def ledger_error(name: str, error: BaseException, refusal: BaseException | None = None) -> HistoryError:
    """Return the error that a ledger's server is away, or that it refuses. Nothing is resumed then."""
    if refusal is not None:
        return HistoryError(_("The ledger {name} cannot be used: {error}.", name=name, error=words_of(refusal)))
    return StoreUnavailable(
        _(
            "The ledger {name} cannot be reached ({error}). Start its server, or correct SUSPENSION_LEDGER.",
            name=name,
            error=connection_reason(error),
        )
    )


def open_ledger(address: str) -> Ledger:
    """Return the ledger that the address names: "sqlite:///path", or a server's URL as for a history.

    Raises `ConfigError` for any other address, and if the driver is missing. It is not opened before its first use.
    """
    kind, _, place = address.partition(":")
    path = place.removeprefix("///")
    match kind:
        case "sqlite" if path:
            return SqliteLedger(Path(path).expanduser())
        case "postgresql" | "postgres" if place:
            with needing_driver("PostgreSQL", "postgres"):
                from agent.suspension.postgres_ledger import PostgresLedger
            return PostgresLedger(address)
        case "redis" | "rediss" | "unix" if place:
            with needing_driver("Redis", "redis"):
                from agent.suspension.redis_ledger import RedisLedger
            return RedisLedger(address)
        case _:  # the rest of the address can have a password
            raise ConfigError(
                f"There is no ledger of the kind {kind!r}. SUSPENSION_LEDGER is sqlite:///path, or the URL of a "
                "server: postgresql://user:password@host:5432/database or redis://host:6379/0."
            )


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
