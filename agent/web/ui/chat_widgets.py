"""Widget updates for a conversation: the stored messages, and where the page reads the answer that is being written."""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from agent.web.chat.chat_view import ChatView
from agent.web.chat.conversations import Conversations
from agent.web.chat.running_answer import RunningAnswer
from agent.web.ui.components import Updates, composer
from agent.web.ui.layout import Widgets
from agent.web.ui.page_sessions import PageSession
from agent.web.ui.render import WireMessage
from agent.web.ui.view import render_view


class ChatWidgets:
    """Returns the widgets of a conversation. `guest_token` returns the token with which a guest's page reads."""

    def __init__(self, conversations: Conversations, widgets: Widgets, guest_token: Callable[[str], str]) -> None:
        self._conversations, self._widgets = conversations, widgets
        self._guest_token = guest_token

    async def stored(self, session: PageSession) -> Updates:
        """Return the stored conversation. The composer can stop an answer that another page has asked for."""
        stored = await self._conversations.views.view(session.owner, session.conversation, session.window)
        return self.shown(session, stored)

    def shown(self, session: PageSession, stored: ChatView) -> Updates:
        """Return the same for a conversation that was read."""
        page = render_view(stored, session.window, session.translator)
        return {
            self._widgets.chat.view: self.view(session, page.messages, stored.live)
            | {"complete": stored.is_complete, "earlier": page.has_earlier, "hidden": stored.hidden},
            self._widgets.chat.earlier: gr.Button(visible=page.has_earlier),
            self._widgets.composer.box: composer(busy=page.is_busy),
        }

    def empty(self, session: PageSession) -> Updates:
        """Return the empty page. The session can say that its conversation is missing."""
        return {
            self._widgets.chat.view: self.view(session, [], None),
            self._widgets.chat.earlier: gr.Button(visible=False),
            self._widgets.composer.box: composer(busy=False),
        }

    def view(
        self, session: PageSession, messages: Sequence[WireMessage] | None, live: RunningAnswer | None
    ) -> dict[str, Any]:
        """Return what live.js shows: the stored messages (None: those that it has) and the URL of a live answer.

        chats.js uses `conversation`, "" for a new one, the token of a guest, and the sentence `missing`. queue.js uses
        `complete`. `shown` sets this and `earlier`, which is True if there are messages before these. hidden.js uses
        `hidden`.
        """
        token = self._guest_token(session.owner) if session.guest else ""
        query = "format=page" + (f"&guest={token}" if token else "")
        return {
            "messages": messages,
            "live": f"runs/{live.run_id}/events?{query}" if live else "",
            "window": session.window,
            "conversation": session.conversation or "",
            "guest": token,
            "complete": False,
            "earlier": False,
            "hidden": "",
            "missing": session.translator(session.missing) if session.missing is not None else "",
        }
