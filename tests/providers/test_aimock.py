"""Every dialect against aimock, an independent model server: how we read its answers, and how it reads our requests."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, ModelResponse, ThinkingPart

from agent import Agent, Context, Endpoint, Limits, RunResult, connect
from agent.models.catalog import load_catalog
from tests.peers.aimock import Aimock, aimock
from tests.peers.tee import Tee, tee
from tests.support import dialects
from tests.support.media_files import ready

pytestmark = pytest.mark.slow

KEY = "unit0123456789abcdef"
SYSTEM = "Answer in a word."
TEXT = "Grüße — two\n\n  lines of `text` 🙂\n"
THOUGHT = "Let me see.\nIt is a sum."
USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
WAV = ready()

Bubbles = list[tuple[str, Any]]
JSON = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A model, the path of its endpoint, the path of a request, and the header with the API key."""

    model: str
    base: str
    asked: str
    key: tuple[str, str] = ("authorization", f"Bearer {KEY}")
    needs_sound: bool = False

    def says(self, text: str) -> list[Any]:
        """Return a prompt that this model accepts."""
        return [text, BinaryContent(WAV, media_type="audio/wav")] if self.needs_sound else [text]


CHAT = Dialect(model="huggingface:Qwen/Qwen3-VL-8B-Thinking", base="/v1", asked="/v1/chat/completions")
RESPONSES = Dialect(model="openai:gpt-6-luna", base="/v1", asked="/v1/responses")
MESSAGES = Dialect(model="anthropic:claude-sonnet-5-5", base="", asked="/v1/messages")
GENERATE = Dialect(
    model="google:gemini-3.8-flash",
    base="",
    asked="/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
    key=("x-goog-api-key", KEY),
)
DIALECTS = {
    "chat": CHAT,
    "gpt-audio": replace(CHAT, model="openai:gpt-audio-1.5", needs_sound=True),
    "responses": RESPONSES,
    "xai": replace(RESPONSES, model="xai:grok-4.6"),
    "messages": MESSAGES,
    # aimock checks thinking with a token budget; newer models choose their own budget.
    "messages, budget": replace(MESSAGES, model="anthropic:claude-haiku-4-5"),
    "generate": GENERATE,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """An answer of aimock, played when the prompt is the case's name, and the expected result."""

    says: JSON
    bubbles: Bubbles = field(default_factory=list[tuple[str, Any]])
    finish: str = "stop"


CASES = {
    "text": Case(says={"content": TEXT, "usage": USAGE}, bubbles=[("output_text", TEXT)]),
    "reasoning": Case(
        says={"reasoning": THOUGHT, "content": TEXT, "usage": USAGE},
        bubbles=[("reasoning", THOUGHT), ("output_text", TEXT)],
    ),
    "length": Case(
        says={"content": "Half a sen", "finishReason": "length", "usage": USAGE},
        bubbles=[("output_text", "Half a sen")],
        finish="length",
    ),
}

CANNOT = {
    ("length", "responses"): "it sends `response.completed` without a reason where OpenAI sends `response.incomplete`",
    ("length", "xai"): "it sends `response.completed` without a reason where xAI sends `response.incomplete`",
}
"""Cases that aimock cannot play for a dialect, with the reason. They must fail, so that a newer aimock is noticed."""

CALLS = [
    {"id": "call_one", "name": "add", "arguments": {"a": 2, "b": 3}},
    {"id": "call_two", "name": "greet", "arguments": {"name": 'Ann "A" 🙂'}},
]
RESULTS = {"add": "5", "greet": 'Hello, Ann "A" 🙂'}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}"


def fixtures() -> Iterator[JSON]:
    """Yield the tables above in aimock's format."""
    for name, case in CASES.items():
        yield {"match": {"userMessage": name}, "response": case.says}
    for name, calls in (("call once", CALLS[:1]), ("call twice", CALLS)):
        match = {"userMessage": name}
        says = {"toolCalls": calls, "reasoning": THOUGHT, "usage": USAGE}
        # By default aimock ends a turn with calls in a way that Gemini's API does not have.
        google = {"match": {**match, "hasToolResult": False, "model": "gemini-3.8-flash"}}
        yield {**google, "response": {**says, "finishReason": "stop"}}
        yield {"match": {**match, "hasToolResult": False}, "response": says}
        yield {"match": {**match, "hasToolResult": True}, "response": {"content": "Done.", "usage": USAGE}}
    yield {"match": {"userMessage": "go on"}, "response": {"content": "Gladly."}}


@pytest.fixture(scope="module")
def server() -> Iterator[Aimock]:
    with aimock(list(fixtures())) as server:
        yield server


@pytest.fixture(scope="module")
def passed(server: Aimock) -> Iterator[Tee]:
    with tee(server.port) as passed:
        yield passed


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


@pytest.fixture
async def agent(dialect: Dialect, passed: Tee, server: Aimock) -> AsyncIterator[Agent]:
    async with connected(dialect, passed) as agent:
        server.forget()
        passed.requests.clear()
        yield agent


