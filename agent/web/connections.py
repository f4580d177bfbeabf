"""Time-outs for headers and answers, a cap on connections, and small steps in which requests are read.

Slow or surplus connections must not cost other visitors anything. Uvicorn has no time-out for an unfinished request,
none for an answer that nobody reads, and no cap on connections. What has come it parses in one step, which is up to
some megabytes, and a body in chunks of one byte takes seconds for each of them.

Connections are shared like the page's events (`agent.web.gradio_compat.event_queue`): a network address can hold as
many connections as are free.
"""

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from struct import pack
from typing import Any, cast

import h11
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent.system.resources import raise_open_files
from agent.web.client_address import has_full_share, normalize_address

HEADER_SECONDS = 15.0
"""Seconds from the first byte of a request, or from the connection, until its headers are complete."""
WRITE_SECONDS = 60.0
"""Seconds within which the client must read some of the unsent answer."""
HEAD_BYTES = 16_384
"""Bytes of the head of a request, and of what follows its body. What is longer, and not whole yet, is refused."""
PIECE_BYTES = 4096
"""Bytes of a request that are parsed in one step of the event loop."""
BODY_PIECE_BYTES = 65_536
"""The same of a body with a length, of which nothing is parsed."""
SMALL_CHUNKS, CHUNK_BYTES = 256, 64
"""Chunks of a body that can be as small as they like, and the bytes that the others must have on average. Each takes as
long as a thousand bytes, so that a few connections with chunks of one byte would keep the server busy."""
UNSENT_BYTES = 65_536
"""Bytes of an answer that the system buffers for a slow client. It asks for more when half of them are sent."""
MAX_CONNECTIONS = 4096
MIN_CONNECTIONS_PER_ADDRESS = 64
"""Connections that one network address can always have, unless the server is full."""
RESERVED_FILES = 256
"""Open files reserved for everything but connections, at most half of the allowed number."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class ConnectionLimits:
    """The open connections of one server. If there are too many, those without a request are closed first.

    `proxies` are the proxies that uvicorn trusts, in the format of its `forwarded_allow_ips`. They have no share,
    because each of them carries the connections of many people.
    """

    def __init__(self, max_connections: int, proxies: str = "127.0.0.1") -> None:
        self.max_connections = max_connections
        self._open: set[HttpConnection] = set()
        self._waiting: OrderedDict[HttpConnection, None] = OrderedDict()
        self._per_address = Counter[str]()
        self._proxies = ProxyHeadersMiddleware(cast(Any, None), proxies).trusted_hosts

    @property
    def protocol(self) -> Callable[..., asyncio.Protocol]:
        """The factory of connection protocols, for uvicorn's `http` setting."""
        return partial(HttpConnection, self)

    def address(self, host: str) -> str | None:
        """Return the address that a connection from this host counts for. None for a proxy."""
        return None if host in self._proxies else normalize_address(host) or host

    def add(self, connection: "HttpConnection") -> bool:
        """Add a connection. Return False if there is no room for it.

        If there are too many connections, the one that has waited longest without a request is closed. If one address
        has too many, only a connection of that address is closed. If all have a request, one that only listens to
        Gradio's heartbeat, which the page does not use, is closed.
        """
        free, address = self.max_connections - len(self._open), connection.address
        is_beyond_share = address is not None and has_full_share(
            self._per_address[address], free=free, always=MIN_CONNECTIONS_PER_ADDRESS
        )
        if free <= 0 or is_beyond_share:
            candidates = (*self._waiting, *(one for one in self._open if one.is_heartbeat))
            oldest = next((one for one in candidates if not is_beyond_share or one.address == address), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.transport.abort()
        self._open.add(connection)
        if address is not None:
            self._per_address[address] += 1
        self.mark(connection, waiting=True)
        return True

    def mark(self, connection: "HttpConnection", *, waiting: bool) -> None:
        """Note whether the connection waits for a request."""
        self._waiting.pop(connection, None)
        if waiting and connection in self._open:
            self._waiting[connection] = None

    def remove(self, connection: "HttpConnection") -> None:
        """Forget a connection."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        if connection.address is not None:
            self._per_address[connection.address] -= 1
            if not self._per_address[connection.address]:
                del self._per_address[connection.address]


class SteppedFlow(FlowControl):
    """Passes on what has come in pieces, one in each step of the event loop. Nothing more is read meanwhile.

    `body_left` are the bytes of a body with a length that are still to come, and 0 for all else.
    """

    def __init__(self, transport: asyncio.Transport, pass_on: Callable[[bytes], None]) -> None:
        super().__init__(transport)
        self.body_left = 0
        self._pass_on = pass_on
        self._waiting = bytearray()
        self._next: asyncio.Handle | None = None

    def add(self, data: bytes) -> None:
        """Pass on the first piece now, if none waits, and the others later."""
        self._waiting += data
        if self._next is None and not self.read_paused:
            self._step()

    def resume_reading(self) -> None:
        """Go on with what waits, then with what comes."""
        if self.read_paused:
            self.read_paused = False
            self._go_on()

    def _step(self) -> None:
        self._next = None
        if self._transport.is_closing():
            self._waiting.clear()
        if self.read_paused or not self._waiting:
            return
        size = min(self.body_left, BODY_PIECE_BYTES) or PIECE_BYTES
        piece = bytes(self._waiting[:size])
        del self._waiting[:size]
        self.body_left = max(0, self.body_left - len(piece))
        self._pass_on(piece)
        if not self.read_paused:
            self._go_on()

    def _go_on(self) -> None:
        if not self._waiting:
            self._transport.resume_reading()
        elif self._next is None:
            self._transport.pause_reading()
            self._next = asyncio.get_running_loop().call_soon(self._step)


class ChunkedConnection(h11.Connection):
    """The parser of one connection. It refuses a body in many small chunks."""

    _chunks = _bytes = 0

    def next_event(self) -> Any:
        """Return the next event, or raise `RemoteProtocolError`."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks, self._bytes = self._chunks + event.chunk_start, self._bytes + len(event.data)
            if self._chunks > SMALL_CHUNKS + self._bytes // CHUNK_BYTES:
                raise h11.RemoteProtocolError("The chunks of the body are too small.")
        elif isinstance(event, h11.EndOfMessage):
            self._chunks = self._bytes = 0
        return event


class HttpConnection(H11Protocol):
    """One connection. Closed if the headers of a request come too late or if nobody reads the answer.

    `address` is the network address that the connection counts for. None if it is unknown or a proxy.
    """

    def __init__(self, connections: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self.conn = ChunkedConnection(h11.SERVER, HEAD_BYTES)
        self._limits = connections
        self.address: str | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time-out for the first request, or refuse the connection if there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.flow = self._stepped = SteppedFlow(self.transport, self._receive)
        self.address = self._limits.address(self.client[0]) if self.client else None
        _send_at_once(self.transport)
        _keep_little_unsent(self.transport)
        if self._limits.add(self):
            self._start_header_timeout()
        else:
            self.transport.write(BUSY)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._limits.remove(self)
        self._stop_header_timeout()
        self._stop_write_timeout()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time-out within which the client must read some of the unsent answer."""
        super().pause_writing()
        self._start_write_timeout()

    def resume_writing(self) -> None:
        """Stop the time-out, because everything was sent."""
        super().resume_writing()
        self._stop_write_timeout()

    def data_received(self, data: bytes) -> None:
        """Read more data, in steps."""
        self._stepped.add(data)

    def _receive(self, piece: bytes) -> None:
        """Parse a piece. Headers that have begun must be complete in time."""
        before = cast(Any, self.cycle)
        super().data_received(piece)
        cycle = cast(Any, self.cycle)
        if cycle is not before and cycle.more_body:
            self._stepped.body_left = max(0, _length(self.headers) - len(cycle.body))
        if self._has_request:
            self._stop_header_timeout()
            self._limits.mark(self, waiting=False)
        elif self._header_timer is None:
            self._start_header_timeout()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are no HTTP, or only close the connection if another answer has begun."""
        cycle = cast(Any, self.cycle)
        if cycle is not None:  # tell the application, because its answer cannot be sent any more
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state.__name__ in ("IDLE", "SEND_RESPONSE"):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Mark the connection as waiting, unless its next request is already there."""
        super().on_response_complete()
        if not self._has_request:
            self._limits.mark(self, waiting=True)

    @property
    def is_heartbeat(self) -> bool:
        """True if the request is for Gradio's endless heartbeat."""
        return "/heartbeat/" in str(cast(Any, self.scope)["path"]) if self._has_request else False

    @property
    def _has_request(self) -> bool:
        cycle = cast(Any, self.cycle)
        return cycle is not None and not cycle.response_complete

    def _start_header_timeout(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._abort_without_request)

    def _stop_header_timeout(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _start_write_timeout(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self._check_reader, unsent)

    def _check_reader(self, before: int) -> None:
        """Close the connection if nothing was read since the last check.

        A paused application adds nothing to the buffer, so the buffer shrinks if the client reads.
        """
        if self.transport.get_write_buffer_size() < before:
            self._start_write_timeout()
        else:
            # Reset the connection, so that the system does not keep the buffered data.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            self.transport.abort()

    def _stop_write_timeout(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort_without_request(self) -> None:
        if not self._has_request:
            self.transport.abort()


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the length of a body, or 0 if the request declares none. The parser has checked that it is a number."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _send_at_once(transport: asyncio.Transport) -> None:
    """Send each piece of an answer without waiting until the client has confirmed the one before, which takes 40 ms.

    asyncio does this by itself, but not for connections to a socket that was opened before the server.
    """
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _keep_little_unsent(transport: asyncio.Transport) -> None:
    """Pause the application while anything is unsent, and let the system buffer only a little.

    By default the system keeps megabytes for each connection and asks for more only after a third of them was read. A
    slow client would then look like one that reads nothing.
    """
    transport.set_write_buffer_limits(0)
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # absent on Windows
    if option is not None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)


def raise_file_limit() -> int:
    """Raise the limit of open files to the system's maximum. Return how many connections fit."""
    allowed = raise_open_files(MAX_CONNECTIONS * 2)
    return min(MAX_CONNECTIONS, allowed - min(RESERVED_FILES, allowed // 2))
