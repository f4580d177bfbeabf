"""Requests to an app in this process, its routes, and the longest step of its event loop or of a thread."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from time import thread_time
from types import FrameType
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Scope

from agent.settings import LocalSettings, Settings


def routes_of(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the method and the path of each route of the app, also of those that are mounted."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        if inner := getattr(route, "routes", None):
            yield from routes_of(inner, path.removesuffix("/"))
        else:
            yield from ((method, path) for method in sorted(getattr(route, "methods", None) or ["GET"]))


@contextmanager
def longest_step() -> Generator[list[tuple[float, str]]]:
    """Yield the longest step of the event loop in the block: its seconds of processor time, and what it ran."""
    run, longest = asyncio.Handle._run, [(0.0, "")]  # pyright: ignore[reportPrivateUsage]
    here = get_ident()

    def measured(self: asyncio.Handle) -> None:
        if get_ident() != here:  # the loop of the model server
            return run(self)
        began = thread_time()
        run(self)
        if (took := thread_time() - began) > longest[0][0]:
            longest[0] = took, repr(self)

    asyncio.Handle._run = measured
    try:
        yield longest
    finally:
        asyncio.Handle._run = run


@contextmanager
def longest_call() -> Generator[list[tuple[float, str]]]:
    """Yield the longest time of the processor in which this thread runs no Python function, and what comes after it.

    No other thread can run meanwhile, unless C code lets it.
    """
    longest, last = [(0.0, "")], [thread_time()]

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if (took := thread_time() - last[0]) > longest[0][0]:
            longest[0] = took, f"{event} {getattr(argument, '__qualname__', frame.f_code.co_qualname)}"
        last[0] = thread_time()

    was_on = gc.isenabled()
    gc.disable()  # a full collection belongs to no call
    sys.setprofile(profile)
    try:
        yield longest
    finally:
        sys.setprofile(None)
        if was_on:
            gc.enable()


async def never() -> Message:
    """Receive nothing of a client that stays."""
    await asyncio.Event().wait()
    return {}


@asynccontextmanager
async def running_app(
    folder: Path, model_url: str | None = None, *, can_download: bool = False, **settings: Any
) -> AsyncIterator[FastAPI]:
    """Run the app in this process, with its data in the folder."""
    from agent.web.app import create_app

    local = LocalSettings(cache_dir=folder, downloads=can_download, vllm_base_url=model_url)
    app = await create_app(Settings(data_dir=folder, local=local, **settings), say=lambda _: None)
    async with app.router.lifespan_context(app):
        yield app


@dataclass
class Asked:
    """The answer to a request, or what there is of it. Without an answer, the status is 0."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    pieces: list[bytes] = field(default_factory=list[bytes])
    """The body. Its pieces are joined when they are read, because that takes longer than what the app does."""

    @property
    def text(self) -> str:
        return b"".join(self.pieces).decode(errors="replace")

    @property
    def cookie(self) -> bytes:
        """The visitor's cookie that the answer sets, as a request sends it."""
        return next(value for name, value in self.headers if name == b"set-cookie").partition(b";")[0]


async def asked(
    app: ASGIApp,
    method: str,
    path: str,
    query: str = "",
    body: bytes = b"",
    *,
    waits: bool = False,
    is_cut: bool = False,
    gone: asyncio.Event | None = None,
    address: str = "127.0.0.1",
    **headers: bytes,
) -> Asked:
    """Send a request as the server does, in pieces, then hang up or wait. `is_cut`: hang up before the body's end.

    `gone`: hang up when this is set.
    """
    pieces, answer = [body[at : at + 65_536] for at in range(0, len(body), 65_536)] or [b""], Asked()

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not pieces:
            await (gone.wait() if gone else asyncio.sleep(60 if waits and not is_cut else 0))
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces) or is_cut}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], message["headers"]
        answer.pieces.append(message.get("body", b""))

    given = {"host": b"127.0.0.1", "content_type": b"multipart/form-data; boundary=b"}
    given |= {"content_length": str(len(body)).encode()} if body and "transfer_encoding" not in headers else {}
    given |= headers
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path, errors="replace"), "raw_path": path.encode(), "query_string": query.encode(),
        "root_path": "", "client": (address, 1), "server": ("127.0.0.1", 80),
        "headers": [(name.replace("_", "-").encode(), value) for name, value in given.items()],
    }  # fmt: skip
    with suppress(TimeoutError):
        async with asyncio.timeout(120):
            await app(scope, receive, send)
    return answer
