"""The page's scripts and styles, of which a visit takes eighty: read once, and kept by browsers for good.

Gradio looks each of them up and compresses it again for every visit, in the loop in which answers stream. Each has a
hash of its content in its name, so none ever changes. Knows HTTP, and of Gradio where these files are.
"""

import gzip
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

HASHED = re.compile(r"/assets/([\w.-]+-[\w-]{8,}\.(js|css))", re.ASCII)
TYPES = {"js": "text/javascript", "css": "text/css"}
FOR_GOOD = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}


class Assets:
    """The middleware, behind the walls. Owner of the answers: two for each file of `folder` at most."""

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app, self._folder = app, folder
        self._kept: dict[tuple[str, bool], Response] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for a file that is there; pass on everything else."""
        answer = self._answer(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        asked = HASHED.fullmatch(scope["path"])
        if not asked:
            return None
        name, kind = asked.groups()
        packed = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        if (name, packed) not in self._kept:
            try:
                content = (self._folder / name).read_bytes()
            except OSError:
                return None
            headers = FOR_GOOD | ({"content-encoding": "gzip"} if packed else {})
            content = gzip.compress(content, mtime=0) if packed else content
            self._kept[name, packed] = Response(content, headers=headers, media_type=TYPES[kind])
        return self._kept[name, packed]
