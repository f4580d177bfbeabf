"""The laws that every dialect keeps: what ends, what is empty, what is sent once, and what later requests repeat."""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest, ModelResponse

from agent import Agent, Context, Endpoint, Limits, ModelSpec, ProviderError, connect
from agent.models.catalog import load_catalog
from agent.providers.connection import Connection
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.dialects import weather
from tests.support.replies import anthropic_messages as messages
from tests.support.replies import chat_completions as chat
from tests.support.replies import google_generate_content as generate
from tests.support.replies import openai_responses as responses

running_server, server = dialects.running_server, dialects.server
NO_RETRIES = Limits(retries=0)


@dataclass(frozen=True)
class Dialect:
    """A model, the path of its URL, the list of a request that grows, and replies.

    `begun` are the events of an answer that has said "a". `faults` are events that end it. `turn` makes the replies of
    a turn with two calls of `weather`. `plain` is a model that does not reason, or the model itself with that said.
    """

    model: str
    path: str
    grows: str
    begun: Sequence[Any]
    faults: Mapping[str, Any]
    answer: Reply
    turn: Callable[[int], Sequence[Reply]]
    plain: str = ""
    is_named: bool = False

    @property
    def spec(self) -> ModelSpec:
        """The model as the catalogue knows it."""
        return replace(load_catalog().find(self.model), reasoning=True, tools="native")

    def connect(self, server: Playing, spec: ModelSpec | None = None) -> Connection:
        """Return a connection to this server."""
        return connect(spec or self.spec, Endpoint(server.url + self.path, "a-key"))

    def stalls(self, *more: Any) -> Reply:
        """Return a reply that begins, goes on with `more`, and falls silent."""
        return Reply(sse=[*self.begun, *more], named=self.is_named, end="stall")


def chat_turn(turn: int) -> Sequence[Reply]:
    one = chat.piece('{"city": "K\\u00f6ln"}', 0, f"call_a{turn}", "weather")
    other = chat.piece('{"city": "Rom"}', 1, f"call_b{turn}", "weather")
    call = chat.reply(chat.ROLE, chat.chunk(reasoning="Hm."), chat.calls(one, other), *chat.ending("tool_calls"))
    said = chat.reply(
        chat.ROLE, chat.chunk(reasoning="So."), chat.chunk(content=f"Turn {turn} \U0001f44b"), *chat.ending()
    )
    return call, said


def responses_turn(turn: int) -> Sequence[Reply]:
    thought = responses.reasoning("Think.", "Harder.", id_=f"rs_{turn}", seal=f"g{turn}")
    one = responses.call('{"city": "Rome"}', id_=f"fc_{turn}", call_id=f"call_{turn}")
    two = responses.call('{"city": "K\\u00f6ln"}', id_=f"fd_{turn}", call_id=f"cald_{turn}", index=2)
    call = responses.reply(responses.created(), thought, one, two, responses.completed())
    said = responses.text(f"Turn {turn}. ", "\U0001f44b", id_=f"msg_{turn}")
    return call, responses.reply(responses.created(), said, responses.completed())


def messages_turn(turn: int) -> Sequence[Reply]:
    call = messages.reply(
        messages.begin(),
        messages.thinking(0, f"Thought {turn}.\n", signature=f"sig{turn}=="),
        messages.text(1, f"\nI look, {turn}."),
        messages.call(2, f"toolu_{turn}_0", '{"city":  "Zürich"}'),
        messages.call(3, f"toolu_{turn}_1"),
        messages.CALLS,
    )
    said = [messages.thinking(0, signature="x=="), messages.text(1, f"Sunny {turn}. "), messages.ends("end_turn")]
    return call, messages.reply(messages.begin(), *said)


def generate_turn(turn: int) -> Sequence[Reply]:
    call = generate.reply(
        generate.chunk(generate.thought(f"Thought {turn}.\n")),
        generate.chunk(generate.text(f"\nI look, {turn}.")),
        generate.chunk(generate.call(signed="c2ln", city="Zürich"), generate.call()),
        generate.end(),
    )
    last = generate.end("STOP", generate.text("", thoughtSignature="bGFzdA=="))
    return call, generate.reply(generate.chunk(generate.text(f"Sunny {turn}. ")), last)


