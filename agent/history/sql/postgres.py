"""Conversations in a PostgreSQL database, which any number of processes and machines can share.

Below the store are the address, a pool of connections, the schema, and what PostgreSQL says differently.

The pool is made at the first contact, and again after the server was away. One operation holds one connection, and
nothing else does. An operation that has begun is completed even if its caller is cancelled, so that no connection
returns to the pool in the middle of a statement.

A text of PostgreSQL has no NUL character, and UTF-8 has no halves of surrogate pairs, but ids, owners and titles can
have them. `_COLUMNS` and `_PARAMETERS` hold what `escape` makes of such a text, and compare byte by byte.
`escape` keeps the order of prefixes: one text begins with another one if their escaped forms do.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from time import monotonic
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from agent.errors import ConfigError, HistoryError, StoreUnavailable
from agent.history.server_errors import connection_reason, refusal_reason, unreachable, unusable
from agent.history.sql.database import TABLES, VERSION, Row, Value, Values, Work
from agent.history.sql.store import SqlStore
from agent.history.uninterrupted import UninterruptedWork
from agent.history.values import now, shift_of
from agent.i18n.text import _

T = TypeVar("T")

CONNECTIONS = 10
"""The most connections of one process."""
POOL_SECONDS = 5.0
"""Seconds that an operation waits for one of them."""
OPERATION_SECONDS = 30.0
FAILURE_SECONDS = 1.0
"""Seconds for which a failed contact counts, so that many calls do not storm a server that is away."""

CONTACT_SECONDS = 4
"""Seconds until a server counts as unreachable if it does not even refuse a connection."""
# A connection to a machine that has vanished ends by itself.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}

NOW = "(extract(epoch FROM statement_timestamp())::float8 + %(shift)s::float8)"
"""SQL for the current Unix time by the server's clock, because those of several processes differ."""
_DIALECT = (
    (re.compile(r"IN LIST\(:(\w+)\)"), r"= ANY(%(\1)s::text[])"),
    # Trigrams can find a pattern, unlike a call of strpos().
    (
        re.compile(r"CONTAINS\((\w+), :(\w+)\)"),
        r"\1 LIKE '%%' || replace(replace(replace(%(\2)s, '\\', '\\\\'), '%%', '\\%%'), '_', '\\_') || '%%'",
    ),
    (re.compile(r"(?<!:):(?:now|steady)\b"), NOW),
    (re.compile(r"(?<!:):([a-z]\w*)"), r"%(\1)s"),
)
"""PostgreSQL's words for the fragments of dialect; see `agent.history.sql.database`."""
_COLUMNS = frozenset(
    ("id", "conversation_id", "entry_id", "head_id", "parent_id", "run_id", "owner", "title", "digest")
)
_PARAMETERS = _COLUMNS | {"owners", "beyond", "conversation", "ids", "parents", "skip", "instead_of"}
_UNSUPPORTED = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|0|u[0-9a-f]{4})")

_LOCK = "SELECT pg_advisory_xact_lock(7214593660021)"
"""Other processes that make the schema wait here. The number is arbitrary, and the same in all versions."""
# Not `to_regclass`, which can still have the answer from before the wait for the lock.
_HAS_VERSION = """
SELECT EXISTS (
    SELECT FROM pg_tables WHERE tablename = 'switchboard_schema' AND schemaname = ANY(current_schemas(false))
)
"""
_VERSION = "SELECT coalesce(max(version), 0) FROM switchboard_schema"
_OWN_TABLES = (
    "CREATE TABLE switchboard_schema (version INTEGER PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())",
    "ALTER TABLE entry_texts ADD PRIMARY KEY (rowid)",
)
_TRIGRAMS = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE INDEX IF NOT EXISTS entry_texts_by_trigram ON entry_texts USING gin (text gin_trgm_ops)",
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database on a server. `conninfo` is what the driver takes; it can hold a password."""

    name: str
    conninfo: str = field(repr=False)
    is_secret: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, url: str, *, is_secret: bool = False) -> "PostgresAddress":
        """Read the URL. Errors don't name the server if it `is_secret`.

        Raises `ConfigError`, whose sentence does not quote the URL.
        """
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            given = {"host": "@"}
        host, port = str(given.get("host") or given.get("hostaddr") or "localhost"), str(given.get("port") or 5432)
        database = str(given.get("dbname") or given.get("user") or "")
        if "@" in host + port + database or not port.replace(",", "").isdigit():  # a part of a password is in them
            raise ConfigError(
                "The URL of the history database cannot be read. It is postgresql://user:password@host:port/database; "
                "in a password, write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23 and % as %25."
            ) from None
        defaults = {"connect_timeout": CONTACT_SECONDS, "application_name": "switchboard", **_KEEPALIVE}
        shown = "localhost" if host.startswith("/") else host  # the folder of a socket is for nobody to see
        return cls(f"{database} at {shown}:{port}", make_conninfo(url, **{**defaults, **given}), is_secret)

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """Return the error that no connection can be made."""
        reason = connection_reason(error, is_secret=self.is_secret)
        sentence = _(
            "Nothing can be kept at the moment: the history database {name} cannot be reached ({error}). "
            "Start it, or correct SWITCHBOARD_STORE.",
            name=self.name,
            error=reason,
        )
        return unreachable(sentence, reason, is_secret=self.is_secret)

    def unusable(self, error: Exception) -> HistoryError:
        """Return the error that the server refused an operation."""
        reason = refusal_reason(error, is_secret=self.is_secret)
        sentence = _("The history database {name} cannot be used: {error}.", name=self.name, error=reason)
        return unusable(sentence, reason, is_secret=self.is_secret)


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

    async def rows(self, sql: str, **values: Value) -> Sequence[Row]:
        """Implement `Database.rows`. The statement is its own transaction."""
        return await self._run(lambda connection: self._fetch(connection, sql, values), wait=False)

    async def search(self, sql: str, **values: Value) -> Sequence[Row]:
        return await self.rows(sql, **values)

    async def write(self, work: Work[T], *, frees_space: bool = False, is_end: bool = False) -> T:

        async def in_transaction(connection: AsyncConnection) -> T:
            async with connection.transaction():
                steps, rows = work(), None
                while True:
                    try:
                        sql, values = next(steps) if rows is None else steps.send(rows)
                    except StopIteration as end:
                        return end.value
                    rows = await self._fetch(connection, sql, values)

        return await self._run(in_transaction)

    async def erase(self, work: Work[T]) -> T:
        """Implement `Database.erase`. The server's autovacuum removes deleted rows."""
        return await self.write(work)

    async def finish_erasing(self, id_: str) -> bool:
        """Implement `Database.finish_erasing`: what is erased is gone at once."""
        return False

    async def wipe(self) -> None:
        """Implement `Database.wipe`: the server does this by itself."""

    def load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        try:
            return load(texts)
        except HistoryError as error:
            raise self.address.unusable(error) from error

    async def aclose(self) -> None:
        await self._operations.finish()
        while self._tasks:
            await asyncio.wait(self._tasks)
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    # Helpers

    async def _fetch(self, connection: AsyncConnection, sql: str, values: Values | Sequence[Values]) -> Sequence[Row]:
        if isinstance(values, Mapping):
            return await fetch(connection, sql, {"shift": self.shift, **values})
        async with connection.cursor() as cursor:
            await cursor.executemany(_translated(sql), [_escaped_values(one) for one in values])
            return [(cursor.rowcount,)]

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
                    await _migrate(connection)
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


