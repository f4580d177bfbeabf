"""The contract of a provider: a `ModelSpec` and an `Endpoint` become a `Connection`, which a run asks for its model."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from agent.catalog import ModelSpec
from agent.errors import ProviderError, UnknownModel

Phase = Literal["starting", "fetching", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served: an OpenAI-compatible base URL (ending in /v1) and its key, which is never shown."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)


class Connection(Protocol):
    """A way to one model. It may be shared by any number of runs, also of several event loops."""

    @property
    def spec(self) -> ModelSpec:
        """What the model can take."""
        ...

    def model(self) -> Model:
        """The model for the running event loop; made at the first call in each."""
        ...

    def settings(self, reasoning: bool | None) -> ModelSettings:
        """The request settings this model needs, with reasoning on, off, or as it comes."""
        ...

    def explain(self, error: Exception) -> ProviderError:
        """The provider's failure as a sentence for people, without keys, bodies or traces."""
        ...

    async def aclose(self) -> None:
        """Close what `model` opened in the running loop."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """A model that answers now. After a crash the endpoint may be another: ask `Models.served` for each run."""

    spec: ModelSpec
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Status:
    """What to show while waiting; `done` goes from 0 to 1, None where nobody knows.

    `phase` is "ready" as soon as anything answers; `text` and `done` still tell of something better on its way.
    """

    phase: Phase
    text: str
    done: float | None


class Models(Protocol):
    """The models there are at this moment; some may still be on their way."""

    @property
    def served(self) -> tuple[Served, ...]:
        """What answers now, the default first."""
        ...

    @property
    def status(self) -> Status:
        """What to say of the one on its way."""
        ...

    async def ready(self) -> tuple[Served, ...]:
        """Wait until one answers. Raises `LocalModelError` with a sentence."""
        ...


_MODULES = {"vllm": "agent.providers.openai_chat", "llama.cpp": "agent.providers.openai_chat"}
"""Which module speaks to a provider; imported when it is first asked for, so that one vendor costs one SDK."""


def preload(provider: str) -> None:
    """Import what speaks to a provider, so that the first message need not wait for it. May be called in a thread."""
    import_module(_MODULES[provider])


def connect(spec: ModelSpec, endpoint: Endpoint) -> Connection:
    """Make the connection; no network is touched. Raises `UnknownModel` for a provider that is not known."""
    if spec.provider not in _MODULES:
        raise UnknownModel(f"no provider named {spec.provider!r}; known are {', '.join(_MODULES)}")
    module: Any = import_module(_MODULES[spec.provider])
    return cast(Connection, module.ChatConnection(spec, endpoint))


def named(model: str, provider: str | None, base_url: str | None, api_key: str | None = None) -> Connection:
    """The connection to a model by its name; what it can take is guessed from the name.

    Raises `UnknownModel` where the provider is missing or unknown, or where it needs a `base_url`.
    """
    if provider not in _MODULES:
        raise UnknownModel(
            f"{model!r} needs provider=..., one of {', '.join(_MODULES)}"
            if provider is None
            else f"no provider named {provider!r}; known are {', '.join(_MODULES)}"
        )
    if not base_url:
        raise UnknownModel(f"{model!r} on {provider} needs base_url=..., where its server is")
    module: Any = import_module(_MODULES[provider])
    return cast(Connection, module.ChatConnection.named(model, provider, Endpoint(base_url, api_key)))
