"""A listening socket that keeps its connections, so that a test's server can end all of them before its loop ends.

Cancelling the task of a connection before its first step would leave the connection open.
"""

import asyncio
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Iterable
from contextlib import suppress

Connections = list[socket.socket | TransportSocket]


class Listener(socket.socket):
    """A socket that listens on loopback. It adds the connections that it accepts to `accepted`."""

    def __init__(self, accepted: Connections) -> None:
        super().__init__()
        self._accepted = accepted
        self.bind(("127.0.0.1", 0))

    def accept(self) -> tuple[socket.socket, object]:
        """Accept and keep a connection."""
        connection, address = super().accept()
        self._accepted.append(connection)
        return connection, address


async def end_connections(connections: Iterable[socket.socket | TransportSocket]) -> None:
    """Shut the connections down, and wait until the other tasks of this event loop have closed them and ended."""
    own = asyncio.current_task()
    while (live := [one for one in connections if one.fileno() != -1]) or asyncio.all_tasks() != {own}:
        for one in live:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        await asyncio.sleep(0.01)
