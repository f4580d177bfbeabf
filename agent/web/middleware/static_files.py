"""Serves the page's scripts and styles, about eighty per visit. They are read once and cached for good.

Gradio looks up and compresses each of them again for every visit, in the event loop that also streams answers. Each
file or its folder has a hash in its name, so it never changes. Only those of ours under a name of Gradio's can change:
browsers keep them for an hour. Knows HTTP, and the place of these files in Gradio.
"""

import asyncio
import gzip
import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

HASHED = re.compile(r"/assets/([\w.-]{1,100}-[\w-]{8,40}(?:/\w{1,40}){0,3}\.(js|css))", re.ASCII)
TYPES = {"js": "text/javascript", "css": "text/css"}
CACHE_FOREVER = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
CACHE_BRIEFLY = CACHE_FOREVER | {"cache-control": "public, max-age=3600"}
"""For a file of ours under a name of Gradio's. The page loads it by another name, but Gradio preloads this one, too."""


_brotli: Any = import_module("brotli")  # it has no types
ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "br": partial(_brotli.compress, quality=10),
    "gzip": partial(gzip.compress, mtime=0),
}
"""Compresses by the name of an encoding, the best one first. Brotli, which Gradio needs too, makes a visit an eighth
smaller. Its next quality takes twice the time for two percent more."""


class StaticFilesMiddleware:
    """Middleware behind the isolation middleware. Owns at most three cached contents per file.

    The files are those of `folder`, and `ours` by name. If both have a file, a request with a query gets that of the
    folder.
    """

    def __init__(self, app: ASGIApp, folder: Path, ours: Mapping[str, bytes]) -> None:
        self._app, self._folder, self._ours = app, folder, ours
        single = {name: one for name, one in ours.items() if "/" not in name}
        self._changing = {name for name, one in single.items() if sha256(one).hexdigest()[:16] not in name}
        self._cache: dict[tuple[str, bool, str], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests for existing files. Pass everything else on."""
        answer = await self._answer(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope) -> ASGIApp | None:
        match = HASHED.fullmatch(scope["path"])
        if not match:
            return None
        name, kind = match.groups()
        is_ours = name in self._ours and not scope["query_string"]
        encoding = _encoding(Headers(scope=scope).get("accept-encoding", ""))
        if (key := (name, is_ours, encoding)) not in self._cache:
            try:
                self._cache[key] = await asyncio.to_thread(self._content, name, is_ours, encoding)
            except OSError:
                return None
        caching = CACHE_BRIEFLY if is_ours and name in self._changing else CACHE_FOREVER
        headers = caching | ({"content-encoding": encoding} if encoding else {})
        return Response(self._cache[key], headers=headers, media_type=TYPES[kind])

    def _content(self, name: str, is_ours: bool, encoding: str) -> bytes:
        content = self._ours[name] if is_ours else (self._folder / name).read_bytes()
        return ENCODINGS[encoding](content) if encoding else content


def _encoding(accepted: str) -> str:
    """Return the best encoding that a client accepts, or "" for none. A weight of 0 is rare, and is not looked at."""
    names = {one.partition(";")[0].strip().lower() for one in accepted.split(",")}
    return next((name for name in ENCODINGS if name in names), "")
