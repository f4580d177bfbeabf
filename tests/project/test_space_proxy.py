"""The stand-in for a Space's proxy leaves nothing open, whatever its connections are doing at its end."""

import gc
import socket
import ssl
import threading
import warnings
from contextlib import closing, suppress

import pytest

from tests.support.space_proxy import fronted

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


def ask(plain: socket.socket, secure: bool) -> None:
    """Send a request, which the end of the proxy may interrupt at any point."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), plain:
        if secure:
            with context.wrap_socket(plain) as wrapped:
                wrapped.sendall(REQUEST)
        else:
            plain.sendall(REQUEST)


@pytest.mark.parametrize("secure", [True, False])
def test_proxy_ends_every_connection(secure: bool) -> None:
    with (
        warnings.catch_warnings(record=True) as warned,
        closing(socket.create_server(("127.0.0.1", 0))) as silent,  # an app that never answers
    ):
        warnings.simplefilter("always")
        for number in range(8):
            with fronted(secure=secure) as front:
                front.app = silent.getsockname()[1]
                opened = [socket.create_connection(("127.0.0.1", front.port)) for _ in range(4)]
                asking = [threading.Thread(target=ask, args=(one, secure)) for one in opened]
                for thread in asking:
                    thread.start()
                opened += [socket.create_connection(("127.0.0.1", front.port)) for _ in range(number)]
            for thread in asking:
                thread.join()
            for one in opened:
                one.close()
        gc.collect()
    assert [str(one.message) for one in warned if issubclass(one.category, ResourceWarning)] == []
