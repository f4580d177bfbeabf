"""Connections that are slow, half open or too many do not block others."""

import asyncio
import logging
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from http.client import HTTPConnection
from time import monotonic
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.fetch import system_resolver
from agent.web import connections
from agent.web.connections import ConnectionLimits
from agent.web.middleware import requests
from agent.web.middleware.requests import BodyTimeout
from tests.conftest import App, becomes
from tests.support.asgi_requests import longest_step
from tests.support.http_client import connected

pytestmark = pytest.mark.slow

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FILES = 256


class Echo:
    """Answers with the request's body. `begun` counts the requests that have begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.endless = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.release()
        if self.endless and "heartbeat" in scope["path"]:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await echo(receive, send)


async def echo(receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = bool(message.get("more_body"))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(most: int = 100, app: ASGIApp | None = None) -> AsyncIterator[int]:
    """Run a server that answers with the request's body. Yield its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        BodyTimeout(app or Echo()),
        http=cast(Any, ConnectionLimits(most).protocol),
        lifespan="off",
        log_level="warning",
        ws="none",
    )
    server = uvicorn.Server(config)
    cast(Any, server).capture_signals = lambda: closing(listener)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def say(port: int, *pieces: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    return reader, writer


async def test_pieces_of_an_answer_do_not_wait_for_each_other() -> None:
    """Otherwise the system holds a piece back for 40 ms, until the client has confirmed the one before."""

    def ask(port: int) -> float:
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            began = monotonic()
            for _ in range(120):
                client.request("POST", "/", b"word")
                assert client.getresponse().read() == b"word"
            return monotonic() - began

    async with serving() as port:
        assert await asyncio.to_thread(ask, port) < 3


async def test_half_sent_headers_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    async with serving() as port:
        whole = HALF + b"Connection: keep-alive\r\n\r\n"
        for pieces in ([], [HALF], [whole, HALF]):
            reader, writer = await say(port, *pieces)
            answer = await asyncio.wait_for(reader.read(), 60)  # the server closes the connection
            assert answer.count(b"200 OK") == pieces.count(whole)
            writer.close()


async def test_slow_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.2)
    async with serving() as port:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n"
        reader, writer = await say(port, head, b"x")
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 408")
        writer.close()
        reader, writer = await say(port, head, b"x" * 5000)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_servers_own_delay_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.5)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.5)  # while the whole body is buffered
        await echo(receive, send)

    async with serving(app=slow) as port, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{port}/", content=b"x" * 100)
        assert (answer.status_code, len(answer.content)) == (200, 100)


