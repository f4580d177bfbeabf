"""Fixtures of the tests of history stores."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.history import HistoryStore
from tests.support.history_stores import STORE_PARAMS, STORES, Clock
from tests.support.postgres_server import stop_shared_server


@pytest.fixture(scope="session", autouse=True)
def stopped_servers() -> Iterator[None]:
    """Stop the servers that tests of this process have started."""
    yield
    stop_shared_server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORE_PARAMS)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[HistoryStore]:
    opened = await STORES[request.param](tmp_path, clock)
    yield opened
    await opened.aclose()
