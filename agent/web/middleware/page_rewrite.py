"""Middleware that changes the page before it is sent, and keeps it. Knows only HTTP; the caller provides the change.

Gradio copies and writes out the whole layout for each visit, which takes more of the server than all else in a visit,
and sends it uncompressed. Compressed it is a sixth of that.
"""

import gzip
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Change = Callable[[Request, str], str]
SamePage = Callable[[Request], Hashable | None]
MOST_PAGES = 32
"""The most kept pages. There is one for each language and name of the host, and strangers can invent names."""
LONGEST_NAME = 300
"""Characters of a `Host` header. The page of a longer one is not kept."""


@dataclass(frozen=True, slots=True)
class _Page:
    """A page as it was sent, in both forms. `headers` are those that Gradio gave it."""

    plain: bytes
    compressed: bytes
    headers: dict[str, str]

    def answer(self, request: Request) -> Response:
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        headers = self.headers | ({"content-encoding": "gzip"} if compressed else {})
        return Response(self.compressed if compressed else self.plain, headers=headers)


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
    return _Page(plain, gzip.compress(plain, 6, mtime=0), kept | {"vary": "accept-encoding, accept-language, cookie"})
