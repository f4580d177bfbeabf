"""A web site on loopback that sends exactly the bytes that a test wants, and records its requests.

It speaks HTTP/1.1 without a framework, because tests of guards need answers that no framework would give: wrong
lengths, endless bodies, compression bombs.
"""

import asyncio
import gzip
import json
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Asked:
    """A recorded request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


Said = bytes | AsyncIterator[bytes]
Handler = Callable[[Asked], Said]


@dataclass
class Site:
    """The site's address, its recorded requests, and its `handlers` by path; `handlers["*"]` serves all other paths."""

    port: int
    handlers: dict[str, Handler]
    asked: list[Asked] = field(default_factory=list[Asked])

    @property
    def host(self) -> str:
        """The host in the form of a guard's `allow`."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The root URL, without a slash."""
        return f"http://{self.host}"


def answer(
    body: bytes | str = b"", *, status: int = 200, kind: str = "text/plain", headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a complete answer. `headers` can extend or contradict the correct ones."""
    data = body.encode() if isinstance(body, str) else body
    said = {"Content-Type": kind, "Content-Length": str(len(data)), "Connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + data


def as_json(value: Any, **more: Any) -> bytes:
    """Return a complete answer in JSON."""
    return answer(json.dumps(value), kind="application/json", **more)


def zipped(data: bytes, **more: Any) -> bytes:
    """Return a complete, compressed answer."""
    return answer(gzip.compress(data), headers={"Content-Encoding": "gzip"}, **more)


def to(location: str, status: int = 302) -> bytes:
    return answer(status=status, headers={"Location": location})


@asynccontextmanager
async def site(tls: ssl.SSLContext | None = None, **handlers: Handler) -> AsyncGenerator[Site]:
    """Serve on a free port. A handler's name is its path without the slash; `star` serves all other paths."""
    paths = {"*" if name == "star" else f"/{name}": handler for name, handler in handlers.items()}
    here = Site(0, paths)

    talks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(talk := asyncio.create_task(listen(reader, writer)))
        talk.add_done_callback(talks.discard)
        talk.add_done_callback(lambda _: writer.close())  # also if it was cancelled before its first step

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
            asked = Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))
            here.asked.append(asked)
            said = here.handlers.get(target.partition("?")[0], here.handlers.get("*", lambda _: answer(status=404)))(
                asked
            )
            if isinstance(said, bytes):
                writer.write(said)
                await writer.drain()
            else:
                try:
                    async for part in said:
                        writer.write(part)
                        await writer.drain()
                finally:
                    if isinstance(said, AsyncGenerator):
                        await said.aclose()  # close at once, for tests that wait until nothing listens any more

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        for one in list(talks):
            one.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        server.close()  # only now, because it would leave a connection open that was just accepted


@contextmanager
def site_apart(**handlers: Handler) -> Generator[Site]:
    """Serve in a loop of its own, for tests whose thread runs the browser's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opening = site(**handlers)
    yield asyncio.run_coroutine_threadsafe(opening.__aenter__(), loop).result(20)
    asyncio.run_coroutine_threadsafe(opening.__aexit__(None, None, None), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


def certificate(folder: Path, name: str) -> Path:
    """Write a self-signed certificate for this host name, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    unlocked = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + key.private_bytes(*unlocked))
    return path
