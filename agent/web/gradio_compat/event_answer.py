"""Answers a page's request for an event with the event's messages.

Gradio answers a request for an event with the event's id. The page then opens a stream, which brings the messages of
all its events until none is left. That is a second request for each message, and it costs the server about as much as
the first. The page can also miss what it waits for, if its stream ends at the moment at which it asks for an event, or
leads to another process of the server.

A request with the header `EVENT_STREAM` gets a stream of its own instead, which ends with its event, and no other
request is needed. `gradio.js` hands its messages on to Gradio's client. Programs send no such header and use
Gradio's routes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import gradio as gr
import orjson
from fastapi import Request
from gradio.data_classes import PredictBodyInternal
from gradio.server_messages import EventMessage, ProcessCompletedMessage, UnexpectedErrorMessage
from gradio.utils import get_heartbeat_rate
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from agent.web.gradio_compat.event_queue import BoundedQueue
from agent.web.gradio_compat.unread_messages import UnreadMessages

PATH = "/gradio_api/queue/join"
EVENT_STREAM = b"x-event-stream"
EVENT_ID = "x-event-id"
"""The header of the answer with the id of the event. The messages name it, too."""


def answer_events(page: gr.Blocks, queue: BoundedQueue) -> None:
    """Add the route to the mounted application of the page, before Gradio's own."""
    application = cast(Any, page).app
    queue.set_server_app(application)

    async def join(request: Request) -> Response:
        if queue.stopped:
            return JSONResponse({"detail": "The server is stopping."}, 503)
        body = PredictBodyInternal(**await request.json(), request=cast(Any, request))  # checked by the isolation
        messages = queue.begin_answer(request)
        is_accepted, said, state = await queue.push(body, request, None)
        if not is_accepted:
            return JSONResponse({"detail": said}, 503 if state == "queue_full" else 400)
        texts = _texts(queue, said, str(body.session_hash), messages)
        headers = {"cache-control": "no-store", EVENT_ID: said}
        return StreamingResponse(texts, headers=headers, media_type="text/event-stream")

    application.router.routes.insert(0, _EventRoute(PATH, join, methods=["POST"]))


class _EventRoute(Route):
    """A route for requests with the header. All others go on to Gradio's route."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        has_header = any(name == EVENT_STREAM for name, _ in scope.get("headers", ()))
        return super().matches(scope) if has_header else (Match.NONE, {})


async def _texts(queue: BoundedQueue, event_id: str, session: str, messages: UnreadMessages) -> AsyncIterator[bytes]:
    """Yield the messages of a session's event until its end, and a comment if there is none for a while.

    If the page is gone before the end, so is the event.
    """
    is_last = False
    try:
        while not is_last:
            new = list[EventMessage]()
            with suppress(TimeoutError):
                new.append(await asyncio.wait_for(messages.get(), get_heartbeat_rate()))
            while not messages.empty():
                new.append(messages.get_nowait())
            is_last = any(isinstance(one, ProcessCompletedMessage | UnexpectedErrorMessage) for one in new)
            is_last = is_last or not (new or queue.has_event(event_id))  # it was cancelled
            yield b"".join(map(_text, new)) or b": waiting\n\n"
    finally:
        queue.end_answer(event_id, session, is_complete=is_last)


def _text(message: EventMessage) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(message.model_dump(), default=str)
