"""A proxy between a browser and the app that cuts connections."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread


class _Proxy(ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


def _forward(source: socket.socket, target: socket.socket) -> None:
    """Forward until one of the two ends, and end both."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_proxy(port: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run a proxy. Give its URL, and a function that cuts all connections.

    Chromium's emulated network fails new requests, but goes on with the streams that are open.
    """
    browsers = list[socket.socket]()

    class Connection(BaseRequestHandler):
        def handle(self) -> None:
            browsers.append(self.request)
            with socket.create_connection(("127.0.0.1", port)) as server:
                Thread(target=_forward, args=(self.request, server), daemon=True).start()
                _forward(server, self.request)

    def cut() -> None:
        for browser in browsers:
            with suppress(OSError):
                browser.shutdown(socket.SHUT_RDWR)

    with _Proxy(("127.0.0.1", 0), Connection) as proxy:
        Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}", cut
        proxy.shutdown()
