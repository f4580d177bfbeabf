"""Middleware that delivers the page and its files: in the chosen language, changed by us, compressed and cached.

Gradio copies and writes out the whole layout for each visit, which takes more of the server than all else in a visit,
and sends it uncompressed. Compressed it is a sixth of that. Knows only HTTP; the caller provides the change.
"""

import asyncio
import gzip
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.system.threads import PAGES
from agent.web.heavy_work import RequestLimit
from agent.web.middleware.requests import READ, cookies_of, payer_of

COOKIE = "switchboard_language"


class ChosenLanguage:
    """Gives a request the language in the cookie as its `Accept-Language`, if it is one of `languages`."""

    def __init__(self, app: ASGIApp, languages: Collection[str]) -> None:
        self._app, self._languages = app, languages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            chosen = cookies_of(scope, COOKIE) & {*self._languages}
            if len(chosen) == 1:
                MutableHeaders(scope=scope)["accept-language"] = chosen.pop()
        await self._app(scope, receive, send)


Change = Callable[[Request, str], str]
SamePage = Callable[[Request], Hashable | None]
MOST_PAGES = 32
"""The most kept pages. There is one for each language and name of the host, and strangers can invent names."""
KINDS = {"/": "text/html", "/config": "application/json", "/config/": "application/json"}
"""The paths of the page and of its configuration, and the types of their answers."""


@dataclass(frozen=True, slots=True)
class _Page:
    """An answer of Gradio's, and its forms by their encoding. `headers` are Gradio's own."""

    status: int
    headers: dict[str, str]
    cookies: list[tuple[bytes, bytes]]
    forms: dict[str, bytes]

    def answer(self, encoding: str) -> Response:
        headers = self.headers | ({"content-encoding": encoding} if encoding else {})
        answer = Response(self.forms[encoding], self.status, headers)
        answer.raw_headers += self.cookies
        return answer


class PageRewriteMiddleware:
    """Passes the HTML page at `/` through `change`, and keeps it for requests with an equal `same_page`.

    Its configuration, which programs read, is kept in the same way. Gradio makes one page at a time, and each that is
    to be kept counts in `limit`. Everything else is left alone.
    """

    def __init__(self, app: ASGIApp, change: Change, same_page: SamePage, limit: RequestLimit | None = None) -> None:
        self._app, self._change, self._same_page, self._limit = app, change, same_page, limit
        self._pages, self._making = OrderedDict[Hashable, _Page](), asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http" or scope["path"] not in KINDS or scope["method"] not in READ:
            await self._app(scope, receive, send)
            return
        request = Request({**scope, "method": "GET"})
        same, encoding = self._same_page(request), _encoding(request.headers.get("accept-encoding", ""))
        key = None if same is None else (scope["path"], same)
        page = self._kept(key)
        if page is None and key is not None and self._limit is not None:
            self._limit.count(*payer_of(scope, scope.get("state", {}).get("visitor")))
        if page is None or encoding not in page.forms:
            async with self._making:
                page = self._kept(key) or await self._made(request, receive, key)
                if encoding not in page.forms:
                    page.forms[encoding] = await PAGES.run(ENCODINGS[encoding], page.forms[""])
        await page.answer(encoding)(scope, receive, send)

    def _kept(self, key: Hashable | None) -> _Page | None:
        if key not in self._pages:
            return None
        self._pages.move_to_end(key)
        return self._pages[key]

    async def _made(self, request: Request, receive: Receive, key: Hashable | None) -> _Page:
        """Return Gradio's answer to the request. Keep it under its key if it is the same for others."""
        starts, raw, body = list[int](), list[tuple[bytes, bytes]](), bytearray()

        async def take(message: Message) -> None:
            if message["type"] == "http.response.start":
                starts.append(message["status"])
                raw.extend(message["headers"])
            body.extend(message.get("body", b""))

        await self._app(request.scope, receive, take)
        [status] = starts
        headers, html = Headers(raw=raw), bytes(body)
        kind = headers.get("content-type", "")
        if kind.startswith("text/html"):
            html = (await PAGES.run(self._change, request, html.decode())).encode()
        others = {
            name: value for name, value in headers.items() if name not in ("content-length", "set-cookie", "vary")
        }
        page = _Page(
            status,
            others | {"vary": "accept-encoding, accept-language, cookie"},
            [pair for pair in raw if pair[0].lower() == b"set-cookie"],
            {"": html},
        )
        if key is not None and status == 200 and not page.cookies and kind.startswith(KINDS[request.url.path]):
            self._pages[key] = page
            while len(self._pages) > MOST_PAGES:
                self._pages.popitem(last=False)
        return page


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
        self._cache: dict[tuple[str, bool, str], asyncio.Future[bytes]] = {}

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
        key = (name, is_ours, encoding)
        if key not in self._cache:  # many that ask for a new one at once wait for the same work
            self._cache[key] = asyncio.ensure_future(PAGES.run(self._content, name, is_ours, encoding))
        work = self._cache[key]
        try:
            content = await asyncio.shield(work)
        except Exception as error:
            if self._cache.get(key) is work:  # the next one tries again
                del self._cache[key]
            if isinstance(error, OSError):
                return None
            raise
        caching = CACHE_BRIEFLY if is_ours and name in self._changing else CACHE_FOREVER
        headers = caching | READ_BY_ALL | ({"content-encoding": encoding} if encoding else {})
        return Response(content, headers=headers, media_type=TYPES[kind])

    def _content(self, name: str, is_ours: bool, encoding: str) -> bytes:
        content = self._ours[name] if is_ours else (self._folder / name).read_bytes()
        return ENCODINGS[encoding](content) if encoding else content


def _encoding(accepted: str) -> str:
    """Return the best encoding that a client accepts, or "" for none. A weight of 0 is rare, and is not looked at."""
    names = {one.partition(";")[0].strip().lower() for one in accepted.split(",")}
    return next((name for name in ENCODINGS if name in names), "")
