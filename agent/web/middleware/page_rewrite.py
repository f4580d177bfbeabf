"""Middleware that changes the page before it is sent. Knows only HTTP; the caller provides the change."""

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Change = Callable[[Request, str], str]


class PageRewriteMiddleware:
    """Passes the HTML page at `/` through `change`. Leaves everything else alone."""

    def __init__(self, app: ASGIApp, change: Change) -> None:
        self._app, self._change = app, change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
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
            headers = MutableHeaders(raw=start["headers"])
            content = bytes(body)
            if headers.get("content-type", "").startswith("text/html"):
                content = self._change(Request(scope), content.decode()).encode()
                headers["content-length"] = str(len(content))
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, send_changed)
