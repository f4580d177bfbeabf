"""Takeovers under adverse conditions: stops, late writers, several losses, and a store that was away."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from agent.errors import Conflict, NotFound
from agent.history import Record, RunEvent, UnfinishedRun
from agent.history.run_events import RunEvents
from agent.web.chat.recovery import mark_taken
from agent.web.chat.takeovers import MAX_TAKEOVERS
from tests.support import postgres_server, redis_servers
from tests.support.aged_replicas import last_seen
from tests.support.history_stores import started
from tests.support.http_client import marker
from tests.support.models import QWEN3
from tests.support.replica_houses import Build, House, begin, calls, words
from tests.support.scripted_server import Running
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.slow


async def lost_run(house: House, run: str) -> UnfinishedRun:
    """Return a run that is lost, as this replica finds it."""
    found: list[UnfinishedRun] = []

    async def is_found() -> bool:
        found[:] = [one for one in await house.replicas.lost_runs() if one.run_id == run]
        return bool(found)

    await until_async(is_found)
    return found[0]


async def taken(house: House, run: UnfinishedRun, *, with_text: bool = True) -> None:
    """Take a run and begin to finish it, as far as the store is concerned."""
    assert await house.replicas.take(run.run_id)
    record, events = await stored(house, run)
    await mark_taken(house.store, run, record, events, with_text=with_text)


async def stored(house: House, run: UnfinishedRun) -> tuple[Record, list[RunEvent]]:
    record = await house.store.get(run.conversation_id, owner=run.owner)
    return record, [*await house.store.runs.events(run.run_id, owner=run.owner)]


async def test_stop_of_lost_answer_is_obeyed(build: Build) -> None:
    """The visitor presses Stop after the process is gone and before another one has taken the run."""
    one, other = await build(), await build()
    await other.halt()
    conversation, run = await begin(one, "!tokens 4000 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    await other.page.running.stop([conversation], "ann")
    await other.start()
    view = await other.until_idle(conversation)
    shown = view.texts
    assert "word9" in shown[1]
    assert "word3999" not in shown[1]
    assert any("Stopped" in text for text in shown)
    assert not any("another one" in text for text in shown)


@pytest.mark.full
async def test_stop_of_lost_answer_without_text_is_shown(build: Build) -> None:
    one, other = await build(), await build()
    await other.halt()
    conversation, run = await begin(one, "!wait 30 !text Late.")
    await other.until_stored(run, "begun")
    await one.lose_its_runs()
    await other.page.running.stop([conversation], "ann")
    await other.start()
    view = await other.until_idle(conversation)
    assert any("Stopped" in text for text in view.texts)


@pytest.mark.full
async def test_late_writer_that_says_nothing_is_cancelled(build: Build) -> None:
    """A run that waits for a tool or its model writes nothing, so that no refusal tells it that it was taken."""
    one, other = await build(), await build()
    conversation, run = await begin(one, '!tool nap {"text": "once"} !text Done.')
    await other.until_stored(run, "tool_call")
    await one.replicas.leave()  # and joins again
    await until(lambda: not one.page.live_runs.count)
    view = await one.until_idle(conversation)
    assert view.texts == await other.texts(conversation)
    assert calls == ["once"]


@pytest.mark.full
async def test_step_begins_again_twice(build: Build) -> None:
    """A model that cannot continue its text loses two replicas."""
    house = await build(QWEN3)
    conversation, run = await begin(house, "!tokens 90 @20")
    for _ in range(MAX_TAKEOVERS):
        await house.until_stored(run, "word9")
        following = await build(QWEN3)
        await house.lose_its_runs()
        run = await next_run(following, conversation, run)
        house = following
    view = await house.until_idle(conversation)
    assert words(0, 90) in view.texts


async def next_run(house: House, conversation: str, run: str) -> str:
    """Wait until another run finishes the answer, and return its id."""
    found = list[str]()

    async def is_there() -> bool:
        found[:] = [await house.replicas.unfinished_run(conversation, owner="ann") or run]
        return found != [run]

    await until_async(is_there)
    return found[0]


@pytest.mark.parametrize("with_text", [True, False], ids=["continued", "begun-again"])
async def test_replica_lost_while_taking_over_is_replaced(build: Build, server: Running, *, with_text: bool) -> None:
    spec, held = () if with_text else (QWEN3,), marker()
    one, other = await build(*spec), await build(*spec)
    await other.halt()
    conversation, run = await begin(one, f"!tokens 60 hold 20 {held}")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    await taken(other, await lost_run(other, run), with_text=with_text)
    third = await build(*spec)
    await other.replicas.leave()
    server.release(held)
    view = await third.until_idle(conversation)
    assert words(0, 60) in view.texts


async def test_answer_that_kills_each_taker_ends(build: Build) -> None:
    """A replica that dies between the takeover and the new run has died of this answer, perhaps."""
    house = await build()
    conversation, run = await begin(house, "!tokens 4000 @20")
    await house.until_stored(run, "word9")
    for _ in range(MAX_TAKEOVERS):
        following = await build()
        await following.halt()
        await house.lose_its_runs()
        await taken(following, await lost_run(following, run))
        await following.start()  # so that it can be lost
        house = following
    last = await build()
    await house.lose_its_runs()
    view = await last.until_idle(conversation)
    shown = view.texts
    assert "word9" in shown[1]
    assert "word3999" not in shown[1]
    assert any("Interrupted" in text for text in shown)


async def test_late_taker_stores_nothing(build: Build, server: Running) -> None:
    """A replica took a run, stood still, lost it to another one, and goes on with what it reads now."""
    one, late, held = await build(QWEN3), await build(QWEN3), marker()
    await late.halt()
    conversation, run = await begin(one, f"!tokens 120 hold 20 {held}")
    await late.until_stored(run, "word9")
    await one.lose_its_runs()
    lost = await lost_run(late, run)
    assert await late.replicas.take(run)
    other = await build(QWEN3)
    await late.replicas.leave()
    await late.replicas.beat()
    await next_run(other, conversation, run)
    for with_text in (True, False):
        record, events = await stored(late, lost)
        with pytest.raises(Conflict):
            await mark_taken(late.store, lost, record, events, with_text=with_text)
    server.release(held)
    view = await other.until_idle(conversation)
    assert words(0, 120) in view.texts


@pytest.mark.full
async def test_handovers_in_order_are_not_counted(build: Build) -> None:
    """Each restart of a process hands the answer over. However many there are, nothing is lost."""
    house = await build()
    conversation, run = await begin(house, "!tokens 150 @20")
    for _ in range(MAX_TAKEOVERS + 2):
        await house.until_stored(run, "word")
        following = await build()
        await house.page.live_runs.close()
        await house.lose_its_runs()
        run = await next_run(following, conversation, run)
        house = following
    view = await house.until_idle(conversation)
    assert view.texts[1] == words(0, 150)


@pytest.mark.full
async def test_replica_that_goes_down_leaves_what_it_took(build: Build) -> None:
    one, other = await build(), await build()
    await other.halt()
    conversation, run = await begin(one, "!tokens 60 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    other.page.live_runs.is_closing = True
    await other.page.takeovers.take(await lost_run(other, run))
    await until(lambda: not other.page.takeovers.is_pending(run))
    assert await other.replicas.unfinished_run(conversation, owner="ann") == run
    third = await build()
    await other.replicas.leave()
    view = await third.until_idle(conversation)
    assert view.texts[1] == words(0, 60)


@pytest.mark.full
async def test_process_joins_before_its_first_run(build: Build) -> None:
    """The store was away when the process started, and came back just before the message."""
    one, other = await build(), await build()
    await one.lose_its_runs()
    assert one.replicas.id == ""
    conversation, run = await begin(one, "!tokens 60 @20")
    assert one.replicas.id
    assert not await other.replicas.take(run)
    view = await one.until_idle(conversation)
    assert view.texts[1] == words(0, 60)


async def test_deleted_conversation_is_not_taken_over(build: Build) -> None:
    one, other = await build(), await build()
    await other.halt()
    conversation, run = await begin(one, "!tokens 4000 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    lost = await lost_run(other, run)
    await other.page.takeovers.take(lost)
    await other.store.delete(conversation, owner="ann")
    await until(lambda: not other.page.takeovers.is_pending(run))
    await until(lambda: not other.page.live_runs.count)
    with pytest.raises(NotFound):
        await other.store.get(conversation, owner="ann")
    assert await other.replicas.lost_runs() == []


async def test_damaged_run_does_not_silence_its_replica(
    build: Build, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that cannot be ended is tried again, and its replica goes on saying that it is alive."""
    house = await build()
    record, _ = await started(house.store, owner="ann")
    damaged = RunEvents(run_id="bad", conversation_id=record.id, owner="ann", events=[RunEvent(1, "no JSON")])
    await house.store.runs.append(damaged)
    await until(lambda: "bad could not be ended" in caplog.text)
    for _ in range(2):
        before = await last_seen(name, tmp_path, house.replicas.id)
        await until_async(partial(is_seen_after, name, tmp_path, house.replicas.id, before))


