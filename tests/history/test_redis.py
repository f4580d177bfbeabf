"""The faults and promises of a Redis history that other stores cannot have. It keeps the laws of all stores, too."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from agent.errors import ConfigError, Conflict, HistoryError, NotFound
from agent.history import Conversation, HistoryStore, now, open_store, redis
from agent.history.key_value import ENDED_RUN_SECONDS, Item
from agent.history.redis import RedisStore
from agent.history.redis_server import MAX_CONNECTIONS, address_of
from tests.support import redis_servers
from tests.support.history_laws import batch, contents
from tests.support.history_stores import ALICE, MALLORY, chain, grown, prompt, prompts, started, titled
from tests.support.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisStore]:
    async with aclosing(RedisStore(redis_servers.shared_url(tmp_path))) as opened:
        yield opened


async def keys(folder: Path) -> list[bytes]:
    url, _, query = redis_servers.shared_url(folder).partition("?prefix=")

    def scan() -> list[bytes]:
        with Redis.from_url(url) as client:
            return sorted(client.scan_iter(match=f"{{{query}}}*", count=1000))

    return await asyncio.to_thread(scan)


async def test_restarted_server_interrupts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_servers.running(folder, *durable) as url:
        store = RedisStore(url)
        conversation, entries = await started(store, "1")
        await asyncio.gather(*(store.get(conversation.id, owner=ALICE) for _ in range(5)))
    with pytest.raises(HistoryError, match="cannot be reached"):
        await store.get(conversation.id, owner=ALICE)
    with redis_servers.running(folder, *durable):
        assert await store.history(conversation) == entries
    with redis_servers.running(folder, *durable):
        more = chain(prompt("2"), after=conversation.head_id)
        conversation = await grown(store, conversation, more)
        assert prompts(await store.history(conversation)) == ["1", "2"]
    await store.aclose()


async def test_save_with_lost_reply_is_stored_once(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, _ = await started(store, "1")
    await store.save(Conversation(owner=MALLORY))  # so that the server has seen the scripts
    other, _ = await started(store, owner=MALLORY)
    await store.runs.append(batch(other, 1, "other", run="other"))
    await store.label(other.id, owner=MALLORY)
    original, lost = store.server.exchange, []

    async def lose_reply(commands: Any) -> Any:
        replies = await original(commands)
        if not lost and commands[0][0] == b"EVALSHA":
            lost.append(replies)
            raise ConnectionResetError
        return replies

    for call in ("save", "append", "label"):
        lost.clear()
        with monkeypatch.context() as patch:
            patch.setattr(store.server, "exchange", lose_reply)
            match call:
                case "save":
                    more = chain(prompt("2"), after=conversation.head_id)
                    conversation = await store.save(
                        replace(conversation, head_id=more[0].id), more, batch(conversation, 1, "a")
                    )
                case "append":
                    await store.runs.append(batch(conversation, 2, "b"))
                case _:
                    await store.label(conversation.id, owner=ALICE, title="New", instead_of="")
        assert lost
    assert conversation.revision == 2
    assert prompts(await store.history(conversation)) == ["1", "2"]
    assert contents(await store.runs.events("run", owner=ALICE)) == [(1, "a"), (2, "b")]
    assert (await store.get(conversation.id, owner=ALICE)).title == "New"


async def test_many_calls_share_few_connections(store: RedisStore) -> None:
    conversation, _ = await started(store)
    found = await asyncio.gather(*(store.get(conversation.id, owner=ALICE) for _ in range(300)))
    assert found == [conversation] * 300
    pool: Any = store.server._client.connection_pool
    assert len(pool._available_connections) <= MAX_CONNECTIONS


async def test_deleted_conversation_leaves_no_keys(store: RedisStore, tmp_path: Path) -> None:
    for way in ("delete", "erase"):
        conversation = await titled(store, "title", "1", "2")
        conversation = await store.label(conversation.id, owner=ALICE, pinned=True)
        await store.runs.append(batch(conversation, 1, "a", run="going on"))
        conversation = await store.save(
            replace(conversation, expires_at=now() + timedelta(hours=1)),
            [],
            batch(conversation, 1, "b", run="over", ended=True),
        )
        assert len(await keys(tmp_path)) > 9
        if way == "delete":
            await store.delete(conversation.id, owner=ALICE)
        else:
            assert await store.retention.erase(conversation)
        assert [key.rpartition(b":")[2] for key in await keys(tmp_path)] == [b"schema"]


async def test_forgotten_runs_end_by_themselves(tmp_path: Path) -> None:
    ahead = timedelta()
    async with aclosing(RedisStore(redis_servers.shared_url(tmp_path), clock=lambda: now() + ahead)) as store:
        conversation, _ = await started(store)
        await store.runs.append(batch(conversation, 1, "a", run="forgotten", ended=True))
        url, _, prefix = redis_servers.shared_url(tmp_path).partition("?prefix=")
        with Redis.from_url(url) as client:
            (key,) = client.scan_iter(match=f"{{{prefix}}}:events:*:forgotten", count=1000)
            left: Any = client.ttl(key)
            assert ENDED_RUN_SECONDS - 60 < left <= ENDED_RUN_SECONDS
        ahead = timedelta(seconds=ENDED_RUN_SECONDS + 1)
        await store.runs.append(batch(conversation, 1, "b", run="new", ended=True))
        with pytest.raises(NotFound):
            await store.runs.events("forgotten", owner=ALICE)
        assert b"forgotten" not in await redis_servers.everything(tmp_path)


async def test_keys_share_one_hash_tag(store: RedisStore, tmp_path: Path) -> None:
    await started(store, owner="{other}")
    conversation, _ = await started(store, owner=MALLORY)
    await store.runs.append(batch(conversation, 1, "a"))
    tags = {key.partition(b"{")[2].partition(b"}")[0] for key in await keys(tmp_path)}
    assert len(tags) == 1


CALLS: dict[str, Callable[[HistoryStore, Conversation], Any]] = {
    "save": lambda store, conversation: store.save(conversation),
    "get": lambda store, conversation: store.get(conversation.id, owner=conversation.owner),
    "history": lambda store, conversation: store.history(conversation),
    "entries": lambda store, conversation: store.entries(conversation),
    "list": lambda store, conversation: store.list(conversation.owner),
    "label": lambda store, conversation: store.label(conversation.id, owner=conversation.owner, title="x"),
    "search": lambda store, conversation: store.search(conversation.owner, "text"),
    "sizes": lambda store, _: store.retention.sizes(),
    "expiring": lambda store, _: store.retention.expiring(now()),
    "events": lambda store, _: store.runs.events("run", owner=ALICE),
    "unfinished": lambda store, _: store.runs.unfinished(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_length_of_a_conversation_costs_no_round_trips(store: RedisStore, call: Callable[..., Any]) -> None:
    counts: list[int] = []
    for length in (1, 2, 400):  # the server sees each script in the first round
        conversation, _ = await started(
            store, *(f"text {number}" for number in range(length)), owner=f"visitor:{length}"
        )
        await store.save(conversation, [], batch(conversation, 1, "a", run=f"run {length}"))
        conversation = await store.get(conversation.id, owner=conversation.owner)
        async with redis_servers.traced(store) as commands:
            try:
                await call(store, conversation)
            except NotFound:
                assert call is CALLS["events"]
        counts.append(len(commands))
    assert counts[1] == counts[2] <= 4


async def test_search_goes_on_in_portions(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "SEARCHED", 6)
    long, _ = await started(store, "the first needle", *(f"hay {number} " * 20 for number in range(80)))
    others = [await titled(store, f"needle {number}") for number in range(120)]
    async with redis_servers.traced(store) as commands:
        hits = await store.search(ALICE, "needle", limit=500)
    assert [hit.conversation.id for hit in hits] == [*(conversation.id for conversation in others[::-1]), long.id]
    assert hits[-1].excerpt == "the first needle"
    assert len(commands) > 20
    assert len(await store.search(ALICE, "needle", limit=7)) == 7
    for conversation in (long, *others[:2]):  # the newest hits are on branches that are not shown
        other = chain(prompt("the other needle"))
        await store.save(replace(conversation, branches=(other[0].id,)), other)
    hits = await store.search(ALICE, "needle", limit=3)
    assert [hit.excerpt for hit in hits] == ["the other needle", "the other needle", "the first needle"]


async def test_what_is_remembered_of_a_conversation_is_checked(tmp_path: Path) -> None:
    """Another process has changed it: nothing is stored or refused because of what this one still knows."""
    url = redis_servers.shared_url(tmp_path)
    async with aclosing(RedisStore(url)) as store, aclosing(RedisStore(url)) as other:
        conversation, entries = await started(store, "1")
        mine = await store.save(replace(conversation, cost=1.0))
        async with redis_servers.traced(store) as commands:
            mine = await store.save(replace(mine, cost=2.0))
        assert commands == ["EVALSHA"]
        theirs = await grown(other, mine, chain(prompt("2"), after=entries[-1].id))
        await other.label(conversation.id, owner=ALICE, title="Theirs")
        with pytest.raises(Conflict):
            await store.save(replace(mine, cost=3.0))
        theirs = await store.save(replace(theirs, cost=4.0))
        assert (theirs.title, prompts(await store.history(theirs))) == ("Theirs", ["1", "2"])
        await other.runs.append(batch(theirs, 1, "a"))
        await store.runs.append(batch(theirs, 2, "b"))
        assert contents(await other.runs.events("run", owner=ALICE)) == [(1, "a"), (2, "b")]
        await other.delete(conversation.id, owner=ALICE)
        with pytest.raises(NotFound):
            await store.save(replace(theirs, cost=5.0))


async def test_changes_of_others_in_mid_work_are_seen(tmp_path: Path) -> None:
    """Each of two processes adds to what it has read, and one of them must read again."""
    url = redis_servers.shared_url(tmp_path)
    async with aclosing(RedisStore(url)) as store, aclosing(RedisStore(url)) as other:
        conversation, _ = await started(store)
        await store.label(conversation.id, owner=ALICE, title="Old")
        seen = list[int]()

        async def add(view: Any) -> None:
            item: Item = await view.get(ALICE, conversation.id)
            seen.append(len(item.runs))
            if len(seen) == 1:
                await other.runs.append(batch(conversation, 1, "a", run="theirs"))
            view.put(replace(item, pinned=True))

        await store._storage.write(add)
        assert seen == [0, 1]
        assert contents(await store.runs.events("theirs", owner=ALICE)) == [(1, "a")]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("owners", None, "older version of this program: export the chats with that one, and import them"),
        ("schema", "1", "older version of this program: export the chats with that one, and import them"),
        ("schema", "3", "newer version of this program"),
    ],
)
async def test_history_of_another_version_is_refused(
    store: RedisStore, tmp_path: Path, key: str, value: str | None, reason: str
) -> None:
    url, _, prefix = redis_servers.shared_url(tmp_path).partition("?prefix=")
    with Redis.from_url(url) as client:
        name = f"{{{prefix}}}:{key}"
        if value is None:
            client.zadd(name, {ALICE: 0})
        else:
            client.set(name, value)
        for call in (store.list(ALICE), store.save(Conversation(owner=ALICE))):
            with pytest.raises(HistoryError, match=reason):
                await call
        client.delete(name)
    await store.save(Conversation(owner=ALICE))
    assert len(await store.list(ALICE)) == 1


async def test_unreachable_server_is_named_without_password(tmp_path: Path) -> None:
    port = free_port()
    store = await open_store(f"redis://user:hunter2@127.0.0.1:{port}/3", folder=tmp_path)
    async with aclosing(store):
        for call in (store.list(ALICE), store.save(Conversation(owner=ALICE)), store.delete("x", owner=ALICE)):
            with pytest.raises(HistoryError, match=f"127.0.0.1:{port} cannot be reached") as caught:
                await call
            assert "hunter2" not in str(caught.value)


async def test_wrong_url_is_told_without_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no URL of a Redis server") as caught:
        await open_store("redis://user:hunter2/x@host:6379", folder=tmp_path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", "localhost:6379"),
        ("rediss://user:secret@cache.example.org:6380/1?prefix=a", "cache.example.org:6380"),
        ("unix:///run/redis.sock?db=1&password=secret", "redis.sock"),
    ],
)
def test_address_has_no_secret(url: str, address: str) -> None:
    assert address_of(url) == address


async def test_refusals_of_the_server_are_told(tmp_path: Path) -> None:
    with redis_servers.running(tmp_path / "s", "--requirepass", "hunter2", "--maxmemory", "4mb") as url:
        async with aclosing(RedisStore(url)) as store:
            with pytest.raises(HistoryError, match="refuses: Authentication required"):
                await store.list(ALICE)
        async with aclosing(RedisStore(f"{url}?password=hunter2")) as store:
            kept: list[Conversation] = []

            async def fill() -> None:
                for _ in range(60):
                    kept.append((await started(store, "x" * 100_000))[0])

            with pytest.raises(HistoryError, match="refuses: OOM command not allowed"):
                await fill()
            assert await store.list(ALICE) == kept[::-1] != []
            assert [len(await store.history(conversation)) for conversation in kept] == [1] * len(kept)


async def test_missing_driver_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    for name in ("agent.history.redis", "agent.history.redis_server"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"requirements-stores.txt, or pip install '.\[redis\]'"):
        await open_store("redis://localhost", folder=tmp_path)


async def test_weak_settings_of_the_server_are_found(tmp_path: Path) -> None:
    with redis_servers.running(tmp_path / "weak", "--appendonly", "no", "--maxmemory-policy", "allkeys-lru") as url:
        async with aclosing(RedisStore(url)) as store:
            fixes = [fix for _, fix in await store.find_weaknesses()]
    assert fixes == ["Set appendonly to yes.", "Set maxmemory-policy to noeviction."]
    with redis_servers.running(tmp_path / "strong", "--appendonly", "yes") as url:
        async with aclosing(RedisStore(url)) as store:
            assert await store.find_weaknesses() == []
