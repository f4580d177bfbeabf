"""Fixtures of a store of each kind, and of several processes of the page on each store that needs a server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.history import HistoryStore
from tests.support.history_stores import KINDS, STORES, Clock
from tests.support.replica_houses import Build, houses_on
from tests.support.scripted_server import Running


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    """Give a store of each kind."""
    opened = await STORES[request.param](tmp_path, Clock())
    yield opened
    await opened.aclose()


@pytest.fixture(params=["postgres", pytest.param("redis", marks=pytest.mark.full)])
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a store. The laws of the stores show that both do the same."""
    return request.param


@pytest.fixture
async def build(name: str, tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Build]:
    """Give a function that starts one more process on this store. An expired lease counts at the first look."""
    monkeypatch.setattr("agent.web.chat.recovery.CONFIRM_SECONDS", 0.0)
    async with houses_on(name, tmp_path, server) as make:
        yield make
