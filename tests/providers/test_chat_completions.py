"""The provider for OpenAI-compatible servers: its requests, how it reads answers, and its error messages."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from copy import copy, deepcopy
from typing import Any, cast

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from openai._models import FinalRequestOptions
from openai.types.chat import ChatCompletionChunk
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel

from agent import Agent, Endpoint, InputError, Limits, ModelSpec, ProviderError, connect
from agent.models.catalog import load_catalog
from agent.providers import http as http
from agent.providers.chat_completions import ChatCompletionsConnection
from agent.providers.errors import explain
from agent.providers.openai_client import PlainClient
from tests.support import dialects
from tests.support.read_pauses import read_pauses
from tests.support.script_language import token
from tests.support.scripted_server import Running
from tests.support.strategies import conversations, plain_conversations
from tests.tiers import examples

NAME = "Qwen/Qwen3-8B"
SPEC = ModelSpec(id=f"vllm:{NAME}", name=NAME, label="Qwen3", provider="vllm", reasoning=True)
VLLM = load_catalog().providers["vllm"]
KEY = "sk-very-secret-key-1234567890"


@pytest.fixture
async def connection(server: Running) -> AsyncIterator[ChatCompletionsConnection]:
    made = connect(SPEC, Endpoint(server.base_url, KEY))
    assert isinstance(made, ChatCompletionsConnection)
    yield made
    await made.aclose()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=examples(60))
@given(st.dictionaries(st.text(), JSON, max_size=3), st.none() | st.dictionaries(st.text(), JSON, max_size=3))
async def test_body_is_the_one_that_the_library_sends(body: dict[str, Any], more: dict[str, Any] | None) -> None:
    sent = [
        cast(Any, client(base_url="http://127.0.0.1/v1", api_key=KEY))._build_request(
            FinalRequestOptions.construct(method="post", url="/chat/completions", json_data=body, extra_json=more)
        )
        for client in (PlainClient, openai.AsyncOpenAI)
    ]
    ours, theirs = [(request.headers["content-type"], json.loads(request.content)) for request in sent]
    assert ours == theirs


class Heard:
    """A connection that records the errors it explains, and its explanations."""

    def __init__(self, inner: ChatCompletionsConnection) -> None:
        self._inner = inner
        self.said: list[ProviderError] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def explain(self, error: Exception) -> ProviderError:
        self.said.append(self._inner.explain(error))
        return self.said[-1]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations(6) | plain_conversations())
async def test_messages_are_mapped_as_the_library_does(
    connection: ChatCompletionsConnection, messages: list[ModelMessage]
) -> None:
    ours = cast(Any, connection.model())
    plain = copy(ours)
    plain.__class__ = OpenAIChatModel
    assert await mapped(ours, messages) == await mapped(plain, messages)


async def mapped(model: Any, messages: list[ModelMessage]) -> object:
    """Return what is sent, or why these messages cannot be sent."""
    try:
        return await model._map_messages(messages, ModelRequestParameters())
    except UserError as refusal:
        return str(refusal)


# --- errors -----------------------------------------------------------------------------------------------------------

TABLE = [
    ("!status 400", "unsupported", 400, 'refused the request (HTTP 400). "The request is not valid".'),
    ("!status 401", "key", 401, "The server's key was rejected. Tell its owner."),
    ("!status 402", "quota", 402, f"The account's quota for '{NAME}' is used up."),
    ("!status 403", "access", 403, f"The model server does not let this key use '{NAME}'."),
    ("!status 404", "unknown_model", 404, f"The model server has no model named '{NAME}'."),
    ("!status 422", "unsupported", 422, "refused the request (HTTP 422)."),
    ("!status 429 7", "rate_limit", 429, "too many requests"),
    ("!status 500", "server", 500, "The model server failed (HTTP 500)."),
    ("!status 503", "overloaded", 503, "overloaded. Try again in a moment."),
    ("!context", "context", 400, "The conversation has 40,210 tokens and Qwen3 reads at most 32,768."),
    ("!cut 3", "interrupted", None, "The answer broke off"),
    ("!reset 3", "connection", None, "The connection to http://127.0.0.1"),
    ("!error-event 3", "server", 500, "The model server failed"),
    ('!json [{"content": "a"}, {"raw": "data: {nope"}, {"finish": "stop"}]', "malformed", None, "can't be read"),
]


@pytest.mark.parametrize(("script", "kind", "status", "words"), TABLE, ids=[row[0][:20] for row in TABLE])
async def test_failure_is_explained_by_kind(
    connection: ChatCompletionsConnection, script: str, kind: str, status: int | None, words: str
) -> None:
    heard = Heard(connection)
    result = await Agent(heard, limits=Limits(retries=0)).ask(script)  # type: ignore[arg-type]
    [error] = heard.said
    assert (error.kind, error.status) == (kind, status)
    assert words in str(error)
    assert str(error).endswith(".")
    assert (result.finish_reason, result.note.detail) == ("error", str(error))
    assert error.retry_after == (7 if script == "!status 429 7" else None)
    assert "sk-" not in str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.removeprefix("http://"), "must begin with http:// or https://, as in '{url}'."),
        (lambda url: f"ftp://{url.removeprefix('http://')}", "must begin with http:// or https://, as in '{url}'."),
        (lambda url: f"{url}/chat/completions", "must end before '/chat/completions': '{url}'."),
        (lambda url: f"{url}/chat/completions/", "must end before '/chat/completions': '{url}'."),
        (lambda _: "http:///v1", "has no host."),
        (lambda _: "http://[bad/v1", "has no host."),
        (lambda _: "http://127.0.0.1:99999/v1", "has no host."),
    ],
    ids=["no-scheme", "other-scheme", "route", "route-slash", "no-host", "brackets", "port"],
)
def test_impossible_base_url_is_refused(server: Running, change: Callable[[str], str], words: str) -> None:
    seen, wrong = len(server.journal()), change(server.base_url)
    with pytest.raises(InputError) as refused:
        Agent(NAME, provider="vllm", base_url=wrong)
    assert str(refused.value) == f"The base URL {wrong!r} {words.format(url=server.base_url)}"
    assert len(server.journal()) == seen


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        (lambda url: url.removesuffix("/v1"), "The base URL usually ends in /v1: add it."),
        (lambda url: f"{url}/v1", "Check the base URL."),
        (lambda url: url.replace("/v1", "/v2"), "Check the base URL."),
    ],
    ids=["no-version", "version-twice", "other-version"],
)
async def test_unknown_route_names_base_url(server: Running, change: Callable[[str], str], cure: str) -> None:
    async with Agent(NAME, provider="vllm", base_url=change(server.base_url)) as agent:
        result = await agent.ask("Hello")
    assert result.why == f"The model server does not know this address (HTTP 404). {cure}"


@pytest.mark.parametrize(
    ("status", "body", "is_route"),
    [
        (404, {"detail": "Not Found"}, True),
        (404, {"code": 404, "message": "File Not Found", "type": "not_found_error"}, True),
        (404, {"error": {"message": "Not found."}}, True),
        (404, "<html><h1>404 Not Found</h1></html>", True),
        (404, "404 page not found", True),
        (404, None, True),
        (405, {"detail": "Method Not Allowed"}, True),
        (404, {"message": "The model `m` does not exist."}, False),
        (404, {"message": "model: m", "type": "not_found_error"}, False),
        (404, {"message": "m"}, False),
        (404, {"error": "Model not found"}, False),
        (400, {"detail": "Not Found"}, False),
    ],
)
def test_route_and_model_not_found_differ(status: int, body: Any, is_route: bool) -> None:
    error = explain(ModelHTTPError(status, "m", body), "m", VLLM, base_url="http://127.0.0.1/v1")
    assert (str(error).endswith("Check the base URL.")) is is_route
    assert "/v1" not in str(error)
    assert "base URL" not in str(explain(ModelHTTPError(status, "m", body), "m", VLLM))


LIMIT = "This model's maximum context length is {most} tokens. However, "
LONG = [
    (
        {"message": LIMIT.format(most=2048) + "your request has 2130 input tokens."},
        "has 2,130 tokens and m reads at most 2,048",
    ),
    (
        {
            "message": LIMIT.format(most=2048)
            + "you requested 3154 tokens (2130 in the messages, 1024 in the completion)"
        },
        "has 2,130 tokens and m reads at most 2,048",
    ),
    (
        {
            "message": LIMIT.format(most=2048)
            + "you requested 3024 tokens (2000 in the messages, 1024 in the completion)"
        },
        "has 2,000 tokens, which leaves too little of the 2,048 of m for the answer",
    ),
    (
        {
            "message": "'max_tokens' is too large: 4096. This model's maximum context length is 2048 tokens and your "
            "request has 30 input tokens (4096 > 2048 - 30)."
        },
        "has 30 tokens, which leaves too little of the 2,048",
    ),
    (
        {
            "error": {
                "code": 400,
                "message": "request (9876 tokens) exceeds the available context size (4096 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9876,
                "n_ctx": 4096,
            }
        },
        "has 9,876 tokens and m reads at most 4,096",
    ),
    ({"message": LIMIT.format(most=2048) + "please reduce it"}, "is longer than m can read"),
    ({"message": "no numbers at all"}, "is longer than m can read"),
    ("a body that is text", "is longer than m can read"),
]


@pytest.mark.parametrize(("body", "words"), LONG)
def test_too_long_prompt_is_explained_with_numbers(body: Any, words: str) -> None:
    class Known(ModelHTTPError, ModelContextWindowExceededError):
        pass

    llama = isinstance(body, dict) and "error" in body
    error = ModelHTTPError(400, "m", body) if llama else Known(400, "m", body)
    told = explain(error, "m", VLLM)
    assert (told.kind, told.status) == ("context", 400)
    assert words in str(told)


HIDDEN = st.sampled_from([KEY, "sk-proj-abcdefgh12345", "hf_abcdefghijkl", "Bearer abc.def.ghi", "AIzaSyA1234567890"])
AROUND = st.text(st.characters(categories=["L", "P", "Zs"]), max_size=20)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([400, 401, 403, 404, 409, 413, 422, 429, 500, 502, 503]), AROUND, HIDDEN, AROUND, st.integers(0, 4)
)
def test_no_message_holds_key_or_body(status: int, before: str, secret: str, after: str, shape: int) -> None:
    marker = "what-somebody-wrote-17"
    message = f"{before} {secret} {after}"
    inner: dict[str, Any] = {"message": message, "input": marker, "param": marker}
    bodies: list[object] = [
        inner,
        {"error": inner, "request": {"messages": [marker]}},
        {"error": {"message": [{"input": marker, "ctx": secret}]}},
        f"<html>{marker} {secret}</html>",
        {"message": f'bad request: {{"messages": ["{marker}", "{secret}"]}}\nTraceback {marker}'},
    ]
    told = str(explain(ModelHTTPError(status, NAME, bodies[shape]), NAME, VLLM, key=KEY))
    assert secret.removeprefix("Bearer ") not in told
    assert marker not in told
    assert "Traceback" not in told
    assert "{" not in told
    assert len(told) < 500


def test_own_key_of_any_form_is_hidden() -> None:
    error = ModelHTTPError(400, NAME, {"message": "the key swordfish is not for this"})
    assert "swordfish" not in str(explain(error, NAME, VLLM, key="swordfish"))


# --- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasoning", "sent"), [(True, {"enable_thinking": True}), (False, {"enable_thinking": False})]
)
async def test_request_switches_reasoning(
    server: Running, connection: ChatCompletionsConnection, reasoning: bool, sent: dict[str, bool]
) -> None:
    await Agent(connection).ask("Hello", reasoning=reasoning, temperature=0.3, max_tokens=77)
    line = server.journal()[-1]
    assert line["body"]["chat_template_kwargs"] == sent
    assert (line["body"]["temperature"], line["body"].get("max_completion_tokens", line["body"].get("max_tokens"))) == (
        0.3,
        77,
    )
    assert line["authorization"] == f"Bearer {KEY}"


async def test_nothing_is_switched_by_default(server: Running, connection: ChatCompletionsConnection) -> None:
    await Agent(connection).ask("Hello")
    body = server.journal()[-1]["body"]
    assert set(body) == {"model", "stream", "stream_options", "messages"}
    plain = ModelSpec(id="x", name=NAME, label="x", provider="vllm")
    async with Agent(connect(plain, Endpoint(server.base_url))) as agent:
        await agent.ask("Hello", reasoning=True)
    assert "chat_template_kwargs" not in server.journal()[-1]["body"]


async def test_model_defaults_are_sent_and_option_wins(server: Running) -> None:
    spec = ModelSpec(
        id="x", name=NAME, label="x", provider="vllm", defaults=(("temperature", 0.6), ("top_p", 0.95), ("min_p", 0.1))
    )
    async with Agent(connect(spec, Endpoint(server.base_url))) as agent:
        await agent.ask("Hello", temperature=0.1)
    body = server.journal()[-1]["body"]
    assert (body["temperature"], body["top_p"], body["min_p"]) == (0.1, 0.95, 0.1)


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunks",
    [
        ["\n", "\n", "  def f():", "\n\treturn 1\n"],
        [" ", "  a "],
        [" a"],
        ["\t", "x"],
        ["```py\n", "    x\n", "```", "\n\n"],
    ],
)
async def test_white_space_arrives_whole(connection: ChatCompletionsConnection, chunks: list[str]) -> None:
    result = await Agent(connection).ask("!json " + json.dumps([{"content": chunk} for chunk in chunks]))
    assert result.text == "".join(chunks)


async def test_white_space_alone_makes_no_bubble(connection: ChatCompletionsConnection) -> None:
    deltas = [{"reasoning": "\n"}, {"reasoning": " "}, {"content": " "}, {"content": "\r\n"}]
    run = Agent(connection).run("!json " + json.dumps(deltas))
    result = await run
    said = [("error", "The model returned an empty answer.")]
    assert (dialects.bubbles(run.responses), result.text, result.finish_reason) == (said, "", "error")
    assert result.context.messages[-1].parts == []


async def test_reasoning_and_usage_are_read(server: Running, connection: ChatCompletionsConnection) -> None:
    run = Agent(connection).run("!think 3 !tokens 4")
    result = await run
    assert [kind for kind, _ in dialects.bubbles(run.responses)] == ["reasoning", "output_text"]
    assert result.usage == {
        "input_tokens": server.journal()[-1]["sent"] and result.usage["input_tokens"],
        "output_tokens": 7,
    }
    timings = result.note.timings
    assert timings is not None
    assert not timings.estimated
    assert timings.input_tokens > 0
    assert len(timings.reasoning) == 1
    cut = (await Agent(connection).ask("!cut 4")).note.timings
    assert cut is not None
    assert (cut.estimated, cut.output_tokens) == (True, 4)


async def test_merged_deltas_are_counted_one_by_one(server: Running, connection: ChatCompletionsConnection) -> None:
    run = Agent(connection).run("!tokens 300 @1500 !cut 0")
    timings = (await run).note.timings
    assert timings is not None
    assert len(run.responses) < 100, "the deltas were not merged"
    assert (timings.estimated, timings.output_tokens, timings.generated) == (True, 300, 300)


# --- reading in batches -----------------------------------------------------------------------------------------------


class Trickle(httpx2.AsyncByteStream):
    """A network on which chunks arrive at set times. A read returns everything that has arrived since the last read."""

    def __init__(self, count: int, every: float, after: float = 0.0) -> None:
        self._count, self._every, self._after = count, every, after
        self.looks = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        begun, given = time.monotonic() + self._after, 0
        while given < self._count:
            self.looks += 1
            due = begun + given * self._every - time.monotonic()
            if due > 0:
                await asyncio.sleep(due)
            ready = min(self._count, max(given + 1, int((time.monotonic() - begun) / self._every) + 1))
            yield b"".join(b"%d," % number for number in range(given, ready))
            given = ready

    async def aclose(self) -> None:
        self.closed = True


class Ready(httpx2.AsyncByteStream):
    """A network on which all chunks have already arrived."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number in range(3000):
            yield b"%d," % number


