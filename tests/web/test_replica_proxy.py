"""nginx with docs/proxies/replicas.conf, as compose.yaml mounts it, in front of two tiny servers instead of the page.

Only names, ports and the certificate are changed.
"""

import asyncio
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.event_source import Write, event_source
from tests.support.ports import free_port
from tests.support.proxies import replicas_proxy, self_signed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the first test waits for Debian's package

EVENTS = 20
NAMES = ("page1", "page2")


class Scene:
    """The proxy, and the two servers behind it. A stream sends its next event when the reader has the last one."""

    def __init__(self, port: int, certificate: Path, ports: tuple[int, int]) -> None:
        self.port, self.certificate, self.ports = port, certificate, ports
        self.is_read = asyncio.Event()
        self.servers = dict[str, AsyncExitStack]()

    @property
    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    async def start(self, name: str) -> None:
        self.servers[name] = stack = AsyncExitStack()
        await stack.enter_async_context(event_source(name, self._stream, self.ports[NAMES.index(name)]))

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).aclose()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"https://localhost:{self.port}", verify=self.trusted, trust_env=False, timeout=30
        )

    async def _stream(self, write: Write) -> None:
        for number in range(EVENTS):
            self.is_read.clear()
            await write(f"id: {number}\ndata: {{}}\n\n")
            await self.is_read.wait()


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, tuple[int, int]]]:
    port, ports = free_port(), (free_port(), free_port())
    crt, key = self_signed(tmp_path_factory.mktemp("certificate"))
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder, replicas_proxy(folder, port, ports, crt, key):
        yield port, crt, ports


@pytest.fixture
async def scene(nginx: tuple[int, Path, tuple[int, int]]) -> AsyncIterator[Scene]:
    scene = Scene(*nginx)
    for name in NAMES:
        await scene.start(name)
    yield scene
    for name in [*scene.servers]:
        await scene.stop(name)


async def test_http_2_is_offered(scene: Scene) -> None:
    def negotiate() -> str | None:
        context = scene.trusted
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", scene.port), timeout=30) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            return connection.selected_alpn_protocol()

    assert await asyncio.to_thread(negotiate) == "h2"


async def test_event_stream_is_not_buffered(scene: Scene) -> None:
    """Each event is sent only when the one before has arrived, so a proxy that holds one back stops the stream."""
    seen = 0
    async with scene.client() as client, client.stream("GET", "/runs/1/events") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                seen += 1
                scene.is_read.set()
    assert seen == EVENTS


async def test_visitor_stays_at_one_process(scene: Scene) -> None:
    async with scene.client() as client:
        found = {number: await processes_of(client, number) for number in range(20)}
    assert all(len(names) == 1 for names in found.values())
    assert set().union(*found.values()) == set(NAMES)


async def test_visitors_of_lost_process_go_to_another(scene: Scene) -> None:
    """Each request is answered, also the first one after the loss, and nobody else moves."""
    async with scene.client() as client:
        before = {number: await processes_of(client, number) for number in range(20)}
        await scene.stop("page1")
        after = {number: await processes_of(client, number) for number in range(20)}
    assert {"page1"} in before.values()
    assert all(names == {"page2"} for names in after.values())


async def processes_of(client: httpx.AsyncClient, visitor: int) -> set[str]:
    """Return the names of the processes that answer several requests of a visitor."""
    cookie = {"cookie": f"other=1; __Host-switchboard_visitor-443=visitor{visitor}.signature"}
    found = Counter[str]()
    for method in ("GET", "POST", "GET"):
        answer = await client.request(method, "/", headers=cookie)
        assert answer.status_code == 200
        found[answer.text] += 1
    return set(found)
