"""Runs an MCP server as a child process and talks to it over stdin and stdout. The child ends with the block.

The client library has such a transport, too, but it leaves the child running if its task is cancelled twice or the
process is killed. Here the last step is a kill that waits for nothing, and on Linux the kernel kills it for us.
"""

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agent.tools.mcp_sdk import SessionMessage, get_default_environment, parse_message

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

log = logging.getLogger(__name__)

EXIT_SECONDS = 1.0
"""Seconds that the server has to end by itself after its stdin is closed, and again after SIGTERM."""
MAX_LINE = 64 * 1024 * 1024
MAX_LOG_LINE = 2_000
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Command:
    """A command to start. Of our environment it gets PATH, HOME and the like, and then `env`, which is never shown."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | None = None


@asynccontextmanager
async def open_server(name: str, command: Command, last_words: deque[str]) -> AsyncGenerator[Streams]:
    """Yield the streams of a session. The server's stderr goes to the log, and its last lines to `last_words`.

    Raises `OSError` if the server cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        command.command,
        *command.args,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**get_default_environment(), **command.env},
        cwd=command.cwd,
        start_new_session=True,  # Ctrl-C in the terminal reaches only us
        preexec_fn=_end_with_us if _libc else None,
    )
    try:
        async with _streams(name, process, last_words) as streams:
            yield streams
    finally:
        _signal(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        # Release the pipes that a grandchild still holds open; asyncio has no public way to do so.
        cast(asyncio.SubprocessTransport, process._transport).close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@asynccontextmanager
async def _streams(name: str, process: asyncio.subprocess.Process, last_words: deque[str]) -> AsyncGenerator[Streams]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    read_writer, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, write_reader = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen(stdout: asyncio.StreamReader) -> None:
        with read_writer, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for line in _lines(stdout):
                if (message := _parse_line(name, line)) is not None:
                    await read_writer.send(message)

    async def speak(stdin: asyncio.StreamWriter) -> None:
        with write_reader, read_writer, suppress(ConnectionError):
            async for message in write_reader:
                stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        stdin.close()

    async def note(stderr: asyncio.StreamReader) -> None:
        async for line in _lines(stderr):
            if text := line.decode("utf-8", "replace").strip()[:MAX_LOG_LINE]:
                last_words.append(text)
                log.info("%s: %s", name, text)

    pumps = [asyncio.create_task(work) for work in (listen(process.stdout), speak(process.stdin), note(process.stderr))]
    try:
        yield read_stream, write_stream
    finally:
        read_stream.close()
        write_stream.close()  # `speak` sends the rest and closes stdin, which ends a server
        try:
            await _wait_for_exit(process)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the process, and enforce it with stronger and stronger signals."""
    for how in (None, signal.SIGTERM, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM):
        if how is not None:
            _signal(process, how)
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                while process.returncode is None:  # noqa: ASYNC110 - `wait` waits for pipes that a grandchild holds, too
                    await asyncio.sleep(0.01)
                return


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


def _end_with_us() -> None:
    """Ask the kernel, in the child before it becomes the server, to kill it when the thread that started it ends."""
    assert _libc
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _parse_line(name: str, line: bytes) -> SessionMessage | None:
    try:
        return parse_message(line)
    except ValueError:
        if line.strip():  # many servers print a greeting
            log.warning("%s wrote what is no message to its stdout: %.200r", name, line)
        return None


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines, however long. Stops at the end, or if one is longer than any valid message."""
    rest = bytearray()
    while (data := await stream.read(65536)) and len(rest) < MAX_LINE:
        first, *others = data.split(b"\n")
        rest += first
        if others:
            yield bytes(rest)
            *whole, last = others
            for line in whole:
                yield line
            rest = bytearray(last)
    if rest:
        yield bytes(rest)
