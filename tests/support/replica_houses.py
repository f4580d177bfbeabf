"""Processes of the page as objects, each with a store of its own on one server, and their tools."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.files.store import MediaStore
from agent.history import HistoryStore
from agent.history.values import LEASE_SECONDS
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.tools.function_tools import ask_user, tool
from agent.web.app import build_conversations
from agent.web.chat.answers import LiveRun
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor
from tests.conftest import App
from tests.support.history_stores import SERVERS, STORES, Clock
from tests.support.models import QWEN3, FakeLocalModels
from tests.support.script_language import token
from tests.support.scripted_server import Running
from tests.support.views import Shown, view_of, written
from tests.support.waiting import until_async

ANN = Visitor(owner="ann")
SPEC = replace(QWEN3, prefill=True)
calls: list[str] = []


@tool
async def note(text: str) -> str:
    """Note a text."""
    calls.append(text)
    return "noted"


@tool
async def nap(text: str) -> str:
    """Wait for long."""
    calls.append(text)
    await asyncio.sleep(60)
    return "awake"


@tool(needs_approval=True)
async def pay(text: str) -> str:
    """Pay, if the visitor allows it."""
    calls.append(text)
    return "paid"


class House:
    """One process of the page, and the task that keeps its leases."""

    def __init__(
        self, store: HistoryStore, page: Conversations, open_late: Callable[[], Awaitable[HistoryStore]]
    ) -> None:
        self.page, self.store, self._open_late = page, store, open_late
        self._task = asyncio.create_task(page.live_runs.keep_leases(store))

    async def lose_its_runs(self) -> None:
        """Let its leases expire, as if it had stored nothing for as long. It goes on with its runs all the same."""
        await self.halt()
        runs = [run.run_id for run in await self.store.runs.unfinished()]
        late = await self._open_late()
        await late.runs.hold(runs)
        await late.aclose()

    async def halt(self) -> None:
        """Renew no lease any more, and store no events."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        for live in self.page.live_runs._runs.values():
            live.log._can_store = False

    async def wake(self) -> None:
        """Look at its leases again, as after a pause."""
        self._task = asyncio.create_task(self.page.live_runs.keep_leases(self.store))

    async def finish(self, conversation: str, run: str) -> LiveRun:
        """Do what a page does that watches a lost run: wait for its end, and ask for the rest."""
        assert await self.until_ended(conversation, run)
        return await self.page.finish_lost(ANN, conversation, run)

    async def until_ended(self, conversation: str, run: str) -> str:
        """Wait for the end of a lost run. Return why a page asks for the rest, or ""."""
        await self.until_idle(conversation)
        last = (await self.store.runs.events(run, owner="ann"))[-1].value
        assert last["type"] == "ended"
        return last.get("goes_on", "")

    async def texts(self, conversation: str) -> list[str]:
        return (await view_of(self.page, "ann", conversation)).texts

    async def until_idle(self, conversation: str) -> Shown:
        """Wait until no answer is being written in this conversation, and return what the page shows then."""
        await until_async(lambda: self._is_idle(conversation))
        return await view_of(self.page, "ann", conversation)

    async def until_stored(self, run_id: str, text: str) -> None:
        """Wait until the store has this text of a run."""

        async def is_stored() -> bool:
            events = [event.value for event in await self.store.runs.events(run_id, owner="ann")]
            said = "".join(str(event.get("content", "")) for event in events)
            return text in said or any(event["type"] == text for event in events)

        await until_async(is_stored)

    async def _is_idle(self, conversation: str) -> bool:
        return not await self.page.running.is_busy(conversation, "ann")


Build = Callable[..., Awaitable[House]]


@asynccontextmanager
async def houses_on(name: str, folder: Path, server: Running) -> AsyncGenerator[Build]:
    """Give a function that starts one more process on the store with this name."""
    calls.clear()
    houses: list[House] = []

    async def make(*specs: ModelSpec, public: PublicSettings | None = None, grace: float = 60) -> House:
        store, behind = await STORES[name](folder, Clock()), Clock()
        behind.go_forward(seconds=-LEASE_SECONDS - 1)
        served = tuple(ServedModel(spec, Endpoint(server.base_url)) for spec in specs or (SPEC,))
        settings = Settings(local=LocalSettings(cache_dir=folder), public=public, grace_seconds=grace)
        models = FakeLocalModels(served=served)
        page = build_conversations(settings, store, MediaStore(folder / "media"), models, [note, nap, pay, ask_user])
        houses.append(house := House(store, page, lambda: STORES[name](folder, behind)))
        return house

    try:
        yield make
    finally:
        for house in houses:
            await house.halt()
            await house.page.aclose()
            await house.store.aclose()


def two_processes(
    start_app: Callable[..., App], name: str, folder: Path, server: Running, *config: str, **of_other: Any
) -> tuple[App, App]:
    """Start two processes of the page that share the server of the store with this name.

    `of_other` is for the second process alone.
    """
    settings = {
        "VLLM_BASE_URL": server.base_url,
        "SWITCHBOARD_STORE": SERVERS[name](folder),
        "SWITCHBOARD_MEDIA": f"file:{folder / 'media'}",
        "SWITCHBOARD_SECRET": "a secret that both processes share",
    }
    return start_app(*config, **settings), start_app(*config, **settings, **of_other)


async def begin(house: House, text: str) -> tuple[str, str]:
    """Send a message. Return the ids of the conversation and of the run."""
    live = await house.page.send(ANN, None, {"text": text}, Choices(tools=True))
    assert live is not None
    return live.conversation_id, live.run_id


def words(first: int, last: int) -> str:
    """Return how a page shows these tokens of `!tokens`."""
    return written("".join(map(token, range(first, last))))
