"""Prevents lost events while Gradio's event stream closes, and ends streams that bring nothing.

Only programs read that stream: an event of the page is answered at once, without the queue.
Gradio ends a stream when no event of its session is pending, and tells the program so. A message sent at that moment is
queued, but the program still believes that its stream is open. It opens no new stream, then closes the old one, and
waits for ever. So the answer to a join request waits until the program has read that its stream is closed.

Gradio ends a stream only after the end of an event. A program that opens one at a process that has none of its events,
for example because a proxy has just moved it from another process, would keep it for ever. It would open none at the
process that gets its next event, and not see what that event brings. So a stream ends after a second without an event.
Knows HTTP and one message of Gradio.
"""

import asyncio
from collections import OrderedDict
from time import monotonic
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.web.middleware.isolation import API, session_hash_of
from agent.web.middleware.requests import refuse

CLOSING = b'"msg":"close_stream"'
SETTLE_SECONDS = 0.15
"""Seconds until a program is assumed to have read that its stream closes. Only a join within this time waits."""
IDLE_SECONDS = 1.0
"""Seconds without an event after which a stream ends."""


class PageEvents(Protocol):
    """The events of the pages, by page session. See `BoundedQueue`."""

    def has_session(self, session: str) -> bool:
        """Return True if messages of this page session are kept."""
        ...

    def is_idle(self, session: str) -> bool:
        """Return True if no event of this page session waits or runs, and the page has read all messages."""
        ...

    def end_stream(self, session: str) -> None:
        """Let the stream of an idle session end."""
        ...


class EventStreamMiddleware:
    """Middleware behind the isolation middleware. Owns the times at which streams were closed, as long as they matter.

    The stream of a session that the queue does not know is refused: Gradio would start an answer and then fail with a
    traceback in the log.
    """

    def __init__(self, app: ASGIApp, events: PageEvents) -> None:
        self._app, self._events = app, events
        self._closed: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, note when a stream closes, and delay the answers to joins that would overtake it."""
        session = session_hash_of(scope)
        is_join = scope.get("path") == f"{API}queue/join"  # the start of the app has no path
        if session is not None and not is_join and scope.get("method") != "POST":  # the stream of an event
            if not self._events.has_session(session):
                await refuse(send, 404)
                return
            send = self._note_closing(session, send)
            watch = asyncio.create_task(self._end_when_idle(session))
            try:
                await self._app(scope, receive, send)
            finally:
                watch.cancel()
            return
        if session is not None and is_join:
            send = self._delay_after_closing(session, send)
        await self._app(scope, receive, send)

    async def _end_when_idle(self, session: str) -> None:
        """End the stream of a session that is idle at two looks, half a second apart."""
        was_idle = False
        while True:
            await asyncio.sleep(IDLE_SECONDS / 2)
            is_idle = self._events.is_idle(session)
            if is_idle and was_idle:
                self._events.end_stream(session)
            was_idle = is_idle

    def _note_closing(self, session: str, send: Send) -> Send:
        async def send_and_note(message: Message) -> None:
            if CLOSING in message.get("body", b""):
                now = monotonic()
                self._closed[session] = now
                self._closed.move_to_end(session)
                while now - next(iter(self._closed.values())) > SETTLE_SECONDS:
                    self._closed.popitem(last=False)
            await send(message)

        return send_and_note

    def _delay_after_closing(self, session: str, send: Send) -> Send:
        async def delayed_send(message: Message) -> None:
            if message["type"] == "http.response.start" and (closed := self._closed.get(session)):
                await asyncio.sleep(max(0.0, closed + SETTLE_SECONDS - monotonic()))
            await send(message)

        return delayed_send
