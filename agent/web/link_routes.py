"""The routes of read-only links: those of the owner, and below `/s/` the page of a link and its files.

`docs/http.md` describes them. A reader needs the token of the link and nothing else. An unknown, expired or revoked
link has one and the same answer.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from html import escape
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError
from starlette.requests import ClientDisconnect

from agent.errors import AgentError, Busy, InputError, Limited, NotFound
from agent.files.store import MediaStore
from agent.history import Link
from agent.i18n.text import LocalizedText, _
from agent.i18n.translator import Translator, translator_for
from agent.rendering.html import REST_OF_LINK, html_mark
from agent.settings import Settings
from agent.system.request_queue import RequestQueue, acting_for
from agent.transfer.document import DOCUMENT_THREADS, LONGEST_TURN, beginning, blocks_of, named_as_stored, title_of
from agent.transfer.html import PAGE_END, STYLE, FileUrl, Frame, page_head, policy_of, to_html
from agent.transfer.shared import NOT_INCLUDED
from agent.web.chat.choices import MAX_PROMPT_CHARACTERS
from agent.web.chat.links import MAX_DAYS, ChatCopies, ChatLinks, LinkChoices, SharedChat
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.conversation_routes import add_routes, json_object
from agent.web.gradio_compat.application import root_url
from agent.web.heavy_work import (
    HeavyResponse,
    HeavyWork,
    RequestLimit,
    TooManyRequests,
    count_request,
    result_unless_gone,
)
from agent.web.media_route import file_response
from agent.web.middleware.isolation import visitor_id_of
from agent.web.sending import visitor_of

LINKS = "/conversations/{id_}/links"
SHARED = "/s/"
"""The beginning of the path of a link."""
MAX_BODY = 8 * MAX_PROMPT_CHARACTERS
"""Bytes of a body. A character can take six bytes as JSON."""
BODY = (
    'Send {"days": 30, "later_messages": false, "attachments": false, "system_prompt": ""}, or only some of these. '
    f'"days" is a number up to {MAX_DAYS}, or null for a link that does not expire.'
)


class _LinkBody(BaseModel):
    """The choices for a new link. Without `days`, the settings decide."""

    model_config = ConfigDict(extra="forbid")

    days: Annotated[StrictInt | StrictFloat, Field(gt=0, le=MAX_DAYS, allow_inf_nan=False)] | None = None
    later_messages: StrictBool = False
    attachments: StrictBool = False
    system_prompt: Annotated[StrictStr, Field(max_length=MAX_PROMPT_CHARACTERS)] = ""


class LinkRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page.

    `is_answering` returns True while an answer is written in this conversation of this owner.
    """

    def __init__(
        self,
        links: ChatLinks,
        owner_of: Callable[[Request], str],
        is_answering: Callable[[str, str], Awaitable[bool]],
        limit: RequestLimit | None = None,
    ) -> None:
        self._links, self._owner_of, self._is_answering, self._limit = links, owner_of, is_answering, limit

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        add_routes(app, self._owner_of, [(LINKS, "GET", self._list)])
        counted = [(LINKS, "POST", self._create), (LINKS + "/{digest}", "DELETE", self._revoke)]
        add_routes(app, self._owner_of, counted, self._limit)

    async def _list(self, request: Request, owner: str) -> Any:
        links = await self._links.list(owner, _conversation(request))
        return {"links": [_fields(link) for link in links], "default_days": self._links.default_days}

    async def _create(self, request: Request, owner: str) -> Any:
        body = _checked(await json_object(request, MAX_BODY))
        choices = LinkChoices(
            days=body.days if "days" in body.model_fields_set else self._links.default_days,
            later=body.later_messages,
            with_files=body.attachments,
            system_prompt=body.system_prompt,
        )
        # The link ends with the last stored message, and the store cannot say that the next one belongs to it.
        ends_early = not choices.later and await self._is_answering(_conversation(request), owner)
        token, link = await self._links.create(owner, _conversation(request), choices)
        return _fields(link) | {"path": SHARED + token, "ends_before_answer": ends_early}

    async def _revoke(self, request: Request, owner: str) -> Any:
        await self._links.revoke(owner, _conversation(request), str(request.path_params["digest"]))


def _conversation(request: Request) -> str:
    return str(request.path_params["id_"])


def _checked(given: dict[str, Any]) -> _LinkBody:
    try:
        return _LinkBody.model_validate(given)
    except ValidationError as error:
        raise InputError(BODY) from error


def _fields(link: Link) -> dict[str, Any]:
    return {
        "id": link.digest,
        "created_at": link.created_at.isoformat(),
        "expires_at": link.expires_at.isoformat() if link.expires_at else None,
        "later_messages": link.head_id is None,
        "attachments": link.with_files,
        "system_prompt": link.system_prompt is not None,
    }


