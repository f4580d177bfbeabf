"""What every dialect stands on: one client for each event loop, its patience, and streams that are read in gulps."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import cache
from time import monotonic
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from agent.errors import ProviderError
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.providers import Endpoint, Reasoning
from agent.providers.errors import explain, missing_key
from agent.providers.request_queue import RequestQueue

READ_EVERY = 0.03
"""Seconds between two reads of a stream that has begun. Waking for every token is what costs: a reader woken each
30 to 40 ms parses the same bytes for about half the CPU. The first bytes are never held back."""

TIMEOUT = httpx2.Timeout(connect=5.0, read=300.0, write=30.0, pool=5.0)
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0)
"""How many answers may be written at once is for the server to say, which queues them. An idle connection is given up
before servers do so (uvicorn: after 5 s), since a request on one that is just closing fails, and is not repeated."""


class ClientConnection(ABC):
    """A `Connection` to one model. Clients belong to an event loop, so each loop gets its own."""

    timeout = TIMEOUT
    """How long to wait, for what; a dialect may be more patient."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, provider: ProviderSpec) -> None:
        self.spec, self.endpoint, self.provider = spec, endpoint, provider
        self._line = RequestQueue(endpoint.slots) if endpoint.slots else None
        self._open_ones: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Model, _Held]] = WeakKeyDictionary()

    def check(self) -> None:
        """Raise `MissingKey` if the provider wants a key and there is none. Servers of one's own need none."""
        hosted = bool(self.provider.base_url) and self.endpoint.base_url == self.provider.base_url
        if hosted and self.provider.key_names and not self.endpoint.api_key:
            raise missing_key(self.provider)

    def model(self) -> Model:
        """The model for the running loop."""
        self.check()
        loop = asyncio.get_running_loop()
        if loop not in self._open_ones:
            http = new_client(self.endpoint.base_url, timeout=self.timeout)
            self._open_ones[loop] = self._open(http), _held(http)
        return self._open_ones[loop][0]

    def slot(self, told: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """A place at the server, after those who came before."""
        return self._line.slot(told) if self._line is not None else nullcontext()

    @abstractmethod
    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """What a request says of reasoning when so much is asked for; `settings` says just that."""

    @abstractmethod
    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """The request settings this model needs, with reasoning on, off, at an effort, or as it comes."""

    @abstractmethod
    def _open(self, http: httpx2.AsyncClient) -> Model:
        """The SDK's model over this client, with the SDK's own retries off."""

    def explain(self, error: Exception) -> ProviderError:
        """See `agent.providers.errors`."""
        return explain(error, self.spec.name, self.provider, key=self.endpoint.api_key)

    async def aclose(self) -> None:
        """Close the running loop's client; the next `model` opens another."""
        if found := self._open_ones.pop(asyncio.get_running_loop(), None):
            await found[1].aclose()


_Held = AsyncGenerator[None, None]


def _held(http: httpx2.AsyncClient) -> _Held:
    """Hold a client open until this is closed, at the latest with its event loop.

    A loop that ends closes the generators that have begun in it, and nothing else: so `asyncio.run(agent.ask(...))`
    leaves no connection behind, although nobody closed the agent.
    """

    async def hold() -> _Held:
        try:
            yield
        finally:
            await http.aclose()

    holding = hold()
    with suppress(StopIteration):  # it has come to its yield, without waiting for anything
        holding.__anext__().send(None)
    return holding


def new_client(base_url: str, *, timeout: httpx2.Timeout = TIMEOUT) -> httpx2.AsyncClient:
    """A client for one event loop and the server at `base_url`, through the environment's proxy if one is meant for it.

    A server on this machine is spoken to directly, whatever the environment says.
    """
    url = urlsplit(base_url)
    host = url.hostname or ""
    direct = host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host)
    proxy = None if direct else getproxies().get(url.scheme) or getproxies().get("all")
    return httpx2.AsyncClient(
        transport=_BatchingTransport(verify=_trust(), limits=LIMITS, proxy=proxy), timeout=timeout, trust_env=False
    )


@cache
def _trust() -> ssl.SSLContext:
    """The certificates we trust. Reading them takes 100 ms of CPU, so all clients share what was read."""
    return httpx2.create_ssl_context()


class _BatchingTransport(httpx2.AsyncHTTPTransport):
    """A transport whose response bodies are read in gulps, each at least `READ_EVERY` after the last wait."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "text/event-stream" in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BatchedStream(response.stream)
        return response


class _BatchedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        source = aiter(self._stream)
        while True:
            asked = monotonic()
            try:
                chunk = await anext(source)
            except StopAsyncIteration:
                return
            waited = monotonic() - asked > 0.001
            yield chunk
            if waited:  # the network is drained: let some more arrive before looking again
                await asyncio.sleep(READ_EVERY)

    async def aclose(self) -> None:
        await self._stream.aclose()
