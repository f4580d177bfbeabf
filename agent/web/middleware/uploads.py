"""Answers upload requests instead of Gradio, which would write all data before it counts any.

Bytes are counted while they stream in, against the limits of the request and the visitor's quota. If a request is
refused or broken off, what it wrote is removed. Knows HTTP; the answer has the format that Gradio's page expects.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.errors import AgentError, InputError, Limited, StoreUnavailable, files_unusable
from agent.i18n import _
from agent.system.threads import UPLOADS
from agent.web.heavy_work import RequestLimit
from agent.web.middleware.isolation import API, visitor_id_of
from agent.web.middleware.requests import declared_bytes, payer_of
from agent.web.middleware.upload_form import NOT_UNDERSTOOD, UploadForm
from agent.web.middleware.upload_progress import UploadProgress
from agent.web.unsent_files import MB, UnsentFiles, delete

FORM_OVERHEAD_BYTES = 64 * 1024
"""Bytes of a form besides its files: boundaries, names, headers."""
LINGER_SECONDS = 20.0
"""Seconds for which the rest of a refused body is read and dropped. Browsers send it all before they read an answer."""

TranslateError = Callable[[str, AgentError], str]
"""Returns the message of an error in the language of an Accept-Language header."""


class UploadMiddleware:
    """Middleware behind the isolation middleware. `most_bytes` is the largest file. Also reports upload progress.

    `limit` counts uploads before they are read (None: not counted).
    """

    def __init__(
        self,
        app: ASGIApp,
        uploads: UnsentFiles,
        *,
        most_bytes: int,
        translate_error: TranslateError,
        limit: RequestLimit | None = None,
    ) -> None:
        self._limit = limit
        self._app, self._uploads, self._most_bytes = app, uploads, most_bytes
        self._translate_error, self._progress = translate_error, UploadProgress()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an upload. Pass everything else on, with the table of uploads in the request's state."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["uploads"] = self._uploads
            if scope["method"] == "POST" and scope["path"] == f"{API}upload":
                await self._answer(scope, receive, send)
                return
            if scope["path"] == f"{API}upload_progress":
                await self._progress.answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        upload_id, has_ended = QueryParams(scope["query_string"]).get("upload_id", ""), False

        async def receive_body() -> Message:
            nonlocal has_ended
            message = await receive()
            has_ended = not message.get("more_body")
            return message

        try:
            if self._limit is not None:
                self._limit.count(*payer_of(scope, visitor_id_of(scope)))
            paths = await self._receive_files(headers, receive_body, visitor_id_of(scope), upload_id)
        except _Disconnected:
            return
        except (AgentError, OSError) as failure:
            error = files_unusable(failure) if isinstance(failure, OSError) else failure
            sentence = self._translate_error(headers.get("accept-language", ""), error)
            if isinstance(error, Limited | StoreUnavailable):  # Gradio's page shows the text of this answer unchanged
                await _respond(send, 413, "text/plain; charset=utf-8", sentence.encode(), more=True)
            else:
                await _respond(send, 400, "application/json", json.dumps({"detail": sentence}).encode(), more=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    # After the end of the body, receiving waits for a disconnect, and the next request behind it.
                    while not has_ended:
                        await receive_body()
            await send({"type": "http.response.body", "body": b""})
            return
        await _respond(send, 200, "application/json", json.dumps([str(path) for path in paths]).encode())

    async def _receive_files(
        self, headers: Headers, receive: Receive, visitor: str | None, upload_id: str
    ) -> list[Path]:
        """Write the files of a request and return their paths. Raises `Limited`, `InputError` and `_Disconnected`."""
        kind, options = parse_options_header(headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InputError(NOT_UNDERSTOOD)
        request = _Request(self._uploads, visitor)
        request.check(declared_bytes(headers))
        form = UploadForm(
            options[b"boundary"],
            self._uploads.folder,
            most_files=self._uploads.limits.files_per_request,
            most_bytes=self._most_bytes,
        )
        progress = self._progress.begin(upload_id)
        with self._uploads.using(form.sizes.keys()):
            try:
                async for piece in _body(receive):
                    await request.count(len(piece))
                    await UPLOADS.run(form.write, piece)
                    if form.name:
                        progress.add(form.name, len(piece))
                sizes = form.finish()
                evicted = self._uploads.count(visitor, 0, len(sizes))
            except BaseException:
                form.discard()
                raise
            finally:
                request.uncount()
                self._progress.end(upload_id, progress)
            for path, size in sizes.items():
                self._uploads.record(path, visitor, size)
            if evicted:
                await UPLOADS.run(delete, evicted)
        return list(sizes)


class _Disconnected(Exception):
    """The client disconnected in the middle of its request."""


class _Request:
    """The bytes of one request so far. They count for the visitor until its files are counted."""

    def __init__(self, uploads: UnsentFiles, visitor: str | None) -> None:
        self._uploads, self._visitor, self._counted = uploads, visitor, 0
        self._most = uploads.limits.mb_per_request

    def check(self, declared: int) -> None:
        """Refuse a body by its declared length, before it is read. Raises `Limited`."""
        self._check_size(declared)
        self._uploads.check(self._visitor, declared, 1)

    async def count(self, size: int) -> None:
        """Count the next bytes, and delete the files that make room for them. Raises `Limited`."""
        self._check_size(self._counted + size)
        evicted = self._uploads.count(self._visitor, size)
        self._counted += size
        if evicted:
            await UPLOADS.run(delete, evicted)

    def uncount(self) -> None:
        """Uncount the bytes when the request is over."""
        self._uploads.uncount(self._visitor, self._counted)
        self._counted = 0

    def _check_size(self, size: int) -> None:
        if size > self._most * MB + FORM_OVERHEAD_BYTES:
            raise Limited(_("At most {most:g} MB can be attached at once.", most=self._most))


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def _respond(send: Send, status: int, kind: str, body: bytes, *, more: bool = False) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})
