"""Fixtures of the tests of history stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.history import HistoryStore
from tests.support.history_stores import STORES, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[HistoryStore]:
    opened = await STORES[request.param](tmp_path, clock)
    yield opened
    await opened.aclose()
