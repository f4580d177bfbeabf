"""The events of the buttons under an answer that show another version of its message, or copy the branch."""

from dataclasses import replace

import gradio as gr

from agent.web.chat.branches import Branches
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.views import WINDOW
from agent.web.ui.page_sessions import PageSessions
from agent.web.ui.submit import toast_errors


class BranchHandlers:
    """One method per event. The page names the message by its id."""

    def __init__(self, branches: Branches, sessions: PageSessions, temporary: TemporaryChats) -> None:
        self._branches, self._sessions, self._temporary = branches, sessions, temporary

    async def version(self, addressed: str, request: gr.Request) -> None:
        """Show this version of a message, and what followed it."""
        session = self._sessions.get(request)
        await toast_errors(self._branches.choose(session.owner, session.conversation, addressed), session.translator)

    async def copy(self, addressed: str, request: gr.Request) -> None:
        """Copy the chat up to the answer to this message into a new one, and show that."""
        session = self._sessions.get(request)
        copied = await toast_errors(
            self._branches.copy(session.visitor, session.conversation, addressed), session.translator
        )
        self._temporary.leave(session.owner, session.conversation)
        self._sessions.save(request, replace(session, conversation=copied, window=WINDOW))
