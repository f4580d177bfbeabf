"""The contract of a provider: a `ModelSpec` and an `Endpoint` become a pydantic-ai `Model`, ready for one request."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served: an OpenAI-compatible base URL (ending in /v1) and its key, which is never shown."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
