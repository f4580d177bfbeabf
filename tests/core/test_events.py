"""The events of a run for a reader: all in their order, the conversation in mid-run, and how the run ended."""

import inspect
from collections.abc import Sequence

import pytest

from agent import (
    Agent,
    Event,
    InputError,
    Response,
    RunCancelled,
    RunEnded,
    StateSnapshot,
    UserInputRequested,
    ask_user,
    tool,
)
from agent.events import ResponseEmitted, RunStarted
from agent.run import Run
from tests.support.fakes import Act, Call, FakeConnection, Step, Words

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


async def test_snapshots_grow_to_the_result() -> None:
    run = made(CALLING, ANSWER)
    contexts = [event.context for event in await listed(run) if isinstance(event, StateSnapshot)]
    # In the second one, the open call has a result that says so, because a new run can continue from it.
    assert [len(context.messages) for context in contexts] == [1, 3, 3, 4]
    assert contexts[-1] == (await run.finished()).context


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


async def test_events_of_an_ended_run_are_its_end() -> None:
    run = made(ANSWER)
    result = await run.finished()
    assert await listed(run) == [RunEnded(result)]


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
