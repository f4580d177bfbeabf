"""Answers with a type: what each dialect is sent, the value that comes back, a repair, a failure, beginnings."""

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass, replace
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from agent import Agent, Chat, Endpoint, InputError, Limits, Run, connect
from agent.errors import AgentError
from agent.output import read_output
from agent.tools.function_tools import ask_user
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.dialects import CLAUDE, DIALECTS, GEMINI, Dialect, chat_answer
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.support.models import QWEN3
from tests.tiers import examples


class Invoice(BaseModel):
    """A bill."""

    number: str
    grand_total: float


VALID, VALUE = '{"number": "A-7", "grand_total": 12.5}', Invoice(number="A-7", grand_total=12.5)


def weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


# --- each dialect -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Playing]:
    with playing() as server:
        yield server


OLD_CLAUDE = DIALECTS["Claude"]._replace(spec=replace(CLAUDE, name="claude-3-haiku"))
OLD_GEMINI = DIALECTS["Gemini"]._replace(spec=replace(GEMINI, name="gemini-2.5-flash"))
BOUND: dict[str, tuple[Dialect, bool, bool]] = {
    # whether a schema binds the answer of the model, also beside tools
    "Responses": (DIALECTS["Responses"], True, True),
    "Chat Completions of OpenAI": (DIALECTS["Chat Completions of OpenAI"], True, True),
    "vLLM": (DIALECTS["vLLM"], True, False),
    "llama.cpp": (DIALECTS["llama.cpp"], True, False),
    "no schemas": (DIALECTS["vLLM"]._replace(spec=replace(QWEN3, schemas=False)), False, False),
    "Claude": (DIALECTS["Claude"], True, True),
    "an old Claude": (OLD_CLAUDE, False, False),
    "Gemini": (DIALECTS["Gemini"], True, True),
    "an old Gemini": (OLD_GEMINI, True, False),
}
IN_WORDS = ("messages", "system", "input", "instructions", "contents", "systemInstruction")


@pytest.mark.parametrize("with_tools", [False, True], ids=["alone", "beside tools"])
@pytest.mark.parametrize("name", BOUND)
async def test_schema_reaches_each_model(name: str, with_tools: bool, server: Playing) -> None:
    dialect, alone, beside_tools = BOUND[name]
    spec = dialect.spec
    is_bound = beside_tools if with_tools else alone
    server.play(dialect.answer(VALID))
    tools = [weather] if with_tools else []
    connection = dialect.connect(server)
    async with Agent(connection, system_message="Be brief.", tools=tools, limits=Limits(retries=0)) as agent:
        result = await agent.ask("The bill?", output=Invoice)
    assert result.checked().output == VALUE
    [body] = [request.json for request in server.requests]
    words = json.dumps({name: body[name] for name in IN_WORDS if name in body})
    rest = json.dumps({name: value for name, value in body.items() if name not in IN_WORDS})
    assert ("grand_total" in rest) == is_bound
    assert ("grand_total" in words) == (not is_bound or spec.dialect == "chat")
    assert words.count("Be brief.") == 1
    assert words.count('"role": "system"') <= 1
    assert any("JSON schema" in note for note in result.notes) == (not is_bound)
    assert ("weather" in rest) == with_tools


async def test_schema_that_a_server_refuses_goes_into_the_prompt(server: Playing) -> None:
    refusal = Reply(status=400, body={"error": {"message": "response_format json_schema is not supported"}})
    server.play(refusal, chat_answer(f"Here it is:\n```json\n{VALID}\n```"), chat_answer(VALID))
    spec = replace(QWEN3, name="Refuses-Schemas")
    async with Agent(connect(spec, Endpoint(server.url + "/v1"))) as agent:
        assert (await agent.ask("The bill?", output=Invoice)).output == VALUE
        assert (await agent.ask("The bill?", output=Invoice)).output == VALUE
    assert ["response_format" in request.json for request in server.requests] == [True, False, False]
    assert "grand_total" in json.dumps(server.requests[-1].json["messages"])


# --- types and values -------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    label: str = ""


class Line(TypedDict):
    points: list[Point]


class Node(BaseModel):
    model_config = ConfigDict(strict=True)
    colour: Colour
    children: list["Node"] = []


POINTS = st.builds(Point, st.integers(-9, 9), st.text(max_size=9))
COLOURS = st.sampled_from(Colour)
TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers(-(2**53), 2**53)),
    (str, st.text()),
    (Colour, COLOURS),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Annotated[int, Field(ge=3)], st.integers(3, 99)),
    (Point, POINTS),
    (Line, st.fixed_dictionaries({"points": st.lists(POINTS, max_size=3)})),
    (Invoice, st.builds(Invoice, number=st.text(), grand_total=st.floats(allow_nan=False, allow_infinity=False))),
    (
        Node,
        st.recursive(
            st.builds(Node, colour=COLOURS),
            lambda inner: st.builds(Node, colour=COLOURS, children=st.lists(inner, max_size=2)),
            max_leaves=5,
        ),
    ),
    (datetime.date, st.dates()),
]


