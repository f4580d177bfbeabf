"""The handling of each kind of failure: the table, and a scene for each row on the real server."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ModelResponse, ToolCallPart, ToolReturnPart

from agent import Agent, Endpoint, InputError, Limits, RunResult, connect, tool
from agent.history import Timings
from agent.limits import FAILURE_POLICIES, BudgetUsed, Limit
from agent.models.catalog import Price
from agent.runtime.usage import LONGEST_CYCLE, Budget
from agent.settings import ROOT
from agent.suspension.suspended_run import Refuse
from agent.tools.function_tools import as_tool, ask_user
from tests.support.message_rules import assert_accepted
from tests.support.models import QWEN3
from tests.support.scripted_server import Running
from tests.tiers import examples

PRICE = Price(input=1000.0, output=1000.0)


@tool
async def look(x: int = 0) -> str:
    """Look."""
    return f"seen {x}"


@tool
async def breaks(x: int = 0) -> str:
    """Break."""
    raise LookupError("no luck")


@tool
async def slow() -> None:
    """Take for ever."""
    await asyncio.get_running_loop().create_future()


@tool(poller=True)
async def poll() -> str:
    """Ask again and again."""
    return "not yet"


@pytest.fixture
async def made(server: Running) -> AsyncIterator[Callable[..., Agent]]:
    """Yield a function that makes an agent with these limits."""
    agents: list[Agent] = []

    def make(price: Price | None = None, extra: Sequence[Any] = (), **limits: Any) -> Agent:
        connection = connect(replace(QWEN3, price=price), Endpoint(server.base_url))
        lowest = Agent(connection).as_tool("Goes deeper.", name="deeper")
        deeper = Agent(connection, tools=[lowest]).as_tool("Goes deeper.", name="deeper")
        agents.append(Agent(connection, tools=[look, breaks, slow, poll, deeper, *extra], limits=Limits(**limits)))
        return agents[-1]

    yield make
    for agent in agents:
        await agent.aclose()


def steps(*calls: str) -> str:
    return " ".join(f"!tool {call}" for call in calls) + " !text Done."


def looks(*numbers: int) -> str:
    return steps(*(f'look {{"x": {number}}}' for number in numbers))


def notes(result: RunResult) -> list[str]:
    """Return the notes for the model beside the results."""
    parts = [part for message in result.context.messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return [str(part.content).partition("\n\n[")[2].rstrip("]") for part in parts]


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_docs_command_prints_limits_page() -> None:
    [program] = re.findall(r"python (\S+) > docs/limits\.md", (ROOT / "Makefile").read_text())
    command, env = [sys.executable, "-W", "error", program], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ((ROOT / "docs" / "limits.md").read_text(), ""), "run: make docs"


@dataclass(frozen=True)
class Scene:
    """A script that causes a failure, its limits, the end of the run and its message."""

    script: str
    ends: str
    says: str
    told: str = ""
    requests: int | None = None
    price: Price | None = None
    limits: tuple[tuple[str, Any], ...] = ()


CYCLE = looks(1, 2, *([3, 4] * 4), 5)
NOTHING_NEW = looks(1, 2, 3, 4, 5, 1, 3, 5, 2, 4, 2, 5, 3, 1, 4)

DEEPER = 'deeper {"task": "!tool deeper {\\"task\\": \\"Hello\\"} !text Deep."}'

SCENES = {
    "steps": Scene(looks(1, 2, 3, 4), "limit", "Stopped after 2 steps", limits=(("steps", 2),)),
    "time": Scene("!stall-after 2", "limit", "Stopped after 0.4 s", limits=(("seconds", 0.4),)),
    "tokens": Scene(looks(1, 2, 3), "limit", "limit of 5 tokens", requests=1, limits=(("tokens", 5),)),
    "money": Scene(looks(1, 2, 3), "limit", "limit of $0.01", requests=1, price=PRICE, limits=(("dollars", 0.01),)),
    "unpriced": Scene(
        looks(1, 2, 3),
        "limit",
        "the cost of this answer is unknown",
        price=replace(PRICE, up_to=1),
        limits=(("dollars", 9),),
    ),
    "repeated_call": Scene(
        "!loop look {}", "limit", "making the same call.", "This same call was made 3 times in a row", 6
    ),
    "cycle": Scene(CYCLE, "limit", "the same calls in turn", "The same 2 steps were made 2 times in turn", 10),
    "repeated_error": Scene(
        steps(*(f'breaks {{"x": {n}}}' for n in range(7))), "limit", "the same error again", "came 3 times in a row", 6
    ),
    "no_progress": Scene(
        NOTHING_NEW, "limit", "made no progress", "The last 4 steps brought nothing new", 13, limits=(("steps", 30),)
    ),
    "tool_error": Scene(steps("breaks {}", "no_such {}", 'look {"x": "much"}'), "stop", "", "", 4),
    "tool_time": Scene(steps("slow {}"), "stop", "", "", 2, limits=(("tool_seconds", 0.05),)),
    "depth": Scene(steps(DEEPER), "stop", "", "", 4, limits=(("depth", 1),)),
    "transient": Scene("!fail 1 503 0 !text Done.", "stop", "", "", 2),
    "broken": Scene("!reset 2", "error", "broke", requests=1),
    "truncated": Scene("!length 2", "length", "The answer was cut off at its maximum length."),
    "empty": Scene('!json [{"finish": "stop"}]', "error", "The model returned an empty answer.", requests=1),
    "empty_truncated": Scene("!length 0", "error", "reached its maximum length before any text", requests=1),
    "withheld": Scene("!filter 2", "content_filter", "The provider withheld the answer."),
}


def test_every_row_has_a_scene() -> None:
    assert SCENES.keys() == FAILURE_POLICIES.keys()


@pytest.mark.parametrize("kind", SCENES)
@pytest.mark.slow
async def test_table_describes_behaviour(made: Callable[..., Agent], server: Running, kind: str) -> None:
    scene, actions = SCENES[kind], FAILURE_POLICIES[kind].actions  # type: ignore[index]
    given = {"repeats": 3, "idle": 4, **dict(scene.limits)}
    seen = len(server.journal())
    run = made(scene.price, **given).run(scene.script)
    result = await run
    requests = len(server.journal()) - seen
    assert (result.finish_reason, result.note.detail[:0]) == (scene.ends, "")
    assert scene.says in result.note.detail
    assert bool(result.note.detail) is (scene.ends != "stop"), "the end of the run has no reason"
    assert scene.requests in (None, requests)
    assert [r.type for r in run.responses].count("error") == (scene.ends in ("limit", "error"))
    if "tell the model" in actions and scene.told:
        assert next(note for note in notes(result) if note).find(scene.told) >= 0
        assert_accepted(server.journal()[-1]["body"]["messages"])
    assert ("retry" in actions) is (kind == "transient")
    if "ask the user" in actions:
        await _asks(made(scene.price, [ask_user], **given), scene)
        await _asks(made(scene.price, interactive=True, **given), scene)
        unasked = await made(scene.price, [ask_user], interactive=False, **given).ask(scene.script)
        assert (unasked.finish_reason, unasked.suspension) == (scene.ends, None)


async def _asks(agent: Agent, scene: Scene) -> None:
    """Assert that a run that can ask somebody suspends, and continues with a renewed limit or ends there."""
    run = agent.run(scene.script)
    result = await run
    assert (result.finish_reason, result.suspension is not None) == ("suspended", True)
    [pending] = result.pending
    assert (pending.kind, pending.choices) == ("question", ("Go on", "Stop"))
    assert scene.says in pending.question
    assert pending.question == result.note.detail
    assert not any(response.type == "error" for response in run.responses)
    again = await agent.resume(result.suspension or "", "Go on, be brief")
    assert (again.finish_reason, again.text[:5]) == ("stop", "Hello")
    for word in ("Stop", Refuse()):
        result = await agent.ask(scene.script)
        ended = await agent.resume(result.suspension or "", word)
        assert (ended.finish_reason, scene.says in ended.note.detail) == ("limit", True)


# --- loops ------------------------------------------------------------------------------------------------------------


async def test_polling_tool_can_repeat(made: Callable[..., Agent]) -> None:
    result = await made(steps=30).ask(steps(*["poll {}"] * 14))
    assert (result.finish_reason, result.text, set(notes(result))) == ("stop", "Done.", {""})


async def test_changing_calls_are_no_loop(made: Callable[..., Agent]) -> None:
    result = await made(steps=30).ask(looks(*range(20)))
    assert (result.finish_reason, set(notes(result))) == ("stop", {""})


async def test_other_error_or_success_resets_count(made: Callable[..., Agent]) -> None:
    calls = ['breaks {"x": 1}', 'breaks {"x": 2}', 'breaks {"x": "a"}', 'breaks {"x": 3}', 'breaks {"x": 4}']
    result = await made(repeats=3).ask(steps(*calls))
    assert (result.finish_reason, set(notes(result))) == ("stop", {""})


def test_money_limit_needs_price(made: Callable[..., Agent]) -> None:
    with pytest.raises(InputError, match="the price of Qwen3 is not known"):
        made(dollars=1.0)


TOOLS = {one.name: one for one in (look, breaks, poll, as_tool(ask_user))}
IDLE = 1000


def watched(pattern: Sequence[int], repeats: int = 3) -> tuple[list[bool], int]:
    """Return at which steps the model is warned, and after how many the run ends, if it makes these calls."""
    watch = Budget(Limits(steps=10**6, repeats=repeats, idle=IDLE), BudgetUsed())
    told: list[bool] = []
    for number, x in enumerate(pattern):
        if watch.start_step(Timings(), None) is not None:
            break
        call = ToolCallPart("look", {"x": x}, tool_call_id=f"c{number}")
        watch.count_calls(ModelResponse([call]), [call], TOOLS)
        result = watch.count_result(ToolReturnPart("look", f"new {number}", tool_call_id=call.tool_call_id))
        told.append("[" in str(result.content))
        watch.finish_step()
    return told, len(told)


@settings(max_examples=examples(150))
@given(
    st.integers(1, LONGEST_CYCLE).flatmap(lambda n: st.permutations(range(n))),
    st.lists(st.integers(10, 99), max_size=5, unique=True),
    st.integers(2, 4),
)
def test_cycle_is_warned_then_ended(cycle: list[int], before: list[int], repeats: int) -> None:
    times = repeats if len(cycle) == 1 else max(2, repeats - 1)
    told, ended = watched([*before, *cycle * 20], repeats)
    first = len(before) + len(cycle) * times
    assert told.index(True) == first - 1
    assert ended == len(before) + len(cycle) * times * 2


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 2), max_size=30))
def test_budget_continues_after_suspension(pattern: list[int]) -> None:
    """A budget that is sealed and opened at any step reports the same as an uninterrupted one."""

    def play(interrupted: bool) -> list[Any]:
        said: list[Any] = []
        limits = Limits(steps=20, repeats=2, idle=3)
        watch = Budget(limits, BudgetUsed())
        for number, x in enumerate(pattern):
            said.append(reached := watch.start_step(Timings(), None))
            if reached:
                break
            name = "breaks" if x == 2 else "look"
            call = ToolCallPart(name, {"x": x}, tool_call_id=f"c{number}")
            watch.count_calls(ModelResponse([call]), [call], TOOLS)
            outcome = "failed" if x == 2 else "success"
            result = ToolReturnPart(name, f"r{x}", tool_call_id=call.tool_call_id, outcome=outcome)
            said.append(watch.count_result(result).content)
            watch.finish_step()
            if interrupted:
                watch = Budget(limits, watch.used(Timings(), None))
        return said

    assert play(interrupted=True) == play(interrupted=False)


@pytest.mark.parametrize(
    ("limits", "limit"),
    [(Limits(steps=3), "steps"), (Limits(tokens=3000), "tokens"), (Limits(dollars=3.0), "money")],
    ids=["steps", "tokens", "money"],
)
def test_limit_counts_all_parts_of_a_resumed_run(limits: Limits, limit: str) -> None:
    """Each part of the run begins one step, and uses 1,000 tokens, one second and a dollar."""
    used = BudgetUsed()
    for part in range(1, 4):
        watch = Budget(limits, used)
        assert watch.start_step(Timings(), 0.0) is None
        used = watch.used(Timings(total=1.0, input_tokens=600, output_tokens=400), 1.0)
        assert (used.steps, used.seconds, used.tokens, used.dollars) == (part, part, 1000 * part, part)
    assert Budget(limits, used).start_step(Timings(), 0.0) == limit


def test_note_stands_beside_pictures() -> None:
    picture = BinaryContent(b"\x89PNG", media_type="image/png")
    watch = Budget(Limits(repeats=1), BudgetUsed())
    call = ToolCallPart("look", {}, tool_call_id="a")
    watch.count_calls(ModelResponse([call]), [call], TOOLS)
    content: Any = watch.count_result(ToolReturnPart("look", picture, tool_call_id="a")).content
    assert content[0] is picture
    assert content[1].startswith("[This same call")
    assert json.dumps(content[1])


def test_run_of_unknown_cost_stops_after_its_first_answer() -> None:
    watch = Budget(Limits(dollars=1.0), BudgetUsed())
    assert watch.start_step(Timings(), None) is None
    assert watch.start_step(Timings(output_tokens=1), None) == "unpriced"


def test_allowed_limit_begins_anew() -> None:
    """And what counts for the other limits stays."""
    used = BudgetUsed(steps=3, seconds=2.0, tokens=5, dollars=1.0, trail=("a",), known=("b",), idle=2, circle="cycle")
    names = {"steps": "steps", "time": "seconds", "tokens": "tokens", "money": "dollars", "unpriced": "dollars"}
    loops = replace(used, trail=(), known=(), idle=0, circle=None)
    for limit in get_args(Limit):
        assert used.allowing(limit) == (replace(used, **{names[limit]: 0}) if limit in names else loops)
    assert used.allowing(None) == used
