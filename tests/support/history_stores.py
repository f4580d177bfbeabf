"""The history stores that `test_conformance.py` tests, and conversations to store in them.

A new store is one line in `STORES`: a function of an empty folder and a clock that opens the store, once per test.
`SUBJECTS` says more about some of them. Another process finds a subject by its name, `subject_name`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent.history import HistoryStore
from agent.history.json_files import JsonStore
from agent.history.memory import MemoryStore
from agent.history.sql.postgres import PostgresStore
from agent.history.sql.sqlite import SqliteStore
from agent.suspension.ledger import MemoryLedger, SqliteLedger
from agent.suspension.postgres_ledger import PostgresLedger
from agent.suspension.redis_ledger import RedisLedger
from agent.web.chat.recovery import LostRuns
from agent.web.chat.temporary_stores import TemporaryMemory, TemporaryStore
from tests.support import postgres_server, redis_servers
from tests.support.history_laws import ALICE, MALLORY, Clock, Subject, chain, grown, prompt, prompts, started, titled

__all__ = [
    "ALICE",
    "MALLORY",
    "STORES",
    "SUBJECTS",
    "TEMPORARY",
    "Clock",
    "chain",
    "end_as_lost",
    "grown",
    "prompt",
    "prompts",
    "run_sql",
    "started",
    "subject_name",
    "titled",
]

Opener = Callable[[Path, Callable[[], datetime]], Awaitable[HistoryStore]]


async def memory(_: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return MemoryStore(clock)


async def sqlite(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return await SqliteStore.open(folder / "history.db", clock=clock)


async def json(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return await JsonStore.open(folder / "history", clock=clock)


async def postgres(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return await PostgresStore.open(postgres_server.url_of(folder), clock=clock)


STORES: dict[str, Opener] = {
    "memory": memory,
    "sqlite": sqlite,
    "json": json,
    "postgres": postgres,
    "redis": redis_servers.redis,
}

SERVERS: dict[str, Callable[[Path], str]] = {"postgres": postgres_server.url_of, "redis": redis_servers.shared_url}
"""The stores whose tests start a server: a function of an empty folder that returns the URL of an empty store."""
STORE_PARAMS = [pytest.param(name, marks=pytest.mark.slow if name in SERVERS else ()) for name in STORES]
"""The names of the stores, as parameters of a fixture."""
KINDS = ("sqlite", "json")
"""A store of tables and one of keys, for tests of what uses a store: that all are alike is tested in tests/history."""


async def in_memory(_: Path, store: Any) -> bytes:
    """Return all text of a store in memory."""
    return repr(vars(store._storage)).encode("utf-8", "replace")


async def in_files(folder: Path, _: HistoryStore) -> bytes:
    """Return the content and the names of all files in a folder."""

    def read() -> bytes:
        return b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())

    return await asyncio.to_thread(read)


async def run_sql(store: SqliteStore, statement: str) -> None:
    """Run a statement that no store would run, such as one that damages a message."""
    await store._database._writer.run(lambda connection: connection.execute(statement).fetchall())


@asynccontextmanager
async def traced(store: Any) -> AsyncIterator[list[str]]:
    """Add each statement of a SQLite store to the list. A cascade repeats it for each row, which does not count."""
    statements: list[str] = []

    def add(text: str) -> None:
        if statements[-1:] != [text]:
            statements.append(text)

    database = store._database
    connections = (database._writer, database._reader, database._searcher)
    for connection in connections:
        await connection.run(lambda connection: connection.set_trace_callback(add))
    yield statements
    for connection in connections:
        await connection.run(lambda connection: connection.set_trace_callback(None))


async def in_tables(folder: Path, _: HistoryStore) -> bytes:
    """Return all rows of the tables of a PostgreSQL store."""
    return await asyncio.to_thread(postgres_server.rows_of, folder)


@asynccontextmanager
async def logged(_: HistoryStore) -> AsyncGenerator[list[str]]:
    """Add each statement that the PostgreSQL server writes into its log."""
    server = postgres_server.shared_server()
    before, statements = len(server.statements()), list[str]()
    try:
        yield statements
    finally:
        statements += server.statements()[before:]


MORE: dict[str, dict[str, Any]] = {
    "memory": {"raw": in_memory, "ledger": lambda _: MemoryLedger()},
    "sqlite": {
        "processes": True,
        "raw": in_files,
        "queries": traced,
        "ledger": lambda folder: SqliteLedger(folder / "history.db"),
    },
    "json": {"processes": True, "raw": in_files},
    "postgres": {
        "processes": True,
        "raw": in_tables,
        "queries": logged,
        "ledger": lambda folder: PostgresLedger(postgres_server.url_of(folder)),
    },
    "redis": {
        "processes": True,
        "raw": redis_servers.everything,
        "queries": redis_servers.traced,
        "ledger": lambda folder: RedisLedger(redis_servers.shared_url(folder)),
    },
}
"""Further fields of the `Subject` of a store, for the laws that need them."""

SUBJECTS = {name: Subject(open=open_, **MORE.get(name, {})) for name, open_ in STORES.items()}


async def end_as_lost(store: HistoryStore) -> int:
    """End all unfinished runs, as after the end of their process. Return their number."""
    runs = await store.runs.unfinished()
    await store.runs.hold([run.run_id for run in runs], release=True)
    await LostRuns(store, lambda _: False).end_all()
    return len(runs)


async def temporary(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
    return TemporaryStore(await sqlite(folder, clock), TemporaryMemory())


TEMPORARY = Subject(open=temporary, raw=in_files)
"""A store that also knows temporary chats."""


def subject_name(name: str) -> str:
    """Return the name by which another process finds a subject."""
    return f"{__name__}:{name if name.isupper() else f'SUBJECTS.{name}'}"
