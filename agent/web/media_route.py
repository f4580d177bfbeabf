"""The route of the files of conversations. A file is sent in pieces, from any place, and so is a range of it."""

from collections.abc import AsyncGenerator, Mapping
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from agent.errors import NotFound
from agent.files.store import ROUTE, MediaStore, StoredFile, display_name
from agent.web.middleware.isolation import visitor_id_of

INLINE_TYPES = ("image/", "audio/", "video/")
"""The media types that a browser can show in the page. It can only save other types, so that they cannot do harm."""
PIECE = 1 << 20
"""The most bytes of a file that is elsewhere that one reader holds in memory."""


def add_media_route(app: FastAPI, media: MediaStore) -> None:
    """Add the route. A visitor gets their own files and no others."""

    async def attachment(request: Request) -> Response:
        owner = visitor_id_of(request.scope) or ""
        try:
            file = await media.find(owner, request.path_params["id_"])
        except NotFound:
            return Response("Not found.", status_code=404)
        return file_response(file, request)

    app.add_api_route(ROUTE + "{id_}", attachment)


def file_response(file: StoredFile, request: Request, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer with a file, or with a range of it. `headers` replace the usual ones."""
    all_headers = {**headers_of(file, request.query_params.get("name", "")), **(headers or {})}
    if file.path is not None:
        return FileResponse(file.path, media_type=file.media_type, headers=all_headers)
    return _in_pieces(file, all_headers, request)


def headers_of(file: StoredFile, name: str = "") -> dict[str, str]:
    """Return the HTTP headers of a file except its type. `name` is the file name for saving."""
    is_inline = file.media_type.startswith(INLINE_TYPES)
    file_name = quote(display_name(name or file.id, file.media_type))
    disposition = "inline" if is_inline else f"attachment; filename*=UTF-8''{file_name}"
    # The bytes of an id never change. Those of a temporary chat must not be on the disk of the browser.
    caching = "private, max-age=86400" if file.is_kept else "no-store"
    return {"cache-control": caching, "content-disposition": disposition, "etag": f'"{file.id}"'}


def _in_pieces(file: StoredFile, headers: dict[str, str], request: Request) -> Response:
    """Answer with a file that is not on this machine, or with the one range of it that the request asks for."""
    headers |= {"accept-ranges": "bytes", "content-length": str(file.size)}
    status, (start, end) = 200, (0, file.size)
    asked = request.headers.get("range", "")
    if asked and request.headers.get("if-range", headers["etag"]) == headers["etag"]:
        found = byte_range(asked, file.size)
        if found is not None and found[0] >= found[1]:
            return Response(status_code=416, headers={"content-range": f"bytes */{file.size}"})
        if found is not None:
            status, (start, end) = 206, found
            headers |= {"content-range": f"bytes {start}-{end - 1}/{file.size}", "content-length": str(end - start)}

    async def pieces() -> AsyncGenerator[bytes]:
        for at in range(start, end, PIECE):
            yield await file.read(at, min(at + PIECE, end))

    return StreamingResponse(pieces(), status, headers, media_type=file.media_type)


def byte_range(asked: str, size: int) -> tuple[int, int] | None:
    """Return the start and the end of the range that a request asks for.

    None means the whole file: the header has several ranges or is not valid. A range that the file does not have is
    empty.
    """
    unit, _, text = asked.partition("=")
    first, dash, last = (part.strip() for part in text.partition("-"))
    if unit.strip().lower() != "bytes" or not dash or not (first or last):
        return None
    if any(part and not (part.isascii() and part.isdigit() and len(part) < 20) for part in (first, last)):
        return None
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size
