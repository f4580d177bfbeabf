"""The page: its layout, its events, the endpoint for programs, and the app's changes to Gradio's HTML."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import gradio as gr
from fastapi import Request

from agent.i18n.translator import translator_for
from agent.web.chat.conversations import Conversations
from agent.web.gradio_compat.application import PAGE_QUERY, root_url
from agent.web.ui.api import ChatApi
from agent.web.ui.events import Events, connect_endpoint
from agent.web.ui.handlers import Handlers
from agent.web.ui.layout import lay_out
from agent.web.ui.page_files import PageFiles
from agent.web.ui.page_head import with_our_head


@dataclass(frozen=True, slots=True)
class PageChanges:
    """The page's own head. With `has_login`, the page names its visitor."""

    title: str
    root_path: str
    files: PageFiles
    has_login: bool

    def change(self, request: Request, html: str) -> str:
        """Return the page with the app's own head."""
        if _is_guide(request):  # which Gradio shows only where it shows a link to it
            html = html.replace('"footer_links":[]', '"footer_links":["api"]', 1)
        return with_our_head(
            html, self.title, root_url(request, self.root_path), translator_for(request.headers), self.files
        )

    def same_page(self, request: Request) -> Hashable | None:
        """Return equal values for requests that get the same page, or None if this one may get a page of its own."""
        if self.has_login or any(name in request.query_params for name in PAGE_QUERY):
            return None
        return root_url(request, self.root_path), translator_for(request.headers).language, _is_guide(request)


def _is_guide(request: Request) -> bool:
    return request.query_params.get("view") == "api"


def build(
    conversations: Conversations,
    title: str,
    *,
    sign_of_life: float,
    login: bool = False,
    fleeting: bool = False,
    days: float = 0,
    guest_token: Callable[[str], str] = str,
) -> gr.Blocks:
    """Build the page.

    A page with a typed key calls the server every `sign_of_life` seconds. With `login`, visitors of this Space can log
    in to Hugging Face. `fleeting`: conversations are lost when the Space restarts. `days`: a conversation is deleted
    this many days after its last message; 0: never.
    `guest_token` returns the token with which the page of a guest reads its answers.
    """
    with gr.Blocks(title=title, fill_height=True, fill_width=True, analytics_enabled=False) as page:
        widgets = lay_out(title, sign_of_life=sign_of_life, login=login, fleeting=fleeting, days=days)
        Events(page, widgets, Handlers(conversations, widgets, guest_token)).connect()
        connect_endpoint(ChatApi(conversations))
    return page
