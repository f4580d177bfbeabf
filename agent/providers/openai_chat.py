"""Servers that speak OpenAI's Chat Completions (vLLM, llama.cpp): the model object, and their errors in our words."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, cast
from weakref import WeakKeyDictionary

import httpx2
from openai import AsyncOpenAI
from pydantic_ai import ModelProfile
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
)
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.vllm import VLLMProvider
from pydantic_ai.settings import ModelSettings

from agent.catalog import ModelSpec
from agent.errors import ProviderError, ProviderErrorKind
from agent.providers import Endpoint
from agent.providers.router import RouterModel

READ_EVERY = 0.04
"""Seconds between two reads of a stream that has begun. Waking for every token is what costs: a reader woken each
40 ms parses the same bytes for about half the CPU. The first bytes are never held back."""

TIMEOUT = httpx2.Timeout(connect=5.0, read=300.0, write=30.0, pool=5.0)


class ChatConnection:
    """A `Connection` to one model of one server. Clients belong to an event loop, so each loop gets its own."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint) -> None:
        self.spec = spec
        self._endpoint = endpoint
        self._models: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Model, AsyncOpenAI]] = WeakKeyDictionary()

    def model(self) -> Model:
        """The model for the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._models:
            self._models[loop] = _open(self.spec, self._endpoint)
        return self._models[loop][0]

    def settings(self, reasoning: bool | None) -> ModelSettings:
        """The spec's own defaults, and the chat template's switch for models that reason."""
        named = {name: value for name, value in self.spec.defaults if name in ModelSettings.__annotations__}
        body: dict[str, Any] = {name: value for name, value in self.spec.defaults if name not in named}
        if self.spec.reasoning and reasoning is not None:
            body["chat_template_kwargs"] = {"enable_thinking": reasoning}
        return cast(ModelSettings, {**named, "extra_body": body} if body else named)

    def explain(self, error: Exception) -> ProviderError:
        """See `explain`."""
        return explain(error, self.spec.name)

    async def aclose(self) -> None:
        """Close the running loop's client; the next `model` opens another."""
        if found := self._models.pop(asyncio.get_running_loop(), None):
            await found[1].close()


def _open(spec: ModelSpec, endpoint: Endpoint) -> tuple[Model, AsyncOpenAI]:
    client = AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key or "none",
        max_retries=0,
        timeout=TIMEOUT,
        http_client=httpx2.AsyncClient(transport=_Unhurried(), timeout=TIMEOUT, trust_env=False),
    )
    provider = VLLMProvider(openai_client=client)
    model = OpenAIChatModel(spec.name, provider=provider, profile=_profile(provider, spec.name))
    return (RouterModel(model) if spec.tools == "router" else model), client


def explain(error: Exception, name: str) -> ProviderError:
    """A provider's failure as a sentence for people; no key, body or trace is in it."""
    for kind_of, kind, sentence in _SENTENCES:
        if isinstance(error, kind_of):
            return ProviderError(
                sentence.format(model=name),
                kind=kind,
                status=getattr(error, "status_code", None),
                retry_after=getattr(error, "retry_after", None),
            )
    if isinstance(error, ModelAPIError) and "finish_reason" in error.message:
        return ProviderError("The answer broke off: the model server ended it too early.", kind="interrupted")
    if isinstance(error, ModelHTTPError):
        hint = "refused the request" if error.status_code < 500 else "failed"
        return ProviderError(
            f"The model server {hint} (HTTP {error.status_code}).{_said(error.body)}",
            kind="unsupported" if error.status_code < 500 else "server",
            status=error.status_code,
        )
    if isinstance(error, ModelAPIError | UnexpectedModelBehavior):
        return ProviderError("The model server sent something that is not an answer.", kind="malformed")
    return ProviderError(f"The model server could not be used ({type(error).__name__}).", kind="malformed")


_SENTENCES: tuple[tuple[type[Exception], ProviderErrorKind, str], ...] = (
    (ModelAuthenticationError, "key", "The model server refused the key. Check VLLM_API_KEY."),
    (ModelNotFoundError, "unknown_model", "The model server has no model named {model!r}."),
    (
        ModelContextWindowExceededError,
        "context",
        "The conversation is longer than {model!r} can read. Start a new chat or shorten the message.",
    ),
    (ModelQuotaExceededError, "quota", "The account's quota for {model!r} is used up."),
    (ModelRateLimitError, "rate_limit", "The model server asks for a pause: too many requests."),
    (ModelOverloadedError, "overloaded", "The model server is overloaded. Try again in a moment."),
    (ModelUnavailableError, "overloaded", "The model server cannot answer at the moment. Try again soon."),
    (ModelTimeoutError, "connection", "The model server did not answer in time."),
    (ModelConnectionError, "connection", "The model server cannot be reached, or the connection broke."),
)


def _said(body: object) -> str:
    """The server's own sentence, if it sent one that can be shown."""
    match body:
        case {"error": {"message": str(message)}} | {"message": str(message)}:
            return f" It says: {message[:300]}"
        case _:
            return ""


def _profile(provider: VLLMProvider, name: str) -> ModelProfile:
    base: dict[str, Any] = dict(provider.model_profile(name) or {})
    # The library's Qwen profile drops leading white space of a stream; what a model says arrives whole here. A stream
    # without a finish reason was cut, and must not look finished.
    ours = OpenAIModelProfile(ignore_streamed_leading_whitespace=False, openai_chat_streaming_requires_finish_reason=True)
    return ModelProfile(**{**base, **ours})


class _Unhurried(httpx2.AsyncHTTPTransport):
    """A transport whose response bodies are read in gulps, each at least `READ_EVERY` after the last wait."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "text/event-stream" in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Gulps(response.stream)
        return response


class _Gulps(httpx2.AsyncByteStream):
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
