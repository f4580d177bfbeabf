"""The contract of a provider: `connect` turns a `ModelSpec` and an `Endpoint` into a `Connection` to the model.

Reasoning efforts and the base class of the vendors' models belong to it.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeGuard, TypeVar, cast, get_args, runtime_checkable

from pydantic_ai.embeddings import EmbeddingModel
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from agent.errors import InputError, MissingExtra, ProviderError, UnknownModel, without_logins
from agent.i18n.text import LocalizedText
from agent.keyword_arguments import explains_arguments, explains_fields
from agent.models.catalog import Dialect, ModelSpec, ProviderSpec, load_catalog
from agent.models.weights import Status
from agent.plain_text import are_many, off_loop
from agent.providers.delta_merging import count_deltas as count_deltas
from agent.providers.errors import check_base_url, missing_key
from agent.providers.refusals import speaks_only_chat
from agent.providers.refusals import without_refused as without_refused
from agent.system.threads import PREPARING

T = TypeVar("T")


MOST_SOUND = 20_000_000
"""Bytes of the sound of an answer that are kept: seven minutes of OpenAI's samples."""


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """The next samples of the sound that a model writes: 16 bits each, little-endian, of `channels` at `rate` a second.

    A stream of a model yields it among the events of pydantic-ai.
    """

    samples: bytes
    rate: int
    channels: int


