"""Ports for servers that cannot choose one themselves, or that must come back on the same one."""

import os
import random
import socket
from contextlib import suppress

_FIRST, _END = 12_000, 32_000
"""Below the ports that Linux assigns to connections and to servers that request any port."""
_ports = iter(random.Random(os.getpid()).sample(range(_FIRST, _END), _END - _FIRST))


def free_port() -> int:
    """Return a free port, never the same one twice. Another process of the tests is unlikely to take it."""
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no port is free")
