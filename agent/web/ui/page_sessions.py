"""Who sits at which page: the conversation it shows, by Gradio's session hash, which the walls tie to the visitor.

Not a `gr.State`: Gradio forgets those when many pages were opened, and keeps a connection open for each page that has
one, of which a browser allows six.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import gradio as gr
from fastapi import HTTPException
from gradio.oauth import require_oauth_token

from agent.history import new_id
from agent.i18n.translator import ENGLISH, Translator, negotiate
from agent.web.chat.conversations import WINDOW
from agent.web.chat.expiry import GUEST
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.middleware.isolation import visitor_id_of

MAX_SESSIONS = 50_000
LONGEST_WINDOW = 100_000
"""Bubbles that a page can show at most."""


@dataclass(frozen=True)
class PageSession:
    """One page: who looks, which conversation it shows, how many bubbles of it. A guest is known by the page alone.

    `login` is the token of a visitor who has logged in to the hub. It comes with each request and is never kept, as is
    the network `address`.
    `words` are those of the language that the request asks for.
    """

    owner: str
    guest: bool
    conversation: str | None = None
    window: int = WINDOW
    login: str | None = field(default=None, repr=False)
    address: str | None = None
    words: Translator = ENGLISH

    @property
    def visitor(self) -> Visitor:
        """Who looks, for conversations and limits."""
        return Visitor(owner=self.owner, guest=self.guest, address=self.address, login=self.login)


class PageSessions:
    """The seats of one kind of page. Forgets those longest unused, whose next message begins a new conversation."""

    def __init__(self) -> None:
        self._seats: OrderedDict[str, PageSession] = OrderedDict()

    def get(self, request: gr.Request) -> PageSession:
        """The seat of the page that asks, if it is this visitor's; else a fresh one. The cookie is read each time."""
        visitor = visitor_id_of(request.request.scope) if request.request else None
        seat = self._seats.get(request.session_hash or "")
        if seat is None or not (seat.owner == visitor or (visitor is None and seat.guest)):
            seat = self.save(request, PageSession(owner=visitor or GUEST + new_id(), guest=visitor is None))
        accepted = str(request.headers.get("accept-language", "")) if request.request else ""
        address = client_address(request.request.scope) if request.request else None
        return replace(seat, login=_login(request), address=address, words=negotiate(accepted))

    def save(self, request: gr.Request, seat: PageSession) -> PageSession:
        """Remember the seat of the page that asks, without its login and address."""
        if request.session_hash:
            self._seats[request.session_hash] = replace(seat, login=None, address=None)
            self._seats.move_to_end(request.session_hash)
            while len(self._seats) > MAX_SESSIONS:
                self._seats.popitem(last=False)
        return seat


def _login(request: gr.Request) -> str | None:
    """The token in the session that comes with a request, as long as it is good."""
    try:
        return require_oauth_token(request.request) if request.request else None
    except HTTPException:
        return None
