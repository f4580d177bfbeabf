"""A model that this machine serves itself: with vLLM on a GPU, else with llama.cpp if we know its weights.

Nothing is downloaded or started before the first request. The server is a child of the event loop that asked first. It
ends with `aclose`, or with this program, however the program ends.
"""

import asyncio
import logging
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from pydantic_ai.models import Model

from agent.errors import UnknownModel
from agent.i18n.text import LocalizedText, _
from agent.local.launch import Launched, check_llama, gpu_memory, launch_llama, launch_vllm
from agent.local.manager import LocalModels
from agent.local.process import ServerProcess, loop_runs_here
from agent.local.vllm_server import find_vllm
from agent.models.catalog import AUTO, ModelSpec, load_catalog
from agent.models.weights import QWEN3_06B, SMOLLM2, Weights, fetch, find
from agent.providers import chat_completions
from agent.providers.connection import Connection, Endpoint, ForwardingConnection, Reasoning, ServedModel, connect
from agent.settings import ROOT, LocalSettings

_UNKNOWN = ModelSpec(
    id=AUTO, name=AUTO, label=AUTO, provider="vllm", image=True, audio=True, reasoning=True, prefill=True
)
"""Refuses nothing, because it stands for a model that is not known yet. The run checks its prompt again."""


@dataclass(slots=True)
class _Chosen:
    """The model servers of one event loop, and the connection to the chosen model."""

    models: LocalModels
    served: ServedModel | None = None
    connection: Connection | None = None