def connected(dialect: Dialect, passed: Tee) -> Agent:
    connection = connect(load_catalog().find(dialect.model), Endpoint(passed.url + dialect.base, KEY))
    return Agent(connection, system_message=SYSTEM, tools=[add, greet], limits=Limits(retries=0))


def heard(server: Aimock) -> list[JSON]:
    """Return the messages of the last request as aimock read them."""
    line = server.journal()[-1]
    assert line["response"]["status"] == 200
    return [{**message, "content": _text(message["content"])} for message in line["body"]["messages"]]


def _text(content: Any) -> Any:
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content


def table() -> Iterator[Any]:
    for name in CASES:
        for dialect in DIALECTS:
            reason = CANNOT.get((name, dialect))
            marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if reason else []
            yield pytest.param(name, dialect, id=f"{name}, {dialect}", marks=marks)


@pytest.mark.parametrize(("name", "dialect"), list(table()), indirect=["dialect"])
async def test_answer_arrives(name: str, dialect: Dialect, agent: Agent, server: Aimock, passed: Tee) -> None:
    case = CASES[name]
    run = agent.run(dialect.says(name), reasoning=True)
    result = await run

    assert result.finish_reason == case.finish
    assert heard(server) == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": name}]
    assert dialects.bubbles(run.responses) == case.bubbles
    assert result.usage == {"input_tokens": 12, "output_tokens": 7}
    (asked,) = [one for one in passed.requests if one.path == dialect.asked]  # its models are asked for, too
    header, value = dialect.key
    assert asked.headers[header] == value


@pytest.mark.parametrize("calls", [CALLS[:1], CALLS], ids=["one", "two at once"])
async def test_tool_loop_takes_following_turns(
    calls: list[dict[str, Any]], dialect: Dialect, agent: Agent, server: Aimock, passed: Tee
) -> None:
    asked = "call once" if len(calls) == 1 else "call twice"
    run = agent.run(dialect.says(asked), reasoning=True)
    result = await run

    said = dialects.bubbles(run.responses)
    made = [content for kind, content in said if kind == "tool_call"]
    results = [content for kind, content in said if kind == "tool_call_result"]
    assert [kind for kind, _ in said] == [
        "reasoning",
        *["tool_call"] * len(calls),
        *["tool_call_result"] * len(calls),
        "output_text",
    ]
    assert [(one["name"], one["arguments"]) for one in made] == [(one["name"], one["arguments"]) for one in calls]
    assert len({one["id"] for one in made}) == len(calls)
    assert {one["id"]: (one["name"], one["content"], one["is_error"]) for one in results} == {
        one["id"]: (one["name"], RESULTS[one["name"]], False) for one in made
    }
    assert (result.finish_reason, result.text) == ("stop", "Done.")
    assert result.usage == {"input_tokens": 24, "output_tokens": 14}
    assert answered(heard(server)) == [(one["name"], one["arguments"], RESULTS[one["name"]]) for one in calls]

    further = await agent.ask(dialect.says("go on"), context=result.context, reasoning=True)
    assert (further.finish_reason, further.text) == ("stop", "Gladly.")
    assert answered(heard(server)) == [(one["name"], one["arguments"], RESULTS[one["name"]]) for one in calls]
    assert len(passed.requests) == 3


def answered(messages: Sequence[JSON]) -> list[tuple[str, Any, Any]]:
    """Return name, arguments and result of each call. Each call has one result, right after it."""
    found: list[tuple[str, Any, Any]] = []
    waiting: dict[str, JSON] = {}
    for message in messages:
        if message["role"] == "tool":
            call = waiting.pop(message["tool_call_id"])
            found.append((call["name"], json.loads(call["arguments"]), _plain(message["content"])))
        elif calls := message.get("tool_calls"):
            waiting |= {call["id"]: call["function"] for call in calls}
        else:
            assert not waiting
    assert not waiting
    return found


def _plain(result: str) -> str:
    """Return a result as the tool gave it, without the object that Gemini needs around it."""
    return next(iter(json.loads(result).values())) if result.startswith("{") else result


def unsigned(result: RunResult) -> Context:
    """Return the conversation without the signatures of its reasoning."""

    def without(message: Any) -> Any:
        if not isinstance(message, ModelResponse):
            return message
        return replace(
            message,
            parts=[replace(part, signature=None) if isinstance(part, ThinkingPart) else part for part in message.parts],
        )

    return replace(result.context, messages=tuple(map(without, result.context.messages)))


@pytest.mark.parametrize("dialect", ["messages, budget"], indirect=True)
async def test_claude_rejects_calls_without_signature(dialect: Dialect, agent: Agent, server: Aimock) -> None:
    result = await agent.ask("call twice", reasoning=True)
    assert result.finish_reason == "stop"
    lost = agent.run("go on", context=unsigned(result), reasoning=True)
    assert (await lost).finish_reason == "error"
    assert server.journal()[-1]["response"]["status"] == 400
    assert "`thinking`" in str(lost.responses[-1].content)
    assert (await agent.ask("go on", context=result.context, reasoning=True)).text == "Gladly."
