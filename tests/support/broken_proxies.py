"""Proxies between a browser and the app that cut connections, or hide that the app is gone."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread


class _Proxy(ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


@contextmanager
def _serving(connection: type[BaseRequestHandler]) -> Iterator[str]:
    """Run a proxy for the block. Give its URL."""
    with _Proxy(("127.0.0.1", 0), connection) as proxy:
        Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()


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

    with _serving(Connection) as url:
        yield url, cut


@contextmanager
def stubborn_proxy(port: int) -> Iterator[str]:
    """Run a proxy that holds the streams of answers open when the server behind it is gone. Give its URL."""

    class Connection(BaseRequestHandler):
        def handle(self) -> None:
            browser: socket.socket = self.request
            asked, has_left = list[bytes](), Event()
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:  # as a proxy that finds its servers by itself
                browser.recv(65536)
                browser.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return

            def listen() -> None:
                with suppress(OSError):
                    while data := browser.recv(65536):
                        asked.append(data)
                        server.sendall(data)
                has_left.set()
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)

            with server:
                Thread(target=listen, daemon=True).start()
                with suppress(OSError):
                    while data := server.recv(65536):
                        browser.sendall(data)
                if b"GET /runs/" in asked[-1]:
                    has_left.wait()

    with _serving(Connection) as url:
        yield url
