"""A stand-in for the hub in front of a Space: an https proxy with its own address, and a page that shows it in a frame.

    with fronted(secure=True) as front:
        front.app = port
        ... front.url is the page itself, front.outer a page of another site that shows it in a frame ...

The certificate is made here. Each connection carries one request.
"""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.kept_connections import Connections, Listener, end_connections

SOURCE = "127.0.0.2"
"""The proxy's source address: on loopback, but not one that a server at home trusts."""
PAGE = """<!doctype html><title>Another site</title><style>body {{ margin: 0; font-family: sans-serif }}
header {{ padding: 8px 16px; background: #eee }} iframe {{ border: 0; width: 100%; height: calc(100vh - 40px) }}</style>
<header>Another site</header><iframe name="space" src="{src}" allow="microphone; clipboard-write"></iframe>"""


@dataclass
class Front:
    """A running proxy. `app` is the port of the app behind it."""

    secure: bool
    port: int = 0
    app: int = 0
    sockets: Connections = field(default_factory=list)
    """All connections, from browsers and to the app."""

    @property
    def host(self) -> str:
        """The value that the hub sets as SPACE_HOST."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the page itself."""
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def origin(self) -> str:
        """The origin of the other site."""
        return f"{'https' if self.secure else 'http'}://localhost:{self.port}"

    @property
    def outer(self) -> str:
        """The URL of the other site's page with the frame."""
        return self.origin + "/outer"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip("\r\n").split("\r\n")
            path, names = first.split(" ")[1], {line.split(":")[0].lower(): line for line in lines}
            if path == "/outer":
                writer.write(_page(PAGE.format(src=self.url)))
            elif path == "/probe":  # an old-style cookie, as third parties set it
                more = "Set-Cookie: probe=1; SameSite=None; Secure; Path=/probe\r\n"
                writer.write(_page(names.get("cookie", "no cookie"), more))
            else:
                kept = [line for line in lines if line.split(":")[0].lower() != "connection"]
                host = names.get("host", f"host: {self.host}").partition(":")[2].strip()
                told = [f"X-Forwarded-Proto: {'https' if self.secure else 'http'}", f"X-Forwarded-Host: {host}"]
                request = "\r\n".join([first, *kept, *told, "X-Forwarded-For: 203.0.113.7", "Connection: close"])
                await self._pass_on(reader, writer, request.encode("latin-1") + b"\r\n\r\n")
        await _close(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        back, there = await asyncio.open_connection("127.0.0.1", self.app, local_addr=(SOURCE, 0))
        self.sockets.append(there.get_extra_info("socket"))
        there.write(head)
        asked = asyncio.create_task(_copy(reader, there))
        answered = asyncio.create_task(_copy(back, writer))
        try:
            # Either end can close first. Then close the other one.
            await asyncio.wait((asked, answered), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (asked, answered):
                task.cancel()
            await asyncio.gather(asked, answered, return_exceptions=True)
            await _close(there)


@contextmanager
def fronted(*, secure: bool) -> Iterator[Front]:
    """Run a proxy on loopback in a separate thread until the block ends."""
    front, loop, ready = Front(secure), asyncio.new_event_loop(), threading.Event()

    async def run(end: asyncio.Future[None], context: ssl.SSLContext | None) -> None:
        listener = Listener(front.sockets)
        async with await asyncio.start_server(front.serve, sock=listener, ssl=context) as server:
            front.port = listener.getsockname()[1]
            ready.set()
            await end
            await end_connections(front.sockets)
            server.close()  # only now, because it would leave a connection open that was just accepted

    end: asyncio.Future[None] = loop.create_future()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(end, _context() if secure else None),))
    thread.start()
    ready.wait(60)
    try:
        yield front
    finally:
        loop.call_soon_threadsafe(end.set_result, None)
        thread.join()
        loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _page(body: str, headers: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body.encode())}\r\n{headers}"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


def _context() -> ssl.SSLContext:
    """Return a TLS context with a self-signed certificate for both names of this machine."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    now, pem = datetime.now(UTC), serialization.Encoding.PEM
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        file = Path(folder, "pem")
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(private + made.public_bytes(pem))
        context.load_cert_chain(file)
    return context
