"""The events that show a conversation: the page's address, the list of chats, and the buttons for a new one."""

import html
from dataclasses import replace

import gradio as gr

from agent.errors import AgentError, Conflict, StoreUnavailable
from agent.i18n import LocalizedText, _
from agent.web.chat.conversations import Conversations
from agent.web.chat.stored_entries import TEMPORARY_GONE
from agent.web.chat.temporary_memory import PREFIX, is_temporary
from agent.web.ui.chat_widgets import ChatWidgets
from agent.web.ui.components import Told, Updates, no_updates
from agent.web.ui.layout import Widgets
from agent.web.ui.page_sessions import PageSession, PageSessions

NEW = "new"
"""Stands for a new conversation where a page that was loaded names the one that it shows."""
VIEWED = "viewed/"
"""Begins the name of the conversation that the browser showed last, if the page's address names none."""
MISSING = _("This chat does not exist here. It may have been deleted, or it belongs to another browser.")
OVER = _("The temporary chat is over, and nothing of it was kept.")


class ChatHandlers:
    """One method per event. `chat` returns the widgets of a conversation."""

    def __init__(
        self, conversations: Conversations, sessions: PageSessions, widgets: Widgets, chat: ChatWidgets
    ) -> None:
        self._conversations, self._sessions = conversations, sessions
        self._widgets, self._chat = widgets, chat

    async def select(self, session: PageSession, wanted: str | None, request: gr.Request) -> PageSession:
        """Select the conversation of a loaded page: the one in its address, a new one, or the current one."""
        if wanted == PREFIX:
            return await self._begin_temporary(session, request)
        if wanted == NEW:
            return self._sessions.save(request, replace(session, conversation=None, missing=None))
        chats, missing = self._conversations.list, None
        viewed = (wanted or VIEWED).startswith(VIEWED)
        try:
            if wanted and not viewed:
                found = wanted if await chats.has(session.owner, wanted) else None
                missing = None if found else _missing(wanted)
            else:
                found = await chats.current(session.owner, (wanted or "").removeprefix(VIEWED))
        except StoreUnavailable:  # every later call names the owner, too
            found = session.conversation if viewed else wanted
        return self._sessions.save(request, replace(session, conversation=found, missing=missing))

    async def show(self, request: gr.Request) -> Updates:
        """Return the conversation, and where the page reads the answer that is being written.

        Re-enables the composer only if no answer is being written.
        """
        session = self._sessions.get(request)
        if session.missing is not None:  # without the list, too
            return {self._widgets.chat.view: self._chat.view(session, None, None)}
        if session.conversation is None:  # nothing, rather than an empty list that would arrive after a first message
            return no_updates()
        try:
            stored = await self._conversations.views.view(session.owner, session.conversation)
        except StoreUnavailable:  # what the page shows stays
            return no_updates()
        if self._sessions.get(request).conversation != session.conversation:
            return no_updates()
        if stored.is_missing and is_temporary(session.conversation):
            over = self._sessions.save(request, replace(session, conversation=None, missing=OVER))
            return {self._widgets.chat.view: self._chat.view(over, None, None)}
        return await self._chat.shown(session, stored)

    async def opened(self, told: object, request: gr.Request) -> Updates:
        """Show another conversation of the visitor, a new temporary one, or an empty page for a new one."""
        wanted = Told.of(told).chat
        shown, view = await self._open(wanted, request), self._widgets.chat.view
        return shown | {view: shown[view] | {"asked": wanted or ""}}  # chats.js drops it if another one is asked for

    async def _open(self, wanted: str | None, request: gr.Request) -> Updates:
        session = self._sessions.get(request)
        if session.conversation != wanted:
            self._conversations.temporary.leave(session.owner, session.conversation)
        if not wanted:
            return self.new(request)
        if wanted == PREFIX:
            return self._chat.empty(await self._begin_temporary(session, request))
        # At once, so that a view of the other conversation that is still being read is not shown any more.
        session = self._sessions.save(request, replace(session, conversation=wanted, missing=None))
        stored = await self._conversations.views.view(session.owner, wanted)
        if stored.is_missing:
            gone = replace(session, conversation=None, missing=_missing(wanted))
            return self._chat.empty(self._sessions.save(request, gone))
        return await self._chat.shown(session, stored)

    def new(self, request: gr.Request) -> Updates:
        """Show an empty page. The conversation stays stored; for a running answer this is like closing the tab."""
        session = self._sessions.get(request)
        session = replace(session, conversation=None, missing=None)
        self._sessions.save(request, session)
        return self._chat.empty(session)

    def check_address(self, session: PageSession, address: str | None, request: gr.Request) -> None:
        """Raise `Conflict` if a message is meant for a temporary chat that is gone, or not for the one that is open.

        `address` is the conversation in the address of the page, None if the caller has no page. The server forgets
        page sessions when it restarts, and what a visitor believes to be temporary must not be stored then.
        """
        shown = session.conversation
        if address is None or address == (shown or "") or not (is_temporary(address) or is_temporary(shown)):
            return
        if address == PREFIX and is_temporary(shown):  # it has begun, and the page will know its id in a moment
            return
        if is_temporary(address):
            self._sessions.save(request, replace(session, conversation=None, missing=OVER))
        raise Conflict(TEMPORARY_GONE if is_temporary(address) else _("The chat is still being opened. Send it again."))

    async def _begin_temporary(self, session: PageSession, request: gr.Request) -> PageSession:
        """Select a new temporary chat, or the one that the page shows if that is still empty."""
        chats, shown = self._conversations.temporary, session.conversation
        if shown is not None and await chats.is_empty(session.owner, shown):
            chats.keep(session.owner, shown)
            return session
        found, missing = None, OVER
        try:
            found, missing = (await chats.begin(session.visitor)).id, None
        except AgentError as error:
            title = session.translator(_("No temporary chat"))
            gr.Warning(html.escape(session.translator(error.text)), title=title)
        return self._sessions.save(request, replace(session, conversation=found, missing=missing))


def _missing(conversation: str) -> LocalizedText:
    return OVER if is_temporary(conversation) else MISSING