async def test_batched_reader_is_complete_and_wakes_seldom() -> None:
    network = Trickle(200, 0.002)
    batched = http._BatchedStream(network)
    data = b"".join([chunk async for chunk in batched])
    await batched.aclose()
    assert data == b"".join(b"%d," % number for number in range(200))
    assert network.looks < 40, "one read for each token would be 200"
    assert network.closed


async def test_first_bytes_are_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_INTERVAL_SECONDS", 3600.0)
    chunks = aiter(http._BatchedStream(Trickle(200, 0.002, after=0.05)))
    assert (await asyncio.wait_for(anext(chunks), 60)).startswith(b"0,")


async def test_available_bytes_are_read_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(http.asyncio, "sleep", sleep)
    data = b"".join([chunk async for chunk in http._BatchedStream(Ready())])
    assert data.count(b",") == 3000
    assert len(pauses) < 300, "it pauses although the bytes are there"


@pytest.mark.slow
async def test_real_connection_is_read_in_batches(
    connection: ChatCompletionsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = read_pauses(monkeypatch)
    result = await Agent(connection).ask("!tokens 1200 @1000")
    assert result.text == "".join(token(number) for number in range(1200))
    assert 5 < len(pauses) < 600, "one pause for each token would be 1200"


async def test_stop_closes_connection_of_sleeping_reader(
    server: Running, connection: ChatCompletionsConnection
) -> None:
    seen = len(server.journal())
    run = Agent(connection).run("!tokens 9000 @500").start()
    while len(run.responses) < 20:
        await run.wait_for_update(len(run.responses), timeout=2)
    run.cancel()
    await run
    lines = await asyncio.to_thread(server.wait_for, lambda lines: lines[seen]["closed"])
    assert lines[seen]["ended"] == "client_closed"


# --- clients ----------------------------------------------------------------------------------------------------------


def test_connection_serves_several_loops(server: Running) -> None:
    connection = connect(SPEC, Endpoint(server.base_url))

    async def ask() -> str:
        text = (await Agent(connection).ask("!text Yes.")).text
        await connection.aclose()
        await connection.aclose()
        return text

    assert [asyncio.run(ask()) for _ in range(2)] == ["Yes.", "Yes."]


async def test_key_is_hidden_in_repr() -> None:
    endpoint = Endpoint("http://127.0.0.1:1/v1", KEY)
    assert KEY not in repr(endpoint)
    assert KEY not in repr(connect(SPEC, endpoint))


CHUNK = st.fixed_dictionaries(
    {"object": st.just("chat.completion.chunk"), "id": st.sampled_from(["a", "b"])},
    optional={
        "usage": st.sampled_from([None, {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}]),
        "unknown": st.just({"x": [1]}),
        "choices": st.lists(
            st.fixed_dictionaries(
                {
                    "index": st.just(0),
                    "delta": st.fixed_dictionaries(
                        {},
                        optional={
                            "content": st.sampled_from(["", "word", "two words", None]),
                            "role": st.just("assistant"),
                            "reasoning": st.sampled_from(["", "Hm"]),
                            "tool_calls": st.sampled_from([None, [{"index": 0, "function": {"name": "nap"}}]]),
                        },
                    ),
                },
                optional={"finish_reason": st.sampled_from([None, "stop", "new"])},
            ),
            max_size=2,
        ),
    },
)


CLIENTS = (PlainClient(api_key="none"), openai.AsyncOpenAI(api_key="none"))


def text_chunk(id_: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "choices": [{"index": 0, "delta": {"content": text, **more}}]}


@given(st.lists(CHUNK, max_size=5))
@example([text_chunk("a", "Hello"), text_chunk("a", " you"), text_chunk("b", "!"), text_chunk("b", "!", role="user")])
@settings(max_examples=examples(150))
def test_chunks_are_as_the_sdk_makes_them(chunks: list[dict[str, Any]]) -> None:
    made: list[list[ChatCompletionChunk]] = []
    for client in CLIENTS:
        process, response = cast(Any, client)._process_response_data, httpx2.Response(200)
        made.append([process(data=deepcopy(one), cast_to=ChatCompletionChunk, response=response) for one in chunks])
    ours, sdk = made
    assert ours == sdk
    assert [one.model_dump() for one in ours] == [one.model_dump() for one in sdk]
    assert [one.model_fields_set for one in ours] == [one.model_fields_set for one in sdk]
