"""Views of a conversation without a page, and the widgets of a page."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import Any

import gradio as gr
from starlette.requests import Request

from agent.history import Record
from agent.history.memory import MemoryStore
from agent.media.store import MediaStore
from agent.web.chat.chat_view import RunningTurn, wait_text
from agent.web.chat.conversations import Conversations
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.gradio_compat.application import without_applications
from agent.web.ui.layout import Widgets, lay_out
from agent.web.ui.render import render_turn
from agent.web.ui.view import PageView, render_view


async def view_of(conversations: Conversations, owner: str, conversation: str | None) -> PageView:
    """Return what a page shows of a conversation, with the turn that is being written."""
    view = await conversations.views.view(owner, conversation)
    if view.live is None:
        return render_view(view)
    return _with_turn(render_view(view), await conversations.views.running_turn(view.live), monotonic())


async def watch(conversations: Conversations, owner: str, conversation: str | None) -> AsyncGenerator[PageView]:
    """Yield what a page shows of a conversation while its answer is written, and once more when it has ended."""
    view = await conversations.views.view(owner, conversation)
    stored, since = render_view(view), monotonic()
    if view.live is None:
        yield stored
        return
    running = await conversations.views.running_turn(view.live)
    async with aclosing(view.live.updates()) as updates:
        async for _ in updates:
            yield _with_turn(stored, running, since)


def _with_turn(stored: PageView, running: RunningTurn, since: float) -> PageView:
    live = running.live
    written = render_turn(running.turn(since), wait_text(live.waiting))
    return replace(stored, messages=stored.messages + written, is_busy=live.ending is None)


def unstored(owner: str = "owner", conversation: str = "conversation") -> StoreJournal:
    """Return a journal for the event log of a run that stores its messages nowhere."""
    record = Record(id=conversation, owner=owner)
    return StoreJournal(MemoryStore(), MediaStore(Path(mkdtemp())), record, Omitted())


@cache
def widgets() -> Widgets:
    """The widgets of a page. Handlers only name them, so all tests can share them."""
    with without_applications(), gr.Blocks(analytics_enabled=False):
        return lay_out("Switchboard", sign_of_life=1.0, login=False, fleeting=False, days=0)


def page_request() -> gr.Request:
    """Return a request, always from the same page of the same visitor."""
    return gr.Request(Request({"type": "http", "headers": [], "state": {"visitor": "ann"}}), session_hash="page")


def properties_of(update: Any) -> dict[str, Any]:
    """Return the properties that an update sets."""
    return update if isinstance(update, dict) else dict(update._constructor_args[0])
