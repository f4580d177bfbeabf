"""The index of unfinished runs in a Redis history: those of others cost an owner nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from agent.history import Conversation, now
from agent.history.redis import RedisStore
from tests.support import redis_servers
from tests.support.history_laws import batch
from tests.support.history_stores import ALICE, started

pytestmark = pytest.mark.slow

OTHERS = 1000


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Return the URL of a server of its own, which counts the commands of this test only."""
    with redis_servers.running(tmp_path / "server") as found:
        yield found


async def begin(store: RedisStore, owner: str, run: str) -> Conversation:
    conversation, _ = await started(store, owner=owner)
    await store.runs.append(batch(conversation, 1, "a", run=run))
    return conversation


async def cost(client: "Redis", call: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """Return the commands that the server runs for a call, and the keys that they read."""
    await call()  # the server has seen the script then
    client.config_resetstat()
    await call()
    stats: Any = client.info()
    commands: Any = client.info("commandstats")
    count = sum(one["calls"] for name, one in commands.items() if name not in ("cmdstat_info", "cmdstat_config"))
    return count, stats["keyspace_hits"] + stats["keyspace_misses"]


async def test_runs_of_other_owners_cost_nothing(url: str) -> None:
    async with aclosing(RedisStore(url)) as store, aclosing(RedisStore(url)) as other:
        mine = await begin(store, ALICE, "mine")
        await begin(other, "visitor:0", "run 0")
        runs = store.runs
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "hold": lambda: runs.hold(["mine"]),
            "look": lambda: runs.look("mine", owner=ALICE),
            "would_lose": lambda: runs.would_lose(mine),
            "of a conversation": lambda: runs.unfinished(owner=ALICE, conversation_id=mine.id),
            "of an owner": lambda: runs.unfinished(owner=ALICE),
        }
        with Redis.from_url(url) as client:
            few = {name: await cost(client, call) for name, call in calls.items()}
            await asyncio.gather(*(begin(other, f"visitor:{number}", f"run {number}") for number in range(1, OTHERS)))
            many = {name: await cost(client, call) for name, call in calls.items()}
        assert many == few
        assert len(await store.runs.unfinished(limit=2 * OTHERS)) == OTHERS + 1


async def test_unfinished_runs_are_read_in_portions(url: str) -> None:
    """The start of an app reads them, and one call that reads all would stop the server for everybody."""
    async with aclosing(RedisStore(url)) as store:
        conversations = [await begin(store, ALICE, f"run {number}") for number in range(450)]
        for conversation in conversations[:-1]:
            await store.retention.set_expiry(conversation, now() - timedelta(seconds=1))
        await begin(store, ALICE, "last")
        for limit, wanted in ((0, []), (1, ["run 449"]), (300, ["run 449", "last"])):
            async with redis_servers.traced(store) as commands:
                found = [run.run_id for run in await store.runs.unfinished(limit=limit)]
            assert found == wanted
            assert commands.count("MGET") == (3 if limit else 0)
