"""Answers upload requests instead of Gradio, which would write all data before it counts any.

Bytes are counted while they stream in, against the limits of the request and the visitor's quota. If a request is
refused or broken off, what it wrote is removed. Knows HTTP; the answer has the format that Gradio's page expects.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.errors import AgentError, InputError, Limited, StoreUnavailable, files_unusable
from agent.history import new_id
from agent.i18n.text import _
from agent.system.threads import UPLOADS
from agent.web.heavy_work import RequestLimit
from agent.web.middleware.isolation import API, visitor_id_of
from agent.web.middleware.requests import declared_bytes, payer_of
from agent.web.unsent_files import MB, UnsentFiles, delete, given_name, stored_name

FIELD = "files"
"""The form field that holds files. Other fields are read and dropped."""
MAX_OTHER_PARTS = 16
"""The most parts of a form besides its files."""
MAX_HEADER = 16 * 1024
"""The most bytes of the headers of one part."""
NOT_UNDERSTOOD = _("The upload was not understood.")


class UploadForm:
    """The parser of one request. Owns the files that it writes until `finish`; `discard` removes them.

    Each file gets its own folder under `folder`, so its path cannot be guessed. `name` is the name of the newest file.
    Raises `Limited` for too many files or a file that is too large, and `InputError` for an invalid form. `write` and
    `discard` can be called from different threads.
    """

    def __init__(self, boundary: bytes, folder: Path, *, most_files: int, most_bytes: int) -> None:
        self.sizes: dict[Path, int] = {}
        self.name = ""
        self._folder, self._most_files, self._most_bytes = folder, most_files, most_bytes
        self._lock, self._discarded = Lock(), False
        self._file: BinaryIO | None = None
        self._path = folder
        self._header, self._value, self._disposition = bytearray(), bytearray(), b""
        self._ended, self._parts, self._header_bytes = False, 0, 0
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": lambda data, start, end: self._extend(self._header, data[start:end]),
                    "on_header_value": lambda data, start, end: self._extend(self._value, data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._open_file,
                    "on_part_data": self._write_piece,
                    "on_part_end": self._close_file,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InputError(NOT_UNDERSTOOD) from error

    def write(self, data: bytes) -> None:
        """Parse the next bytes of the form. Blocks while the disk works."""
        with self._lock:
            if self._discarded:
                return
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise InputError(NOT_UNDERSTOOD) from error

    def finish(self) -> dict[Path, int]:
        """Return the size of each file by path. Raises `InputError` if the form is cut off or has no file."""
        if not self._ended or not self.sizes:
            raise InputError(NOT_UNDERSTOOD)
        return self.sizes

    def discard(self) -> None:
        """Remove what was written, and write nothing more."""
        with self._lock:
            self._discarded = True
            with suppress(OSError):  # closing writes what a full disk has refused
                self._close_file()
            for path in self.sizes:
                path.unlink(missing_ok=True)
                path.parent.rmdir()
            self.sizes.clear()

    def _begin_part(self) -> None:
        self._parts, self._header_bytes = self._parts + 1, 0
        if self._parts > len(self.sizes) + MAX_OTHER_PARTS:
            raise InputError(NOT_UNDERSTOOD)
        self._disposition = b""
        self._header.clear()
        self._value.clear()

    def _extend(self, text: bytearray, piece: bytes) -> None:
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER:
            raise InputError(NOT_UNDERSTOOD)
        text += piece

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _open_file(self) -> None:
        _type, options = parse_options_header(self._disposition)
        if options.get(b"name", b"").decode("latin-1") != FIELD or b"filename" not in options:
            return
        if len(self.sizes) >= self._most_files:
            raise Limited(_("At most {most} files can be attached at once.", most=self._most_files))
        folder = self._folder / new_id()
        folder.mkdir(parents=True, mode=0o700)
        self._path = folder / stored_name(options[b"filename"].decode(errors="replace"))
        self.name = given_name(self._path)
        self.sizes[self._path] = 0
        self._file = self._path.open("xb")

    def _write_piece(self, data: bytes, start: int, end: int) -> None:
        if self._file is None:
            return
        piece = data[start:end]
        self.sizes[self._path] += len(piece)
        if self.sizes[self._path] > self._most_bytes:
            most = self._most_bytes / 1e6
            raise Limited(_("{name} is larger than {most:.0f} MB, which is the most.", name=self.name, most=most))
        self._file.write(piece)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _end(self) -> None:
        self._ended = True


FORM_OVERHEAD_BYTES = 64 * 1024
"""Bytes of a form besides its files: boundaries, names, headers."""
LINGER_SECONDS = 20.0
"""Seconds for which the rest of a refused body is read and dropped. Browsers send it all before they read an answer."""

TranslateError = Callable[[str, AgentError], str]
"""Returns the message of an error in the language of an Accept-Language header."""


class UploadMiddleware:
    """Middleware behind the isolation middleware. `most_bytes` is the largest file.

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
        self._translate_error = translate_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an upload. Pass everything else on, with the table of uploads in the request's state."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["uploads"] = self._uploads
            if scope["method"] == "POST" and scope["path"] == f"{API}upload":
                await self._answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        has_ended = False

        async def receive_body() -> Message:
            nonlocal has_ended
            message = await receive()
            has_ended = not message.get("more_body")
            return message

        try:
            if self._limit is not None:
                self._limit.count(*payer_of(scope, visitor_id_of(scope)))
            files = await self._receive_files(headers, receive_body, visitor_id_of(scope))
            paths = [str(path) for path in files]
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
        for path in paths:
            scope["state"]["isolation"].uploads.add(path, visitor_id_of(scope))
        await _respond(send, 200, "application/json", json.dumps(paths).encode())

    async def _receive_files(self, headers: Headers, receive: Receive, visitor: str | None) -> list[Path]:
        """Write the files of a request and return their paths. Raises `Limited`, `InputError` and `_Disconnected`."""
        kind, options = parse_options_header(headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InputError(NOT_UNDERSTOOD)
        request = _UploadRequest(self._uploads, visitor)
        request.check(declared_bytes(headers))
        form = UploadForm(
            options[b"boundary"],
            self._uploads.folder,
            most_files=self._uploads.limits.files_per_request,
            most_bytes=self._most_bytes,
        )
        with self._uploads.using(form.sizes.keys()):
            try:
                async for piece in _body(receive):
                    await request.count(len(piece))
                    await UPLOADS.run(form.write, piece)
                sizes = form.finish()
                evicted = self._uploads.count(visitor, 0, len(sizes))
            except BaseException:
                form.discard()
                raise
            finally:
                request.uncount()
            for path, size in sizes.items():
                self._uploads.record(path, visitor, size)
            if evicted:
                await UPLOADS.run(delete, evicted)
        return list(sizes)


class _Disconnected(Exception):
    """The client disconnected in the middle of its request."""


class _UploadRequest:
    """The bytes of one request so far. They count for the visitor until its files are counted."""

    def __init__(self, uploads: UnsentFiles, visitor: str | None) -> None:
        self._uploads, self._visitor, self._counted = uploads, visitor, 0
        self._max_megabytes = uploads.limits.mb_per_request

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
        if size > self._max_megabytes * MB + FORM_OVERHEAD_BYTES:
            raise Limited(_("At most {most:g} MB can be attached at once.", most=self._max_megabytes))


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
