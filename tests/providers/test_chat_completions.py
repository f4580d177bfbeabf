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

from agent import Agent, Endpoint, InputError, ModelSpec, connect
from agent.models.catalog import load_catalog
from agent.providers import http as http
from agent.providers.chat_completions import ChatCompletionsConnection
from agent.providers.errors import explain
from agent.providers.openai_client import PlainClient
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


NO_ROUTE: list[Any] = [
    {"detail": "Not Found"},
    {"code": 404, "message": "File Not Found", "type": "not_found_error"},
    {"error": {"message": "Not found."}},
    "<html><h1>404 Not Found</h1></html>",
    "404 page not found",
    None,
]
NO_MODEL: list[Any] = [
    {"message": "The model `m` does not exist."},
    {"message": "model: m", "type": "not_found_error"},
    {"message": "m"},
    {"error": "Model not found"},
]
FAILED = [*((404, body, True) for body in NO_ROUTE), *((404, body, False) for body in NO_MODEL)]
FAILED += [(405, {"detail": "Method Not Allowed"}, True), (400, {"detail": "Not Found"}, False)]


@pytest.mark.parametrize(("status", "body", "is_route"), FAILED)
def test_route_and_model_not_found_differ(status: int, body: Any, is_route: bool) -> None:
    error = explain(ModelHTTPError(status, "m", body), "m", VLLM, base_url="http://127.0.0.1/v1")
    assert (str(error).endswith("Check the base URL.")) is is_route
    assert "/v1" not in str(error)
    assert "base URL" not in str(explain(ModelHTTPError(status, "m", body), "m", VLLM))


LIMIT = "This model's maximum context length is 2048 tokens. However, "
REQUESTED = "you requested {} tokens ({} in the messages, 1024 in the completion)"
TOO_LARGE = (
    "'max_tokens' is too large: 4096. This model's maximum context length is 2048 tokens and your request has 30 input "
    "tokens (4096 > 2048 - 30)."
)
LLAMA = {
    **{"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9876, "n_ctx": 4096},
    "message": "request (9876 tokens) exceeds the available context size (4096 tokens), try increasing it",
}
LONG: list[tuple[Any, str]] = [
    ({"message": f"{LIMIT}your request has 2130 input tokens."}, "has 2,130 tokens and m reads at most 2,048"),
    ({"message": LIMIT + REQUESTED.format(3154, 2130)}, "has 2,130 tokens and m reads at most 2,048"),
    ({"message": LIMIT + REQUESTED.format(3024, 2000)}, "has 2,000 tokens, which leaves too little of the 2,048 of m"),
    ({"message": TOO_LARGE}, "has 30 tokens, which leaves too little of the 2,048"),
    ({"error": LLAMA}, "has 9,876 tokens and m reads at most 4,096"),
    ({"message": f"{LIMIT}please reduce it"}, "is longer than m can read"),
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


# --- what is sent -----------------------------------------------------------------------------------------------------


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