CHAT = Dialect(
    "huggingface:Qwen/Qwen3-8B",
    "/v1",
    "messages",
    [chat.ROLE, chat.chunk(content="a")],
    {"error": {"error": {"message": "No.", "code": 500}}, "malformed": b"data: {nope\n\n"},
    chat.ANSWER,
    chat_turn,
)
RESPONSES = Dialect(
    "openai:gpt-6-luna",
    "/v1",
    "input",
    [*responses.created(), *responses.text("a")[:3]],
    {
        "error": responses.event("error", code="server_error", message="No.", param=None),
        "malformed": b"event: response.output_text.delta\ndata: {nope\n\n",
    },
    responses.ANSWER,
    responses_turn,
    plain="gpt-4o",
    is_named=True,
)
MESSAGES = Dialect(
    "anthropic:claude-sonnet-5-5",
    "",
    "messages",
    [messages.begin(), *messages.text(0, "a")[:2]],
    {"error": messages.fails("api_error"), "malformed": b"event: message_stop\ndata: {nope\n\n"},
    messages.HI,
    messages_turn,
    is_named=True,
)
GENERATE = Dialect(
    "google:gemini-3.8-flash",
    "",
    "contents",
    [generate.chunk(generate.text("a"))],
    {"error": generate.wrong(500, "INTERNAL"), "malformed": b"data: {nope\n\n"},
    generate.HI,
    generate_turn,
)
DIALECTS = {
    "chat": CHAT,
    "vLLM": replace(CHAT, model="vllm:Qwen/Qwen3-8B"),
    "responses": RESPONSES,
    "xAI": replace(RESPONSES, model="xai:grok-4.6", plain=""),
    "messages": MESSAGES,
    "generate": GENERATE,
}
EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


async def has_left(server: Playing) -> bool:
    """Return True once the client has closed the connection of the first request."""
    return await asyncio.to_thread(server.requests[0].left.wait, 60)


@EACH
async def test_stop_closes_socket(server: Playing, dialect: Dialect) -> None:
    server.play(dialect.stalls())
    async with Agent(dialect.connect(server)) as agent:
        run = agent.run("Hello").start()
        while not run.responses:
            await run.wait_for_update(0, timeout=5)
        assert not server.requests[0].left.is_set()
        run.cancel()
        result = await run
        assert await has_left(server)
    assert (result.finish_reason, result.text) == ("cancelled", "a")


@EACH
@pytest.mark.parametrize("fault", ["error", "malformed"])
async def test_failure_closes_socket(server: Playing, dialect: Dialect, fault: str) -> None:
    server.play(dialect.stalls(dialect.faults[fault]))
    async with Agent(dialect.connect(server), limits=NO_RETRIES) as agent:
        result = await agent.ask("Hello")
        assert await has_left(server), "not closed before the agent is"
    assert (result.finish_reason, result.text) == ("error", "a")


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "generate"])
def test_asyncio_reports_nothing_after_failures(server: Playing, name: str, caplog: pytest.LogCaptureFixture) -> None:
    dialect = DIALECTS[name]
    ends: list[Any] = ["malformed", "reset", "cut", "error"]

    async def run() -> None:
        for end in ends:
            fault = [dialect.faults[end]] if end in dialect.faults else []
            server.play(Reply(sse=[*dialect.begun, *fault], named=dialect.is_named, end="whole" if fault else end))
            async with Agent(dialect.connect(server), limits=NO_RETRIES) as agent:
                assert (await agent.ask("Hello")).failed
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


EMPTY = "The model returned an empty answer."
NO_ROOM = "The answer reached its maximum length before any text."
CUT_OFF, ASKED = responses.incomplete("max_output_tokens"), responses.created()
EMPTY_ANSWERS = {
    "chat": [
        (chat.reply(chat.ROLE, *chat.ending()), EMPTY),
        (chat.reply(chat.ROLE, chat.chunk(content=" \n"), *chat.ending()), EMPTY),
        (chat.reply(chat.ROLE, *chat.ending("length")), NO_ROOM),
    ],
    "responses": [
        (responses.reply(ASKED, responses.completed()), EMPTY),
        (responses.reply(ASKED, responses.text(""), responses.completed()), EMPTY),
        (responses.reply(ASKED, CUT_OFF), NO_ROOM),
        (responses.reply(ASKED, responses.reasoning(), CUT_OFF), NO_ROOM),
    ],
    "messages": [
        (messages.reply(messages.begin(), messages.ends("end_turn", 1)), EMPTY),
        (messages.reply(messages.begin(), messages.ends("max_tokens", 1)), NO_ROOM),
        (messages.reply(messages.begin(), messages.call(0, "toolu_1", '{"ci'), messages.ends("max_tokens")), NO_ROOM),
    ],
    "generate": [(generate.reply(generate.end()), EMPTY), (generate.reply(generate.end("MAX_TOKENS")), NO_ROOM)],
}


