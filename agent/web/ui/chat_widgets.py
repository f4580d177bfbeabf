"""Widget updates for a conversation: the stored turns, and where the page reads the answer that is being written."""

from collections.abc import Callable, Sequence
from typing import Any

from agent.rendering.bubbles import Turn
from agent.web.chat.chat_view import ChatView
from agent.web.chat.conversations import Conversations
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.turns import newest_turns
from agent.web.chat.views import WINDOW
from agent.web.ui.components import Updates, composer
from agent.web.ui.layout import Widgets
from agent.web.ui.page_sessions import PageSession


class ChatWidgets:
    """Returns the widgets of a conversation. `guest_token` returns the token with which a guest's page reads."""

    def __init__(self, conversations: Conversations, widgets: Widgets, guest_token: Callable[[str], str]) -> None:
        self._conversations, self._widgets = conversations, widgets
        self._guest_token = guest_token

    async def stored(self, session: PageSession) -> Updates:
        """Return the stored conversation. The composer can stop an answer that another page has asked for."""
        stored = await self._conversations.views.view(session.owner, session.conversation)
        return await self.shown(session, stored)

    async def shown(self, session: PageSession, stored: ChatView) -> Updates:
        """Return the same for a conversation that was read."""
        turns, has_earlier = await newest_turns(stored, WINDOW, session.translator)
        return {
            self._widgets.chat.view: self.view(session, turns, stored.live)
            | {"complete": stored.is_complete, "earlier": has_earlier, "hidden": stored.hidden},
            self._widgets.composer.box: composer(busy=stored.live is not None),
        }

    def empty(self, session: PageSession) -> Updates:
        """Return the empty page. The session can say that its conversation is missing."""
        return {
            self._widgets.chat.view: self.view(session, [], None),
            self._widgets.composer.box: composer(busy=False),
        }

    def view(self, session: PageSession, turns: Sequence[Turn] | None, live: RunningAnswer | None) -> dict[str, Any]:
        """Return what live.js shows: the stored turns (None: those that it has) and the URL of a live answer.

        chats.js uses `conversation`, "" for a new one, the token of a guest, and the sentence `missing`. composer.js
        uses `complete`. `shown` sets this and `earlier`, which is True if there are turns before these. live.js uses
        `hidden`.
        """
        token = self._guest_token(session.owner) if session.guest else ""
        query = "format=blocks" + (f"&guest={token}" if token else "")
        return {
            "turns": turns,
            "live": f"runs/{live.run_id}/events?{query}" if live else "",
            "conversation": session.conversation or "",
            "guest": token,
            "complete": False,
            "earlier": False,
            "hidden": "",
            "missing": session.translator(session.missing) if session.missing is not None else "",
        }
