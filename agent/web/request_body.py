"""Checks on the body of a request: one unambiguous length, and a time limit."""

import asyncio
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 30.0
"""The most seconds between two pieces of a body, and the seconds that every body has in total."""
BODY_BYTES_PER_SECOND = 2_000
"""The lowest average rate of a body that takes longer than `BODY_SECONDS`."""


class BodyLength:
    """Middleware that answers 400 to a request with two lengths, and closes the connection.

    With both `Content-Length` and `Transfer-Encoding`, or with the latter in HTTP/1.0, a proxy can read another length
    than this server. The rest of the body would then count as a request of another visitor (request smuggling).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        names = {name for name, _ in scope.get("headers", ())}
        if b"transfer-encoding" in names and (b"content-length" in names or scope.get("http_version") == "1.0"):
            await _close(send, 400)
        else:
            await self._app(scope, receive, send)


class BodyTimeout:
    """Middleware that answers 408 to a request with a body that pauses or trickles."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a time limit for its body. The application sees a lost connection if time is up."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        body, has_begun = _TimedBody(receive), False

        async def send_unless_late(message: Message) -> None:
            nonlocal has_begun
            if has_begun or not body.is_late:
                has_begun = True
                await send(message)

        try:
            await self._app(scope, body.receive, send_unless_late)
        except Exception:
            if has_begun or not body.is_late:
                raise
        if body.is_late and not has_begun:
            await _close(send, 408)


class _TimedBody:
    """A body that is received with a time limit. Only the time that the server waits for more of it counts."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._waited, self._size, self._is_complete = 0.0, 0, False
        self.is_late = False

    async def receive(self) -> Message:
        """Return the next message, or a disconnect if it comes too late."""
        if self._is_complete:
            return await self._receive()
        time_left, began = BODY_SECONDS + self._size / BODY_BYTES_PER_SECOND - self._waited, monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, min(BODY_SECONDS, time_left)))
        except TimeoutError:
            self.is_late = self._is_complete = True
            return {"type": "http.disconnect"}
        self._waited += monotonic() - began
        self._size += len(message.get("body", b""))
        self._is_complete = not message.get("more_body")
        return message


async def _close(send: Send, status: int) -> None:
    """Answer with this status and close the connection."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
