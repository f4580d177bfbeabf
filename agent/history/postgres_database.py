"""The connections to a PostgreSQL history: a pool, made at the first contact, and again after the server was away.

One operation holds one connection, and nothing else does. An operation that has begun is completed even if its caller
is cancelled, so that no connection returns to the pool in the middle of a statement.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from agent.errors import HistoryError
from agent.history.postgres_address import PostgresAddress
from agent.history.postgres_schema import migrate
from agent.history.records import shift_of
from agent.history.uninterrupted import UninterruptedWork

T = TypeVar("T")
Value = str | float | bool | None | Sequence[str | None] | Sequence[int] | Sequence[float | None]

CONNECTIONS = 10
"""The most connections of one process."""
POOL_SECONDS = 5.0
"""Seconds that an operation waits for one of them."""
OPERATION_SECONDS = 30.0
FAILURE_SECONDS = 1.0
"""Seconds for which a failed contact counts, so that many calls do not storm a server that is away."""

NOW = "(extract(epoch FROM statement_timestamp())::float8 + %(shift)s::float8)"
"""SQL for the current Unix time by the server's clock, because those of several processes differ."""
LIVE = f"(expires_at IS NULL OR expires_at > {NOW})"
"""The condition for a conversation that has not expired."""

log = logging.getLogger(__name__)


class Pool(AsyncConnectionPool[AsyncConnection]):
    """A pool that lets a program end that has forgotten `aclose`."""

    @classmethod
    async def worker(cls, q: Any) -> None:
        """Do the pool's own work until it is closed or this is cancelled."""
        work = asyncio.ensure_future(super().worker(q))
        try:
            await asyncio.wait([work])
        finally:
            while not work.done():  # it survives a cancellation that comes while it connects
                work.cancel()
                await asyncio.wait([work], timeout=0.1)


