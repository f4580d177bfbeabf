"""A running answer and the pages that watch it: the last view comes at once, and only the owner gets views."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Agent
from agent.errors import Conflict
from agent.i18n.translator import ENGLISH
from agent.providers.delta_merging import least_pause
from agent.tools.function_tools import Tool, tool
from agent.web import run_event_routes
from agent.web.chat.answers import EVENT_SECONDS, TEXT_SECONDS, LiveRuns
from agent.web.chat.turns import TurnRenderer
from agent.web.chat.views import RunningTurn
from agent.web.run_event_routes import WAIT_SECONDS, TurnFrames, stream
from tests.support.clocks import run_without_waiting
from tests.support.fakes import Act, Call, FakeConnection, Pause, Step, Words
from tests.support.models import QWEN3
from tests.support.views import unstored
from tests.tiers import examples


@tool
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "awake"


async def watched(steps: Sequence[Step]) -> tuple[list[tuple[float, str]], float, str]:
    """Watch a run. Return the times and texts of all views, the time of the run's end, and its complete text."""
    loop = asyncio.get_running_loop()
    live = LiveRuns(None).start(Agent(FakeConnection(steps), tools=[nap]).run("Hi."), unstored())

    async def ended() -> float:
        await live.run
        return loop.time()

    end, views = asyncio.create_task(ended()), list[tuple[float, str]]()
    async with aclosing(live.bubble_updates()) as updates:
        async for bubbles in updates:
            views.append((loop.time(), "".join(bubble.text for bubble in bubbles)))
    text = "".join(piece.content for piece in live.run.responses if isinstance(piece.content, str))
    return views, await end, text


NAPS = st.lists(st.sampled_from([0.0, 0.01, 0.09, 0.11, 0.5, 3.0]), max_size=4)
TEXTS = st.lists(st.sampled_from(["a", "word ", "x" * 50_000]), min_size=1, max_size=4)


@given(naps=NAPS, last=TEXTS)
@settings(max_examples=examples(90))
def test_last_view_arrives_without_a_further_wait(naps: list[float], last: list[str]) -> None:
    calls = [Step([Call("nap", f'{{"seconds": {pause}}}', f"call_{at}")], "tool_call") for at, pause in enumerate(naps)]
    views, end, text = run_without_waiting(watched([*calls, Step([Words("output_text", last)])]))
    assert views[-1][0] == end
    assert views[-1][1].endswith("".join(last))
    assert views[-1][1].endswith(text[-1:])


async def delays(answers: int) -> list[float]:
    """Return the seconds from each response of a run to its event, while so many answers are being written."""
    loop, runs = asyncio.get_running_loop(), LiveRuns(None)
    calls = [Step([Call("nap", '{"seconds": 0.1}', f"call_{at}")], "tool_call") for at in range(8)]
    script = [*calls, Step([Words("output_text", ["Done."])])]
    lives = [
        runs.start(Agent(FakeConnection(script), tools=[nap]).run("Hi."), unstored("ann", f"c{number}"))
        for number in range(answers)
    ]
    said, shown, live = list[float](), list[float](), lives[0]

    async def listen() -> None:
        while not live.run.done:
            await live.run.wait_for_update(len(said))
            said.extend([loop.time()] * (len(live.run.responses) - len(said)))

    listening = asyncio.create_task(listen())
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            shown.extend([loop.time()] * (live.log.seen - len(shown)))
    await listening
    await asyncio.gather(*(one.run for one in lives))
    return [one - other for one, other in zip(shown, said, strict=True)]


async def test_output_of_a_tool_is_in_its_row_while_it_runs() -> None:
    go = asyncio.Event()

    async def build() -> AsyncGenerator[str]:
        """Build."""
        yield "Reading <b>…\n"
        yield "2 of 9\n"
        await go.wait()

    script = [Step([Call("build", "{}", "c1")], "tool_call"), Step([Words("output_text", ["Done."])])]
    live = LiveRuns(None).start(Agent(FakeConnection(script), tools=[build]).run("Build."), unstored())
    while len(live.log.bubbles) < 1 or len(live.log.bubbles[0].output) < 1:
        await live.log.wait_for_event(live.log.number, 60)
    while "9" not in "".join(live.log.bubbles[0].output):
        await live.log.wait_for_event(live.log.number, 60)
    renderer, turn = TurnRenderer(ENGLISH), RunningTurn(live, [], {})
    [call] = [one for one in renderer.render(turn.turn(0.0))["bubbles"] if one["kind"] == "tool_call"]
    assert (call.get("title"), call["state"]) == ("Build · 2 of 9", "running")
    assert call["blocks"][-1] == '<pre class="output">Reading &lt;b&gt;…\n2 of 9\n</pre>'
    go.set()
    await live.run
    await live.log.publish()
    [call] = [one for one in renderer.render(turn.turn(0.0))["bubbles"] if one["kind"] == "tool_call"]
    assert (call.get("title"), len(call["blocks"])) == ("Build", 1)
    outputs = [event.value for event in live.events if event.value["type"] == "tool_output"]
    assert {one["call"] for one in outputs} == {"c1"}
    assert "".join(one["content"] for one in outputs) == "Reading <b>…\n2 of 9\n"


def test_log_adds_no_pause_of_its_own() -> None:
    """The stream of the model is already slower while many answers are written."""
    assert max(run_without_waiting(delays(60))) < EVENT_SECONDS + 0.001


