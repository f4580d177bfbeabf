"""The HTTP base of every dialect: one client for each event loop, its time-outs, and streams read in batches."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from math import inf
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from agent.errors import ProviderError
from agent.fetch import tls_context
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.providers.chunk_joining import JoiningBackend
from agent.providers.connection import Endpoint, Reasoning
from agent.providers.delta_merging import DeltaMerger, current_count, least_pause
from agent.providers.errors import broken_key, explain, explained, is_broken_key, missing_key
from agent.system.request_queue import RequestQueue

READ_INTERVAL_SECONDS = 0.04
"""Seconds between two reads of a stream that has begun, if it is the only one. The first text is never held back.

Waking up for every token is expensive: waking each 40 ms parses the same bytes with less than half the CPU. A page
draws less often, and asks for longer pauses: see `agent.providers.delta_merging.reading_each`."""
PER_STREAM_SECONDS = 0.0026
"""Seconds that each other open stream adds to the pause of all: 100 streams pause for 0.3 s."""
MAX_READ_INTERVAL_SECONDS = 0.5
"""The longest pause, in seconds, however many streams are open."""
READ_SECONDS = 0.002
"""Seconds for a read of bytes that have arrived. After that time it is clear that the network has none."""
READS_BEFORE_TEXT = 10
"""The most reads without a pause until the first text has come. Every dialect begins with some events without text."""
MAX_CHUNKS_AHEAD = 1000
"""Chunks that are read ahead of a reader that is busy."""

END_SECONDS = 3.0
"""Seconds after which an answer with a finish reason has ended if nothing more of it comes. Usage can come so late."""
TIMEOUT = httpx2.Timeout(connect=5.0, read=300.0, write=30.0, pool=5.0)
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0)
"""The number of connections has no limit: the server decides how many answers it writes at once, and queues the rest.
The client drops an idle connection before servers do (uvicorn: after 5 s). A request on a connection that is just
closing fails, and is not repeated."""


class ClientConnection(ABC):
    """A `Connection` to one model. Clients belong to an event loop, so each loop gets its own."""

    timeout = TIMEOUT
    """The time-outs of a request. A dialect can set longer ones."""
    end_seconds = END_SECONDS
    """See `END_SECONDS`."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, provider: ProviderSpec) -> None:
        self.spec, self.endpoint, self.provider = spec, endpoint, provider
        self._queue = RequestQueue(endpoint.slots) if endpoint.slots else None
        self._open_ones: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Model, httpx2.AsyncClient, _Held]] = (
            WeakKeyDictionary()
        )

    def check(self) -> None:
        """Raise `MissingKey` if the provider wants a key and there is none, `InputError` for a key that cannot be one.

        Self-hosted servers need none.
        """
        if is_broken_key(self.endpoint.api_key):
            raise broken_key(self.provider)
        hosted = bool(self.provider.base_url) and self.endpoint.base_url == self.provider.base_url
        if hosted and self.provider.key_names and not self.endpoint.api_key:
            raise missing_key(self.provider)

    def model(self) -> Model:
        self.check()
        loop = asyncio.get_running_loop()
        if loop not in self._open_ones:
            http = new_client(self.endpoint.base_url, timeout=self.timeout)
            self._open_ones[loop] = self._open(http), http, _held(http)
        return self._open_ones[loop][0]

    def change_spec(self, spec: ModelSpec) -> None:
        """Describe the model in another way from the next request on. The clients stay open."""
        self.spec = spec
        for loop, (_old, http, held) in list(self._open_ones.items()):
            self._open_ones[loop] = self._open(http), http, held

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
        if own := explained(error):
            return own
        url = self.endpoint.base_url
        return explain(
            error,
            self.spec.name,
            self.provider,
            key=self.endpoint.api_key,
            is_own_key=self.endpoint.is_own_key,
            base_url=url if url != self.provider.base_url else "",
            where=url,
            is_secret=self.endpoint.is_secret,
            label=self.spec.label,
        )

    async def aclose(self) -> None:
        """Close the running loop's client. The next call of `model` opens another."""
        if found := self._open_ones.pop(asyncio.get_running_loop(), None):
            await found[2].aclose()


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


_in_process: dict[str, httpx2.AsyncBaseTransport] = {}


def serve_in_process(base_url: str, transport: httpx2.AsyncBaseTransport) -> None:
    """Let `transport`, a model of this process, answer what its clients send to `base_url`. No network is used."""
    _in_process[base_url] = transport


def new_client(base_url: str, *, timeout: httpx2.Timeout = TIMEOUT) -> httpx2.AsyncClient:
    """Return a client for one event loop and the server at `base_url`, with the environment's proxy if one applies.

    A server on this machine is always called directly, whatever the environment says.
    """
    url = urlsplit(base_url)
    host = url.hostname or ""
    direct = host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host)
    proxy = None if direct else getproxies().get(url.scheme) or getproxies().get("all")
    transport = _in_process.get(base_url) or _BatchingTransport(verify=tls_context(), limits=LIMITS, proxy=proxy)
    return httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False)


