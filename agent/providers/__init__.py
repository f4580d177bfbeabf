"""The contract of a provider: a `ModelSpec` and an `Endpoint` become a `Connection`, which a run asks for its model."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from agent.errors import ProviderError, UnknownModel
from agent.i18n import LocalizedText
from agent.models.catalog import Dialect, ModelSpec, ProviderSpec, load_catalog
from agent.providers.reasoning import Effort as Effort
from agent.providers.reasoning import Reasoning as Reasoning
from agent.providers.reasoning import effort_note as effort_note
from agent.providers.reasoning import is_off as is_off
from agent.providers.reasoning import is_reasoning as is_reasoning
from agent.providers.request_queue import RequestQueue as RequestQueue
from agent.providers.request_queue import acting_for as acting_for

Phase = Literal["starting", "fetching", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served: an OpenAI-compatible base URL (ending in /v1) and its key, which is never shown.

    `places` is how many answers it writes at once where it lets more of them wait in silence; None: as many as come.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    slots: int | None = None


class Connection(Protocol):
    """A way to one model. It may be shared by any number of runs, also of several event loops."""

    @property
    def spec(self) -> ModelSpec:
        """What the model can take."""
        ...

    def check(self) -> None:
        """Raise `InputError` if no request can be made at all, such as `MissingKey`. Touches no network."""
        ...

    def model(self) -> Model:
        """The model for the running event loop; made at the first call in each."""
        ...

    def slot(self, told: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """A place at the server, entered when it is one's turn; each request is made in one.

        `told` is given how many answers must end before, whenever that changes. Most servers have room for all.
        """
        ...

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """What a request says of reasoning when so much is asked for, in the same words; None: nothing."""
        ...

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """The request settings this model needs, with reasoning on, off, at an effort, or as it comes (None)."""
        ...

    def explain(self, error: Exception) -> ProviderError:
        """The provider's failure as a sentence for people, without keys, bodies or traces."""
        ...

    async def aclose(self) -> None:
        """Close what `model` opened in the running loop."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that answers now. After a crash the endpoint may be another: ask `Models.served` for each run."""

    spec: ModelSpec
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Status:
    """What to show while waiting; `done` goes from 0 to 1, None where nobody knows.

    `phase` is "ready" as soon as anything answers; `text` and `done` still tell of something better on its way.
    `sayings` are the sentences of `text` by name, where all of them have one.
    """

    phase: Phase
    text: str
    done: float | None
    sayings: tuple[LocalizedText, ...] = field(default=(), compare=False)


class Models(Protocol):
    """The models there are at this moment; some may still be on their way."""

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """What answers now, the default first."""
        ...

    @property
    def status(self) -> Status:
        """What to say of the one on its way."""
        ...

    async def ready(self) -> tuple[ServedModel, ...]:
        """Wait until one answers. Raises `LocalModelError` with a sentence."""
        ...


class StreamingModel(Model):
    """A model that only streams; a whole response is its stream, gathered.

    So a closed connection is noticed: llama.cpp looks for one only while it streams.
    """

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The whole response."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()


_CONNECTIONS = {
    "chat": ("agent.providers.chat_completions", "ChatCompletionsConnection"),
    "responses": ("agent.providers.openai_responses", "OpenAIResponsesConnection"),
    "messages": ("agent.providers.anthropic_messages", "AnthropicConnection"),
    "generate": ("agent.providers.google_generate_content", "GoogleConnection"),
}
"""The module and class for each dialect. It is imported when first needed, so that one vendor costs one SDK."""


def preload(dialect: Dialect) -> None:
    """Import what speaks a dialect, so that the first message need not wait for it. May be called in a thread."""
    import_module(_CONNECTIONS[dialect][0])


def connect(spec: ModelSpec, endpoint: Endpoint | None = None) -> Connection:
    """Make the connection; no network is touched.

    Without an endpoint it is the provider's own, with the key of the environment. Raises `UnknownModel` for a provider
    that the catalog does not have, or whose server is not known.
    """
    provider = load_catalog().providers.get(spec.provider)
    if provider is None:
        raise UnknownModel(f"no provider named {spec.provider!r}; known are {', '.join(load_catalog().providers)}")
    module, name = _CONNECTIONS[spec.dialect]
    kind: Any = getattr(import_module(module), name)
    return cast(Connection, kind(spec, endpoint or default_endpoint(provider), provider))


def default_endpoint(provider: ProviderSpec, env: Mapping[str, str] = os.environ) -> Endpoint:
    """Where a provider is reached and with which key, by the environment: OPENAI_BASE_URL, OPENAI_API_KEY and so on.

    Raises `UnknownModel` where the provider has no address of its own and the environment names none.
    """
    name = base_url_variable(provider.id)
    base_url = (env.get(name) or provider.base_url).rstrip("/")
    if not base_url:
        raise UnknownModel(f"{provider.label} needs base_url=..., or {name} in the environment: where its server is")
    key = next((env[name].strip() for name in provider.key_names if env.get(name, "").strip()), None)
    return Endpoint(base_url, key)


def base_url_variable(provider: str) -> str:
    """The environment variable that names a provider's address, such as OPENAI_BASE_URL."""
    return provider.upper().replace(".", "_") + "_BASE_URL"
