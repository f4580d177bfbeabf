"""Helpers for the tests of the vendors' dialects: a server that plays wire sequences, and checks of the result.

A module takes the fixtures by their names: `running_server, server = dialects.running_server, dialects.server`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest

from agent import Agent, Endpoint, ModelSpec, ProviderError, connect
from agent.models.catalog import load_catalog
from agent.providers.connection import Connection
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.models import QWEN3
from tests.support.replies import anthropic_messages, chat_completions, google_generate_content, openai_responses


def chat_answer(text: str) -> Reply:
    chunk = chat_completions.chunk
    return chat_completions.reply(chat_completions.ROLE, chunk(content=text), *chat_completions.ending())


def gemini_answer(text: str) -> Reply:
    chunk = google_generate_content.chunk(google_generate_content.text(text))
    return google_generate_content.reply(chunk, google_generate_content.end())


class Dialect(NamedTuple):
    """A model, its answer with a text, and the path of its URL."""

    spec: ModelSpec
    answer: Callable[[str], Reply]
    path: str

    def connect(self, server: Playing) -> Connection:
        return connect(self.spec, Endpoint(server.url + self.path, "key"))


CLAUDE, GEMINI = load_catalog().find("anthropic:claude-sonnet-5-5"), load_catalog().find("google:gemini-3.8-flash")
OPENAI = load_catalog().find("openai:gpt-6-luna")
DIALECTS: dict[str, Dialect] = {
    "Responses": Dialect(OPENAI, openai_responses.answer, "/v1"),
    "Chat Completions of OpenAI": Dialect(replace(OPENAI, dialect="chat"), chat_answer, "/v1"),
    "vLLM": Dialect(QWEN3, chat_answer, "/v1"),
    "llama.cpp": Dialect(replace(QWEN3, provider="llama.cpp"), chat_answer, "/v1"),
    "Claude": Dialect(CLAUDE, anthropic_messages.answer, ""),
    "Gemini": Dialect(GEMINI, gemini_answer, ""),
}


@pytest.fixture(scope="module")
def running_server() -> Iterator[Playing]:
    """One server for the tests of a module."""
    with playing() as server:
        yield server


@pytest.fixture
def server(running_server: Playing) -> Playing:
    """The module's server, without replies and requests of earlier tests."""
    running_server.clear()
    return running_server


async def trouble(connection: Connection) -> ProviderError:
    """Send one request that fails and return the connection's explanation."""
    with pytest.raises(Exception) as failed:  # noqa: PT011, PT012 - whichever the library raises
        async with model_request_stream(connection.model(), [ModelRequest.user_text_prompt("Hello")]) as stream:
            async for _ in stream:
                pass
    return connection.explain(failed.value)


def bubbles(responses: Sequence[Any]) -> list[tuple[str, Any]]:
    """Join the responses to bubbles, each as its type and its whole content."""
    out: list[tuple[str, Any]] = []
    for response in responses:
        if response.is_type_switched:
            out.append((response.type, response.content))
        else:
            assert isinstance(response.content, str)
            assert out[-1][0] == response.type
            out[-1] = (response.type, out[-1][1] + response.content)
    return out


Bubble = tuple[str, Any]


def weather(city: str = "Nowhere") -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


def called(id_: str, name: str = "weather", **arguments: str) -> Bubble:
    """Return the bubble of a call. Without an id, any id is right."""
    return "tool_call", {"id": id_, "name": name, "arguments": arguments}


def answered(id_: str, city: str) -> Bubble:
    """Return the bubble of the result of `weather`."""
    return "tool_call_result", {"id": id_, "name": "weather", "content": weather(city), "is_error": False}


class Case(NamedTuple):
    """Replies that are played in turn, the bubbles that are seen, the end of the run, and what is counted.

    An error of None can have any words. The counted tokens are those of the input, of the output and of the cache.
    """

    replies: Sequence[Reply]
    said: Sequence[Bubble]
    finish: str = "stop"
    detail: str | None = None
    usage: Sequence[int] = ()


async def assert_decoded(server: Playing, agent: Agent, case: Case, **options: Any) -> None:
    """Assert that a run shows the bubbles of a case, ends and counts as it says, and asks for each reply once."""
    server.play(*case.replies)
    async with agent:
        run = agent.run("Hello", **options)
        result = await run
    seen = bubbles(run.responses)
    assert len(seen) == len(case.said), seen
    assert [_shown(server, *pair) for pair in zip(seen, case.said, strict=True)] == [*case.said]
    assert result.finish_reason == case.finish
    if case.detail is not None:
        assert result.note.detail.replace(server.url, "{url}") == case.detail
    names = ("input_tokens", "output_tokens", "cached_tokens")[: len(case.usage)]
    assert [result.usage.get(name) for name in names] == [*case.usage]
    assert len(server.requests) == len(case.replies)
    ids = [content["id"] for kind, content in seen if kind == "tool_call"]
    assert len(set(ids)) == len(ids)


def _shown(server: Playing, seen: Bubble, expected: Bubble) -> Bubble:
    """Return a bubble without what the expected one leaves open: its id, or the words of an error."""
    kind, content = seen
    if isinstance(content, Mapping):
        return kind, {**content, **({"id": ""} if isinstance(expected[1], Mapping) and not expected[1]["id"] else {})}
    if kind == "error":
        return kind, None if expected[1] is None else content.replace(server.url, "{url}")
    return seen


def assert_prefixes(bodies: Sequence[bytes], items: str, count: int) -> None:
    """Assert that each body only appends `items` to those of the body before it, byte for byte."""
    read = [json.loads(body) for body in bodies]
    assert len(read) == count
    for before, after in pairwise(read):
        start, whole = (json.dumps(one.pop(items), ensure_ascii=False) for one in (dict(before), dict(after)))
        assert whole.startswith(start.removesuffix("]") + ", ")
        assert {**before, items: 0} == {**after, items: 0}
