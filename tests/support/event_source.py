"""A tiny server of event streams, in place of a process of the page behind a proxy. It says nothing about buffering."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Write = Callable[[str], Awaitable[None]]
"""Sends a piece of the stream."""
Script = Callable[[Write], Awaitable[None]]
"""What one stream sends. Its end closes the connection."""


@asynccontextmanager
async def event_source(name: str, script: Script, port: int) -> AsyncGenerator[list[str]]:
    """Serve `script` at `/runs/...`, and `name` at any other path. Give the list of requests, as they arrive."""
    requests, handlers = list[str](), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # asyncio would report it
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            requests.append(head)
            if " /runs/" in head.partition("\r\n")[0]:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")

                async def write(text: str) -> None:
                    writer.write(text.encode())
                    await writer.drain()

                await script(write)
            else:
                body = name.encode()
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        handlers.discard(task)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield requests
    finally:
        server.close()
        for handler in [*handlers]:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
