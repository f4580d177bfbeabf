"""Accepts connections, also after the process had no free file for one.

asyncio's own server logs one line for each connection that it cannot accept, which can be thousands per second, and
uvloop's ends for good. So the server accepts connections itself.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from math import inf
from time import monotonic

ACCEPTED_AT_ONCE = 128
"""Connections that are accepted before anything else is done."""
NEXT_TRY_SECONDS = 0.5
"""Seconds until the next try, after a connection could not be accepted."""
LOG_PAUSE_SECONDS = 10.0
"""Seconds between two log lines about connections that could not be accepted."""

log = logging.getLogger(__name__)


async def accept_connections(listener: socket.socket, new_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until cancelled. Each gets a protocol of its own."""
    loop, starting, logged = asyncio.get_running_loop(), set[asyncio.Task[object]](), -inf
    listener.setblocking(False)
    while True:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # the client has left meanwhile
                continue
            except OSError as error:
                if monotonic() - logged >= LOG_PAUSE_SECONDS:
                    logged = monotonic()
                    log.error("connections cannot be accepted: %s", error)
                await asyncio.sleep(NEXT_TRY_SECONDS)
                continue
            task = loop.create_task(loop.connect_accepted_socket(new_protocol, connection))
            starting.add(task)
            task.add_done_callback(starting.discard)
        await asyncio.sleep(0)