@pytest.mark.parametrize(
    ("name", "empty", "sentence"), [(name, *row) for name, rows in EMPTY_ANSWERS.items() for row in rows]
)
@pytest.mark.parametrize("after", ["nothing", "results"])
async def test_empty_answer_is_one_error(server: Playing, name: str, empty: Reply, sentence: str, after: str) -> None:
    dialect = DIALECTS[name]
    server.play(*dialect.turn(0)[: after == "results"], empty)
    async with Agent(dialect.connect(server), tools=[weather], limits=Limits(retries=2)) as agent:
        run = agent.run("Hello")
        result = await run
    assert (result.finish_reason, result.why) == ("error", sentence)
    assert len(server.requests) == (2 if after == "results" else 1)
    assert dialects.bubbles(run.responses)[-1] == ("error", sentence)
    assert "tool" in [one["role"] for one in result.to_input_list()] or after == "nothing"
    with pytest.raises(ProviderError) as raised:
        result.checked()
    assert raised.value.kind == "empty"
    assert result.usage["input_tokens"] > 0, "an empty answer costs what the server says"


@EACH
async def test_leaving_stream_closes_socket(server: Playing, dialect: Dialect) -> None:
    server.play(dialect.stalls())
    connection = dialect.connect(server)
    async with model_request_stream(connection.model(), [ModelRequest.user_text_prompt("Hello")]) as stream:
        events = aiter(stream)
        await anext(events)
    assert await has_left(server), "closed only by the garbage collector"
    await connection.aclose()
    del events


FAILURES = {
    "500": (Reply(status=500, body={"error": {"message": "No."}}, headers={"retry-after": "0"}), "server"),
    "429": (Reply(status=429, body={"error": {"message": "No."}}, headers={"retry-after": "0"}), "rate_limit"),
    "reset": (Reply(sse=[b"\r\n"], end="reset"), "connection"),
}


@EACH
@pytest.mark.parametrize("name", FAILURES)
async def test_only_the_run_repeats_a_request(server: Playing, dialect: Dialect, name: str) -> None:
    failure, kind = FAILURES[name]
    server.play(failure)
    connection = dialect.connect(server)
    assert (await dialects.trouble(connection)).kind == kind
    assert len(server.requests) == 1, "the SDK repeats it"
    server.clear()
    server.play(failure, dialect.answer)
    async with Agent(connection, limits=Limits(retries=1)) as agent:
        assert (await agent.ask("Hello")).finish_reason == "stop"
    first, second = server.requests
    assert first.raw == second.raw


@EACH
async def test_earlier_turns_keep_their_bytes(server: Playing, dialect: Dialect) -> None:
    server.play(*(reply for turn in range(4) for reply in dialect.turn(turn)))
    context = Context()
    async with Agent(dialect.connect(server), system_message="Be brief.", tools=[weather]) as agent:
        for turn in range(4):
            answer = await agent.ask(f"Turn {turn}?", context=context, reasoning=True)
            context = Context.from_json(answer.context.to_json())
    dialects.assert_prefixes([request.raw for request in server.requests], dialect.grows, 8)


@EACH
async def test_vendor_is_recognised_by_its_messages(server: Playing, dialect: Dialect) -> None:
    server.play(*dialect.turn(0))
    async with Agent(dialect.connect(server), tools=[weather]) as agent:
        written = [one for one in (await agent.ask("Hello")).context.messages if isinstance(one, ModelResponse)]
    by = {getattr(part, "provider_name", None) for one in written for part in one.parts}
    assert {one.provider_name for one in written} == {dialect.spec.provider}
    assert by - {None} == {dialect.spec.provider}


@EACH
async def test_plain_model_gets_no_thinking_options(server: Playing, dialect: Dialect) -> None:
    name = dialect.plain or dialect.spec.name
    spec = replace(dialect.spec, name=name, reasoning=False, always_reasons=False)
    for reasoning in (True, False, None):
        server.play(dialect.answer)
        async with Agent(dialect.connect(server, spec)) as agent:
            await agent.ask("Hello", reasoning=reasoning)
    [body] = {request.raw for request in server.requests}
    assert not [word for word in (b"think", b"Think", b"reason") if word in body]
