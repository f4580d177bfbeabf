"""Replicas that look silent, because the server was away, its clock was set, or they are gone."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agent.history import HistoryStore, Replicas, replicas_of
from agent.history.replicas import SILENT_SECONDS, STEADY_GAP_SECONDS, STEADY_SECONDS, Steadiness
from agent.history.sql.postgres import PostgresStore
from tests.support.aged_replicas import age
from tests.support.history_laws import batch
from tests.support.history_stores import SERVERS, STORES, Clock, started
from tests.support.postgres_server import PostgresServer, shared_server
from tests.support.waiting import until_async

pytestmark = pytest.mark.slow

BEAT = 3.0
Open = Callable[[], Awaitable[tuple[HistoryStore, Replicas]]]


@pytest.fixture(params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def joined(name: str, tmp_path: Path) -> AsyncIterator[Open]:
    stores: list[HistoryStore] = []

    async def open_() -> tuple[HistoryStore, Replicas]:
        stores.append(store := await STORES[name](tmp_path, Clock()))
        replicas = replicas_of(store)
        assert replicas is not None
        await replicas.beat()
        return store, replicas

    yield open_
    for store in stores:
        await store.aclose()


async def lost(replicas: Replicas) -> list[str]:
    return [run.run_id for run in await replicas.lost_runs()]


async def test_nobody_is_lost_after_server_was_away(joined: Open, name: str, tmp_path: Path) -> None:
    """The first replica that is back does not take the runs of the others, which are back a moment later."""
    store, one = await joined()
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a"))
    _, other = await joined()
    await age(name, tmp_path, 60)
    await other.beat()
    assert await lost(other) == []
    assert not await other.take("run")
    await one.beat()
    assert await lost(other) == []


async def test_silent_replica_is_lost_to_a_steady_one(joined: Open, name: str, tmp_path: Path) -> None:
    store, one = await joined()
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a"))
    _, other = await joined()
    await steady(other)
    await age(name, tmp_path, SILENT_SECONDS - 1, only=one.id)
    if name == "postgres":  # its lock shows that it is alive
        assert await lost(other) == []
    await age(name, tmp_path, 2, only=one.id)
    assert await lost(other) == ["run"]
    await age(name, tmp_path, STEADY_GAP_SECONDS + 1, only=other.id)  # and is silent itself
    assert await lost(other) == []
    await other.beat()
    assert await other.take("run")


async def test_sign_of_life_from_the_future_does_not_count(joined: Open, name: str, tmp_path: Path) -> None:
    """The server's clock was set back. A replica that was dead by then is lost all the same."""
    store, one = await joined()
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a"))
    _, other = await joined()
    await age(name, tmp_path, -3600, only=one.id)
    assert await lost(other) == []
    await steady(other)
    assert await lost(other) == ["run"]


async def steady(replicas: Replicas) -> None:
    """Let this replica have given signs of life for long enough."""
    steadiness: Steadiness = replicas._steadiness  # type: ignore[attr-defined]
    steadiness._since -= STEADY_SECONDS + BEAT
    await replicas.beat()


def test_gap_or_clock_that_is_set_ends_steadiness() -> None:
    steadiness, at = Steadiness(), 1_000_000.0
    seen = list[bool]()
    for gap in (0, 3, 3, 3, STEADY_GAP_SECONDS + 1, 3, 3, -1, 3, 3):
        steadiness.add(at := at + gap)
        seen.append(steadiness.is_steady)
    assert seen == [False, False, True, True, False, False, True, False, False, True]


@pytest.mark.parametrize("name", ["postgres"], indirect=True)
async def test_lock_that_another_session_still_has_is_taken_later(joined: Open) -> None:
    """The server has not noticed yet that the last connection of this replica is broken."""
    store, replicas = await joined()
    assert isinstance(store, PostgresStore)
    server: PostgresServer = shared_server()
    [[key]] = server.run_sql(
        "SELECT objid FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND classid = 721459367 ORDER BY backend_start DESC LIMIT 1"
    )
    holders = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 721459367 AND objid = {key}"
    old = replicas._connection  # type: ignore[attr-defined]
    replicas._connection, replicas._has_lock = None, False  # type: ignore[attr-defined]
    await replicas.beat()
    [[holder]] = server.run_sql(holders)
    await old.close()

    async def is_locked_again() -> bool:
        await replicas.beat()
        return server.run_sql(holders) not in ([], [(holder,)])

    await until_async(is_locked_again)
