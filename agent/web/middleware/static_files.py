"""Serves the page's scripts and styles, about eighty per visit. They are read once and cached for good.

Gradio looks up and compresses each of them again for every visit, in the event loop that also streams answers. Each
file has a hash of its content in its name, so it never changes. The page itself does change, and Gradio sends it
uncompressed; compressed it is a sixth of that. Knows HTTP, and the place of these files in Gradio.
"""

import asyncio
import gzip
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

HASHED = re.compile(r"/assets/([\w.-]{1,100}-[\w-]{8,40}\.(js|css))", re.ASCII)
TYPES = {"js": "text/javascript", "css": "text/css"}
CACHE_FOREVER = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}


class StaticFilesMiddleware:
    """Middleware behind the isolation middleware. Owns at most two cached contents per file of `folder`."""

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app, self._folder = app, folder
        self._page = GZipMiddleware(app, compresslevel=5)
        self._cache: dict[tuple[str, bool], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests for existing files. Pass everything else on, and compress the page itself."""
        answer = await self._answer(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope) -> ASGIApp | None:
        if scope["path"] == "/":
            return self._page
        match = HASHED.fullmatch(scope["path"])
        if not match:
            return None
        name, kind = match.groups()
        compressed = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        if (name, compressed) not in self._cache:
            try:
                self._cache[name, compressed] = await asyncio.to_thread(_content, self._folder / name, compressed)
            except OSError:
                return None
        headers = CACHE_FOREVER | ({"content-encoding": "gzip"} if compressed else {})
        return Response(self._cache[name, compressed], headers=headers, media_type=TYPES[kind])


def _content(path: Path, compressed: bool) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0) if compressed else path.read_bytes()
