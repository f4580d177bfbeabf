"""The HTTP base of every dialect: one client for each event loop, its time-outs, and streams read in batches."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from time import monotonic
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from agent.errors import ProviderError
from agent.fetch import tls_context
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.providers import Endpoint, Reasoning
from agent.providers.errors import explain, missing_key
from agent.providers.request_queue import RequestQueue

READ_INTERVAL_SECONDS = 0.03
"""Seconds between two reads of a stream that has begun. The first bytes are never held back.

Waking up for every token is expensive: waking each 30 to 40 ms parses the same bytes with about half the CPU."""

TIMEOUT = httpx2.Timeout(connect=5.0, read=300.0, write=30.0, pool=5.0)
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0)
"""The number of connections has no limit: the server decides how many answers it writes at once, and queues the rest.
The client drops an idle connection before servers do (uvicorn: after 5 s). A request on a connection that is just
closing fails, and is not repeated."""


class ClientConnection(ABC):
    """A `Connection` to one model. Clients belong to an event loop, so each loop gets its own."""

    timeout = TIMEOUT
    """The time-outs of a request. A dialect can set longer ones."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, provider: ProviderSpec) -> None:
        self.spec, self.endpoint, self.provider = spec, endpoint, provider
        self._queue = RequestQueue(endpoint.slots) if endpoint.slots else None
        self._open_ones: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Model, _Held]] = WeakKeyDictionary()

    def check(self) -> None:
        """Raise `MissingKey` if the provider wants a key and there is none. Self-hosted servers need none."""
        hosted = bool(self.provider.base_url) and self.endpoint.base_url == self.provider.base_url
        if hosted and self.provider.key_names and not self.endpoint.api_key:
            raise missing_key(self.provider)

    def model(self) -> Model:
        """Return the model for the running loop."""
        self.check()
        loop = asyncio.get_running_loop()
        if loop not in self._open_ones:
            http = new_client(self.endpoint.base_url, timeout=self.timeout)
            self._open_ones[loop] = self._open(http), _held(http)
        return self._open_ones[loop][0]

    def slot(self, on_position: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """Wait for a free slot at the server, behind earlier requests, and hold it for the block."""
        return self._queue.slot(on_position) if self._queue is not None else nullcontext()

    @abstractmethod
    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return the reasoning that a request will ask for, given the wish. `settings` asks for exactly that."""

    @abstractmethod
    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return the request settings for this model, with reasoning on, off, at an effort, or by default."""

    @abstractmethod
    def _open(self, http: httpx2.AsyncClient) -> Model:
        """Return the SDK's model over this client, with the SDK's own retries off."""

    def explain(self, error: Exception) -> ProviderError:
        """Translate a failure into a sentence for people; see `agent.providers.errors`."""
        return explain(error, self.spec.name, self.provider, key=self.endpoint.api_key)

    async def aclose(self) -> None:
        """Close the running loop's client. The next call of `model` opens another."""
        if found := self._open_ones.pop(asyncio.get_running_loop(), None):
            await found[1].aclose()


_Held = AsyncGenerator[None, None]


def _held(http: httpx2.AsyncClient) -> _Held:
    """Hold a client open until the returned generator is closed, at the latest with its event loop.

    A loop that ends closes the generators that have started in it, and nothing else. Therefore
    `asyncio.run(agent.ask(...))` leaves no connection behind, although nobody closed the agent.
    """

    async def hold() -> _Held:
        try:
            yield
        finally:
            await http.aclose()

    holding = hold()
    with suppress(StopIteration):  # runs to the yield without waiting for anything
        holding.__anext__().send(None)
    return holding


def new_client(base_url: str, *, timeout: httpx2.Timeout = TIMEOUT) -> httpx2.AsyncClient:
    """Return a client for one event loop and the server at `base_url`, with the environment's proxy if one applies.

    A server on this machine is always called directly, whatever the environment says.
    """
    url = urlsplit(base_url)
    host = url.hostname or ""
    direct = host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host)
    proxy = None if direct else getproxies().get(url.scheme) or getproxies().get("all")
    return httpx2.AsyncClient(
        transport=_BatchingTransport(verify=tls_context(), limits=LIMITS, proxy=proxy), timeout=timeout, trust_env=False
    )


class _BatchingTransport(httpx2.AsyncHTTPTransport):
    """A transport that reads event streams in batches, and waits `READ_INTERVAL_SECONDS` between two reads."""

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
            if waited:  # the network has no more bytes: let some arrive before reading again
                await asyncio.sleep(READ_INTERVAL_SECONDS)

    async def aclose(self) -> None:
        await self._stream.aclose()
