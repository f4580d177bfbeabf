"""The queue in front of a server that writes few answers at once: visitors take turns, and no slot is ever lost."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import Agent, Endpoint, Limits, ModelSpec, Run, connect
from agent.system.request_queue import MAX_OVERTAKEN, RequestQueue, acting_for
from tests.support.scripted_server import Config, Running

SPEC = ModelSpec(id="vllm:Qwen/Qwen3-8B", name="Qwen/Qwen3-8B", label="Qwen3", provider="llama.cpp", reasoning=True)


class Guest:
    """A waiting request: `told` are its reported positions, and `inside` says if it has a slot."""

    def __init__(self, queue: RequestQueue) -> None:
        self.told: list[int] = []
        self.inside = False
        self._queue, self._go = queue, asyncio.Event()
        self.task = asyncio.create_task(self._be())

    async def _be(self) -> None:
        async with self._queue.slot(self.told.append):
            self.inside = True
            try:
                await self._go.wait()
            finally:
                self.inside = False

    async def leave(self, how: str) -> None:
        if how == "done":
            self._go.set()
        else:
            self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def settled() -> None:
    """Let all pending tasks proceed."""
    for _ in range(6):
        await asyncio.sleep(0)


# None adds a guest. A number lets one of the present guests leave, served or not.
EVENTS = st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=30)


@given(places=st.integers(1, 3), events=EVENTS)
def test_waiting_runs_know_their_position(places: int, events: list[int | None]) -> None:
    async def play() -> None:
        queue, here = RequestQueue(places), list[Guest]()
        for event in events:
            if event is None:
                here.append(Guest(queue))
            elif here:
                guest = here.pop(event % len(here))
                await guest.leave("done" if guest.inside else "gone")
            await settled()
            assert [guest.inside for guest in here] == [number < places for number in range(len(here))]
            for number, guest in enumerate(here):
                assert guest.inside or guest.told[-1] == number - places + 1
                assert guest.told == sorted(set(guest.told), reverse=True)
        for guest in here:
            await guest.leave("gone")
        last = [Guest(queue) for _ in range(places)]
        await settled()
        assert all(guest.inside for guest in last)
        for guest in last:
            await guest.leave("done")

    asyncio.run(play())


class Of(Guest):
    """A guest on behalf of a visitor."""

    def __init__(self, queue: RequestQueue, visitor: str) -> None:
        self.visitor = visitor
        with acting_for(visitor):
            super().__init__(queue)


async def order_of(queue: RequestQueue, first: Sequence[Of], waiting: list[Of]) -> list[str]:
    """Return the visitors in the order in which they get a slot, as the guests inside leave."""
    served, inside = list[str](), list(first)
    while waiting:
        await inside.pop(0).leave("done")
        await settled()
        came = [guest for guest in waiting if guest.inside]
        served += [guest.visitor for guest in came]
        inside += came
        waiting = [guest for guest in waiting if not guest.inside]
    for guest in inside:
        await guest.leave("done")
    return served


async def test_visitors_take_turns() -> None:
    queue = RequestQueue(1)
    first = Of(queue, "a")
    await settled()
    waiting = [Of(queue, visitor) for visitor in "aaabbc"]
    await settled()
    assert waiting[0].told[-1] == 3, "one guest of each other visitor is before it"
    assert await order_of(queue, [first], waiting) == ["b", "c", "a", "b", "a", "a"]


async def test_new_visitors_do_not_starve_the_waiting() -> None:
    queue = RequestQueue(1)
    inside = Of(queue, "a")
    second = Of(queue, "a")
    for number in range(50):
        newcomer = Of(queue, str(number))
        await settled()
        await inside.leave("done")
        await settled()
        if second.inside:
            break
        inside = newcomer
    assert number <= MAX_OVERTAKEN + 1
    await second.leave("done")
    await newcomer.leave("gone")


async def test_visitor_leaves_a_slot_to_others() -> None:
    queue = RequestQueue(3, slots_per_visitor=2)
    greedy = [Of(queue, "a") for _ in range(5)]
    await settled()
    assert [guest.inside for guest in greedy] == [True, True, False, False, False]
    other = Of(queue, "b")
    await settled()
    assert other.inside
    await greedy[0].leave("done")
    await settled()
    assert [guest.inside for guest in greedy[1:]] == [True, True, False, False]
    for guest in (*greedy[1:], other):
        await guest.leave("gone")


@given(
    places=st.integers(1, 3),
    each=st.integers(1, 3),
    events=st.lists(st.tuples(st.sampled_from("abc+"), st.integers(0, 9))),
)
def test_no_slot_is_lost_or_given_twice(places: int, each: int, events: list[tuple[str, int]]) -> None:
    async def play() -> None:
        queue, here = RequestQueue(places, slots_per_visitor=each), list[Of]()
        for visitor, number in events:
            if visitor != "+":
                here.append(Of(queue, visitor))
            elif here:
                guest = here.pop(number % len(here))
                await guest.leave("done" if guest.inside else "gone")
            await settled()
            inside = Counter(guest.visitor for guest in here if guest.inside)
            wanted = sum(min(each, count) for count in Counter(guest.visitor for guest in here).values())
            assert inside.total() == min(places, wanted)
            assert all(count <= each for count in inside.values())
            assert all(guest.told[-1] > 0 for guest in here if not guest.inside)
        for guest in here:
            await guest.leave("gone")

    asyncio.run(play())


def test_loops_share_queue_even_if_one_was_closed() -> None:
    queue, order = RequestQueue(1), list[str]()
    inside, go = threading.Event(), threading.Event()

    async def hold() -> None:
        async with queue.slot(lambda _: None):
            inside.set()
            await asyncio.to_thread(go.wait, 30)
            order.append("holder")

    holder = threading.Thread(target=asyncio.run, args=(hold(),))
    holder.start()
    assert inside.wait(30)
    closed = asyncio.new_event_loop()  # a task of this loop never returns its slot
    lost = closed.create_task(anext(aiter(_placed(queue))))
    closed.run_until_complete(asyncio.sleep(0.01))
    closed.close()

    async def wait() -> None:
        told: list[int] = []

        def hear(before: int) -> None:
            told.append(before)
            go.set()

        async with queue.slot(hear):
            order.append("next")
        assert told[0] == 2

    asyncio.run(asyncio.wait_for(wait(), 30))
    holder.join(30)
    assert order == ["holder", "next"]
    del lost


async def _placed(queue: RequestQueue) -> AsyncIterator[None]:
    async with queue.slot(lambda _: None):
        yield


# Runs


SERVER = Config(rate=400.0)


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    async with Agent(connect(SPEC, Endpoint(server.base_url, slots=1)), limits=Limits(retries=0)) as agent:
        yield agent


async def until(run: Run, true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await run.wait_for_update(len(run.responses), timeout=0.05)


async def served(agent: Agent, script: str = "!stall-after 2") -> Run:
    """Return a run that has the slot."""
    run = agent.run(script).start()
    await until(run, lambda: bool(run.responses))
    return run


async def in_line(agent: Agent, before: int, script: str = "!text Hello", **limits: float) -> Run:
    """Return a run that waits behind `before` others."""
    agent = Agent(agent.connection, limits=Limits(retries=0, **limits)) if limits else agent  # pyright: ignore
    run = agent.run(script).start()
    await until(run, lambda: run.waiting is not None and run.waiting.ahead == before)
    return run


async def test_run_reports_and_counts_down_its_position(agent: Agent, server: Running) -> None:
    first = await served(agent)
    second, third = await in_line(agent, 1), await in_line(agent, 2)
    assert third.waiting is not None
    assert third.waiting.sentence == "2 ahead of you"
    seen = len(server.journal())
    second.cancel()
    result = await asyncio.wait_for(second, 60)
    assert (result.finish_reason, second.waiting) == ("cancelled", None)
    await until(third, lambda: third.waiting is not None and third.waiting.ahead == 1)
    assert len(server.journal()) == seen  # no waiting run has sent a request
    first.cancel()
    assert (await asyncio.wait_for(third, 30)).text == "Hello"
    assert third.waiting is None


ENDS = {"an answer": "!text Hi.", "an error": "!status 500", "a break": "!cut 2", "a reset": "!reset 2"}


@pytest.mark.parametrize("script", ENDS.values(), ids=ENDS.keys())
async def test_slot_is_freed_after_any_ending(agent: Agent, script: str) -> None:
    first = await served(agent)
    second, third = await in_line(agent, 1, script), await in_line(agent, 2)
    first.cancel()
    await asyncio.wait_for(second, 30)
    assert (await asyncio.wait_for(third, 30)).text == "Hello"


@pytest.mark.slow
async def test_queue_time_is_not_model_or_run_time(agent: Agent) -> None:
    first = await served(agent)
    began = time.monotonic()
    run = await in_line(agent, 1, seconds=1.0)
    since = time.monotonic()
    await asyncio.sleep(1.5)  # longer than the time limit of the run
    assert run.waiting is not None
    waited = time.monotonic() - since
    first.cancel()
    result = await asyncio.wait_for(run, 30)
    whole = time.monotonic() - began
    timings = result.note.timings
    assert result.finish_reason == "stop"
    assert timings is not None
    assert timings.first_token is not None
    assert waited < timings.queued < whole
    assert timings.first_token <= timings.total <= whole - timings.queued


async def test_abandoned_wait_takes_no_slot(server: Running) -> None:
    connection = connect(SPEC, Endpoint(server.base_url, slots=1))
    try:
        first = await served(Agent(connection))
        second = await in_line(Agent(connection), 1)
        reader = aiter(second)
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        waiting.cancel()  # its reader leaves
        await asyncio.gather(waiting, return_exceptions=True)
        await reader.aclose()
        third = await in_line(Agent(connection), 1)
        first.cancel()
        assert (await asyncio.wait_for(third, 30)).text == "Hello"
    finally:
        await connection.aclose()


async def test_server_without_slots_has_no_queue(server: Running) -> None:
    async with Agent(connect(SPEC, Endpoint(server.base_url))) as agent:
        stalled = [await served(agent) for _ in range(3)]
        assert (await agent.ask("!text Hello")).text == "Hello"
        for run in stalled:
            run.cancel()
        await asyncio.gather(*stalled)
