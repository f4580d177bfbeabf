"""Joins the HTTP chunks of an event stream that one read of the network has found, before the HTTP library sees them.

Servers send each token in a chunk of its own, and the library needs more time for a chunk than for the text in it. The
bytes of the body stay as they are, and so does everything that is not exactly as expected. Nothing of the body is held
back, only the beginning of the length of a chunk.
"""

import re
from typing import Any

from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream

_LONGEST_HEAD = 64 * 1024
_STREAM = re.compile(
    rb"HTTP/1\.1 2(?=(?:.*\r\n)+?content-type: *text/event-stream)(?=(?:.*\r\n)+?transfer-encoding: *chunked *\r\n)",
    re.I,
)
"""The head of an answer whose chunks are joined."""
_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})\r\n")
_BEGUN_SIZE = re.compile(rb"[0-9a-fA-F]{0,16}\r?")


class ChunkJoiner:
    """The bytes of one answer, as they are read."""

    def __init__(self) -> None:
        self._head = b""
        self._is_head, self._is_body = True, False
        self._left = 0
        """The bytes that are still to come of a chunk that has begun, with the end of its line."""
        self._begun = b""
        """The beginning of a length, which was not given out."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to give out. They can be none."""
        if self._is_head:
            return self._find_body(data)
        if not self._is_body:
            return data
        data, self._begun = self._begun + data, b""
        at = min(self._left, len(data))
        self._left -= at
        out, chunks, size = [data[:at]], list[bytes](), 0
        while at < len(data):
            found = _SIZE.match(data, at)
            length = int(found[1], 16) if found else 0
            end = found.end() + length + 2 if found else 0
            if found is None and _BEGUN_SIZE.fullmatch(data, at):
                self._begun = data[at:]
                break
            if found is None or not length or data[end - 2 : end] not in (b"\r\n", b"\r", b""):  # its end, or a fault
                self._is_body = False
                out.append(data[at:])
                break
            if end > len(data):
                self._left = end - len(data)
                out.append(data[at:])
                break
            chunks.append(data[found.end() : end - 2])
            size, at = size + length, end
        if chunks:
            out.insert(1, b"%x\r\n%b\r\n" % (size, b"".join(chunks)))
        return b"".join(out)

    def _find_body(self, data: bytes) -> bytes:
        self._head += data
        begins = self._head.find(b"\r\n\r\n") + 4
        if begins < 4:
            self._is_head = len(self._head) <= _LONGEST_HEAD
            return data
        head, body = self._head[: begins - 2], self._head[begins:]
        self._head, self._is_head, self._is_body = b"", False, bool(_STREAM.match(head))
        return data[: len(data) - len(body)] + self.feed(body) if body else data


class _JoiningStream(AsyncNetworkStream):
    """A connection that joins the chunks of each answer."""

    def __init__(self, stream: AsyncNetworkStream) -> None:
        self._stream, self._joiner = stream, ChunkJoiner()

    async def read(self, *given: Any, **named: Any) -> bytes:
        while data := await self._stream.read(*given, **named):
            if joined := self._joiner.feed(data):
                return joined
        return b""

    async def write(self, *given: Any, **named: Any) -> None:
        self._joiner = ChunkJoiner()  # the next answer comes after the next request
        await self._stream.write(*given, **named)

    async def start_tls(self, *given: Any, **named: Any) -> AsyncNetworkStream:
        return _JoiningStream(await self._stream.start_tls(*given, **named))

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class JoiningBackend(AsyncNetworkBackend):
    """A network whose connections join the chunks of event streams."""

    def __init__(self, network: AsyncNetworkBackend) -> None:
        self._network = network

    async def connect_tcp(self, *given: Any, **named: Any) -> AsyncNetworkStream:
        return _JoiningStream(await self._network.connect_tcp(*given, **named))

    async def connect_unix_socket(self, *given: Any, **named: Any) -> AsyncNetworkStream:
        return _JoiningStream(await self._network.connect_unix_socket(*given, **named))

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)
