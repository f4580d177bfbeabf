"""The routes below `/s/`: the page of a read-only link, and its files. `docs/http.md` describes them.

A reader needs the token of the link and nothing else. An unknown, expired or revoked link has one and the same answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.requests import ClientDisconnect

from agent.errors import AgentError, Busy, InputError, Limited, NotFound
from agent.i18n import _
from agent.i18n.translator import Translator, negotiate
from agent.media.store import MediaStore
from agent.settings import Settings
from agent.transfer.document import named_as_stored
from agent.transfer.html import FileUrl
from agent.web.chat.chat_copies import ChatCopies
from agent.web.chat.links import ChatLinks, SharedChat
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.gradio_compat.application import root_url
from agent.web.heavy_work import HeavyResponse, HeavyWork, RequestLimit, TooManyRequests, result_unless_gone
from agent.web.link_page import GONE, GONE_TITLE, HEADERS, Site, message_page, to_link_page
from agent.web.link_routes import SHARED
from agent.web.media_route import file_response
from agent.web.middleware.isolation import visitor_id_of

PAGES = 32
"""Pages that are written at once. Each needs the memory of a conversation."""
PAGES_ALWAYS = 4
"""Pages that one network address can always read at once."""
OPENED = 4
"""Conversations that are read from the store at once. Further requests wait."""
PAGES_EACH = 8
"""Pages that one visitor with a cookie can read at once."""
COPIES = 8
"""Chats that are copied at once."""
COPIES_ALWAYS = 2
"""Chats that the readers at one network address can always copy at once."""
NOT_COPIED = _("The chat was not copied")
COPY_STATUS = {Busy: 409, Limited: 429, InputError: 403}


class _Limits:
    """The limits a minute of a public page for reading links and for copying their chats."""

    def __init__(self) -> None:
        self.pages, self.copies = RequestLimit(), RequestLimit(each=10, per_address=40)


class LinkPageRoutes:
    """The routes. Owns the places of the pages that are being written, and of the copies that are being made.

    `name_model` returns the name of the model with an id.
    """

    def __init__(
        self,
        links: ChatLinks,
        copies: ChatCopies,
        media: MediaStore,
        settings: Settings,
        name_model: Callable[[str], str] = named_as_stored,
    ) -> None:
        self._links, self._copies, self._media, self._settings = links, copies, media, settings
        self._name_model = name_model
        self._limits = _Limits() if settings.public else None
        self._pages = HeavyWork(PAGES, each=PAGES_EACH, always=PAGES_ALWAYS)
        self._copying = HeavyWork(COPIES, each=1, always=COPIES_ALWAYS)
        self._opening = asyncio.Semaphore(OPENED)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        app.add_api_route(SHARED + "{token}", self.page, methods=["GET", "HEAD"])
        app.add_api_route(SHARED + "{token}/files/{id_}", self.file)
        app.add_api_route(SHARED + "{token}/continue", self.copy, methods=["POST"])

    async def page(self, request: Request) -> Response:
        """Answer with the page of a link."""
        token, site, translator = str(request.path_params["token"]), self._site(request), _translator(request)
        reader, address = visitor_id_of(request.scope) or "", client_address(request.scope)
        try:
            if self._limits is not None:
                self._limits.pages.count(reader, address)
            with self._pages.place(reader, address) as place:
                chat = await self._open(token)
                url = f"{site.root}{SHARED}{token}"
                file_urls = self._file_urls(chat.link.owner, f"{site.path}{SHARED}{token}/files/")
                pieces = to_link_page(chat, url, site, file_urls, translator, self._name_model)
                return HeavyResponse(pieces, place, HEADERS, "text/html")
        except TooManyRequests as error:
            busy = _message(message_page(site.title, error.text, site, translator), 429)
            busy.headers["retry-after"] = str(error.seconds)
            return busy
        except NotFound:
            return _message(message_page(GONE_TITLE, GONE, site, translator), 404)

    async def file(self, request: Request) -> Response:
        """Answer with a file that the page of the link shows."""
        id_ = str(request.path_params["id_"])
        try:
            owner = await self._links.owner_of_file(str(request.path_params["token"]), id_)
            file = await self._media.find(owner, id_)
        except NotFound:
            return Response("Not found.", status_code=404)
        return file_response(file, request, {"cache-control": "no-store", "x-robots-tag": "noindex, nofollow"})

    async def copy(self, request: Request) -> Response:
        """Copy the chat into the conversations of the reader, and go there."""
        site, translator, owner = self._site(request), _translator(request), visitor_id_of(request.scope)
        address = client_address(request.scope)
        visitor = Visitor(owner=owner or "", guest=owner is None, address=address)
        try:
            if self._limits is not None:
                self._limits.copies.count(visitor.owner, address)
            with self._copying.place(visitor.owner, address):
                token = str(request.path_params["token"])
                copy = await result_unless_gone(request, self._copy(token, visitor, translator))
        except ClientDisconnect:
            return Response(status_code=499)
        except NotFound:
            return _message(message_page(GONE_TITLE, GONE, site, translator), 404)
        except AgentError as error:
            status = next((status for kind, status in COPY_STATUS.items() if isinstance(error, kind)), 503)
            return _message(message_page(NOT_COPIED, error.text, site, translator), status)
        return RedirectResponse(f"{site.path}/c/{copy}", status_code=303, headers={"cache-control": "no-store"})

    async def _copy(self, token: str, visitor: Visitor, translator: Translator) -> str:
        """Copy the chat of a link. Only the visitor's own place is checked before the chat is read."""
        async with self._copies.place(visitor):
            return await self._copies.make(await self._open(token), visitor, translator)

    async def _open(self, token: str) -> SharedChat:
        async with self._opening:
            return await self._links.open(token)

    def _file_urls(self, owner: str, path: str) -> FileUrl:
        async def url(id_: str) -> AsyncIterator[str]:
            try:
                await self._media.find(owner, id_)
            except NotFound:  # deleted
                return
            yield path + id_

        return url

    def _site(self, request: Request) -> Site:
        return Site(title=self._settings.title, root=root_url(request, self._settings.root_path))


def _message(page: str, status: int) -> Response:
    return Response(page, status_code=status, headers=HEADERS, media_type="text/html")


def _translator(request: Request) -> Translator:
    return negotiate(request.headers.get("accept-language", ""))