LINK_STYLE = STYLE + Path(__file__).with_name("link_page.css").read_text(encoding="utf-8")
POLICY = policy_of(LINK_STYLE, "'self' data:", "frame-ancestors 'none'", form="'self'")
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",  # so that nothing of a revoked link stays in a browser
    "x-robots-tag": "noindex, nofollow",
}
DESCRIPTION_CHARACTERS = 200
PREVIEW = "/preview.png"
GONE_TITLE = _("This link does not work")
GONE = _("It does not exist, it has expired, or it was revoked. Ask for a new one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The names of the site that a page shows. `root` is its absolute URL without a trailing slash."""

    title: str
    root: str

    @property
    def path(self) -> str:
        """The path of `root`."""
        return urlsplit(self.root).path


async def to_link_page(
    chat: SharedChat,
    address: str,
    site: Site,
    file_url: FileUrl,
    translator: Translator,
    name_model: Callable[[str], str] = named_as_stored,
) -> AsyncGenerator[str]:
    """Yield the page of a link, piece by piece.

    `address` is its absolute URL. `name_model` returns the name of the model with an id.
    """
    title, description = await DOCUMENT_THREADS.run(_preview, chat, translator)
    subtitle = translator(_("Read-only link · {date}", date=translator.date(chat.began_at.date())))
    frame = Frame(
        head=_head(site, translator, {"title": title, "description": description, "url": address}),
        before=_bar(site, translator, f"{address}/continue"),
        after=_system_prompt(chat.link.system_prompt, translator),
        rest=REST_OF_LINK,
    )
    asked = translator(_("Author of this chat"))  # who is not its reader
    blocks = (
        replace(block, title=asked) if block.type == "user" else block
        for block in blocks_of(chat.entries(translator), translator, html_mark, name_model)
    )
    async with aclosing(to_html(title, subtitle, blocks, file_url, translator, frame)) as pieces:
        async for piece in pieces:
            yield piece


def message_page(title: LocalizedText | str, text: LocalizedText | str, site: Site, translator: Translator) -> str:
    """Return a page with one sentence instead of a conversation."""
    frame = Frame(head=_head(site, translator, {}), before=_bar(site, translator))
    return f"{page_head(translator(title), '', translator, frame)}<p>{escape(translator(text))}</p>\n{PAGE_END}"


def _head(site: Site, translator: Translator, preview: dict[str, str]) -> str:
    """Return the head: no index, and the tags of which messengers make a preview."""
    named = {
        "og:type": "article",
        "og:site_name": site.title,
        "og:image": site.root + PREVIEW,
        "og:image:type": "image/png",
        "og:image:width": "1200",
        "og:image:height": "630",
        **{f"og:{name}": value for name, value in preview.items()},
    }
    metas = [f'<meta property="{name}" content="{escape(value)}">' for name, value in named.items()] if preview else []
    if preview:
        metas.append(f'<meta name="description" content="{escape(preview["description"])}">')
        metas.append('<meta name="twitter:card" content="summary_large_image">')
    return "\n".join(
        (
            '<meta name="robots" content="noindex, nofollow">',
            '<meta name="referrer" content="same-origin">',  # without any, the origin of its form would be unknown
            *metas,
            f'<link rel="icon" href="{escape(site.path)}/mark.svg" type="image/svg+xml">',
            f"<style>{LINK_STYLE}</style>\n",
        )
    )


def _bar(site: Site, translator: Translator, action: str = "") -> str:
    home, name, label = f"{escape(site.path)}/", escape(site.title), escape(translator(_("Continue this chat")))
    target = escape(urlsplit(action).path)
    form = f'<form method="post" action="{target}"><button>{label}</button></form>' if action else ""
    mark = f'<img src="{escape(site.path)}/mark.svg" alt="" width="22" height="22">'
    return f'<nav><a href="{home}">{mark}{name}</a>{form}</nav>\n'


def _system_prompt(text: str | None, translator: Translator) -> str:
    if text is None:
        return ""
    label = escape(translator(_("System prompt")))
    return f"<details><summary>{label}</summary><pre>{escape(text)}</pre></details>\n"


def _preview(chat: SharedChat, translator: Translator) -> tuple[str, str]:
    """Return the title, and the beginning of what was said, or what the site is if nothing was written."""
    title, left_out = title_of(chat.title, chat.entries(translator), translator), translator(NOT_INCLUDED)
    words = ""
    for block in blocks_of(islice(chat.entries(translator), LONGEST_TURN), translator):
        if block.type == "text" and block.text != left_out:
            words += f" {block.text[: 20 * DESCRIPTION_CHARACTERS].strip()}"
        if len(words) > 20 * DESCRIPTION_CHARACTERS:
            break
    shown = beginning(words, DESCRIPTION_CHARACTERS)
    return title, shown or translator(_("Chat with the model of your choice, with pictures, sound and tools."))


PAGES = 32
"""Pages that are written at once. Each needs the memory of a conversation."""
PAGES_ALWAYS = 4
"""Pages that one network address can always read at once."""
OPENED = 4
"""Conversations that are read from the store at once, all but one of them for one network address. Others wait, and
the addresses take turns."""
PAGES_EACH = 8
"""Pages that one visitor with a cookie can read at once."""
COPIES = 8
"""Chats that are copied at once."""
COPIES_ALWAYS = 2
"""Chats that the readers at one network address can always copy at once."""
NOT_COPIED = _("The chat was not copied")
COPY_STATUS = {Busy: 409, Limited: 429, InputError: 403}


FILES_A_MINUTE, FILES_A_MINUTE_PER_ADDRESS = 600, 2400
"""Files of links a minute that one reader gets, and the readers at one network address. A page can show many."""


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
        is_public = settings.public is not None
        self._page_limit = RequestLimit.of_page(public=is_public)
        self._file_limit = RequestLimit(FILES_A_MINUTE, FILES_A_MINUTE_PER_ADDRESS) if is_public else None
        self._copy_limit = RequestLimit(each=10, per_address=40) if is_public else None
        self._pages = HeavyWork(PAGES, each=PAGES_EACH, always=PAGES_ALWAYS)
        self._copying = HeavyWork(COPIES, each=1, always=COPIES_ALWAYS)
        self._opening = RequestQueue(OPENED, slots_per_visitor=OPENED - 1)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        app.add_api_route(SHARED + "{token}", self.page, methods=["GET", "HEAD"])
        app.add_api_route(SHARED + "{token}/files/{id_}", self.file)
        app.add_api_route(SHARED + "{token}/continue", self.copy, methods=["POST"])

    async def page(self, request: Request) -> Response:
        """Answer with the page of a link."""
        token, site = str(request.path_params["token"]), self._site(request)
        translator = translator_for(request.headers)
        reader, address = visitor_id_of(request.scope) or "", client_address(request.scope)
        try:
            count_request(self._page_limit, request, reader)
            with self._pages.place(reader, address) as place:
                chat = await result_unless_gone(request, self._open(token, address or reader))
                url = f"{site.root}{SHARED}{token}"
                file_urls = self._file_urls(chat.link.owner, f"{site.path}{SHARED}{token}/files/")
                pieces = to_link_page(chat, url, site, file_urls, translator, self._name_model)
                return HeavyResponse(pieces, place, HEADERS, "text/html")
        except TooManyRequests as error:
            busy = _message(message_page(site.title, error.text, site, translator), 429)
            busy.headers["retry-after"] = str(error.seconds)
            return busy
        except ClientDisconnect:
            return Response(status_code=499)
        except NotFound:
            return _message(message_page(GONE_TITLE, GONE, site, translator), 404)

    async def file(self, request: Request) -> Response:
        """Answer with a file that the page of the link shows."""
        token, id_ = str(request.path_params["token"]), str(request.path_params["id_"])
        reader, address = visitor_id_of(request.scope) or "", client_address(request.scope)
        try:
            count_request(self._file_limit, request, reader)
            with acting_for(address or reader):
                owner = await result_unless_gone(request, self._links.owner_of_file(token, id_))
            file = await self._media.find(owner, id_)
        except TooManyRequests as error:
            later = {"retry-after": str(error.seconds)}
            return Response(translator_for(request.headers)(error.text), status_code=429, headers=later)
        except ClientDisconnect:
            return Response(status_code=499)
        except NotFound:
            return Response("Not found.", status_code=404)
        return file_response(file, request, {"cache-control": "no-store", "x-robots-tag": "noindex, nofollow"})

    async def copy(self, request: Request) -> Response:
        """Copy the chat into the conversations of the reader, and go there."""
        site, translator, owner = self._site(request), translator_for(request.headers), visitor_id_of(request.scope)
        visitor = visitor_of(request, owner or "")
        try:
            count_request(self._copy_limit, request, visitor.owner)
            with self._copying.place(visitor.owner, visitor.address):
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
            chat = await self._open(token, visitor.address or visitor.owner)
            return await self._copies.make(chat, visitor, translator)

    async def _open(self, token: str, payer: str) -> SharedChat:
        """Return the chat of a link. `payer` is whose turn it is to read one. Raises `NotFound`."""
        with acting_for(payer):
            async with self._opening.slot():
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
