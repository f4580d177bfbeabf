"""Page sessions: the visitor of each page, by Gradio's session hash.

The isolation middleware ties the hash to the visitor. A `gr.State` does not work here: Gradio forgets states when many
pages were opened, and keeps a connection open for each page that has one. A browser allows six.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

import gradio as gr

from agent.history import new_id
from agent.i18n.translator import ENGLISH, Translator, translator_for
from agent.web.chat.expiry import GUEST_PREFIX
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.gradio_compat.application import login_token
from agent.web.middleware.isolation import visitor_id_of

MAX_SESSIONS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSession(Visitor):
    """The visitor of one page. A guest is known only by the page. `conversation` is that of a program at `/chat`.

    `translator` translates to the language that the request asks for.
    """

    conversation: str | None = None
    translator: Translator = ENGLISH


class PageSessions:
    """The sessions of one kind of page. Forgets those unused for longest; they begin a new conversation."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, PageSession] = OrderedDict()

    def get(self, request: gr.Request) -> PageSession:
        """Return the page session of a request if it is this visitor's, or a new one. Reads the cookie each time."""
        visitor = visitor_id_of(request.request.scope) if request.request else None
        session = self._sessions.get(request.session_hash or "")
        if session is None or not (session.owner == visitor or (visitor is None and session.guest)):
            owner = visitor or GUEST_PREFIX + new_id()
            session = self.save(request, PageSession(owner=owner, guest=visitor is None))
        if request.request is None:
            return session
        return replace(
            session,
            login=login_token(request.request),
            gpu_token=request.request.headers.get("x-ip-token"),
            address=client_address(request.request.scope),
            translator=translator_for(request.request.headers),
        )

    def save(self, request: gr.Request, session: PageSession) -> PageSession:
        """Store the session of the requesting page, without its login and address."""
        if request.session_hash:
            self._sessions[request.session_hash] = replace(session, login=None, gpu_token=None, address=None)
            self._sessions.move_to_end(request.session_hash)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session
