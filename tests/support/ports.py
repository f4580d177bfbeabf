"""Ports for servers that cannot choose one themselves, or that must come back on the same one."""

import os
import random
import socket
from contextlib import suppress
from itertools import chain

_FIRST, _END = 12_000, 32_000
"""Below the ports that Linux assigns to connections and to servers that request any port."""
_ports = iter(random.Random(os.getpid()).sample(range(_FIRST, _END), _END - _FIRST))


def free_port(*wanted: int) -> int:
    """Return the first of `wanted` that is free, else a free port that no call has returned before.

    Another process of the tests is unlikely to take it.
    """
    for port in chain(wanted, _ports):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no port is free")
