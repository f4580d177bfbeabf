"""A proxy between a client and somebody else's server: passes every byte on, and keeps each request.

    with tee(port) as passed:
        ... point an SDK at passed.url ...
        passed.requests[-1].json

Ready-made servers do not keep a request's bytes, and do not say when a client disconnected.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.dialect_server import Request


class Tee:
    """A running proxy. `requests` can be cleared."""

    def __init__(self, port: int) -> None:
        self.requests: list[Request] = []
        self.port = 0
        self._behind = port

    @property
    def url(self) -> str:
        """The proxy's address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection and the one behind it. If either end closes, close both."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._behind)
        ways = [asyncio.create_task(self._up(reader, to_server)), asyncio.create_task(_down(from_server, writer))]
        with suppress(asyncio.CancelledError):  # at the end of the program, asyncio would report this as a failure
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_server.close()
        writer.close()

    async def _up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        request = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method=lines[0].split(" ")[0], path=lines[0].split(" ")[1], headers=headers, raw=raw)
                self.requests.append(request)
                to_server.write(head + raw)
                await to_server.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            if request is not None:
                request.left.set()


async def _down(from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await from_server.read(65536):
        writer.write(data)
        await writer.drain()


@contextmanager
def tee(port: int) -> Iterator[Tee]:
    """Run a proxy on loopback in front of the server at `port`, in a separate thread."""
    passing = Tee(port)
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def serve() -> None:
        listening = await asyncio.start_server(passing.handle, "127.0.0.1", 0)
        passing.port = listening.sockets[0].getsockname()[1]
        ready.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    task = loop.create_task(serve())
    thread = threading.Thread(target=loop.run_until_complete, args=(task,), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield passing
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        loop.close()