class PostgresDatabase:
    """The connections to one database, until `aclose`. `clock` returns the current time."""

    def __init__(self, address: PostgresAddress, clock: Callable[[], datetime]) -> None:
        self.address, self.clock = address, clock
        self._pool: Pool | None = None
        self._contact: asyncio.Task[Pool] | None = None
        self._failure: tuple[float, HistoryError] | None = None
        self._operations = UninterruptedWork()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def shift(self) -> float:
        """The parameter of `NOW`, see `shift_of`."""
        return shift_of(self.clock)

    def begin_contact(self) -> None:
        """Begin to connect, without waiting. A failure is logged, and the next call tries again."""
        self._contact = self._start(self._connect())

    async def rows(self, sql: str, **values: Value) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, which is its own transaction. It can contain `NOW`."""
        return await self._run(lambda connection: fetch(connection, sql, self._with_shift(values)), wait=False)

    async def texts(self, sql: str, **values: Value) -> list[str]:
        """Return the first column of a query."""
        return [row[0] for row in await self.rows(sql, **values)]

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` in a transaction. If this is cancelled, all or nothing is stored when it ends."""

        async def in_transaction(connection: AsyncConnection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._run(in_transaction)

    async def change(self, sql: str, **values: Value) -> list[tuple[Any, ...]]:
        """Run one statement that writes, and return its rows, like `write`."""
        return await self._run(lambda connection: fetch(connection, sql, self._with_shift(values)))

    def load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        """Return what `load` makes of stored texts. An error names the database."""
        try:
            return load(texts)
        except HistoryError as error:
            raise self.address.unusable(error) from error

    async def connect(self) -> AsyncConnection:
        """Return a connection of its own, outside the pool. The caller closes it."""
        try:
            async with asyncio.timeout(POOL_SECONDS):
                return await AsyncConnection.connect(self.address.conninfo, autocommit=True, prepare_threshold=None)
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise self.address.unreachable(error) from error

    async def aclose(self) -> None:
        """Close the connections. Operations in progress are finished first."""
        await self._operations.finish()
        while self._tasks:
            await asyncio.wait(self._tasks)
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    # Helpers

    def _with_shift(self, values: dict[str, Value]) -> dict[str, Value]:
        return {"shift": self.shift, **values}

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task that `aclose` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may have waited for it
        return task

    async def _run(self, work: Callable[[AsyncConnection], Awaitable[T]], *, wait: bool = True) -> T:
        """Run `work` on a connection. If this is cancelled, the work is still finished, and `wait` waits for that."""
        return await self._operations.run(self._operate(work), wait=wait)

    async def _operate(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        connection = None
        try:
            async with self._connection() as connection, asyncio.timeout(OPERATION_SECONDS):
                return await work(connection)
        except (PoolTimeout, TimeoutError) as error:
            raise self.address.unreachable(TimeoutError()) from error
        except psycopg.Error as error:
            lost = connection is not None and connection.closed
            raise (self.address.unreachable if lost else self.address.unusable)(error) from error

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection that works. One that does not means that the server was away: then make a new pool."""
        for _attempt in range(3):
            pool = await self._connected()
            try:
                connection = await pool.getconn(POOL_SECONDS)
            except PoolClosed:  # by another operation, which found it broken
                continue
            except PoolTimeout:
                if pool.get_stats().get("pool_size", 0) == 0:
                    self._drop(pool)
                raise
            try:
                if await _works(connection):
                    yield connection
                    return
            finally:
                if connection.closed:
                    self._drop(pool)
                await pool.putconn(connection)
        raise PoolTimeout

    def _drop(self, pool: Pool) -> None:
        """Use this pool no longer, and close it when its operations are done."""
        if self._pool is pool:
            self._pool = None
            self._start(pool.close())

    async def _connected(self) -> Pool:
        """Return the pool. Make it if there is none; all callers wait for the same contact."""
        if self._pool is not None:
            return self._pool
        if self._failure is not None and monotonic() - self._failure[0] < FAILURE_SECONDS:
            raise self._failure[1]
        if self._contact is None or self._contact.done():
            self._contact = self._start(self._connect())
        return await asyncio.shield(self._contact)

    async def _connect(self) -> Pool:
        """Connect once, for the schema and for the reason of a failure. Then make the pool."""
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                connection = await AsyncConnection.connect(
                    self.address.conninfo, autocommit=True, prepare_threshold=None
                )
                async with connection:
                    await _configure(connection)
                    await migrate(connection)
        except (psycopg.OperationalError, TimeoutError, OSError) as error:
            raise self._failed(self.address.unreachable(error)) from error
        except (psycopg.Error, HistoryError) as error:
            raise self._failed(self.address.unusable(error)) from error
        self._pool = Pool(
            self.address.conninfo,
            # A proxy in front of the server can give each transaction another connection, so nothing is prepared.
            kwargs={"autocommit": True, "prepare_threshold": None},
            min_size=1,
            max_size=CONNECTIONS,
            open=False,
            configure=_configure,
            reconnect_timeout=POOL_SECONDS,
        )
        await self._pool.open()
        if self._failure is not None:
            log.warning("the history database %s can be used again", self.address.name)
        self._failure = None
        return self._pool

    def _failed(self, error: HistoryError) -> HistoryError:
        """Remember a failed contact. Log it unless the last one failed for the same reason."""
        if self._failure is None or self._failure[1].text != error.text:
            log.warning("%s", error.text)
        self._failure = monotonic(), error
        return error


async def fetch(connection: AsyncConnection, sql: str, values: dict[str, Value]) -> list[tuple[Any, ...]]:
    """Run a statement on this connection and return its rows, none if it has no result."""
    cursor = await connection.execute(sql.encode(), values)
    return await cursor.fetchall() if cursor.description else []


async def _works(connection: AsyncConnection) -> bool:
    """Return True if the server answers on this connection. Otherwise close it."""
    try:
        async with asyncio.timeout(POOL_SECONDS):
            await AsyncConnectionPool.check_connection(connection)
    except (psycopg.Error, TimeoutError):
        await connection.close()
        return False
    return True


async def _configure(connection: AsyncConnection) -> None:
    """Set what each transaction says of itself, whatever the server's default is."""
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
