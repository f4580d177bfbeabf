"""`Run.steer`: a message to a running agent gets to the model at its next step, once, or is given back."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from agent import Agent, Approve, InputError, tool
from agent.cli.chat import _prompts
from agent.events import ResponseEmitted, StateSnapshot
from agent.messages.adapt import adapt_and_prepare
from agent.messages.openai import to_openai
from agent.messages.repair import UNANSWERED, prepare_messages
from agent.responses import pieces_of, steered_text, steering_message
from tests.support.fakes import SPEC, Act, Call, FakeConnection, Step, Words
from tests.support.message_rules import assert_accepted


def looks(count: int) -> list[Step]:
    """Return so many steps with a call, then an answer."""
    calls = [Step([Call("look", "{}", f"call_{number}")], "tool_call") for number in range(count)]
    return [*calls, Step([Words("output_text", ["Here it is."])])]


def shape(messages: Sequence[ModelMessage]) -> str:
    """Return p, c, r, s or a for each message: a prompt, a call, its result, a message that steers, an answer."""
    letters = list[str]()
    for one in messages:
        if isinstance(one, ModelResponse):
            letters.append("c" if one.tool_calls else "a")
        elif steered_text(one) is not None:
            letters.append("s")
        else:
            letters.append("r" if isinstance(one.parts[0], ToolReturnPart) else "p")
    return "".join(letters)


def texts_of(messages: Sequence[ModelMessage]) -> list[str]:
    return [str(part.content) for one in messages for part in one.parts if isinstance(part, UserPromptPart)]


async def test_message_reaches_the_model_at_its_next_step() -> None:
    connection, began, go = FakeConnection(looks(2)), asyncio.Event(), asyncio.Event()

    async def look() -> str:
        began.set()
        await go.wait()
        return "seen"

    run = Agent(connection, tools=[look]).run("Look for it.").start()
    await began.wait()
    taken = run.steer("Only the red ones.")
    go.set()
    result = await run
    assert await taken
    assert shape(result.context.messages) == "pcrscra"
    assert [shape(sent).replace("a", "") for sent in connection.played.sent] == ["p", "pcrs", "pcrscr"]
    assert texts_of(connection.played.sent[1]) == ["Look for it.", "Only the red ones."]
    kinds = [(one.type, one.role) for one in run.responses]
    assert kinds[1:3] == [("tool_call_result", "tool"), ("user_message", "user")]
    assert run.responses[2].content == "Only the red ones."
    assert run.responses[2].is_type_switched


async def test_history_with_the_message_is_accepted() -> None:
    async def look() -> str:
        run.steer("One more thing.")
        run.steer("And another.")
        return "seen"

    run = Agent(FakeConnection(looks(2)), tools=[look]).run("Look.")
    result = await run
    assert shape(result.context.messages) == "pcrsscrssa"
    assert_accepted(to_openai(prepare_messages(result.context.messages, "Be brief.")))
    again = await Agent(connection := FakeConnection([])).ask("Thanks.", context=result.context)
    assert again.text == "done"
    assert texts_of(connection.played.sent[0]).count("And another.") == 2


@pytest.mark.parametrize(
    ("dialect", "provider", "is_joined"),
    [("messages", "anthropic", True), ("generate", "google", True), ("chat", "openai", True), ("chat", "vllm", False)],
)
def test_results_and_message_are_one_request_where_taken(dialect: Any, provider: str, is_joined: bool) -> None:
    """Elsewhere a note stands between, because many chat templates refuse a prompt after results."""
    spec = replace(SPEC, dialect=dialect, provider=provider, tools="native")
    called = ModelResponse(parts=[ToolCallPart("look", "{}", tool_call_id="c")])
    seen = ModelRequest(parts=[ToolReturnPart("look", "seen", tool_call_id="c")])
    steered = [steering_message("One.", "1"), steering_message("Two.", "2")]
    sent = adapt_and_prepare([ModelRequest(parts=[UserPromptPart("Look.")]), called, seen, *steered], spec)
    assert len(sent) == (3 if is_joined else 7)
    assert (UNANSWERED in str(sent)) is not is_joined
    assert texts_of(sent) == ["Look.", "One.", "Two."]


async def test_run_that_ends_before_gives_the_message_back() -> None:
    run = Agent(FakeConnection([Step([Words("output_text", ["a", "b"])])])).run("Hi.").start()
    while not run.responses:
        await run.wait_for_update(0)
    taken = run.steer("Too late.")
    result = await run
    assert not await taken
    assert texts_of(result.context.messages) == ["Hi."]
    assert not await run.steer("Much too late.")


async def test_stopped_run_gives_the_message_back() -> None:
    async def look() -> str:
        taken.append(run.steer("Wait."))
        run.cancel()
        return await asyncio.get_running_loop().create_future()

    taken = list[asyncio.Future[bool]]()
    run = Agent(FakeConnection(looks(1)), tools=[look]).run("Look.")
    result = await run
    assert [await one for one in taken] == [False]
    assert result.finish_reason == "cancelled"
    assert texts_of(result.context.messages) == ["Look."]


async def test_run_that_asks_gives_the_message_back() -> None:
    @tool(needs_approval=True)
    async def look() -> str:
        return "seen"

    agent = Agent(FakeConnection(looks(1)), tools=[look])
    run = agent.run("Look.").start()
    taken = [run.steer("At once.")]
    while not run.responses:
        await run.wait_for_update(0)
    taken.append(run.steer("Later."))
    result = await run
    assert [await one for one in taken] == [True, False]
    assert result.finish_reason == "suspended"
    resumed = agent.resume(result, Approve())
    later = resumed.steer("Now.")
    assert (await resumed).text == "Here it is."
    assert await later
    assert shape(resumed.context.messages) == "pscrsa"


async def test_message_with_the_same_id_is_stored_once() -> None:
    taken = list[asyncio.Future[bool]]()

    async def look() -> str:
        taken.extend(run.steer("Only once.", id="a" * 32) for _ in range(2))
        return "seen"

    run = Agent(FakeConnection(looks(1)), tools=[look]).run("Look.")
    assert texts_of((await run).context.messages) == ["Look.", "Only once."]
    assert [await one for one in taken] == [True, True]


async def test_message_that_is_taken_back_is_not_sent() -> None:
    async def look() -> str:
        run.steer("Never mind.").cancel()
        run.steer("This one.")
        return "seen"

    run = Agent(FakeConnection(looks(1)), tools=[look]).run("Look.")
    assert texts_of((await run).context.messages) == ["Look.", "This one."]


@pytest.mark.parametrize("text", ["", " \n", None, 7])
async def test_message_without_a_text_is_refused(text: Any) -> None:
    run = Agent(FakeConnection([])).run("Hi.").start()
    with pytest.raises(InputError, match="text"):
        run.steer(text)
    await run


async def test_text_that_is_continued_gets_no_message_between() -> None:
    cut_step = Step([Words("output_text", ["Half"])], "length")
    agent = Agent(FakeConnection([cut_step], replace(SPEC, prefill=True)))
    cut = await agent.ask("Hi.")
    run = agent.continue_answer(cut.context)
    taken = run.start().steer("Faster.")
    assert shape((await run).context.messages) == "paa"
    assert not await taken


async def test_observers_see_where_the_message_came() -> None:
    async def look() -> str:
        run.steer("Faster.")
        return "seen"

    run = Agent(FakeConnection(looks(1)), tools=[look]).run("Look.")
    events = [event async for event in run.events()]
    [at] = [n for n, one in enumerate(events) if isinstance(one, ResponseEmitted) and one.type == "user_message"]
    before = [one for one in events[:at] if isinstance(one, StateSnapshot)][-1]
    assert shape(before.context.messages) == "pcrs"


@pytest.mark.parametrize("ending", ["stop", "cancel", "fail"])
async def test_each_message_is_stored_once_or_given_back(ending: str) -> None:
    """Steer and stop a run at each of its turns of the event loop."""
    for at in range(40):
        script = looks(2)
        if ending != "stop":
            script[2] = Step([Words("output_text", ["Half"]), Act("cancel" if ending == "cancel" else "fail")])
        connection, sent = FakeConnection(script), dict[str, asyncio.Future[bool]]()

        async def look() -> str:
            await asyncio.sleep(0)
            return "seen"

        run = Agent(connection, tools=[look]).run("Look.").start()
        connection.played.cancel = run.cancel
        for tick in range(at):
            await asyncio.sleep(0)
            if tick % 7 == 0:
                sent[f"message {tick}"] = run.steer(f"message {tick}")
        result = await run
        stored = [text for one in result.context.messages if (text := steered_text(one)) is not None]
        assert stored == [text for text, taken in sent.items() if await taken]
        assert [one.content for one in run.responses if one.type == "user_message"] == stored
        asked = [text for one in connection.played.sent[-1] if (text := steered_text(one)) is not None]
        assert asked == stored


async def test_handed_over_run_takes_what_its_agent_can() -> None:
    other = Agent(FakeConnection([Step([Words("output_text", ["Mine."])])]))
    calls = [Step([Call("other", "{}", "c1")])]
    run = Agent(FakeConnection(calls), tools=[other.as_tool("Other.", name="other", handoff=True)]).run("Go.")
    events = run.events()
    takes = {event.type: run.takes_steering async for event in events if event.type in ("tool_call", "handed_over")}
    assert takes == {"tool_call": True, "handed_over": False}, "an agent without tools has one step"


def test_terminal_prints_a_steered_message_once() -> None:
    message = steering_message("Only red.", "1")
    assert _prompts(message) == ()
    assert [*pieces_of(message)] == [("user_message", "Only red.")]