async def mapped(messages: Sequence[ModelMessage], begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what the library makes of these messages, in a thread if they are many.

    `begin` begins that again in the loop if it waits for the network, because a file is not in its message, or fails.
    """
    found = await PREPARING.run(_without_waiting, begin) if are_many(messages) else ()
    return found[0] if found else await begin()


def _without_waiting(begin: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T] | tuple[()]:
    mapping = begin()
    try:
        mapping.send(None)
    except StopIteration as ended:
        return (ended.value,)
    except Exception:
        return ()
    finally:
        mapping.close()
    return ()


class MessageRewriting(Model):
    """A mixin for a model of pydantic-ai. It sends each message as `rewrite_messages` returns it.

    The library's own hook for this, `prepare_messages`, is not called for a single request.
    """

    @staticmethod
    @abstractmethod
    def rewrite_messages(message: ModelMessage) -> ModelMessage:
        """Return the message as the vendor takes it. Pure, so that a turn is the same bytes each time it is sent."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream a response to the rewritten messages; see pydantic-ai."""
        sent = await off_loop(messages, lambda: [self.rewrite_messages(message) for message in messages])
        async with super().request_stream(sent, model_settings, model_request_parameters, run_context) as stream:
            yield stream


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""From least to most, in the words of the providers. Each provider has some of them; see `nearest`."""

Reasoning = bool | Effort
"""On (the provider decides how much), off, or an effort. "none" means off."""

_LADDER: tuple[Effort, ...] = get_args(Effort)


def is_reasoning(value: object) -> TypeGuard[Reasoning]:
    """Return True if this is a bool or a known effort. 0 and 1 do not count, although they equal False and True."""
    return isinstance(value, bool) or (isinstance(value, str) and value in _LADDER)


def nearest(asked: Effort, accepted: Collection[object]) -> Effort | None:
    """Return the accepted effort that was asked for, else the next higher one, else the highest. None if there is none.

    A request for any effort never gets "none".
    """
    some = [rung for rung, effort in enumerate(_LADDER) if effort in accepted and effort != "none"]
    higher = [rung for rung in some if rung >= _LADDER.index(asked)]
    return _LADDER[higher[0] if higher else some[-1]] if some else None


def least(accepted: Collection[object]) -> Effort | None:
    """Return the least of the accepted efforts, which can be "none"."""
    return next((_LADDER[rung] for rung, effort in enumerate(_LADDER) if effort in accepted), None)


def is_off(asked: Reasoning | None) -> bool:
    """Return True if no reasoning is asked for."""
    return asked is False or asked == "none"


def effort_note(asked: Reasoning | None, sent: Reasoning | None, spec: ModelSpec) -> str:
    """Return a sentence if the model cannot reason as asked, and "" if it can."""
    if asked is None:
        return ""
    if not spec.reasoning:
        return "" if is_off(asked) else f"{spec.label} cannot reason; it was asked to answer without."
    if is_off(asked):
        if is_off(sent):
            return ""
        little = f"; it was asked for the least, {sent}" if isinstance(sent, str) else ""
        return f"The reasoning of {spec.label} cannot be turned off here{little}."
    if sent is None:
        return f"The reasoning of {spec.label} cannot be chosen here; it reasons as it comes."
    if isinstance(asked, str) and sent is True:
        return f"{spec.label} has no efforts: its reasoning was turned on, and not {asked}."
    if isinstance(asked, str) and asked != sent:
        return f"{spec.label} has no effort {asked}; it was asked for {sent}."
    return ""


@explains_fields
@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model server: an OpenAI-compatible base URL (ending in /v1) and its key, which is never shown.

    `slots` is the number of answers that the server writes at once. Set it for a server that queues further requests
    silently. None means no limit. `is_own_key`: the user gave the key, not the owner of the program. `is_secret`: the
    address is for the owner and the log, and errors don't name it.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    slots: int | None = None
    is_own_key: bool = False
    is_secret: bool = False

    def __post_init__(self) -> None:
        # A key from a file ends in a line break, which no header can have.
        object.__setattr__(self, "api_key", (self.api_key or "").strip() or None)


class Connection(Protocol):
    """A connection to one model. Any number of runs can share it, also from several event loops."""

    @property
    def spec(self) -> ModelSpec:
        """The description of the model: names, limits and abilities."""
        ...

    def check(self) -> None:
        """Raise `InputError` if no request can be made at all, such as `MissingKey`. Touches no network."""
        ...

    def model(self) -> Model:
        """Return the model for the running event loop. The first call in each loop makes it."""
        ...

    def slot(self, on_position: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """Wait for a free slot at the server and hold it for the block. Each request is made in one slot.

        `on_position` gets the number of answers that must end first, whenever it changes. Most servers have no limit.
        """
        ...

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return the reasoning that a request will ask for, given the wish; None if it asks for nothing."""
        ...

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return the request settings for this model, with reasoning on, off, at an effort, or by default (None)."""
        ...

    def explain(self, error: Exception) -> ProviderError:
        """Translate the provider's failure into a sentence for people, without keys, bodies or traces."""
        ...

    async def aclose(self) -> None:
        """Close the clients that `model` opened in the running loop."""
        ...


ModelChoice = str | Connection | Sequence[str | Connection]
"""A model by its name or connection, or several: each one stands in if those before it are not available."""


@runtime_checkable
class ChosenLater(Protocol):
    """A `Connection` whose model is known only when the first run begins. Each run waits for `ready` first."""

    async def ready(self) -> None:
        """Return when the model is known and answers. Raises `LocalModelError` with a sentence for people."""
        ...


@runtime_checkable
class OwnsServers(Protocol):
    """A `Connection` that starts model servers on this machine, one for each event loop."""

    def end_servers(self) -> None:
        """End the servers of all event loops except the one that runs here, where `aclose` does it.

        Also of loops that have ended. Does not wait for the end.
        """
        ...


@runtime_checkable
class LearnsRefusals(Protocol):
    """A `Connection` that learns from the first refusal what its server does not take. Its `spec` changes with it."""

    def learn(
        self, error: BaseException | None, *, pictures: bool, tools: bool, schema: bool = False, videos: bool = False
    ) -> LocalizedText | None:
        """Return the sentence for people about what the server refused, and leave that out of the next request.

        The refused request had `pictures`, `videos`, `tools`, and a JSON `schema` for the answer. Returns None if the
        same request would be made again.
        """
        ...


class ForwardingConnection(ABC):
    """The part of a `Connection` that forwards to another one, which can change between two requests."""

    @abstractmethod
    def _target(self) -> Connection: ...

    def model(self) -> Model:
        return self._target().model()

    def slot(self, on_position: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        return self._target().slot(on_position)

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        return self._target().settings(reasoning)

    def explain(self, error: Exception) -> ProviderError:
        return self._target().explain(error)

    def learn(
        self, error: BaseException | None, *, pictures: bool, tools: bool, schema: bool = False, videos: bool = False
    ) -> LocalizedText | None:
        target = self._target()
        if not isinstance(target, LearnsRefusals):
            return None
        return target.learn(error, pictures=pictures, tools=tools, schema=schema, videos=videos)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that answers now. A restart can change its endpoint: ask `Models.served` again for each run."""

    spec: ModelSpec
    endpoint: Endpoint


class Models(Protocol):
    """The models that are available at this moment. Some may still be starting."""

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """The models that answer now, the default first."""
        ...

    @property
    def status(self) -> Status:
        """The progress of the model that is starting."""
        ...

    async def ready(self) -> tuple[ServedModel, ...]:
        """Wait until a model answers. Raises `LocalModelError` with a sentence for people."""
        ...


class Embedder(Protocol):
    """Makes vectors of texts with one model. Usable from any event loop. Its methods raise `ProviderError`."""

    async def name(self) -> str:
        """Return the name of the model for people. It can be unknown until the server is asked."""
        ...

    async def identity(self) -> str:
        """Return a text that is another one for another model or server, whose vectors cannot be compared."""
        ...

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> Sequence[Sequence[float]]:
        """Return a vector for each text, in one request. `is_query`: for questions, which some models treat apart."""
        ...


_CONNECTIONS = {
    "chat": ("agent.providers.chat_completions", "ChatCompletionsConnection"),
    "responses": ("agent.providers.openai_responses", "OpenAIResponsesConnection"),
    "messages": ("agent.providers.anthropic_messages", "AnthropicConnection"),
    "generate": ("agent.providers.google_generate_content", "GoogleConnection"),
}
"""The module and class for each dialect. It is imported when first needed, so that one vendor costs one SDK."""


_PRELOADED = set[Dialect]()


async def preloaded(dialect: Dialect) -> None:
    """Wait until a thread has preloaded the dialect. If that has happened, this does nothing."""
    if dialect not in _PRELOADED:
        await asyncio.to_thread(preload, dialect)


def preload(dialect: Dialect) -> None:
    """Open and close a model of a dialect, so that the first message need not wait for what that loads.

    That is the vendor's SDK, pydantic-ai's list of prices, and the TLS certificates. Touches no network. Call it in a
    thread.
    """
    spec = next(spec for spec in load_catalog().models.values() if spec.dialect == dialect)

    async def open_once() -> None:
        connection = connect(spec, Endpoint("http://127.0.0.1/v1", "none"))
        connection.model()
        await connection.aclose()

    asyncio.run(open_once())
    _PRELOADED.add(dialect)


def binds_answers(spec: ModelSpec, *, has_tools: bool, is_open: bool) -> bool:
    """Return True if a request can bind the model's answer to a JSON schema, and the model can still call its tools.

    Servers that constrain the sampling constrain tool calls, too, and several hosts refuse a schema beside tools.
    `is_open`: the schema allows dicts with any keys, which Claude's API takes for empty ones.
    """
    if not spec.schemas or (is_open and spec.dialect == "messages"):
        return False
    is_free = spec.dialect != "chat" or spec.provider in ("openai", "azure")
    return is_free or not has_tools


SEARCHING = ("openai", "anthropic", "google", "xai")
"""The providers that search the web for their models."""


def searches(spec: ModelSpec) -> bool:
    """Return True if the provider of this model can search the web for it."""
    return spec.provider in SEARCHING and spec.dialect != "chat" and spec.tools != "none"


@lru_cache(256)
def efforts(spec: ModelSpec) -> tuple[Effort, ...]:
    """Return the efforts that a model that reasons can be asked for, from least to most; () if it has none.

    The first call for a dialect loads the vendor's SDK, which takes a second: call it in a thread.
    """
    if not spec.reasoning or spec.dialect == "chat":  # a chat template has only a switch
        return ()
    connection = connect(spec, Endpoint("http://127.0.0.1/v1", "none"))
    return tuple(one for one in get_args(Effort) if one != "none" and connection.effort(one) == one)


@explains_arguments
def connect(spec: ModelSpec, endpoint: Endpoint | None = None) -> Connection:
    """Make the connection without touching the network.

    Without an endpoint, it uses the provider's own address and the key from the environment. Raises `UnknownModel` if
    the catalog does not have the provider, or if the address of its server is not known. Raises `InputError` if that
    address cannot be one, for example because it has no scheme.
    """
    if not isinstance(cast(object, spec), ModelSpec) or not isinstance(cast(object, endpoint), Endpoint | None):
        raise InputError(
            "connect takes a ModelSpec and an Endpoint. For the name of a model, write "
            "Agent(model, provider=..., base_url=..., api_key=...)"
        )
    provider = load_catalog().providers.get(spec.provider)
    if provider is None:
        raise UnknownModel(f"no provider named {spec.provider!r}; known are {', '.join(load_catalog().providers)}")
    endpoint = endpoint or default_endpoint(provider)
    check_base_url(endpoint.base_url)
    if spec.dialect == "responses" and speaks_only_chat(endpoint.base_url):
        spec = replace(spec, dialect="chat")
    module, name = _CONNECTIONS[spec.dialect]
    kind: Any = getattr(import_module(module), name)
    return cast(Connection, kind(spec, endpoint, provider))


def connect_embedder(model: str | EmbeddingModel, env: Mapping[str, str] = os.environ) -> Embedder:
    """Return an embedder without touching the network: for a model of pydantic-ai, or by name.

    A name is "provider:model" such as "openai:text-embedding-3-small", or the URL of a server with OpenAI's API such
    as "http://127.0.0.1:8080/v1", which "#model" can follow. The key of such a server is EMBEDDINGS_API_KEY. Raises
    `InputError` if there is no such provider or no key, and `MissingExtra` without numpy.
    """
    if find_spec("numpy") is None:
        raise MissingExtra("The search by vectors", "documents")
    from agent.providers.embeddings import ModelEmbedder, embedder_named  # late, because it loads OpenAI's SDK

    return embedder_named(model, env) if isinstance(model, str) else ModelEmbedder(model)


def default_endpoint(provider: ProviderSpec, env: Mapping[str, str] = os.environ) -> Endpoint:
    """Return a provider's address and key from the environment: OPENAI_BASE_URL, OPENAI_API_KEY and so on.

    Raises `UnknownModel` if the provider has no address of its own and the environment names none.
    """
    name = base_url_variable(provider.id)
    base_url = (env.get(name) or provider.base_url).rstrip("/")
    if not base_url and provider.port:
        base_url = f"http://127.0.0.1:{provider.port}/v1"
    if not base_url:
        raise UnknownModel(f"{provider.label} needs base_url=..., or {name} in the environment: where its server is")
    key = next((env[name].strip() for name in provider.key_names if env.get(name, "").strip()), None)
    return Endpoint(base_url, key)


def server_named(name: str, env: Mapping[str, str], *, what: str, key_name: str) -> tuple[Endpoint, ProviderSpec, str]:
    """Return the address of "provider:model" or of a server's URL, its provider, and the model after ":" or "#".

    `what` it is for ("embeddings"), and `key_name` the variable with the key of a server that is named by its URL.
    Touches no network. Raises `InputError` for a name or URL that cannot be one, `MissingKey` without a key.
    """
    if "://" in name:
        base_url, _, model = name.partition("#")
        check_base_url(base_url)
        endpoint = Endpoint(base_url.rstrip("/"), env.get(key_name, "").strip() or None)
        return endpoint, load_catalog().providers["vllm"], model
    prefix, _, model = (part.strip() for part in name.partition(":"))
    provider = load_catalog().provider(prefix)
    if provider is None or not model:
        raise UnknownModel(
            f'for {what}, name a "provider:model" such as "openai:MODEL", or the URL of a server such as '
            f'"http://127.0.0.1:8080/v1", not {without_logins(name)[:80]!r}'
        )
    if provider.dialect not in ("chat", "responses"):
        raise UnknownModel(f"{provider.label} has no such route of OpenAI's API. Name the URL of a server that has it.")
    endpoint = default_endpoint(provider, env)
    check_base_url(endpoint.base_url)
    if endpoint.base_url == provider.base_url and provider.key_names and not endpoint.api_key:
        raise missing_key(provider)
    return endpoint, provider, model


def base_url_variable(provider: str) -> str:
    """Return the environment variable for a provider's address, such as OPENAI_BASE_URL."""
    return provider.upper().replace(".", "_") + "_BASE_URL"
