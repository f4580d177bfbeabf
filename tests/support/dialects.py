"""Helpers for the tests of the vendors' dialects: a server that plays wire sequences, and checks of the result.

A module takes the fixtures by their names: `running_server, server = dialects.running_server, dialects.server`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest

from agent import Endpoint, ModelSpec, ProviderError, connect
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


def assert_prefixes(bodies: Sequence[bytes], items: str, count: int) -> None:
    """Assert that each body only appends `items` to those of the body before it, byte for byte."""
    read = [json.loads(body) for body in bodies]
    assert len(read) == count
    for before, after in pairwise(read):
        start, whole = (json.dumps(one.pop(items), ensure_ascii=False) for one in (dict(before), dict(after)))
        assert whole.startswith(start.removesuffix("]") + ", ")
        assert {**before, items: 0} == {**after, items: 0}
