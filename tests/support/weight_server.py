"""A model hub on loopback that holds what a test gives it, and misbehaves if told to."""

import asyncio
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agent.local.weights import HubFile, Weights
from agent.models.catalog import ModelSpec

SPEC = ModelSpec(id="local:toy", name="toy", label="Toy", provider="llama.cpp", tools="none", context_tokens=512)


def from_hub(data: bytes, *, sha256: str | None = None, spec: ModelSpec = SPEC, kv_bytes: int = 1000) -> Weights:
    """Return pinned weights with the content `data`, kept by the hub at /org/toy/resolve/rev/toy.gguf."""
    digest = sha256 or hashlib.sha256(data).hexdigest()
    hub = HubFile("org/toy", "rev", "toy.gguf")
    return Weights(spec=spec, file="toy.gguf", size=len(data), sha256=digest, kv_bytes=kv_bytes, hub=hub)


@dataclass
class Server:
    """The served files and their faults. `breaks` answers are cut after `breaks_after` bytes; `gate` delays bodies."""

    files: dict[str, bytes] = field(default_factory=dict)
    breaks: int = 0
    breaks_after: int = 0
    login: str | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()


@contextmanager
def serving(**how: Any) -> Iterator[Server]:
    """Serve on a free port until the block ends."""
    state = Server(**how)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            span = self.headers.get("Range")
            state.asked.append((self.path, span))
            data = state.files.get(self.path)
            if state.login and self.headers.get("Authorization") != state.login:
                return self.send_error(401)
            if data is None:
                return self.send_error(404)
            start = int(re.fullmatch(r"bytes=(\d+)-", span)[1]) if span else 0
            body = data[start:]
            self.send_response(206 if span else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.breaks > 0:
                state.breaks -= 1
                self.wfile.write(body[: state.breaks_after])
                self.close_connection = True
                return None
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            state.gate.wait(30)
            with suppress(ConnectionError):
                self.wfile.write(body[half:])
            return None

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.gate.set()
        server.shutdown()
        server.server_close()


async def until(true: Callable[[], object], *, seconds: float = 40.0) -> None:
    """Wait until `true()` holds. Raises `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)