async def is_seen_after(name: str, folder: Path, id_: str, before: float) -> bool:
    return await last_seen(name, folder, id_) > before


@pytest.fixture
def own_server(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Outage"]:
    """Start a server for one test, which can be stopped and started again with its data."""
    if name == "postgres":
        server = postgres_server.PostgresServer()
        server.start()
        monkeypatch.setenv(postgres_server.VARIABLE, server.url())
        yield PostgresOutage(server)
        server.remove()
    else:
        outage = RedisOutage(tmp_path / "redis")
        monkeypatch.setenv(redis_servers.VARIABLE, redis_servers.url_in(outage.folder))
        yield outage
        outage.stop()


class PostgresOutage:
    def __init__(self, server: postgres_server.PostgresServer) -> None:
        self.start, self.stop = server.start, server.stop


class RedisOutage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.start()

    def start(self) -> None:
        self._process = redis_servers.start(self.folder, "--appendonly", "yes", "--appendfsync", "always")

    def stop(self) -> None:
        redis_servers.stop(self._process)


Outage = PostgresOutage | RedisOutage


@pytest.mark.full
@pytest.mark.parametrize("seconds", [1, 14], ids=["short", "long"])
async def test_answer_outlives_restart_of_the_store(
    own_server: Outage, build: Build, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All replicas were silent for the same time, and all connections with locks are gone. Nobody has died."""
    one, other = await build(), await build()
    count = 40 * (seconds + 8)
    conversation, run = await begin(one, f"!tokens {count} @40")
    await other.until_stored(run, "word9")
    await asyncio.to_thread(own_server.stop)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(own_server.start)
    await until(lambda: not one.page.live_runs.count)
    view = await other.until_idle(conversation)
    shown = view.texts
    assert shown[1] == words(0, count)
    assert not any("another one" in text for text in shown)
    assert "taken over" not in caplog.text


@pytest.mark.full
@pytest.mark.parametrize("name", ["redis"], indirect=True)
async def test_empty_redis_is_used_like_a_new_one(build: Build, own_server: Outage, tmp_path: Path) -> None:
    """After a failover to a server without data, running answers end, and new ones are answered and taken over."""
    assert isinstance(own_server, RedisOutage)
    one, other = await build(), await build()
    await begin(one, "!tokens 4000 @20")
    with Redis.from_url(redis_servers.url_in(own_server.folder)) as client:
        client.flushall()
    await until(lambda: not one.page.live_runs.count)
    conversation, run = await begin(one, "!tokens 60 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 60)
