"""Views of a conversation without a page, and the widgets of a page."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from typing import Any

import gradio as gr
from starlette.requests import Request

from agent.web.chat.conversations import Conversations
from agent.web.gradio_compat.application import without_applications
from agent.web.ui.layout import Widgets, lay_out
from agent.web.ui.view import PageView, ViewRenderer, render_view


async def view_of(conversations: Conversations, owner: str, conversation: str | None) -> PageView:
    return render_view(await conversations.view(owner, conversation))


async def watch(conversations: Conversations, owner: str, conversation: str | None) -> AsyncGenerator[PageView]:
    renderer = ViewRenderer()
    async with aclosing(conversations.watch(owner, conversation)) as views:
        async for view in views:
            yield renderer.render(view)


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
