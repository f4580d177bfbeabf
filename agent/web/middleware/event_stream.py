"""Prevents lost events while Gradio's event stream closes.

Gradio ends a page's stream when no event of the page is pending, and tells the page so. A message sent at that moment
is queued, but the page still believes that its stream is open. It opens no new stream, then closes the old one, and
waits for ever. So the answer to a join request waits until the page has read that its stream is closed. Knows HTTP and
one message of Gradio.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.web.middleware.isolation import API, session_hash_of
from agent.web.middleware.requests import refuse

CLOSING = b'"msg":"close_stream"'
SETTLE_SECONDS = 0.15
"""Seconds until a page is assumed to have read that its stream closes. Only a join within this time waits."""


class EventStreamMiddleware:
    """Middleware behind the isolation middleware. Owns the times at which streams were closed, as long as they matter.

    `has_session` returns True if the queue keeps messages for a session. For any other session Gradio would start an
    answer and then fail with a traceback in the log.
    """

    def __init__(self, app: ASGIApp, has_session: Callable[[str], bool] = lambda _: True) -> None:
        self._app, self._has_session = app, has_session
        self._closed: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, note when a stream closes, and delay the answers to joins that would overtake it."""
        session = session_hash_of(scope)
        if session is not None and scope["path"] == f"{API}queue/data":
            if not self._has_session(session):
                await refuse(send, 404)
                return
            send = self._note_closing(session, send)
        elif session is not None and scope["path"] == f"{API}queue/join":
            send = self._delay_after_closing(session, send)
        await self._app(scope, receive, send)

    def _note_closing(self, session: str, send: Send) -> Send:
        async def send_and_note(message: Message) -> None:
            if CLOSING in message.get("body", b""):
                now = self._closed[session] = monotonic()
                self._closed.move_to_end(session)
                while now - next(iter(self._closed.values())) > SETTLE_SECONDS:
                    self._closed.popitem(last=False)
            await send(message)

        return send_and_note

    def _delay_after_closing(self, session: str, send: Send) -> Send:
        async def delayed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                left = self._closed.get(session, -SETTLE_SECONDS) + SETTLE_SECONDS - monotonic()
                if left > 0:
                    await asyncio.sleep(left)
            await send(message)

        return delayed_send