def grown(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Return types made of others, each with a value."""
    return (
        inner.map(lambda one: (list[one[0]], [one[1]]))
        | inner.map(lambda one: (dict[str, one[0]], {"k": one[1]}))
        | inner.map(lambda one: (one[0] | None, one[1]))
        | inner.map(lambda one: (tuple[int, one[0]], (7, one[1])))
        | inner.map(lambda one: (made := make_dataclass("Made", [("field", one[0])]), made(one[1])))
        | inner.map(lambda one: (Invoice | list[one[0]], [one[1]]))
    )


TYPED = st.recursive(
    st.one_of([values.map(partial(lambda kind, value: (kind, value), kind)) for kind, values in TYPES]),
    grown,
    max_leaves=3,
)


@settings(max_examples=examples(300))
@given(TYPED, st.data())
def test_any_value_of_any_type_comes_back(typed: tuple[Any, Any], data: st.DataObject) -> None:
    kind, value = typed
    output = read_output(kind)
    assert output is not None
    assert output.schema["type"] == "object"
    bare = TypeAdapter(kind).dump_json(value).decode()
    text = f'{{"value": {bare}}}' if output.wrapped else bare
    assert output.read(text) == value
    assert output.read(f"Here it is:\n```json\n{text}\n```") == value
    cut = data.draw(st.integers(0, len(text)))
    output.read_partial(text[:cut])  # never raises
    assert output.read_partial(text) == value


BAD: dict[str, Any] = {
    "a lambda": lambda: 1,
    "a function": weather,
    "a number": 7,
    "a name": "Invoice",
    "a value": VALUE,
    "a dataclass's value": Point(1),
    "a schema": {"type": "object"},
    "a list": [Invoice],
    "a class without a schema": Agent,
    "a callable": Callable[[int], int],
}


@pytest.mark.parametrize("name", BAD)
async def test_wrong_type_is_refused_before_any_request(name: str) -> None:
    connection = FakeConnection([])
    agent = Agent(connection)
    with pytest.raises(InputError, match=r"^output takes a type such as"):
        agent.run("Hello", output=BAD[name])
    with pytest.raises(InputError, match=r"^output takes a type such as"), Chat(agent) as chat:
        chat.say("Hello", output=BAD[name])
    assert connection.played.sent == []


# --- the run ----------------------------------------------------------------------------------------------------------


def words(text: str, finish: Any = "stop") -> Step:
    return Step([Words("output_text", [text[at : at + 5] for at in range(0, len(text), 5)])], finish)


async def test_answer_that_does_not_fit_is_repaired_in_a_turn() -> None:
    connection = FakeConnection([words('{"number": 7}'), words(VALID)])
    agent = Agent(connection)
    run = agent.run("The bill?", output=Invoice)
    result = await run
    assert (result.finish_reason, result.output, result.text) == ("stop", VALUE, VALID)
    assert [one["role"] for one in result.to_input_list()] == ["user", "assistant", "user", "assistant"]
    told = result.to_input_list()[2]["content"]
    assert "number should be a valid string; grand_total is missing" in told
    assert [one.content for one in run.responses if one.is_type_switched] == ['{"num', '{"num']
    again = await agent.ask([*result.to_input_list(), "Again."], output=Invoice)
    assert again.finish_reason == "error"  # the fake says "done" twice


async def test_second_misfit_is_an_error_that_names_the_fields() -> None:
    connection = FakeConnection([words("Twelve."), words('{"number": "A", "grand_total": "much"}')])
    result = await Agent(connection).ask("The bill?", output=Invoice)
    assert (result.finish_reason, result.output) == ("error", None)
    assert "grand_total should be a valid number" in result.why
    with pytest.raises(AgentError, match="grand_total"):
        result.checked()
    assert len(connection.played.sent) == 2
    assert "it is not JSON" in str(connection.played.sent[1][-1])


ENDS: dict[str, tuple[list[Step], Limits, str, int]] = {
    "cut": ([words('{"number": "A', "length")], Limits(), "length", 1),
    "withheld": ([Step([Words("output_text", ["No."])], "content_filter")], Limits(), "content_filter", 1),
    "cancelled": (
        [words("{}"), Step([Words("output_text", ["{"]), Act("cancel"), Act("hang")])],
        Limits(),
        "cancelled",
        2,
    ),
    "out of steps": ([words("{}")], Limits(steps=1), "limit", 1),
}


@pytest.mark.parametrize("name", ENDS)
async def test_other_ends_have_no_output(name: str) -> None:
    steps, limits, reason, requests = ENDS[name]
    connection = FakeConnection(steps)
    run = Agent(connection, limits=limits).run("The bill?", output=Invoice)
    connection.played.cancel = run.cancel
    result = await run
    assert (result.finish_reason, result.output, len(connection.played.sent)) == (reason, None, requests)
    if name in ("cut", "out of steps"):
        with pytest.raises(AgentError):
            result.checked()


async def test_suspended_run_resumes_to_its_type() -> None:
    question = Step([Call("ask_user", '{"question": "Which?"}', "call_1")], "tool_call")
    connection = FakeConnection([question, words(VALID)])
    agent = Agent(connection, tools=[ask_user])
    waiting = await agent.ask("The bill?", output=Invoice)
    assert (waiting.finish_reason, waiting.output) == ("suspended", None)
    assert (await agent.resume(waiting, "The last.", output=Invoice)).output == VALUE


async def test_beginnings_grow_while_the_answer_streams() -> None:
    text = '{"value": [{"number": "A", "grand_total": 1}, {"number": "B", "grand_total": 2}]}'
    run: Run[list[Invoice]] = Agent(FakeConnection([words(text)])).run("The bills?", output=list[Invoice])
    lengths = [len(run.partial_output or ()) async for _ in run]
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 1, 2}
    assert run.result is not None
    assert run.partial_output == run.result.output