async def fetch(connection: AsyncConnection, sql: str, values: Values) -> Sequence[Row]:
    """Run a statement on this connection and return its rows, none if it has no result."""
    cursor = await connection.execute(_translated(sql), _escaped_values(values))
    rows = await cursor.fetchall() if cursor.description else []
    names = [place for place, column in enumerate(cursor.description or ()) if column.name in _COLUMNS]
    return [_unescaped_row(row, names) for row in rows] if names else rows


@lru_cache(maxsize=200)
def _translated(sql: str) -> bytes:
    for pattern, replacement in _DIALECT:
        sql = pattern.sub(replacement, sql)
    return sql.encode()


def escape(text: str) -> str:
    """Return the text as PostgreSQL keeps it."""
    return _UNSUPPORTED.sub(lambda found: _escaped(found[0]), text)


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""
    return _ESCAPED.sub(lambda found: _unescaped(found[1]), text) if "\\" in text else text


def _escaped(character: str) -> str:
    return {"\\": "\\\\", "\0": "\\0"}.get(character, f"\\u{ord(character):04x}")


def _unescaped(name: str) -> str:
    return {"\\": "\\", "0": "\0"}.get(name) or chr(int(name[1:], 16))


def _escaped_values(values: Values) -> dict[str, Value]:
    return {name: _escaped_value(value) if name in _PARAMETERS else value for name, value in values.items()}


def _escaped_value(value: Value) -> Value:
    if isinstance(value, str):
        return escape(value)
    return [escape(one) for one in value] if isinstance(value, Sequence) else value


def _unescaped_row(row: Row, names: Sequence[int]) -> Row:
    found = list(row)
    for place in names:
        if found[place] is not None:
            found[place] = unescape(found[place])
    return tuple(found)


async def _migrate(connection: AsyncConnection) -> None:
    """Make the tables. Raises `HistoryError` with the reason if there are those of another version.

    The usual start only reads the version. Several processes can do this at once, and a killed one leaves nothing.
    """
    if await _version(connection) == VERSION:
        return
    async with connection.transaction():
        await connection.execute(_LOCK)
        version = await _version(connection)  # again: another process may have made them meanwhile
        if version == VERSION:
            return
        if version > VERSION:
            raise HistoryError(_("it has schema {version}, of a newer version of this program", version=version))
        if version:
            raise HistoryError(
                _(
                    "it has schema {version}, of an older version of this program: export the chats with that one, "
                    "and import them into an empty database",
                    version=version,
                )
            )
        if (encoding := connection.info.parameter_status("server_encoding") or "") != "UTF8":
            raise HistoryError(_("its encoding is {encoding} instead of UTF8", encoding=encoding))
        for statement in (*map(_own_types, TABLES), *_OWN_TABLES):
            await connection.execute(statement.encode())
        await connection.execute("INSERT INTO switchboard_schema (version) VALUES (%s)", [VERSION])
        await _index_trigrams(connection)
    log.info("the history database has schema %d now", VERSION)


def _own_types(statement: str) -> str:
    """Return a statement of `TABLES` with the types of PostgreSQL."""
    statement = statement.replace("ROWID", "rowid BIGINT GENERATED ALWAYS AS IDENTITY")
    return statement.replace(" TEXT", ' TEXT COLLATE "C"')


async def _index_trigrams(connection: AsyncConnection) -> None:
    """Make searches faster if the server has trigrams and the user may install them. They find the same without."""
    try:
        async with connection.transaction():
            for statement in _TRIGRAMS:
                await connection.execute(statement.encode())
    except psycopg.Error as error:
        log.info("searches read all text of a visitor, because pg_trgm is missing: %s", error.diag.message_primary)


async def _version(connection: AsyncConnection) -> int:
    if not await _value(connection, _HAS_VERSION):
        return 0
    return int(str(await _value(connection, _VERSION)))


async def _value(connection: AsyncConnection, sql: str) -> object:
    row = await (await connection.execute(sql.encode())).fetchone()
    return row[0] if row else None


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
