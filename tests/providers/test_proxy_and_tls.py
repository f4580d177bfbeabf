"""Requests to a model server go through the environment's proxy and trust its certificates."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent import Agent
from agent.fetch import tls_context
from tests.support.scripted_server import Running
from tests.support.small_site import certificate

HOST = "models.example"
"""A name that no resolver knows: only a proxy can reach it."""
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass
class Front:
    """A port in front of the scripted server. `heads` are the first lines that clients sent, a list a connection."""

    port: int = 0
    heads: list[list[str]] = field(default_factory=list[list[str]])


@asynccontextmanager
async def front(target: int, tls: ssl.SSLContext | None = None, at: str = "127.0.0.1") -> AsyncGenerator[Front]:
    """Serve as a proxy, or as a TLS server, of which every connection leads to the port `target`."""
    here = Front()
    open_ones = set[asyncio.Task[None]]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: list[str] | None) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if first is not None and data.startswith((b"POST ", b"GET ")):
                    first.append(data.partition(b"\r\n")[0].decode())
                    data = data.replace(f"http://{HOST}".encode(), b"", 1)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads = list[str]()
        here.heads.append(heads)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", target)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head.partition(b"\r\n")[0].decode())
            if head.startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                to_server.write(head.replace(f"http://{HOST}".encode(), b"", 1))
            await asyncio.gather(copy(reader, to_server, heads), copy(from_server, writer, None))
        finally:
            to_server.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(talk := asyncio.create_task(serve(reader, writer)))
        talk.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(begin, at, 0, ssl=tls)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()
        for one in open_ones:
            one.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def secure(server: Running, tmp_path: Path) -> AsyncIterator[tuple[Front, Path]]:
    """A TLS server for `HOST` in front of the scripted server, and its certificate, which nobody trusts yet."""
    path = certificate(tmp_path, HOST)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(path)
    tls_context.cache_clear()
    async with front(urlsplit(server.url).port or 0, serving) as there:
        yield there, path
    tls_context.cache_clear()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_plain_requests_share_connection_to_proxy(
    server: Running, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    async with front(urlsplit(server.url).port or 0) as proxy:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        agent = Agent("Qwen/Qwen3-8B", provider="vllm", base_url=f"http://{HOST}/v1")
        assert [(await agent.ask("!text Yes.")).text for _ in range(3)] == ["Yes."] * 3
        await agent.aclose()
    assert proxy.heads == [[f"POST http://{HOST}/v1/chat/completions HTTP/1.1"] * 3]


async def test_encrypted_requests_pass_through_proxy(
    server: Running, secure: tuple[Front, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, path = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    async with front(there.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        agent = Agent("Qwen/Qwen3-8B", provider="vllm", base_url=f"https://{HOST}/v1")
        assert [(await agent.ask("!text Yes.")).text for _ in range(2)] == ["Yes."] * 2
        seen = len(server.journal())
        run = agent.run("!stall-after 5").start()
        while not run.responses:
            await run.wait_for_update(0)
        run.cancel()
        await run
        lines = await asyncio.to_thread(server.wait_for, lambda lines: lines[seen]["closed"])
        await agent.aclose()
    assert lines[seen]["ended"] == "client_closed", "a stop goes through proxy and encryption"
    assert [heads[0] for heads in proxy.heads] == [f"CONNECT {HOST}:443 HTTP/1.1"]
    assert [len(heads) for heads in there.heads] == [3], "one connection for three requests"


async def test_unknown_certificate_is_named(secure: tuple[Front, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    there, _path = secure
    async with front(there.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        agent = Agent("Qwen/Qwen3-8B", provider="vllm", base_url=f"https://{HOST}/v1")
        result = await agent.ask("Hello")
        await agent.aclose()
    assert result.finish_reason == "error"
    assert HOST in result.why
    assert "certificate" in result.why
    assert not there.heads


async def test_no_proxy_names_hosts_to_reach_directly(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.2")
    async with front(urlsplit(server.url).port or 0, at="127.0.0.2") as there:
        agent = Agent("Qwen/Qwen3-8B", provider="vllm", base_url=f"http://127.0.0.2:{there.port}/v1")
        assert (await agent.ask("!text Yes.")).text == "Yes."
        await agent.aclose()