class AutoConnection(ForwardingConnection):
    """A `Connection` to the model that `LocalModels` chooses, as it does for the page.

    `ready` finds it, with the first run in each event loop, and later runs stay with it as long as it answers. Nothing
    is downloaded or started before that.
    """

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._chosen: WeakKeyDictionary[asyncio.AbstractEventLoop, _Chosen] = WeakKeyDictionary()
        self._last: Connection | None = None

    @property
    def spec(self) -> ModelSpec:
        """The chosen model of the running loop, else of any loop; before the first run one that takes everything."""
        found = self._connection()
        return found.spec if found is not None else _UNKNOWN

    async def ready(self) -> None:
        """Choose the model if none was chosen in this loop, or if that one answers no more. This can take seconds.

        Raises `LocalModelError` with the reason if there is none.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._chosen:
            self._chosen[loop] = _Chosen(LocalModels(self._settings, say=log.warning))
        chosen = self._chosen[loop]
        served = await chosen.models.ready()
        if chosen.connection is None or chosen.served not in served:
            if chosen.connection is not None:
                await chosen.connection.aclose()
            chosen.served, chosen.connection = served[0], connect(served[0].spec, served[0].endpoint)
            self._last = chosen.connection

    def check(self) -> None:
        """Do nothing: only `ready` knows whether a request can be made."""

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        found = self._connection()
        return found.effort(reasoning) if found is not None else None

    async def aclose(self) -> None:
        """End what runs in this loop: the connection, and the server if one was started. The next run starts again."""
        if chosen := self._chosen.pop(asyncio.get_running_loop(), None):
            if chosen.connection is not None:
                await chosen.connection.aclose()
            await chosen.models.aclose()

    def end_servers(self) -> None:
        for loop, chosen in list(self._chosen.items()):
            if not loop_runs_here(loop):
                chosen.models.end()
                del self._chosen[loop]

    def _connection(self) -> Connection | None:
        try:
            chosen = self._chosen.get(asyncio.get_running_loop())
        except RuntimeError:  # no loop runs here
            chosen = None
        return chosen.connection if chosen is not None and chosen.connection is not None else self._last

    def _target(self) -> Connection:
        chosen = self._chosen.get(asyncio.get_running_loop())
        assert chosen is not None, "a run calls `ready` first"
        assert chosen.connection is not None
        return chosen.connection


log = logging.getLogger(__name__)

KNOWN = {"qwen/qwen3-0.6b": QWEN3_06B, "huggingfacetb/smollm2-135m-instruct": SMOLLM2}
"""The weights for llama.cpp, by the lower-case name of the checkpoint. The name of their spec is accepted, too."""


class LocalConnection(chat_completions.ChatCompletionsConnection):
    """A `Connection` to a model that this machine serves on demand. Each event loop has its own server.

    Raises `UnknownModel`, with advice, if this machine cannot serve it, and `LocalModelError` without llama.cpp.
    """

    def __init__(self, spec: ModelSpec, settings: LocalSettings) -> None:
        self._settings = settings
        self._vllm = find_vllm(ROOT) if shutil.which("nvidia-smi") else None
        self._weights = None if self._vllm else _known_weights(spec.name)
        if self._vllm is None and self._weights is None:
            known = ", ".join(KNOWN)
            raise UnknownModel(
                _(
                    "This machine cannot serve {model}: that needs a GPU with vLLM. Name the server "
                    "that does, with base_url=... or VLLM_BASE_URL. On the CPU there are {known}.",
                    model=spec.name,
                    known=known,
                )
            )
        if self._weights:
            check_llama()
        spec = self._weights.spec if self._weights else spec
        super().__init__(spec, Endpoint(""), load_catalog().providers[spec.provider])
        self._servers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Server] = WeakKeyDictionary()

    def model(self) -> Model:
        """Return the model of the running server. Each request is made in a `slot`, which starts the server."""
        connection = self._server().connection
        assert connection is not None, "a request holds a slot"
        return connection.model()

    def _server(self) -> "_Server":
        return self._servers.setdefault(asyncio.get_running_loop(), _Server(self))

    @asynccontextmanager
    async def slot(self, on_position: Callable[[int], None]) -> AsyncGenerator[None]:
        """Download and start what is needed, wait for a free slot, and hold it for the block. It can take minutes."""
        connection = await self._server().ready()
        async with connection.slot(on_position):
            yield

    def learn(
        self, error: BaseException | None, *, pictures: bool, tools: bool, schema: bool = False, videos: bool = False
    ) -> LocalizedText | None:
        if (connection := self._server().connection) is None:
            return None
        sentence = connection.learn(error, pictures=pictures, tools=tools, schema=schema, videos=videos)
        self.spec = replace(connection.spec, name=self.spec.name)
        return sentence

    async def launch(self) -> Launched:
        """Start a server and return it when it answers. Raises `LocalModelError` with the reason if it cannot start."""
        key = secrets.token_urlsafe(32)
        if self._vllm is not None:
            memory = await gpu_memory()
            return await launch_vllm(
                self._vllm,
                self.spec.name,
                gpu_memory=memory,
                key=key,
                port=0,
                report=lambda step, _: log.info("%s", step),
            )
        assert self._weights is not None
        weights, cache = self._weights, self._settings.cache_dir
        path = await find(weights, cache)
        if path is None and self._settings.downloads:
            log.warning("fetching %s: %d MB, %s", self.spec.label, weights.size // 10**6, self.spec.source)
            path = await fetch(weights, cache, report=lambda _have, _all: None)
        if path is None:
            raise UnknownModel(_("{model} is not on this disk, and downloads are off.", model=self.spec.label))
        context, kv_bytes = self.spec.context_tokens, weights.kv_bytes
        return await launch_llama(
            path,
            name=self.spec.name,
            context=context,
            kv_bytes=kv_bytes,
            key=key,
            port=0,
            answers=self._settings.answers,
        )

    async def aclose(self) -> None:
        """End the running loop's server. The next request starts another."""
        if server := self._servers.pop(asyncio.get_running_loop(), None):
            await server.aclose()

    def end_servers(self) -> None:
        for loop, server in list(self._servers.items()):
            if not loop_runs_here(loop):
                server.end()


def _known_weights(name: str) -> Weights | None:
    key = name.casefold()
    return KNOWN.get(key) or next((one for one in KNOWN.values() if one.spec.name.casefold() == key), None)


class _Server:
    """The server of one event loop. Owns the process and the connection to it."""

    def __init__(self, owner: LocalConnection) -> None:
        self._owner = owner
        self._lock = asyncio.Lock()
        self._child: ServerProcess | None = None
        self.connection: chat_completions.ChatCompletionsConnection | None = None

    async def ready(self) -> chat_completions.ChatCompletionsConnection:
        """Return the connection. Starts the server if it has not been started or has crashed."""
        async with self._lock:
            if self._child is None or self.connection is None or not self._child.is_alive:
                await self._close()
                self._child, endpoint, served = await self._owner.launch()
                spec = replace(self._owner.spec, name=served[0].name)
                self.connection = chat_completions.ChatCompletionsConnection(spec, endpoint, self._owner.provider)
        return self.connection

    async def aclose(self) -> None:
        """End the server, also while it is starting."""
        async with self._lock:
            await self._close()

    def end(self) -> None:
        """Let the server end. From any thread, also if the event loop has ended."""
        if self._child is not None:
            self._child.end()

    async def _close(self) -> None:
        connection, child = self.connection, self._child
        self.connection = self._child = None
        if connection is not None:
            await connection.aclose()
        if child is not None:
            await child.aclose()
