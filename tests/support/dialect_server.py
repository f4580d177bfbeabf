"""A server that plays given replies byte for byte and keeps every request. Ready-made servers cannot play all cases.

    with playing() as server:
        server.play(Reply(sse=[{"type": "message_start", ...}, ...], named=True))
        ... point an SDK at server.url ...
        server.requests[-1].json

Replies are played in order, one for each POST. The answer is 501 if none is left. A GET gets 404 and is not kept.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.kept_connections import Connections, Listener, end_connections


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One reply.

    `sse` holds events: a dict becomes one `data:` line (with `event:` from its "type" if `named`), bytes are sent
    unchanged. `body` is sent instead if the reply is no stream. `end` says how the connection ends: whole, cut without
    the last chunk, reset, or silent until the client closes it. `pause` is in seconds, between two events.
    """

    sse: Sequence[Mapping[str, Any] | bytes] = ()
    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    named: bool = False
    crlf: bool = False
    end: Literal["whole", "cut", "reset", "stall"] = "whole"
    pause: float = 0.0

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the stream, event by event."""
        newline = "\r\n" if self.crlf else "\n"
        for event in self.sse:
            if isinstance(event, bytes):
                yield event
                continue
            name = f"event: {event['type']}{newline}" if self.named else ""
            yield f"{name}data: {json.dumps(event)}{newline}{newline}".encode()


@dataclass(kw_only=True)
class Request:
    """A received request: `raw` is the body, and `left` is set when the client has closed the connection."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.raw)


class Playing:
    """A running server."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.port = 0
        self._replies: deque[Reply] = deque()
        self.connections: Connections = []

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def play(self, *replies: Reply) -> None:
        """Add replies."""
        self._replies.extend(replies)

    def clear(self) -> None:
        """Forget replies and requests."""
        self._replies.clear()
        self.requests.clear()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which can carry several requests."""
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method=method, path=path, headers=headers, raw=raw)
                if method != "POST":
                    reply = Reply(status=404, body={"error": {"message": "not found"}})
                else:
                    self.requests.append(request)
                    reply = self._replies.popleft() if self._replies else Reply(status=501, body={"error": "no reply"})
                if not await self._answer(reply, request, reader, writer):
                    break

    async def _answer(
        self, reply: Reply, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        stream = reply.body is None
        body = b"" if stream else reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        kind = "text/event-stream" if stream else "application/json"
        headers = {"content-type": kind, "connection": "close" if stream else "keep-alive", **reply.headers}
        headers |= {"transfer-encoding": "chunked"} if stream else {"content-length": str(len(body))}
        head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
        writer.write(head.encode("latin-1") + body)
        gone = asyncio.ensure_future(reader.read(1)) if stream else None
        try:
            for chunk in reply.chunks() if stream else ():
                writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                await writer.drain()
                if reply.pause and gone is not None:
                    await asyncio.wait([gone], timeout=reply.pause)
                    if gone.done():
                        request.left.set()
                        return False
            if reply.end == "stall" and gone is not None:
                await gone
                request.left.set()
            elif reply.end == "reset":
                await writer.drain()
                writer.transport.abort()
            elif reply.end == "whole":
                writer.write(b"0\r\n\r\n" if stream else b"")
                await writer.drain()
        except ConnectionError:
            request.left.set()
            return False
        finally:
            if gone is not None:
                gone.cancel()
        return not stream  # after a stream, a byte of the next request can be lost, so close


@contextmanager
def playing() -> Iterator[Playing]:
    """Run a server on loopback, in a separate thread."""
    server = Playing()
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        listener = Listener(server.connections)
        async with await asyncio.start_server(server.handle, sock=listener):
            server.port = listener.getsockname()[1]
            ready.set()
            await stop.wait()
            await end_connections(server.connections)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # cancels remaining tasks and closes the loop
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(60)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