def test_readers_share_what_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rendered, render = 100.0, 0, TurnRenderer.render

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal rendered
        rendered += 1
        return render(*given, **more)

    monkeypatch.setattr(TurnRenderer, "render", counted)
    monkeypatch.setattr(run_event_routes, "monotonic", lambda: now)

    async def read() -> list[int]:
        nonlocal now
        runs = LiveRuns(None)
        live = runs.start(
            Agent(FakeConnection([Step([Words("output_text", ["a"]), Act("hang")])])).run("Hi."), unstored()
        )
        await live.log.wait_for_event(live.log.number, 5)
        frames = TurnFrames(RunningTurn(live, [], {}), ENGLISH)
        counts: list[int] = []
        last = (await frames.after(""))[-1][0]
        for seconds in (0, 0, WAIT_SECONDS, 0):
            now += seconds
            before = rendered
            for _ in range(20):
                assert list(await frames.after(last)) == []
            counts.append(rendered - before)
        await runs.close()
        assert await frames.after(last), "the end is shown"
        return counts

    assert asyncio.run(read()) == [0, 0, 1, 0]


@pytest.mark.parametrize("name", ["gpt-image-2", "qwen3-8b"])
async def test_model_that_draws_may_be_at_a_picture(name: str) -> None:
    """Such a model says nothing for a minute while it draws."""
    spec, runs = replace(QWEN3, name=name), LiveRuns(None)
    live = runs.start(Agent(FakeConnection([Step([Act("hang")])], spec=spec)).run("Draw."), unstored())
    [(_, frame)] = await TurnFrames(RunningTurn(live, [], {}), ENGLISH).after("")
    waiting = json.loads(frame)["turn"]["waiting"]["why"]
    assert waiting.startswith("A picture may be on its way") is (name == "gpt-image-2")
    await runs.close()


class Inline:
    """Instead of threads, whose time the clock of `run_without_waiting` does not know."""

    async def run(self, work: Callable[..., Any], *given: Any, **more: Any) -> Any:
        return work(*given, **more)


def test_growing_text_has_eight_frames_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read() -> tuple[list[float], float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(run_event_routes, "monotonic", loop.time)
        monkeypatch.setattr(run_event_routes, "TURNS", Inline())
        texts = [item for number in range(200) for item in (Pause(0.01), Words("output_text", [f"Part {number}."]))]
        live = LiveRuns(None).start(Agent(FakeConnection([Step(texts)])).run("Hi."), unstored())
        times = list[float]()
        async with aclosing(stream(live, TurnFrames(RunningTurn(live, [], {}), ENGLISH), "")) as pieces:
            async for piece in pieces:
                if "Part" in piece:
                    times.append(loop.time())
        return times, loop.time()

    times, end = run_without_waiting(read())
    first, *gaps = [round(after - before, 6) for before, after in pairwise(time for time in times if time < end)]
    assert times[0] <= 0.01
    assert first <= EVENT_SECONDS + 0.01
    assert set(gaps) == {TEXT_SECONDS}
    assert times[-1] == end


async def test_model_is_read_as_often_as_pages_draw() -> None:
    pauses = list[float]()

    def look() -> str:
        """Look."""
        pauses.append(least_pause())
        return "Seen."

    script = [Step([Call("look", "{}", "c1")], "tool_call"), Step([Words("output_text", ["Done."])])]
    await LiveRuns(None).start(Agent(FakeConnection(script), tools=[look]).run("Look."), unstored()).run
    assert pauses == [TEXT_SECONDS]
    assert least_pause() == 0


async def test_only_its_owner_has_a_running_answer() -> None:
    runs = LiveRuns(None)
    run = Agent(FakeConnection([Step([Act("hang")])])).run("Hi.")
    live = runs.start(run, unstored("ann", "c"))
    assert runs.get("c", "ann") is live is runs.find(run.id, "ann")
    assert runs.get("c", "bob") is runs.get("other", "ann") is runs.get(None, "ann") is None
    assert runs.find(run.id, "bob") is runs.find("other", "ann") is None
    await runs.close()
    assert runs.get("c", "ann") is runs.find(run.id, "ann") is None


async def test_run_with_a_result_is_no_longer_live() -> None:
    """Nobody waits for its tools to close: the page shows the stored answer, and the next one can begin."""
    closing, may_close = asyncio.Event(), asyncio.Event()

    class SlowToClose:
        name = "slow"

        @asynccontextmanager
        async def session(self) -> AsyncGenerator[Sequence[Tool]]:
            yield [nap]
            closing.set()
            await may_close.wait()

    runs = LiveRuns(None)
    calls = [Step([Call("nap", '{"seconds": 0}', "call")], "tool_call"), Step([Words("output_text", ["Done."])])]
    live = runs.start(Agent(FakeConnection(calls), tools=[SlowToClose()]).run("Hi."), unstored("ann", "c"))
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            assert runs.is_busy("c") is not live.run.done
    await closing.wait()
    assert runs.get("c", "ann") is runs.find(live.run.id, "ann") is None
    following = runs.start(Agent(FakeConnection([Step([Act("hang")])])).run("Hi."), unstored("ann", "c"))
    may_close.set()
    await live.run
    assert runs.get("c", "ann") is following
    await runs.close()


async def test_chat_has_one_answer_at_once() -> None:
    """Only the other answers of a comparison are written beside one."""
    table = LiveRuns(None)
    hanging = [Step([Words("output_text", ["a"]), Act("hang")])]
    first = table.start(Agent(FakeConnection(hanging)).run("Hi."), unstored())
    with pytest.raises(Conflict):
        table.start(Agent(FakeConnection([])).run("Hi."), unstored())
    for journal, is_beside in ((unstored(), True), (unstored(conversation_id="another"), False)):
        await table.start(Agent(FakeConnection([])).run("Hi."), journal, is_beside=is_beside).run
    first.run.cancel()
    await first.run
    await table.close()
