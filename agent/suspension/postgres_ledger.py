"""A ledger as a table in a PostgreSQL database, which can be the database of the history."""

import asyncio
import logging
from datetime import datetime
from hashlib import sha256

import psycopg
from psycopg import AsyncConnection

from agent.errors import ConfigError
from agent.history import steady_now
from agent.history.sql.postgres import PostgresAddress
from agent.suspension.ledger import ledger_error

USE_SECONDS = 20.0
"""Seconds until a server that does not answer counts as away."""
_LOCK = "SELECT pg_advisory_xact_lock(1937203564)"  # two uses at once would both make the table, and one would fail
_IS_MISSING = "SELECT to_regclass('used_suspensions') IS NULL"
_TABLE = "CREATE TABLE used_suspensions (id TEXT PRIMARY KEY, expires_at DOUBLE PRECISION)"
_PURGE = "DELETE FROM used_suspensions WHERE expires_at <= %s"
_USE = "INSERT INTO used_suspensions (id, expires_at) VALUES (%s, %s) ON CONFLICT DO NOTHING"

log = logging.getLogger(__name__)


class PostgresLedger:
    """A `Ledger` in a database, for any number of machines; the first use makes its table.

    Uses are rare, so each opens its own connection. Raises `ConfigError` if the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        try:
            self._address = PostgresAddress.of(url)
        except ConfigError:
            raise ConfigError(
                "SUSPENSION_LEDGER is no URL of a PostgreSQL database, such as postgresql://user:password@host:5432/"
                "database. Write special characters of the password as in %2F."
            ) from None

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Implement `Ledger.use`. Raises `HistoryError`, as `StoreUnavailable` if the server is away."""
        until = None if expires_at is None else expires_at.timestamp()
        try:
            async with asyncio.timeout(USE_SECONDS):
                # A text in PostgreSQL cannot have a zero byte or half a surrogate pair, but an id can.
                return await self._use(sha256(id.encode("utf-8", "surrogatepass")).hexdigest(), until)
        except (psycopg.OperationalError, TimeoutError, OSError) as error:
            log.debug("the ledger %s: %s", self._address.name, error)
            raise ledger_error(self._address.name, error) from error
        except psycopg.Error as error:
            raise ledger_error(self._address.name, error, error) from error

    async def _use(self, id: str, until: float | None) -> bool:
        connection = await AsyncConnection.connect(self._address.conninfo, prepare_threshold=None)
        async with connection:  # commits at the end
            await connection.execute(_LOCK)
            (is_missing,) = await (await connection.execute(_IS_MISSING)).fetchone() or (False,)
            if is_missing:
                await connection.execute(_TABLE)
            await connection.execute(_PURGE, (steady_now().timestamp(),))
            return (await connection.execute(_USE, (id, until))).rowcount == 1
