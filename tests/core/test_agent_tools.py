"""An agent as a tool: a run below a run, which counts, stops, waits and nests with it, and one that takes over."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai.messages import BinaryContent, ToolReturnPart

from agent import (
    Agent,
    Approve,
    Chat,
    Endpoint,
    InputError,
    Limits,
    RunResult,
    SuspensionError,
    Telemetry,
    ToolError,
    connect,
    tool,
)
from agent.events import ChildEvent, Event, HandedOver, RunEnded, RunStarted
from agent.models.catalog import Price
from agent.suspension.suspended_run import GO_ON
from agent.tools.function_tools import ask_user
from tests.support.clocks import run_without_waiting
from tests.support.dialect_server import playing
from tests.support.dialects import chat_answer
from tests.support.fakes import SPEC, Act, Call, FakeConnection, Step, Words
from tests.support.media_files import random_png
from tests.support.models import QWEN3
from tests.support.replies import chat_completions

AGENT = "Finds sources."
PAID: list[int] = []


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


def said(text: str) -> Step:
    return Step([Words("output_text", [text])])


def called(*calls: tuple[str, Any]) -> Step:
    return Step([Call(name, json.dumps(args), f"c{n}-{name}") for n, (name, args) in enumerate(calls)], "tool_call")


def agent(*steps: Step, tools: Sequence[Any] = (), **more: Any) -> tuple[Agent, FakeConnection]:
    connection = FakeConnection(steps, **({"spec": more.pop("spec")} if "spec" in more else {}))
    return Agent(connection, tools=tools, **more), connection


RESEARCH = called(("research", {"task": "Find it"}))


def results(result: RunResult) -> dict[str, tuple[str, str]]:
    parts = [part for message in result.context.messages for part in message.parts]
    return {one.tool_name: (str(one.content), one.outcome) for one in parts if isinstance(one, ToolReturnPart)}


class BusyConnection(FakeConnection):
    """A connection whose request queue takes an hour."""

    @asynccontextmanager
    async def slot(self, on_position: Callable[[int], None]) -> AsyncGenerator[None]:
        on_position(1)
        await asyncio.sleep(3600)
        yield


@pytest.mark.parametrize("is_alone", [True, False])
def test_clock_stops_while_the_only_child_is_queued(is_alone: bool) -> None:
    async def nap() -> str:
        """Wait."""
        await asyncio.sleep(40)
        return "awake"

    research = Agent(BusyConnection([said("Blue.")])).as_tool(AGENT, name="research")
    calls = called(("research", {"task": "Find it"}), *([] if is_alone else [("nap", {})]))
    editor, _ = agent(calls, said("Done."), tools=[research, nap], limits=Limits(seconds=30, tool_seconds=90))
    result = run_without_waiting(editor.ask("Which colour?"))
    assert result.finish_reason == ("stop" if is_alone else "limit")


# --- a child run ------------------------------------------------------------------------------------------------------


async def test_answer_of_an_agent_is_the_result_of_its_call() -> None:
    researcher, below = agent(said("It is blue."), system_message="Research.")
    editor, _above = agent(RESEARCH, said("Blue."), tools=[researcher.as_tool(AGENT, name="research")])
    result = await editor.ask("Which colour?")
    assert (result.text, results(result)) == ("Blue.", {"research": ("It is blue.", "success")})
    [[request]] = below.played.sent
    assert [str(getattr(part, "content", "")) for part in request.parts] == ["Research.", "Find it"]


async def test_files_of_an_agent_are_part_of_its_result() -> None:
    @tool
    async def plot() -> BinaryContent:
        """Plot."""
        return BinaryContent(random_png((4, 4)), media_type="image/png")

    artist, _ = agent(called(("plot", {})), said("Here."), tools=[plot])
    editor, _ = agent(called(("draw", {"task": "A plot"})), tools=[artist.as_tool("Draws.", name="draw")])
    result = await editor.ask("Draw")
    assert list(result.charts) == ["draw"]


FAILURES = {
    "an error": ([Step([Act("fail")])], Limits(retries=0), "The connection broke."),
    "a limit": ([called(("look", {}))] * 3, Limits(steps=1), "Stopped after 1 steps: the model kept calling tools."),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_failure_of_an_agent_is_told_to_the_model(kind: str) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    steps, limits, sentence = FAILURES[kind]
    researcher, _ = agent(*steps, tools=[look], limits=limits)
    editor, _ = agent(RESEARCH, said("So."), tools=[researcher.as_tool(AGENT, name="research")])
    result = await editor.ask("Go")
    assert (result.text, results(result)) == ("So.", {"research": (sentence, "failed")})


# --- what it counts for the run above ---------------------------------------------------------------------------------

PRICE = Price(input=1_000_000, output=1_000_000)


async def test_tokens_and_cost_of_an_agent_count_above() -> None:
    with playing() as server:
        spec = replace(QWEN3, price=PRICE)
        call = chat_completions.calls(chat_completions.piece('{"task": "x"}', id="c1", name="research"))
        asking = chat_completions.reply(chat_completions.ROLE, call, *chat_completions.ending("tool_calls"))
        server.play(asking, chat_answer("Found"), chat_answer("Done"))
        one, two = (connect(spec, Endpoint(f"{server.url}/v1")) for _ in range(2))
        async with Agent(one) as researcher, Agent(two, tools=[researcher.as_tool(AGENT, name="research")]) as editor:
            result = await editor.ask("Go")
    assert (result.text, result.usage) == ("Done", {"input_tokens": 15, "output_tokens": 27})
    assert result.cost == pytest.approx(42)


async def test_steps_of_an_agent_count_above() -> None:
    @tool
    async def look(x: int) -> str:
        """Look."""
        return str(x)

    looks = [called(("look", {"x": n})) for n in range(9)]
    researcher, below = agent(*looks, tools=[look], limits=Limits(steps=20))
    tools = [researcher.as_tool(AGENT, name="research")]
    editor, above = agent(RESEARCH, tools=tools, limits=Limits(steps=5))
    result = await editor.ask("Go")
    assert (len(above.played.sent), len(below.played.sent)) == (1, 4)
    assert (result.finish_reason, result.why) == ("limit", "Stopped after 5 steps: the model kept calling tools.")
    assert results(result) == {"research": (result.why, "failed")}


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_cancelling_a_run_cancels_the_agents_below() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    researcher, below = agent(called(("wait", {})), tools=[wait])
    editor, _ = agent(RESEARCH, tools=[researcher.as_tool(AGENT, name="research")])
    run = editor.run("Go").start()
    await begun.wait()
    run.cancel()
    result = await run
    assert (result.finish_reason, ended.is_set(), len(below.played.sent)) == ("cancelled", True, 1)
    assert results(result) == {"research": ("Cancelled before it finished.", "interrupted")}


async def test_time_limit_above_ends_the_agents_below() -> None:
    @tool
    async def wait() -> None:
        """Wait."""
        await asyncio.get_running_loop().create_future()

    researcher, _ = agent(called(("wait", {})), tools=[wait])
    tools = [researcher.as_tool(AGENT, name="research")]
    editor, _ = agent(RESEARCH, tools=tools, limits=Limits(seconds=0.05))
    result = await editor.ask("Go")
    assert (result.finish_reason, result.why) == ("limit", "Stopped after 0.05 s, the time limit of one answer.")


# --- waiting for people -----------------------------------------------------------------------------------------------


def with_payer(*more: Step) -> Agent:
    """Return an agent whose agent pays. The steps of both are played in the order in which they are asked."""
    PAID.clear()
    payer, _ = agent(called(("pay", {"amount": 3})), said("Paid."), tools=[pay])
    editor, _ = agent(called(("buy", {"task": "Buy"})), *more, tools=[payer.as_tool("Pays.", name="buy")])
    return editor


async def test_approval_of_an_agent_suspends_the_run_above() -> None:
    editor = with_payer(said("Bought."))
    first = await editor.ask("Buy it")
    [pending] = first.pending
    assert (first.finish_reason, pending.name, pending.agent) == ("suspended", "pay", "buy")
    assert PAID == []
    result = await editor.resume(first, Approve({"amount": 2}))
    assert (result.text, PAID, results(result)) == ("Bought.", [2], {"buy": ("Paid.", "success")})
    with pytest.raises(SuspensionError, match=r"resumed already\..*context=result\.context"):
        await editor.resume(first, Approve())


async def test_question_two_levels_below_suspends_the_run() -> None:
    third, _ = agent(called(("ask_user", {"question": "Which?"})), said("c"), tools=[ask_user])
    second, _ = agent(called(("third", {"task": "x"})), said("b"), tools=[third.as_tool("Third.", name="third")])
    first, _ = agent(called(("second", {"task": "x"})), said("a"), tools=[second.as_tool("Second.", name="second")])
    waiting = await first.ask("Go")
    [pending] = waiting.pending
    assert (pending.question, pending.agent) == ("Which?", "second/third")
    run = first.resume(waiting, "The red one")
    result = await run
    assert [one.type for one in run.responses] == ["tool_call_result", "output_text"]
    assert (result.text, results(result)) == ("a", {"second": ("b", "success")})


async def test_agents_and_their_caller_wait_at_once() -> None:
    PAID.clear()
    asker, _ = agent(called(("ask_user", {"question": "Which?"})), said("Red."), tools=[ask_user])
    calls = called(("pay", {"amount": 1}), ("choose", {"task": "x"}), ("missing", {}))
    editor, connection = agent(calls, said("Done."), tools=[pay, asker.as_tool("Asks.", name="choose")])
    waiting = await editor.ask("Go")
    assert [(one.name, one.agent) for one in waiting.pending] == [("pay", ""), ("ask_user", "choose")]
    approval, question = waiting.pending
    reply = {approval.call_id: Approve(), question.call_id: "Red"}
    result = await editor.resume(waiting, reply)
    assert (result.text, PAID) == ("Done.", [1])
    sent = [part for part in connection.played.sent[-1][-1].parts if isinstance(part, ToolReturnPart)]
    assert [(one.tool_name, one.outcome) for one in sent] == [
        ("pay", "success"),
        ("choose", "success"),
        ("missing", "failed"),
    ]


async def test_agent_can_wait_twice() -> None:
    PAID.clear()
    payer, _ = agent(called(("pay", {"amount": 1})), called(("pay", {"amount": 2})), said("Both."), tools=[pay])
    editor, _ = agent(called(("buy", {"task": "Buy"})), said("Done."), tools=[payer.as_tool("Pays.", name="buy")])
    second = await editor.resume(await editor.ask("Go"), Approve())
    assert (second.finish_reason, PAID) == ("suspended", [1])
    result = await editor.resume(second, Approve())
    assert (result.text, PAID) == ("Done.", [1, 2])


async def test_limit_of_an_agent_asks_through_the_run_above() -> None:
    looks = [called(("missing", {})), said("Found.")]
    researcher, _ = agent(*looks, limits=Limits(steps=1, interactive=True))
    editor, _ = agent(RESEARCH, said("So."), tools=[researcher.as_tool(AGENT, name="research")])
    waiting = await editor.ask("Go")
    [pending] = waiting.pending
    assert (pending.name, pending.agent) == ("steps", "research")
    result = await editor.resume(waiting, GO_ON)
    assert results(result) == {"research": ("Found.", "success")}


@pytest.mark.parametrize("store", ["memory:", "sqlite:///chats.db", "json:folder"])
def test_stored_chat_resumes_a_waiting_agent(store: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Chat(with_payer(), store=store, id="shop") as chat:
        assert chat.say("Buy it").finish_reason == "suspended"
        payer, _ = agent(said("Paid."), tools=[pay])
        editor, _ = agent(said("Bought."), tools=[payer.as_tool("Pays.", name="buy")])
        with Chat(editor, store=store, id="shop") as other:
            assert [(one.name, one.agent) for one in other.pending] == [("pay", "buy")]
            assert (
                "".join(str(one.content) for one in other.resume(Approve()) if one.type == "output_text") == "Bought."
            )
            assert (PAID, other.pending) == ([3], ())


# --- depth ------------------------------------------------------------------------------------------------------------


async def test_agents_are_nested_only_to_the_depth_limit() -> None:
    lowest, below = agent(said("deep"))
    middle, _ = agent(called(("lowest", {"task": "x"})), said("m"), tools=[lowest.as_tool("Low.", name="lowest")])
    tools = [middle.as_tool("Middle.", name="middle")]
    top, _ = agent(called(("middle", {"task": "x"})), tools=tools, limits=Limits(depth=1))
    run = top.run("Go")
    ended = [
        event.event.result
        async for event in run.events()
        if isinstance(event, ChildEvent) and isinstance(event.event, RunEnded)
    ]
    told = "No agent can be asked here: they are nested as deep as Limits(depth=...) allows. Do it yourself."
    assert (below.played.sent, results(ended[0])) == ([], {"lowest": (told, "failed")})


# --- events and spans -------------------------------------------------------------------------------------------------


async def test_events_of_an_agent_nest_under_its_call() -> None:
    researcher, _ = agent(said("It is blue."))
    editor, _ = agent(RESEARCH, said("Blue."), tools=[researcher.as_tool(AGENT, name="research")])
    events = [event async for event in editor.run("Go").events()]
    below = [one for one in events if isinstance(one, ChildEvent)]
    assert {one.tool_call_id for one in below} == {"c0-research"}
    assert [type(below[0].event), type(below[-1].event)] == [RunStarted, RunEnded]
    at: list[Event] = [one for one in events if one.type in ("tool_event", "child_event")]
    assert [at[0].type, at[-1].type, *{one.type for one in at[1:-1]}] == ["tool_event", "tool_event", "child_event"]


async def test_spans_of_an_agent_nest_under_its_call() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))

    def seen_as(name: str) -> Telemetry:
        return Telemetry(provider=provider, agent_name=name)

    researcher, _ = agent(said("It is blue."), telemetry=seen_as("researcher"))
    tools = [researcher.as_tool(AGENT, name="research")]
    editor, _ = agent(RESEARCH, said("Blue."), tools=tools, telemetry=seen_as("editor"))
    await editor.ask("Go")
    found = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in found if span.context}
    tree = {(span.name, names[span.parent.span_id] if span.parent else None) for span in found}
    assert tree == {
        ("invoke_agent editor", None),
        ("chat parts", "invoke_agent editor"),
        ("execute_tool research", "invoke_agent editor"),
        ("invoke_agent researcher", "execute_tool research"),
        ("chat parts", "invoke_agent researcher"),
    }


# --- handing over -----------------------------------------------------------------------------------------------------

OVER = called(("billing", {}))
BILLING = replace(SPEC, id="fake:billing", name="billing")


async def test_handoff_lets_the_other_agent_answer() -> None:
    billing, below = agent(said("Your bill is 3."), system_message="Bills.", spec=BILLING)
    desk, above = agent(OVER, tools=[billing.as_tool("Bills.", name="billing", handoff=True)], system_message="Desk.")
    run = desk.run("What do I owe?")
    events = [event async for event in run.events()]
    result = run.result
    assert result is not None
    assert (result.text, result.model, result.finish_reason) == ("Your bill is 3.", "fake:billing", "stop")
    assert (len(above.played.sent), len(below.played.sent)) == (1, 1)
    parts = [part for message in below.played.sent[0] for part in message.parts]
    assert [part.part_kind for part in parts] == ["system-prompt", "user-prompt", "tool-call", "tool-return"]
    assert str(getattr(parts[0], "content", "")) == "Bills."
    assert [one.name for one in events if isinstance(one, HandedOver)] == ["billing"]
    assert [one.type for one in run.responses] == ["tool_call", "tool_call_result", "output_text"]


async def test_handoff_keeps_the_limits_of_the_run() -> None:
    billing, below = agent(*[called(("missing", {}))] * 9, limits=Limits(steps=9))
    tools = [billing.as_tool("Bills.", name="billing", handoff=True)]
    desk, _ = agent(OVER, tools=tools, limits=Limits(steps=3))
    result = await desk.ask("Go")
    assert (result.finish_reason, len(below.played.sent)) == ("limit", 2)


async def test_handoff_beside_other_calls_is_refused() -> None:
    billing, below = agent(said("bill"))
    calls = called(("billing", {}), ("missing", {}))
    desk, _ = agent(calls, said("Mine."), tools=[billing.as_tool("Bills.", name="billing", handoff=True)])
    result = await desk.ask("Go")
    assert (result.text, below.played.sent) == ("Mine.", [])
    assert results(result)["billing"] == (
        "The turn was not handed over: make this call alone, without other calls beside it.",
        "failed",
    )


async def test_agent_that_took_over_resumes_its_run() -> None:
    PAID.clear()
    billing, _ = agent(called(("pay", {"amount": 3})), said("Paid."), tools=[pay], spec=BILLING)
    desk, above = agent(OVER, tools=[billing.as_tool("Bills.", name="billing", handoff=True)])
    waiting = await desk.ask("Go")
    assert waiting.finish_reason == "suspended"
    result = await desk.resume(waiting, Approve())
    assert (result.text, PAID, len(above.played.sent)) == ("Paid.", [3], 1)
    gone, _ = agent()
    with pytest.raises(SuspensionError, match="'billing' is gone"):
        gone.resume(desk.seals.open(str(waiting.suspension)), Approve())


async def test_headers_stay_with_the_agent_that_they_are_for() -> None:
    billing, below = agent(said("bill"))
    desk, above = agent(OVER, tools=[billing.as_tool("Bills.", name="billing", handoff=True)])
    await desk.ask("Go", headers={"x-key": "1"}, max_tokens=7)
    assert (above.played.asked[0].get("extra_headers"), above.played.asked[0].get("max_tokens")) == ({"x-key": "1"}, 7)
    assert (below.played.asked[0].get("extra_headers"), below.played.asked[0].get("max_tokens")) == (None, 7)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("description", ["", "  ", None, 3])
def test_as_tool_wants_a_description(description: Any) -> None:
    with pytest.raises(InputError, match="as_tool takes a text that tells the other model when to ask this agent"):
        agent()[0].as_tool(description)


def test_agent_itself_is_no_tool() -> None:
    with pytest.raises(InputError, match=r"as_tool\("):
        agent(tools=[agent()[0]])


def test_two_agents_need_names() -> None:
    with pytest.raises(InputError, match="two tools are named 'ask_agent'; give one of them another name"):
        agent(tools=[agent()[0].as_tool("One."), agent()[0].as_tool("Two.")])


async def test_agent_as_a_tool_is_called_only_in_a_run() -> None:
    with pytest.raises(ToolError, match=r"only be called in a run: use agent\.ask"):
        await agent()[0].as_tool("One.")("task")
