"""Conversations in a PostgreSQL database. Any number of processes and machines can share it."""

from collections.abc import Callable
from datetime import datetime
from typing import Self

from agent.history.sql.postgres_database import PostgresAddress, PostgresDatabase
from agent.history.sql.store import SqlStore
from agent.history.values import now


class PostgresStore(SqlStore):
    """A `HistoryStore` in a database; `open` makes one.

    While the server is away, each call raises a `HistoryError` that says so, and works again when it is back.
    """

    is_shared = True

    @classmethod
    async def open(cls, url: str, *, clock: Callable[[], datetime] = now, is_secret: bool = False) -> Self:
        """Begin to connect, and return without waiting for the server. The first contact makes the schema.

        If the URL `is_secret`, errors don't name it. Raises `ConfigError` if the URL cannot be read.
        """
        database = PostgresDatabase(PostgresAddress.of(url, is_secret=is_secret), clock)
        database.begin_contact()
        return cls(database)