async def test_late_body_does_not_change_begun_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)

    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"4")]})
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b"Long"})

    async with serving(app=early) as port:
        monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)  # uvicorn turns it off
        reader, writer = await say(port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n", b"x")
        answer = await asyncio.wait_for(reader.readuntil(b"Long"), 60)
        assert answer.startswith(b"HTTP/1.1 413")
        writer.close()
        await writer.wait_closed()
        assert b"408" not in await reader.read()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


STEP_SECONDS = 0.015
"""10 ms are the goal, and a slow machine needs half as long again."""
LONG_REQUESTS = {
    "chunks of a byte": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000,
    "a long extension": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 500_000,
    "a long trailer": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:\r\n" * 100_000,
    "short headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 15_000 + b"\r\n",
    "as many headers as fit": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 4_000 + b"\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 60_000 + b"\r\n\r\n",
    "folded lines": b"GET / HTTP/1.1\r\nHost: a\r\nx: y\r\n" + b" \r\n" * 15_000 + b"\r\n",
    "a head after a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nxGET / HTTP/1.1\r\nHost: a\r\n"
    + b"a:\r\n" * 15_000
    + b"\r\n",
    "many requests": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2_000,
    "upgrades": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade" + b",a" * 7_000 + b"\r\nUpgrade: websocket\r\n\r\n",
}
"""Requests of which the server parses each byte."""


@pytest.mark.parametrize("request_", LONG_REQUESTS.values(), ids=LONG_REQUESTS.keys())
async def test_request_of_many_parts_holds_up_nobody(request_: bytes) -> None:
    """The whole request has come before any of it is read."""
    steps, answers = list[tuple[float, str]](), max(1, request_.count(b"HTTP/1.1"))
    async with serving() as port:
        while len(steps) < 3 and (not steps or steps[-1][0] > STEP_SECONDS):  # a busy machine can be slow
            with closing(socket.create_connection(("127.0.0.1", port))) as client:
                client.setblocking(False)
                with longest_step() as longest:
                    sent, answer = 0, b""
                    while answer.count(b"HTTP/1.1 ") < answers and b"HTTP/1.1 400" not in answer:
                        with suppress(BlockingIOError, ConnectionError):
                            sent += client.send(request_[sent:]) if sent < len(request_) else 0
                        with suppress(BlockingIOError):
                            answer += client.recv(65_536)
                        await asyncio.sleep(0)
                steps += longest
    assert min(steps)[0] < STEP_SECONDS, min(steps)


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(("size", "status"), [(1, b"400"), (20, b"400"), (64, b"200"), (1000, b"200")])
async def test_body_of_many_small_chunks_is_refused(size: int, status: bytes) -> None:
    """Each chunk takes as long as a thousand bytes. A body of few chunks is read, however small they are."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as port:
        for body, expected in ((b"x" * 50_000, status), (b"few", b"200")):
            reader, writer = await say(port, head + in_chunks(body, size))
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)).split()[1] == expected
            writer.close()


async def test_requests_that_come_together_are_read_whole() -> None:
    """Bodies with and without a length, and heads, begin anywhere in what has come."""
    bodies = [b"", b"x", b"y" * connections.PIECE_BYTES, b"z" * 3 * connections.BODY_PIECE_BYTES, b"1234567" * 1_000]
    sent = b""
    for number, body in enumerate(bodies * 2):
        if number % 2:
            sent += b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + in_chunks(body, 99)
        else:
            sent += b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with serving() as port:
        reader, writer = await say(port, sent)
        for body in bodies * 2:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert head.startswith(b"HTTP/1.1 200"), head
            assert await reader.readexactly(len(body)) == body
        writer.close()


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("version", "length"), [(b"1.1", b"Content-Length: 5\r\n"), (b"1.0", b"")], ids=["two-lengths", "old-version"]
)
def test_ambiguous_length_is_refused(app: App, version: bytes, length: bytes) -> None:
    """A proxy could read another length than the server and forward the rest as another visitor's request."""
    for method in (b"POST", b"GET"):
        head = method + b" /healthz HTTP/" + version + b"\r\nHost: 127.0.0.1\r\n" + length
        body = b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n"
        with connected(app, head + body + SMUGGLED) as one:
            answer = b"".join(iter(lambda: one.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 400"), method
        assert answer.count(b"HTTP/1.1 ") == 1, method


def test_broken_requests_hardly_fill_log(start_app: Callable[..., App]) -> None:
    app = start_app()
    before = len(app.log.splitlines())
    head = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for request in (head, b"\x16\x03\x01 no HTTP\r\n\r\n"):
        for _ in range(20):
            with connected(app, request) as one:
                answer = one.recv(65_536)
                assert answer.startswith(b"HTTP/1.1 405" if request is head else b"HTTP/1.1 400")
                if request is head:
                    one.sendall(b"zz\r\n")
                while one.recv(65_536):
                    pass
    assert httpx.get(app.url + "/healthz", trust_env=False, timeout=60).status_code == 200
    lines = [line for line in app.log.splitlines()[before:] if "Invalid HTTP" in line]
    assert "Traceback" not in app.log
    assert "LocalProtocolError" not in app.log
    assert 1 <= len(lines) <= 10
    assert len(app.log.splitlines()) - before <= 20


async def test_new_connection_replaces_one_without_a_request() -> None:
    async with serving(most=3) as port:
        held = [await say(port, HALF) for _ in range(8)]
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        for _, writer in held:
            writer.close()


async def test_connections_with_requests_are_not_replaced() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
    app = Echo()
    async with serving(most=2, app=app) as port:
        busy = [await say(port, head, b"ab") for _ in range(2)]
        for _ in busy:
            await app.begun.acquire()
        extra, other = await say(port, HALF)
        assert (await asyncio.wait_for(extra.read(), 60)).startswith(b"HTTP/1.1 503")
        other.close()
        for reader, writer in busy:
            writer.write(b"cde")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_heartbeat_makes_room() -> None:
    app = Echo()
    app.endless = True
    async with serving(most=2, app=app) as port:
        beats = [await say(port, b"GET /gradio_api/heartbeat/a HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(2)]
        for _ in beats:
            await app.begun.acquire()
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        for _, writer in beats:
            writer.close()


class Endless:
    """Answers with chunks for ever, or with `whole` at once. `sent` counts the bytes that the server accepted."""

    def __init__(self, whole: bytes = b"") -> None:
        self.whole, self.sent = whole, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/other":
            await echo(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        disconnected = asyncio.create_task(self._disconnected(receive))
        while not disconnected.done():
            piece = self.whole or bytes(16_384)
            await send({"type": "http.response.body", "body": piece, "more_body": not self.whole})
            self.sent += len(piece)
            if self.whole:
                break
            await asyncio.sleep(0)
        await disconnected

    async def _disconnected(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def _is_reset(one: socket.socket) -> bool:
    """Return True if the server has reset the connection. Reads nothing."""
    poll = select.poll()
    poll.register(one, 0)
    return bool(poll.poll(0))


async def slow_reader(port: int) -> socket.socket:
    """Return a connection with a tiny receive buffer that requests an answer and does not read it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, ("127.0.0.1", port))
    await loop.sock_sendall(one, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    return one


@pytest.mark.parametrize("whole", [b"", bytes(8_000_000)], ids=["stream", "file"])
async def test_unread_answer_times_out(monkeypatch: pytest.MonkeyPatch, whole: bytes) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 1.0)
    app = Endless(whole)
    async with serving(app=app) as port, httpx.AsyncClient(trust_env=False) as client:
        readers = [await slow_reader(port) for _ in range(20)]
        assert (await client.get(f"http://127.0.0.1:{port}/other")).status_code == 200
        try:
            await asyncio.to_thread(becomes, True, lambda: all(map(_is_reset, readers)), 60)
            assert app.sent <= len(readers) * (len(whole) or 500_000)
        finally:
            for one in readers:
                one.close()


async def test_slow_reader_gets_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 1.0)
    app = Endless(bytes(600_000))
    async with serving(app=app) as port:
        one, received, began = await slow_reader(port), 0, monotonic()
        while received < 600_000:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 8192), 60)
            assert data, f"connection closed after {received} bytes"
            received += len(data)
            await asyncio.sleep(0.04)
        assert monotonic() - began > 2 * connections.WRITE_SECONDS
        one.close()


async def test_one_address_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MIN_CONNECTIONS_PER_ADDRESS", 4)
    app = Endless()
    async with serving(most=30, app=app) as port:  # 127.0.0.1 counts as a proxy, other loopback addresses do not
        loop, held = asyncio.get_running_loop(), list[socket.socket]()
        for _ in range(40):
            held.append(one := socket.socket())
            one.bind(("127.0.0.2", 0))
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", port))
            await loop.sock_sendall(one, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        refused = [one for one in held if (await loop.sock_recv(one, 12)) == b"HTTP/1.1 503"]
        assert len(refused) == 25
        for address in ("127.0.0.1", "127.0.0.3"):
            transport = httpx.AsyncHTTPTransport(local_address=address)
            async with httpx.AsyncClient(trust_env=False, transport=transport) as client:
                assert (await client.get(f"http://127.0.0.1:{port}/other")).status_code == 200
        for one in held:
            one.close()


async def test_slow_name_server_delays_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer.wait(300) and [])  # pyright: ignore
    lookups = [asyncio.create_task(system_resolver(f"slow{number}.example", 80)) for number in range(100)]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "served"), 60) == "served"
    finally:
        answer.set()
        await asyncio.gather(*lookups)


def test_file_limit_is_raised() -> None:
    code = (
        "import resource; from agent.web.connections import raise_file_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 900));"
        "print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    assert subprocess.check_output([sys.executable, "-c", code]).split() == [b"644", b"900"]


def test_app_survives_more_connections_than_files(start_app: Callable[..., App]) -> None:
    app = start_app(prefix=("prlimit", f"--nofile={FILES}:{FILES}"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    try:
        for _ in range(3 * FILES):
            one = socket.create_connection(("127.0.0.1", app.port), timeout=60)
            held.append(one)
            one.sendall(HALF)
        for _ in range(10):
            assert httpx.get(app.url + "/healthz", trust_env=False, timeout=60).status_code == 200
        assert len(app.log) < 20_000
        becomes(True, lambda: _is_closed(held[0]))  # the oldest one, long before its headers are late
    finally:
        for one in held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert httpx.get(app.url + "/readyz", trust_env=False, timeout=60).status_code == 200


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
