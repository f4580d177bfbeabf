"""The servers of the tests leave nothing open, whatever their connections are doing at their end.

Otherwise a later test of the same process fails when the garbage is collected.
"""

import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from tests.support.dialect_server import playing
from tests.support.scripted_server import running
from tests.support.space_proxy import fronted

REQUESTS = (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"POST /v1 HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}")
Serve = Callable[[], AbstractContextManager[int]]


@contextmanager
def proxy(*, secure: bool) -> Iterator[int]:
    """Run the proxy in front of an app that never answers. Give its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, fronted(secure=secure) as front:
        front.app = silent.getsockname()[1]
        yield front.port


@contextmanager
def scripted() -> Iterator[int]:
    with running() as server:
        yield urlsplit(server.url).port or 0


@contextmanager
def dialect() -> Iterator[int]:
    with playing() as server:
        yield server.port


SERVERS: dict[str, Serve] = {
    "https proxy": lambda: proxy(secure=True),
    "http proxy": lambda: proxy(secure=False),
    "scripted server": scripted,
    "dialect server": dialect,
}


def ask(plain: socket.socket, request: bytes, secure: bool) -> None:
    """Send a request, which the end of the server may interrupt at any point."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), plain:
        if secure:
            with context.wrap_socket(plain) as wrapped:
                wrapped.sendall(request)
        else:
            plain.sendall(request)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.slow
def test_server_ends_every_connection(name: str) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(8):
            with SERVERS[name]() as port:
                opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
                asking = [
                    threading.Thread(target=ask, args=(one, REQUESTS[at % 2], "https" in name))
                    for at, one in enumerate(opened)
                ]
                for thread in asking:
                    thread.start()
                opened += [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
            for thread in asking:
                thread.join()
            for one in opened:
                one.close()
        gc.collect()
    assert [str(one.message) for one in warned if issubclass(one.category, ResourceWarning)] == []
