"""The page: its layout, its events, and the endpoint for programs."""

from collections.abc import Callable

import gradio as gr

from agent.web.chat.conversations import Conversations
from agent.web.ui.api import ChatApi
from agent.web.ui.events import Events, connect_endpoint
from agent.web.ui.handlers import Handlers
from agent.web.ui.layout import lay_out


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
