"""The routes `/export`, `/export/{conversation}` and `/import`. `docs/http.md` describes them.

Only the owner can export a conversation; for anybody else there is no such conversation. What is imported belongs to
the visitor who imports it.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from tempfile import TemporaryFile
from typing import BinaryIO
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from agent.errors import AgentError, Busy, HistoryError, InputError, Limited, NotFound, files_unusable
from agent.files.store import MediaStore
from agent.history import HistoryStore
from agent.i18n.text import _
from agent.i18n.translator import Translator, translator_for
from agent.system.threads import UPLOADS
from agent.transfer.export import FORMATS, Exporter, Format
from agent.web.chat.importer import Importer, ImportProgress, ImportResult
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.heavy_work import HeavyResponse, HeavyWork, RequestLimit, TooManyRequests, result_unless_gone
from agent.web.middleware.isolation import visitor_id_of
from agent.web.middleware.requests import declared_bytes, payer_of
from agent.web.middleware.uploads import LINGER_SECONDS
from agent.web.unsent_files import MB, UnsentFiles, delete

EXPORTS = 32
EXPORTS_PER_OWNER = 2
"""The most exports at once. Each can need the memory of a conversation and of an attachment."""
EXPORTS_ALWAYS = 2
"""Exports that one network address can always have at once."""
EXPORTS_A_MINUTE, EXPORTS_A_MINUTE_PER_ADDRESS = 20, 80
"""Exports a minute of one visitor of a public page, and of one network address."""
EXPORT, IMPORT = "/export", "/import"
HEADERS = {"cache-control": "no-store"}

log = logging.getLogger(__name__)


class TransferRoutes:
    """The routes. Owns the places of running exports.

    `owner_of` returns the owner that a request speaks for, and `name_model` the name of the model with an id.
    `limit` is for imports, and exports have one, too. It is None on a private page.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        importer: Importer,
        uploads: UnsentFiles,
        owner_of: Callable[[Request], str],
        name_model: Callable[[str], str],
        limit: RequestLimit | None = None,
    ) -> None:
        self._store, self._media, self._importer, self._uploads = store, media, importer, uploads
        self._owner_of, self._name_model = owner_of, name_model
        self._import_limit = limit
        self._export_limit = RequestLimit(EXPORTS_A_MINUTE, EXPORTS_A_MINUTE_PER_ADDRESS) if limit else None
        self._exports = HeavyWork(EXPORTS, each=EXPORTS_PER_OWNER, always=EXPORTS_ALWAYS)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        app.add_api_route(EXPORT, self.export_all)
        app.add_api_route(EXPORT + "/{conversation}", self.export_one)
        app.add_api_route(IMPORT, self.import_file, methods=["POST"])

    async def export_one(self, request: Request) -> Response:
        """Answer with one conversation. `format` is json, markdown or html."""
        return await self._export(request, str(request.path_params["conversation"]))

    async def export_all(self, request: Request) -> Response:
        """Answer with all conversations of the visitor."""
        return await self._export(request, None)

    async def _export(self, request: Request, conversation: str | None) -> Response:
        owner, form = self._owner_of(request), _format(request)
        if not owner:
            return Response("Not found.", status_code=404)
        if form is None:
            return Response(f"The format is one of {', '.join(FORMATS)}.", status_code=400)
        address, translator = client_address(request.scope), translator_for(request.headers)
        exporter = Exporter(self._store, self._media, owner, translator, self._name_model)
        try:
            if self._export_limit is not None:
                self._export_limit.count(owner, address)
            with self._exports.place(owner, address) as place:
                opening = exporter.all(form) if conversation is None else exporter.one(conversation, form)
                download = await result_unless_gone(request, opening)
                disposition = f"attachment; filename*=UTF-8''{quote(download.name)}"
                headers = {**HEADERS, "content-disposition": disposition}
                return HeavyResponse(download.pieces, place, headers, download.media_type)
        except ClientDisconnect:
            return Response(status_code=499)
        except NotFound:
            return Response("Not found.", status_code=404)
        except TooManyRequests as error:
            later = {"retry-after": str(error.seconds)}
            return Response(translator(error.text), status_code=429, headers=HEADERS | later)

    async def import_file(self, request: Request) -> Response:
        """Import the file in the body. Answers with one JSON object per line: the progress, and at last the result.

        A file that cannot even be received is answered with a status and the reason.
        """
        owner, translator = visitor_id_of(request.scope), translator_for(request.headers)
        visitor = Visitor(owner=owner or "", guest=owner is None, address=client_address(request.scope))
        async with AsyncExitStack() as stack:
            try:
                if self._import_limit is not None:
                    self._import_limit.count(*payer_of(request.scope, owner))
                await stack.enter_async_context(self._importer.place(visitor))
                body = stack.enter_context(_UploadBody(self._uploads, visitor.owner, self._importer.limits.file_bytes))
                await body.receive(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except (AgentError, OSError) as failure:
                error = files_unusable(failure) if isinstance(failure, OSError) else failure
                await _drop_rest(request)
                return JSONResponse({"detail": translator(error.text)}, status_code=_status(error), headers=HEADERS)
            return _ImportResponse(stack.pop_all(), self._lines(visitor, body.file, translator))

    async def _lines(self, visitor: Visitor, file: BinaryIO, translator: Translator) -> AsyncGenerator[str]:
        try:
            async with aclosing(self._importer.run(visitor, file, self._uploads.folder)) as events:
                async for event in events:
                    yield _line(event, translator)
        except AgentError as error:
            yield _error(error.text, translator)
        except OSError:
            log.exception("an import failed")
            yield _error(_("The server could not store the file, so nothing was imported."), translator)


class _ImportResponse(StreamingResponse):
    """The lines of an import. Ends what is on the stack after the last line, or if the visitor has gone."""

    def __init__(self, stack: AsyncExitStack, lines: AsyncGenerator[str]) -> None:
        super().__init__(lines, headers=HEADERS, media_type="application/x-ndjson")
        self._stack, self._lines = stack, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines."""
        async with self._stack, aclosing(self._lines):
            await super().__call__(scope, receive, send)


class _UploadBody:
    """The body of an import in a temporary file. Its bytes count like those of files that are not sent yet."""

    def __init__(self, uploads: UnsentFiles, owner: str, most: int) -> None:
        self._uploads, self._owner, self._max_bytes = uploads, owner, most
        self._counted = 0
        self.file: BinaryIO

    def __enter__(self) -> "_UploadBody":
        self.file = TemporaryFile(dir=self._uploads.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._uploads.uncount(self._owner, self._counted)
        with suppress(OSError):  # closing writes what a full disk has refused
            self.file.close()

    async def receive(self, request: Request) -> None:
        """Write the body to the file. Raises `Limited` and `ClientDisconnect`."""
        self._check(declared_bytes(request.headers))
        async for piece in request.stream():
            self._check(self._counted + len(piece))
            evicted = self._uploads.count(self._owner, len(piece))
            self._counted += len(piece)
            await UPLOADS.run(delete, evicted)
            await UPLOADS.run(self.file.write, piece)
        await UPLOADS.run(self.file.flush)

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise Limited(_("At most {most:g} MB can be imported at once.", most=self._max_bytes / MB))


async def _drop_rest(request: Request) -> None:
    """Read the rest of a refused body for a while. Browsers send it all before they read an answer."""
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(LINGER_SECONDS):
            async for _piece in request.stream():
                pass


def _line(event: ImportProgress | ImportResult, translator: Translator) -> str:
    match event:
        case ImportProgress():
            fields = {"type": "progress", "phase": event.phase, "done": event.done, "total": event.total}
        case ImportResult():
            fields = {
                "type": "done",
                "message": translator(event.text),
                "left_out": [translator(text) for text in event.left_out],
                "conversations": [*event.conversations],
                "updated": [*event.updated],
                "known": event.known,
            }
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _error(text: str, translator: Translator) -> str:
    return json.dumps({"type": "error", "message": translator(text)}, ensure_ascii=False) + "\n"


def _format(request: Request) -> Format | None:
    given = request.query_params.get("format", "json")
    return next((form for form in FORMATS if form == given), None)


def _status(error: AgentError) -> int:
    match error:
        case TooManyRequests():
            return 429
        case Busy():
            return 409
        case Limited():
            return 413
        case InputError():
            return 403
        case HistoryError():
            return 503
        case _:
            return 400
