"""The events of a run for a reader: all in their order, the conversation in mid-run, and how the run ended."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage

from agent import (
    Agent,
    Event,
    Image,
    InputError,
    Response,
    RunCancelled,
    RunEnded,
    StateSnapshot,
    UserInputRequested,
    ask_user,
    tool,
)
from agent.events import Observer, ResponseEmitted, RunStarted, ToolCallEnded, ToolOutput
from agent.messages.repair import repair
from agent.runtime import agent_loop
from agent.runtime.run import Run
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.support.media_files import picture

ANSWER = Step([Words("reasoning", ["Hm."]), Words("output_text", ["One", " two."])])
QUESTION = Step([Call("ask_user", '{"question": "Which?"}', "q1")])


@tool
def double(number: int, times: int = 2) -> int:
    """Double a number."""
    return number * times


CALLING = Step([Call("double", '{"number": 4}', "c1")])


def made(*steps: Step) -> Run:
    connection = FakeConnection(steps)
    run = Agent(connection, tools=[ask_user, double]).run("Hello")
    connection.played.cancel = lambda: run.cancel("enough")
    return run


async def listed(run: Run) -> Sequence[Event]:
    return [event async for event in run.events()]


async def test_events_contain_the_responses_in_order() -> None:
    run = made(CALLING, ANSWER)
    events = await listed(run)
    assert [event.response for event in events if isinstance(event, ResponseEmitted)] == run.responses
    assert isinstance(events[0], RunStarted)
    assert events[-1] == RunEnded(await run.finished())
    assert all(isinstance(response, Response) for response in run.responses)


async def test_type_of_an_event_can_be_matched() -> None:
    seen = list[object]()
    async for event in made(CALLING, ANSWER).events():
        match event.type:
            case "text_delta" | "reasoning_delta":
                seen.append((event.type, event.content))
            case "tool_event":
                seen.append((event.tool_name, event.tool_call_id, event.completed))
            case "state_snapshot":
                seen.append(len(event.context.messages))
            case other:
                seen.append(other)
    assert [one for one in seen if one not in ("step_started", "provider_event", "step_ended")] == [
        "run_started", 1, 3, "tool_call", ("double", "c1", False), "tool_call_result", ("double", "c1", True), 3,
        ("reasoning_delta", "Hm."), ("text_delta", "One"), ("text_delta", " two."), 4, "run_ended",
    ]  # fmt: skip


async def test_snapshots_grow_to_the_result() -> None:
    run = made(CALLING, ANSWER)
    contexts = [event.context for event in await listed(run) if isinstance(event, StateSnapshot)]
    # In the second one, the open call has a result that says so, because a new run can continue from it.
    assert [len(context.messages) for context in contexts] == [1, 3, 3, 4]
    assert contexts[-1] == (await run.finished()).context


class TypesOnly:
    """An observer of all events that reads no conversation."""

    def __init__(self) -> None:
        self.seen: list[type[Event]] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(type(event))


class SnapshotReader:
    def on_event(self, event: Event) -> None:
        if isinstance(event, StateSnapshot):
            assert event.context is event.context, "a snapshot is made once"


async def copies_with(*observers: Observer, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often a run with these observers copies its conversation."""
    copies: list[int] = []

    def counted(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        copies.append(len(messages))
        return repair(messages)

    monkeypatch.setattr(agent_loop, "repair", counted)
    run = made(CALLING, CALLING, ANSWER)
    for observer in observers:
        run.observers.add(observer)
    await run
    return len(copies)


async def test_unread_snapshots_copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = TypesOnly()
    unobserved = await copies_with(monkeypatch=monkeypatch)
    assert await copies_with(watching, monkeypatch=monkeypatch) == unobserved
    messages = watching.seen.count(StateSnapshot) - 1
    assert messages == 5, "the last snapshot has the context of the result"
    reading = await copies_with(SnapshotReader(), SnapshotReader(), monkeypatch=monkeypatch)
    assert reading == unobserved + messages


async def test_run_can_continue_from_a_snapshot() -> None:
    contexts = [event.context async for event in made(CALLING, ANSWER).events() if isinstance(event, StateSnapshot)]
    for context in contexts:
        assert (await Agent(FakeConnection([])).ask("Go on.", context=context)).text == "done"


async def test_suspension_is_an_event_with_the_record() -> None:
    run = made(QUESTION)
    [asked] = [event for event in await listed(run) if isinstance(event, UserInputRequested)]
    result = await run.finished()
    assert (asked.record, asked.pending) == (result.suspension, result.pending)
    assert asked.pending[0].question == "Which?"


async def test_cancellation_is_an_event_with_its_reason() -> None:
    events = await listed(made(Step([Words("output_text", ["One"]), Act("cancel"), Act("hang")])))
    assert [(event.reason, bool(event.message)) for event in events if isinstance(event, RunCancelled)] == [
        ("enough", True)
    ]
    assert isinstance(events[-1], RunEnded)
    assert not any(isinstance(event, RunCancelled) for event in await listed(made(ANSWER)))


async def test_leaving_the_events_cancels_the_run() -> None:
    run = made(CALLING, ANSWER)
    events = run.events()
    async for _ in events:
        break
    await events.aclose()
    assert (await run.finished()).finish_reason == "cancelled"


async def test_refused_run_raises_in_its_events() -> None:
    async def refuse(_: object) -> list[object]:
        raise InputError("not fetched")

    run = made(ANSWER)
    object.__setattr__(run._plan, "prepare", refuse)
    with pytest.raises(InputError, match="not fetched"):
        await listed(run)


def test_tool_keeps_its_signature() -> None:
    assert str(inspect.signature(double)) == "(number: int, times: int = 2) -> int"
    assert double(3, times=3) == 9


def test_response_is_one_of_five_types() -> None:
    with pytest.raises(ValueError, match=r"one of output_text, reasoning, .*, not 'text'"):
        Response("text", "Hello", True)  # pyright: ignore
    assert isinstance(Response("error", "It broke.", True), Response)


async def test_charts_are_the_pictures_of_tools_by_name() -> None:
    @tool
    def plot(colors: list[str]) -> list[object]:
        """Plot."""
        return ["Done.", *[Image.from_bytes(picture("PNG", (8, 8 + len(color)))) for color in colors]]

    connection = FakeConnection([Step([Call("plot", '{"colors": ["red", "blue"]}', "c1")]), ANSWER])
    result = await Agent(connection, tools=[plot]).ask("Plot it")
    assert list(result.charts) == ["plot", "plot-2"]
    assert list(result.charts.values()) == list(result.files)
    assert (await Agent(FakeConnection([ANSWER])).ask("Go on", context=result.context)).charts == {}


# The output of a tool


async def counted(upto: int) -> AsyncIterator[str]:
    """Count.

    Args:
        upto: The last number.
    """
    for number in range(1, upto + 1):
        yield f"{number}\n"


COUNTING = Step([Call("counted", '{"upto": 3}', "c1")])


async def test_texts_of_a_tool_come_while_it_runs() -> None:
    run = Agent(FakeConnection([COUNTING, ANSWER]), tools=[counted]).run("Count.")
    events = await listed(run)
    kinds = [type(event) for event in events]
    assert [event.content for event in events if isinstance(event, ToolOutput)] == ["1\n", "2\n", "3\n"]
    assert kinds.index(ToolOutput) < kinds.index(ToolCallEnded)
    [result] = [one for one in run.responses if one.type == "tool_call_result"]
    assert (result.content["content"], result.content["is_error"]) == ("1\n2\n3\n", False)


async def test_tool_that_yields_is_stopped_at_once() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        """Go on."""
        try:
            yield "Begun."
            await asyncio.get_running_loop().create_future()
        finally:
            closed.set()

    run = Agent(FakeConnection([Step([Call("endless", "{}", "c1")]), ANSWER]), tools=[endless]).run("Go.").start()
    while not run.outputs:
        await run.wait_for_update(9, outputs=0)
    run.cancel()
    result = await run
    assert closed.is_set()
    assert result.note.detail == "Stopped."


async def test_tool_that_yields_without_waiting_holds_nobody() -> None:
    count = 0

    async def busy() -> AsyncIterator[str]:
        """Never wait."""
        nonlocal count
        while count < 10_000:
            count += 1
            yield "."

    run = Agent(FakeConnection([Step([Call("busy", "{}", "c1")]), ANSWER]), tools=[busy]).run("Go.").start()
    while not run.outputs:
        await run.wait_for_update(9, outputs=0)
    run.cancel()
    assert (await run).finish_reason == "cancelled"
    assert count < 10_000


@pytest.mark.parametrize("value", [7, b"x", None])
async def test_tool_must_yield_texts(value: object) -> None:
    async def odd() -> AsyncIterator[object]:
        """Be odd."""
        yield value

    run = Agent(FakeConnection([Step([Call("odd", "{}", "c1")]), ANSWER]), tools=[odd]).run("Go.")
    await run
    [failed] = [one for one in run.responses if one.type == "tool_call_result"]
    assert failed.content["is_error"]
    assert "must yield texts" in failed.content["content"]


async def test_run_tells_nothing_after_its_end() -> None:
    go, ended, told = asyncio.Event(), asyncio.Event(), list[Event]()

    class Notes:
        def on_event(self, event: Event) -> None:
            told.append(event)

    async def deaf() -> AsyncIterator[str]:
        """Hear nothing."""
        yield "Begun."
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()
        yield "Late."
        ended.set()

    run = Agent(FakeConnection([Step([Call("deaf", "{}", "c1")]), ANSWER]), tools=[deaf]).run("Go.").start()
    run.observers.add(Notes())
    while not run.outputs:
        await run.wait_for_update(9, outputs=0)
    run.cancel()
    await run
    go.set()
    await ended.wait()
    run.observers(ToolOutput("c1", "deaf", "", 1))
    assert isinstance(told[-1], RunEnded)
    assert run.outputs == [("c1", "Begun.")]


async def test_decorated_generator_keeps_its_arguments() -> None:
    def loud(function: Callable[..., AsyncIterator[str]]) -> Any:
        @wraps(function)
        async def inner(*args: Any, **more: Any) -> AsyncIterator[str]:
            async for text in function(*args, **more):
                yield text.upper()

        return inner

    @tool
    @loud
    async def say(word: str, times: int = 2) -> AsyncIterator[str]:
        """Say a word."""
        for _ in range(times):
            yield word

    assert say.definition.parameters_json_schema["properties"].keys() == {"word", "times"}
    run = Agent(FakeConnection([Step([Call("say", '{"word": "a"}', "c1")]), ANSWER]), tools=[say]).run("Go.")
    await run
    assert [text for _, text in run.outputs] == ["A", "A"]


async def test_long_output_is_shown_in_part() -> None:
    async def long() -> AsyncIterator[str]:
        """Say much."""
        for _ in range(8):
            yield "x" * 10_000

    run = Agent(FakeConnection([Step([Call("long", "{}", "c1")]), ANSWER]), tools=[long]).run("Go.")
    await run
    assert sum(len(text) for _, text in run.outputs) == 50_000
