"""Several replicas of the page on one store: each serves every answer, and finishes those of a replica that is gone.

A replica that leaves while its run goes on is the hardest case: its run is lost at once, and it still wants to write.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.errors import Conflict
from agent.history import HistoryStore, replicas_of
from agent.media.store import MediaStore
from agent.models.catalog import ModelSpec
from agent.providers import Endpoint, ServedModel
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.tools import tool
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.replica import Replica
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.running_answers import RunningAnswers
from agent.web.chat.takeovers import MAX_TAKEOVERS
from agent.web.chat.visitor import Visitor
from agent.web.run_event_routes import RunFrames, stream
from agent.web.ui.view import PageView
from tests.support.history_stores import SERVERS, STORES, Clock
from tests.support.models import QWEN3, FakeLocalModels
from tests.support.script_language import token
from tests.support.scripted_server import Running
from tests.support.views import view_of, watch
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.slow

ANN = Visitor(owner="ann")
SPEC = replace(QWEN3, prefill=True)
calls: list[str] = []


@tool
async def note(text: str) -> str:
    """Note a text."""
    calls.append(text)
    return "noted"


@tool
async def nap(text: str) -> str:
    """Wait for long."""
    calls.append(text)
    await asyncio.sleep(60)
    return "awake"


class House:
    """One replica, and its task."""

    def __init__(self, store: HistoryStore, page: Conversations) -> None:
        self.page, self.store = page, store
        replicas = replicas_of(store)
        assert replicas is not None
        self.replicas = replicas
        self.replica = Replica(self.store, replicas, page.live_runs, page.takeovers)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.replica.join()
        self._task = asyncio.create_task(self.replica.work())

    async def lose_its_runs(self) -> None:
        """Do what the end of a process does, as far as others see it."""
        await self.halt()
        await self.replicas.leave()

    async def halt(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def texts(self, conversation: str) -> list[str]:
        return [text_of(message) for message in (await view_of(self.page, "ann", conversation)).messages]

    async def until_idle(self, conversation: str) -> PageView:
        """Wait until no answer is being written in this conversation, and return what the page shows then."""
        await until_async(lambda: self._is_idle(conversation))
        return await view_of(self.page, "ann", conversation)

    async def until_stored(self, run_id: str, text: str) -> None:
        """Wait until the store has this text of a run."""

        async def is_stored() -> bool:
            events = [event.value for event in await self.store.runs.events(run_id, owner="ann")]
            said = "".join(str(event.get("content", "")) for event in events)
            return text in said or any(event["type"] == text for event in events)

        await until_async(is_stored)

    async def _is_idle(self, conversation: str) -> bool:
        return not await self.page.running.is_busy(conversation, "ann")


def text_of(message: dict[str, object]) -> str:
    return str(message["content"][0]["text"])  # type: ignore[index]


Build = Callable[..., Awaitable[House]]


@pytest.fixture(params=SERVERS)
async def build(request: pytest.FixtureRequest, tmp_path: Path, server: Running) -> AsyncIterator[Build]:
    calls.clear()
    houses: list[House] = []

    async def make(*specs: ModelSpec, public: PublicSettings | None = None, grace: float = 60) -> House:
        store = await STORES[request.param](tmp_path, Clock())
        served = tuple(ServedModel(spec, Endpoint(server.base_url)) for spec in specs or (SPEC,))
        local = LocalSettings(cache_dir=tmp_path)
        settings = Settings(local=local, public=public, grace_seconds=grace)
        models = FakeLocalModels(served=served)
        house = House(store, Conversations(settings, store, MediaStore(tmp_path / "media"), models, [note, nap]))
        houses.append(house)
        await house.start()
        return house

    yield make
    for house in houses:
        await house.halt()
        await house.page.aclose()
        await house.store.aclose()


async def begin(house: House, text: str) -> tuple[str, str]:
    """Send a message. Return the ids of the conversation and of the run."""
    live = await house.page.send(ANN, None, {"text": text}, Choices(tools=True))
    assert live is not None
    return live.conversation, live.run_id


def words(first: int, last: int) -> str:
    return "".join(map(token, range(first, last)))


async def test_any_replica_shows_and_stops_an_answer(build: Build) -> None:
    one, other = await build(), await build()
    conversation, _ = await begin(one, "!tokens 400 @40")
    [row] = (await other.page.list.page("ann")).rows
    assert row.state == "answering"
    with pytest.raises(Conflict, match="still being written"):
        await other.page.send(ANN, conversation, {"text": "Again."}, Choices())
    shown: list[str] = []
    async with aclosing(watch(other.page, "ann", conversation)) as views:
        async for view in views:
            if view.is_busy and "word0" in text_of(view.messages[1]):
                shown.append(text_of(view.messages[1]))
                if "word99" in shown[-1]:
                    await other.page.running.stop([conversation], "ann")
            last = view
    assert shown == sorted(shown, key=len)
    assert len(set(shown)) > 3  # it grew while it was shown
    stored = [await view_of(house.page, "ann", conversation) for house in (one, other)]
    assert last.messages == stored[0].messages == stored[1].messages
    assert "Stopped" in text_of(last.messages[-1])
    assert "word399" not in text_of(last.messages[1])


async def test_foreign_visitor_reaches_no_answer_of_another_replica(build: Build) -> None:
    one, other = await build(), await build()
    conversation, run = await begin(one, "!tokens 60 @30")
    running: RunningAnswers = other.page.running
    assert await running.get(conversation, "bob") is None
    assert await running.find(run, "bob") is None
    assert await running.find(run, "ann") is not None
    assert await running.find(run, "bob") is None  # also when it is known here
    await running.stop([conversation], "bob")
    view = await one.until_idle(conversation)
    assert text_of(view.messages[1]) == words(0, 60)


async def test_lost_text_is_continued(build: Build) -> None:
    one, other = await build(), await build()
    conversation, run = await begin(one, "!tokens 60 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    await asyncio.sleep(0)
    view = await other.until_idle(conversation)
    assert text_of(view.messages[1]) == words(0, 60)
    assert "another one has continued the text" in text_of(view.messages[-1])
    await until(lambda: not one.page.live_runs.count)  # the late writer gives up
    assert await other.texts(conversation) == [text_of(message) for message in view.messages]


async def test_replica_that_ends_in_order_leaves_its_answers_to_others(build: Build) -> None:
    one, other = await build(), await build()
    conversation, run = await begin(one, "!tokens 100 @20")
    await other.until_stored(run, "word9")
    live = one.page.live_runs.find(run, "ann")
    assert live is not None
    reader = asyncio.create_task(read_all(live))
    await one.page.live_runs.close()
    assert not any("event: end" in text for text in await reader)  # so the reader connects again
    await one.lose_its_runs()
    view = await other.until_idle(conversation)
    assert text_of(view.messages[1]) == words(0, 100)


async def read_all(live: RunningAnswer) -> list[str]:
    return [text async for text in stream(live, RunFrames(live), "")]


async def test_step_begins_again_if_the_model_cannot_continue(build: Build) -> None:
    one, other = await build(QWEN3), await build(QWEN3)
    conversation, run = await begin(one, '!tool note {"text": "once"} !tokens 60 @20')
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    view = await other.until_idle(conversation)
    texts = [text_of(message) for message in view.messages]
    assert words(0, 60) in texts
    assert "has begun this step again" in texts[-1]
    assert calls == ["once"]  # finished steps are kept


async def test_tool_of_unknown_outcome_waits_for_the_visitor(build: Build) -> None:
    one, other = await build(), await build()
    conversation, run = await begin(one, '!tool nap {"text": "once"} !text Done.')
    await other.until_stored(run, "tool_call")
    await one.lose_its_runs()
    view = await other.until_idle(conversation)
    assert calls == ["once"]
    [button] = [option for message in view.messages for option in message["options"] or ()]
    assert button["value"]["do"] == "retry"
    assert any("Interrupted" in text_of(message) for message in view.messages)


async def test_answer_that_loses_every_replica_ends_as_interrupted(build: Build) -> None:
    house = await build()
    conversation, run = await begin(house, "!tokens 4000 @20")
    for _ in range(MAX_TAKEOVERS + 1):
        await house.until_stored(run, "word")
        following = await build()
        await house.lose_its_runs()
        await until_async(partial(has_other_run, following, conversation, run))
        house, run = following, await following.replicas.unfinished_run(conversation, owner="ann") or ""
    assert run == ""
    view = await house.until_idle(conversation)
    assert "Interrupted" in " ".join(text_of(message) for message in view.messages)
    assert len(set(calls)) == 0


async def has_other_run(house: House, conversation: str, run: str) -> bool:
    return await house.replicas.unfinished_run(conversation, owner="ann") != run


async def test_page_of_another_replica_keeps_an_answer_of_a_public_page(build: Build) -> None:
    public = PublicSettings()
    one, other = await build(public=public, grace=2), await build(public=public, grace=2)
    conversation, _ = await begin(one, "!tokens 120 @20")
    async with aclosing(watch(other.page, "ann", conversation)) as views:
        async for view in views:
            last = view
    assert text_of(last.messages[1]) == words(0, 120)


async def test_answer_with_a_visitors_key_asks_for_it_again(
    build: Build, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUGGINGFACE_BASE_URL", server.base_url)
    for name in ("HF_TOKEN", "HUGGINGFACE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    one, other = await build(), await build()
    one.page.models.keys.put("ann", "huggingface", "of-ann")
    model = "huggingface:Qwen/Qwen3-8B"
    live = await one.page.send(ANN, None, {"text": "!tokens 60 @20"}, Choices(model=model))
    assert live is not None
    await other.until_stored(live.run_id, "word9")
    await one.lose_its_runs()
    view = await other.until_idle(live.conversation)
    texts = [text_of(message) for message in view.messages]
    assert "word9" in texts[1]  # what was written stays
    assert any("Enter the key again" in text for text in texts)
    stored = [event.json for event in await other.store.runs.events(live.run_id, owner="ann")]
    assert not any("of-ann" in text for text in stored)
