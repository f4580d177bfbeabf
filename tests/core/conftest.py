"""Fixtures for tests of runs."""

from collections.abc import AsyncIterator

import pytest

from agent import Agent, Endpoint, connect
from tests.support.models import QWEN3
from tests.support.scripted_server import Running


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    """An agent with the scripted server's model."""
    async with Agent(connect(QWEN3, Endpoint(server.base_url)), system_message="Be brief.") as agent:
        yield agent
