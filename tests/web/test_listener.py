"""Connections are accepted again after the process had no free file, with each event loop."""

import socket
import subprocess
import sys

import pytest

SERVER = """
import asyncio, os, resource, socket, sys
import uvloop
from agent.web.server import accept_connections

class Greet(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()

async def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    accepting = asyncio.create_task(accept_connections(listener, Greet))
    await asyncio.to_thread(print, listener.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        print("full", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for file in taken:
        os.close(file)
    await asyncio.to_thread(sys.stdin.readline)
    accepting.cancel()

with asyncio.Runner(loop_factory=getattr(sys.modules[sys.argv[1]], "new_event_loop")) as runner:
    runner.run(serve())
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connection_waits_for_a_free_file(loop: str) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SERVER, loop]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1) as server:
        assert server.stdin
        assert server.stdout
        assert server.stderr
        address = ("127.0.0.1", int(server.stdout.readline()))
        assert greeting(address) == b"hello"
        server.stdin.write("take all files\n")
        assert server.stdout.readline() == "full\n"
        waiting = [socket.create_connection(address, timeout=30) for _ in range(3)]
        assert "connections cannot be accepted: [Errno 24]" in server.stderr.readline()
        server.stdin.write("give them back\n")
        assert [one.recv(16) for one in waiting] == [b"hello"] * 3
        assert greeting(address) == b"hello"
        for one in waiting:
            one.close()
        server.stdin.write("end\n")
        assert server.stderr.read() == "", "one line for all that could not be accepted"


def greeting(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=30) as connection:
        return connection.recv(16)
