"""Page sessions: the conversation that each page shows, by Gradio's session hash.

The isolation middleware ties the hash to the visitor. A `gr.State` does not work here: Gradio forgets states when many
pages were opened, and keeps a connection open for each page that has one. A browser allows six.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import gradio as gr

from agent.history import new_id
from agent.i18n import LocalizedText
from agent.i18n.translator import ENGLISH, Translator, negotiate
from agent.web.chat.expiry import GUEST_PREFIX
from agent.web.chat.temporary_memory import is_temporary
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.gradio_compat.login import login_token
from agent.web.middleware.isolation import visitor_id_of

MAX_SESSIONS = 50_000
MAX_KNOWN = 20
"""The most conversations of one page that are remembered."""


@dataclass(frozen=True, slots=True)
class PageSession:
    """One page: its visitor and its conversation. A guest is known only by the page.

    `missing` is the sentence for an address that names a conversation that the visitor does not have, else None.
    `login` is the token of a visitor who has logged in to Hugging Face. It comes with each request and is never stored,
    like the network `address` and the `gpu_token`, see `Visitor`. `translator` translates to the language that the
    request asks for. `known` are conversations that the page has had, or that its address has named, while this process
    served it.
    """

    owner: str
    guest: bool
    conversation: str | None = None
    missing: LocalizedText | None = None
    login: str | None = field(default=None, repr=False)
    gpu_token: str | None = field(default=None, repr=False)
    address: str | None = None
    translator: Translator = ENGLISH
    known: tuple[str, ...] = ()

    @property
    def visitor(self) -> Visitor:
        """The visitor, for conversations and limits."""
        return Visitor(
            owner=self.owner, guest=self.guest, address=self.address, login=self.login, gpu_token=self.gpu_token
        )


class PageSessions:
    """The sessions of one kind of page. Forgets those unused for longest; they begin a new conversation."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, PageSession] = OrderedDict()

    def get(self, request: gr.Request) -> PageSession:
        """Return the page session of a request if it is this visitor's, or a new one. Reads the cookie each time.

        A page that another process has served, or this one before a restart, goes on with the conversation of its
        address. Whoever reads that conversation checks its owner. A request that was sent before the page got another
        conversation names one that is known here, and changes nothing.
        """
        visitor = visitor_id_of(request.request.scope) if request.request else None
        session = self._sessions.get(request.session_hash or "")
        if session is None or not (session.owner == visitor or (visitor is None and session.guest)):
            owner = visitor or GUEST_PREFIX + new_id()
            begun = PageSession(owner=owner, guest=visitor is None, conversation=_chat_in_address(request))
            session = self.save(request, begun)
        elif (chat := _chat_in_address(request)) is not None and chat not in session.known:
            session = self.save(request, _at(chat, session))
        accepted = str(request.headers.get("accept-language", "")) if request.request else ""
        address = client_address(request.request.scope) if request.request else None
        return replace(
            session,
            login=login_token(request.request),
            gpu_token=request.request.headers.get("x-ip-token") if request.request else None,
            address=address,
            translator=negotiate(accepted),
        )

    def save(self, request: gr.Request, session: PageSession) -> PageSession:
        """Store the session of the requesting page, without its login and address."""
        if session.conversation and session.conversation not in session.known:
            session = replace(session, known=(*session.known, session.conversation)[-MAX_KNOWN:])
        if request.session_hash:
            self._sessions[request.session_hash] = replace(session, login=None, gpu_token=None, address=None)
            self._sessions.move_to_end(request.session_hash)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session


def _at(chat: str, session: PageSession) -> PageSession:
    """Return the session of a page whose address names a conversation for the first time here.

    The page has got it from another process, or it is about to open it. Not if its address leads nowhere, or if the
    page has a temporary conversation, which is in no other process and is left in order.
    """
    if session.missing is not None or is_temporary(session.conversation):
        return replace(session, known=(*session.known, chat)[-MAX_KNOWN:])
    return replace(session, conversation=chat)


def _chat_in_address(request: gr.Request) -> str | None:
    """Return the id of the conversation in the address of the page that sends a request, if there is one."""
    address = str(request.headers.get("referer", "")) if request.request else ""
    _, found, id_ = urlsplit(address).path.rpartition("/c/")
    return id_ if found and len(id_) == len(new_id()) and id_.isalnum() else None
