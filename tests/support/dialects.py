"""Helpers for the tests of the vendors' dialects: a server that plays wire sequences, and checks of the result.

A module takes the fixtures by their names: `running_server, server = dialects.running_server, dialects.server`.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest

from agent import ProviderError
from agent.providers import Connection
from tests.support.dialect_server import Playing, playing


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
