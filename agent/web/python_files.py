"""The route of Pyodide's files, with which a browser runs the Python code of a chat. They are the owner's own files."""

import re
from hashlib import sha256
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse

from agent.errors import ConfigError
from agent.web.middleware.page_delivery import CACHE_FOREVER, READ_BY_ALL

NEEDED = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
TYPES = {
    **dict.fromkeys(("mjs", "js", "json"), "text/javascript"),  # none of these is shown, and any site can read them
    **dict.fromkeys(("zip", "whl", "tar", "data"), "application/zip"),
    "wasm": "application/wasm",
}
_FILE = re.compile(r"[\w.+~-]{1,200}\.(\w{2,4})", re.ASCII)


class PythonFiles:
    """Pyodide's files in a folder, or at an address of another site. With "", there are none.

    `address` is that of the files for a page of this app, relative to it, or "". `site` is what the page's policy must
    allow besides the page's own site. Raises `ConfigError` if a folder lacks a file.
    """

    def __init__(self, place: str, root: Path) -> None:
        self._folder: Path | None = None
        self.address = self.site = ""
        if place.startswith("https://"):
            self.address = self.site = place.rstrip("/") + "/"
        elif place:
            self._folder = root / Path(place).expanduser()
            if missing := [name for name in NEEDED if not (self._folder / name).is_file()]:
                raise ConfigError(f"server.python: {self._folder} has no {missing[0]}, which Pyodide needs")
            lock = (self._folder / "pyodide-lock.json").read_bytes()
            sizes = [(self._folder / name).stat().st_size for name in NEEDED]
            self.address = f"pyodide/{sha256(lock + repr(sizes).encode()).hexdigest()[:16]}/"

    def add_to(self, app: FastAPI) -> None:
        """Add the route to the application, if the files are in a folder."""
        if self._folder is not None:
            app.add_api_route(f"/{self.address}{{name}}", self._file)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = TYPES.get(found[1], "") if (found := _FILE.fullmatch(name)) else ""
        if not kind or self._folder is None or not (path := self._folder / name).is_file():
            return Response("Not found.", status_code=404)
        return FileResponse(path, media_type=kind, headers={**CACHE_FOREVER, **READ_BY_ALL})