class ReadPace:
    """The pause between two reads of a stream. It grows with the number of streams that are open in this process.

    Each stream costs the same CPU for each batch, however many tokens are in it.
    """

    def __init__(self) -> None:
        self._open: set[object] = set()

    @contextmanager
    def stream(self) -> Generator[None]:
        """Count a stream as open during the block. Can be called in any thread."""
        stream = object()
        self._open.add(stream)
        try:
            yield
        finally:
            self._open.discard(stream)

    @property
    def seconds(self) -> float:
        """The pause at this moment."""
        grown = READ_INTERVAL_SECONDS + PER_STREAM_SECONDS * max(len(self._open) - 1, 0)
        return min(grown, max(MAX_READ_INTERVAL_SECONDS, READ_INTERVAL_SECONDS))


_PACE = ReadPace()


class _BatchingTransport(httpx2.AsyncHTTPTransport):
    """A transport that reads event streams in batches and merges the deltas of each; see `_BatchedStream`.

    Of a time-out that is one figure for everything, only the read gets more than the time that is usual here: nobody
    waits minutes for a connection.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        pool: Any = self._pool
        pool._network_backend = JoiningBackend(pool._network_backend)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        seconds = request.extensions.get("timeout", {})
        usual = {**TIMEOUT.as_dict(), "read": None}
        request.extensions["timeout"] = {
            name: min(filter(None, (seconds.get(name), most)), default=None) for name, most in usual.items()
        }
        response = await super().handle_async_request(request)
        if "text/event-stream" in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            is_plain = "content-encoding" not in response.headers  # compressed events cannot be merged
            response.stream = _BatchedStream(response.stream, DeltaMerger() if is_plain else None)
        return response


class _BatchedStream(httpx2.AsyncByteStream):
    """A stream that is read in batches, with a pause after each read that had to wait.

    A task reads, and the batch is given out when that task waits for the network or ends. So no bytes that have been
    read are held back, although it is unknown beforehand whether there are more.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, merger: DeltaMerger | None = None) -> None:
        self._stream, self._merger = stream, merger
        self._count, self._least_pause = current_count(), least_pause()
        self._chunks: list[bytes] = []
        self._given_at = -inf
        self._news = asyncio.Event()
        self._source: AsyncIterator[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_pausing = False
        self._waits = 1  # the first bytes can be there already, and nothing delays them
        self._waiting: asyncio.Handle | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_pausing:  # a second iteration: the SDK reads the rest, so that the connection can be used again
            await self._stop_reading()
            self._reading = None
        if (reading := self._reading) is None:
            self._reading = reading = asyncio.create_task(self._read())
            reading.add_done_callback(self._ended)
        try:
            while self._chunks or not reading.done():
                await self._news.wait()
                self._news.clear()
                batch, self._given_at = b"".join(self._chunks), monotonic()
                self._chunks.clear()
                for piece, deltas in self._merger.feed(batch) if self._merger else [(batch, 1)] * bool(batch):
                    self._count.pending = deltas
                    yield piece
            if not reading.cancelled() and (error := reading.exception()):
                raise error
        finally:
            if self._reading is reading:
                await self._stop_reading()

    async def aclose(self) -> None:
        await self._stop_reading()
        await self._stream.aclose()

    async def _read(self) -> None:
        source = self._source = self._source or aiter(self._stream)
        loop, reads = asyncio.get_running_loop(), 0
        with _PACE.stream():
            while True:
                if self._waiting is None:
                    self._waiting = loop.call_soon(self._note_wait)
                asked = monotonic()
                try:
                    chunk = await anext(source)
                except StopAsyncIteration:
                    return
                self._chunks.append(chunk)
                arrived, pause = monotonic(), max(_PACE.seconds, self._least_pause)
                has_more = self._waits < 2 or arrived - asked < 0.001
                if has_more and len(self._chunks) < MAX_CHUNKS_AHEAD:
                    continue
                if self._expects_text(reads):
                    reads, self._waits = reads + 1, 1
                    self._news.set()
                    continue
                # The network had no more bytes: let some arrive before reading again. A stream that is slower than the
                # pauses is given out at once, a faster one together with what arrives in the pause.
                if arrived - self._given_at > pause:
                    self._news.set()
                self._is_pausing = True
                await asyncio.sleep(pause)
                self._is_pausing = False
                self._waits = 0
                loop.call_later(READ_SECONDS, self._give_out)

    def _note_wait(self) -> None:
        """Count a read that waits for the event loop.

        The first one after a pause gets what has arrived in it. All that is there has been read when a second one
        waits. A clock cannot tell this: in a busy process, a read takes long although the bytes are there.
        """
        self._waiting = None
        self._waits += 1
        if self._waits > 1:
            self._give_out()

    def _give_out(self) -> None:
        if self._chunks:
            self._news.set()

    def _expects_text(self, reads: int) -> bool:
        return self._merger is not None and not self._merger.has_text and reads < READS_BEFORE_TEXT

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # asyncio would log it if nobody reads on
        self._news.set()

    async def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            self._is_pausing = False
