"""Middleware that delivers the page and its files: in the chosen language, changed by us, compressed and cached.

Gradio copies and writes out the whole layout for each visit, which takes more of the server than all else in a visit,
and sends it uncompressed. Compressed it is a sixth of that. Knows only HTTP; the caller provides the change.
"""

import asyncio
import gzip
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "switchboard_language"


class ChosenLanguage:
    """Gives a request the language in the cookie as its `Accept-Language`, if it is one of `languages`."""

    def __init__(self, app: ASGIApp, languages: Collection[str]) -> None:
        self._app, self._languages = app, languages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            chosen = HTTPConnection(scope).cookies.get(COOKIE, "")
            if chosen in self._languages:
                MutableHeaders(scope=scope)["accept-language"] = chosen
        await self._app(scope, receive, send)


Change = Callable[[Request, str], str]
SamePage = Callable[[Request], Hashable | None]
MOST_PAGES = 32
"""The most kept pages. There is one for each language and name of the host, and strangers can invent names."""
LONGEST_NAME = 300
"""Characters of a `Host` header. The page of a longer one is not kept."""


@dataclass(frozen=True, slots=True)
class _Page:
    """A page as it was sent, by its encoding. `headers` are those that Gradio gave it."""

    forms: dict[str, bytes]
    headers: dict[str, str]

    def answer(self, request: Request) -> Response:
        encoding = _encoding(request.headers.get("accept-encoding", ""))
        headers = self.headers | ({"content-encoding": encoding} if encoding else {})
        return Response(self.forms[encoding], headers=headers)


class PageRewriteMiddleware:
    """Passes the HTML page at `/` through `change`, and keeps it for requests with an equal `same_page`.

    Leaves everything else alone.
    """

    def __init__(self, app: ASGIApp, change: Change, same_page: SamePage) -> None:
        self._app, self._change, self._same_page = app, change, same_page
        self._pages = dict[Hashable, _Page]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        key = self._same_page(request) if len(request.headers.get("host", "")) <= LONGEST_NAME else None
        if (kept := self._pages.get(key) if key is not None else None) is not None:
            await kept.answer(request)(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def send_changed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if message.get("more_body") or start is None:
                return
            headers = Headers(raw=start["headers"])
            if not headers.get("content-type", "").startswith("text/html"):
                await send(start)
                await send({"type": "http.response.body", "body": bytes(body)})
                return
            page = _page(self._change(request, body.decode()), headers)
            if key is not None and start["status"] == 200 and "set-cookie" not in headers:
                self._keep(key, page)
            answer = page.answer(request)
            answer.status_code = start["status"]
            answer.raw_headers += [pair for pair in start["headers"] if pair[0].lower() == b"set-cookie"]
            await answer(scope, receive, send)

        await self._app(scope, receive, send_changed)

    def _keep(self, key: Hashable, page: _Page) -> None:
        self._pages[key] = page
        while len(self._pages) > MOST_PAGES:
            del self._pages[next(iter(self._pages))]


def _page(html: str, headers: Headers) -> _Page:
    plain = html.encode()
    kept = {name: value for name, value in headers.items() if name not in ("content-length", "set-cookie", "vary")}
    forms = {"": plain} | {name: compress(plain) for name, compress in ENCODINGS.items()}
    return _Page(forms, kept | {"vary": "accept-encoding, accept-language, cookie"})


HASHED = re.compile(r"/assets/([\w.-]{1,100}-[\w-]{8,40}(?:/\w{1,40}){0,3}\.(js|css))", re.ASCII)
TYPES = {"js": "text/javascript", "css": "text/css"}
CACHE_FOREVER = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
CACHE_BRIEFLY = CACHE_FOREVER | {"cache-control": "public, max-age=3600"}
"""For a file of ours under a name of Gradio's. The page loads it by another name, but Gradio preloads this one, too."""

READ_BY_ALL = {"access-control-allow-origin": "*"}
"""The frame of a diagram has no origin, and imports Mermaid. These files are the same for everybody."""

_brotli: Any = import_module("brotli")  # it has no types
ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "br": partial(_brotli.compress, quality=7),
    "gzip": partial(gzip.compress, mtime=0),
}
"""Compresses by the name of an encoding, the best one first. Brotli, which Gradio needs too, makes files a sixteenth
smaller than gzip in twice its time. Its best qualities take ten times as long, which anybody could ask for."""


class StaticFilesMiddleware:
    """Middleware behind the isolation middleware. Owns at most three cached contents per file.

    The files are those of `folder`, and `ours` by name. If both have a file, a request with a query gets that of the
    folder.
    """

    def __init__(self, app: ASGIApp, folder: Path, ours: Mapping[str, bytes]) -> None:
        self._app, self._folder, self._ours = app, folder, ours
        single = {name: one for name, one in ours.items() if "/" not in name}
        self._changing = {name for name, one in single.items() if sha256(one).hexdigest()[:16] not in name}
        self._cache: dict[tuple[str, bool, str], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests for existing files. Pass everything else on."""
        answer = await self._answer(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope) -> ASGIApp | None:
        match = HASHED.fullmatch(scope["path"])
        if not match:
            return None
        name, kind = match.groups()
        is_ours = name in self._ours and not scope["query_string"]
        encoding = _encoding(Headers(scope=scope).get("accept-encoding", ""))
        if (key := (name, is_ours, encoding)) not in self._cache:
            try:
                self._cache[key] = await asyncio.to_thread(self._content, name, is_ours, encoding)
            except OSError:
                return None
        caching = CACHE_BRIEFLY if is_ours and name in self._changing else CACHE_FOREVER
        headers = caching | READ_BY_ALL | ({"content-encoding": encoding} if encoding else {})
        return Response(self._cache[key], headers=headers, media_type=TYPES[kind])

    def _content(self, name: str, is_ours: bool, encoding: str) -> bytes:
        content = self._ours[name] if is_ours else (self._folder / name).read_bytes()
        return ENCODINGS[encoding](content) if encoding else content


def _encoding(accepted: str) -> str:
    """Return the best encoding that a client accepts, or "" for none. A weight of 0 is rare, and is not looked at."""
    names = {one.partition(";")[0].strip().lower() for one in accepted.split(",")}
    return next((name for name in ENCODINGS if name in names), "")
