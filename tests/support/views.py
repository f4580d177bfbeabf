"""Views of a conversation without a page, and the widgets of a page."""

# ruff: noqa: E402 - Gradio is imported as the app does it, which takes half the time

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import Any

from agent.web.gradio_compat.import_hook import import_gradio

import_gradio()

import gradio as gr
from starlette.requests import Request

from agent.files.store import MediaStore
from agent.history import Conversation, HistoryStore
from agent.history.memory import MemoryStore
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.rendering.bubbles import Bubble, Turn
from agent.rendering.markdown import to_blocks
from agent.settings import LocalSettings, Settings
from agent.web.app import build_conversations
from agent.web.chat.conversations import Conversations
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.turns import TurnRenderer, newest_turns
from agent.web.chat.views import WINDOW, RunningTurn, wait_text
from agent.web.gradio_compat.application import without_applications
from agent.web.ui.layout import Widgets
from tests.support.models import FakeLocalModels


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a page shows of a conversation: its stored turns, and the one that is being written."""

    turns: Sequence[Turn]
    is_busy: bool = False

    @property
    def bubbles(self) -> list[Bubble]:
        """The bubbles of all turns."""
        return [bubble for turn in self.turns for bubble in turn["bubbles"]]

    @property
    def texts(self) -> list[str]:
        """The HTML of all bubbles and captions, in their order."""
        return [text for turn in self.turns for text in (*map(html_of, turn["bubbles"]), turn.get("caption")) if text]


def chats_of(
    url: str, folder: Path, *specs: ModelSpec, store: HistoryStore | None = None, tools: Sequence[Any] = (), **more: Any
) -> Conversations:
    """Return the chats of a page whose models the server at this URL serves. `more` are settings."""
    settings = Settings(local=LocalSettings(cache_dir=folder, downloads=False), **more)
    models = FakeLocalModels(served=tuple(ServedModel(spec, Endpoint(url)) for spec in specs))
    return build_conversations(settings, store or MemoryStore(), MediaStore(folder / "media"), models, tools)


async def settle(page: Conversations) -> None:
    """Wait until all answers have ended and are stored."""
    await page.live_runs.close(60)
    page.live_runs.is_closing = False


def html_of(bubble: Bubble) -> str:
    """Return the HTML of a bubble, of all its blocks together."""
    return "".join(bubble["blocks"])


def written(text: str) -> str:
    """Return the HTML of a text that a model wrote."""
    return "".join(to_blocks(text))


async def view_of(conversations: Conversations, owner: str, conversation: str | None) -> Shown:
    """Return what a page shows of a conversation, with the turn that is being written."""
    view = await conversations.views.view(owner, conversation)
    turns, _ = await newest_turns(view, WINDOW)
    if view.live is None:
        return Shown(turns=turns)
    running = await conversations.views.running_turn(view.live)
    return _with_turn(turns, running, TurnRenderer(), monotonic())


async def watch(conversations: Conversations, owner: str, conversation: str | None) -> AsyncGenerator[Shown]:
    """Yield what a page shows of a conversation while its answer is written, and once more when it has ended."""
    view = await conversations.views.view(owner, conversation)
    turns, _ = await newest_turns(view, WINDOW)
    if view.live is None:
        yield Shown(turns=turns)
        return
    running, since, renderer = await conversations.views.running_turn(view.live), monotonic(), TurnRenderer()
    async with aclosing(view.live.updates()) as updates:
        async for _ in updates:
            yield _with_turn(turns, running, renderer, since)


def _with_turn(stored: Sequence[Turn], running: RunningTurn, renderer: TurnRenderer, since: float) -> Shown:
    live = running.live
    turn = renderer.render(running.turn(since), wait_text(live.waiting))
    return Shown(turns=[*stored, turn], is_busy=live.ending is None)


def unstored(owner: str = "owner", conversation_id: str = "conversation") -> StoreJournal:
    """Return a journal for the event log of a run that stores its messages nowhere."""
    conversation = Conversation(id=conversation_id, owner=owner)
    return StoreJournal(MemoryStore(), MediaStore(Path(mkdtemp())), conversation, Omitted())


@cache
def widgets() -> Widgets:
    """The widgets of a page. Handlers only name them, so all tests can share them."""
    with without_applications(), gr.Blocks(analytics_enabled=False):
        return Widgets(Settings(local=LocalSettings(cache_dir=Path())))


def page_request() -> gr.Request:
    """Return a request, always from the same page of the same visitor."""
    return gr.Request(Request({"type": "http", "headers": [], "state": {"visitor": "ann"}}), session_hash="page")


def properties_of(update: Any) -> dict[str, Any]:
    """Return the properties that an update sets."""
    return update if isinstance(update, dict) else dict(update._constructor_args[0])
