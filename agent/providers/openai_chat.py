"""Servers that speak OpenAI's Chat Completions (vLLM, llama.cpp): the model object, and their errors in our words."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import Any, TypeGuard, cast
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
from agent.providers.completions import PlainCompletions
from agent.providers.discover import guess
from agent.providers.router import RouterModel

READ_EVERY = 0.03
"""Seconds between two reads of a stream that has begun. Waking for every token is what costs: a reader woken each
30 to 40 ms parses the same bytes for about half the CPU. The first bytes are never held back."""

TIMEOUT = httpx2.Timeout(connect=5.0, read=300.0, write=30.0, pool=5.0)
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0)
"""How many answers may be written at once is for the server to say, which queues them. An idle connection is given up
before servers do so (uvicorn: after 5 s), since a request on one that is just closing fails, and is not repeated."""


class ChatConnection:
    """A `Connection` to one model of one server. Clients belong to an event loop, so each loop gets its own."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint) -> None:
        self.spec = spec
        self._endpoint = endpoint
        self._models: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Model, AsyncOpenAI]] = WeakKeyDictionary()

    @classmethod
    def named(cls, name: str, provider: str, endpoint: Endpoint) -> "ChatConnection":
        """To a model of which no more is known than its name."""
        return cls(guess(name, provider), endpoint)

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
        return explain(error, self.spec.name, key=self._endpoint.api_key)

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
        http_client=httpx2.AsyncClient(transport=_Unhurried(limits=LIMITS), timeout=TIMEOUT, trust_env=False),
    )
    provider = VLLMProvider(openai_client=PlainCompletions.into(client))
    model = OpenAIChatModel(spec.name, provider=provider, profile=_profile(provider, spec.name))
    return (RouterModel(model) if spec.tools == "router" else model), client


def explain(error: Exception, name: str, *, key: str | None = None) -> ProviderError:
    """A provider's failure as a sentence for people; no key, body or trace is in it."""
    if isinstance(error, ModelHTTPError) and error.status_code == 403:
        return ProviderError(f"The model server does not let this key use {name!r}.", kind="access", status=403)
    if isinstance(error, ModelAPIError) and (sentence := _too_long(error, name)):
        return ProviderError(sentence, kind="context", status=getattr(error, "status_code", None))
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
            f"The model server {hint} (HTTP {error.status_code}).{_said(error.body, key)}",
            kind="unsupported" if error.status_code < 500 else "server",
            status=error.status_code,
        )
    if isinstance(error, ModelAPIError | UnexpectedModelBehavior):
        return ProviderError("The model server sent something that is not an answer.", kind="malformed")
    return ProviderError(f"The model server could not be used ({type(error).__name__}).", kind="malformed")


_SENTENCES: tuple[tuple[type[Exception], ProviderErrorKind, str], ...] = (
    (ModelAuthenticationError, "key", "The model server refused the key. Check VLLM_API_KEY."),
    (ModelNotFoundError, "unknown_model", "The model server has no model named {model!r}."),
    (ModelQuotaExceededError, "quota", "The account's quota for {model!r} is used up."),
    (ModelRateLimitError, "rate_limit", "The model server asks for a pause: too many requests."),
    (ModelOverloadedError, "overloaded", "The model server is overloaded. Try again in a moment."),
    (ModelUnavailableError, "overloaded", "The model server cannot answer at the moment. Try again soon."),
    (ModelTimeoutError, "connection", "The model server did not answer in time."),
    (ModelConnectionError, "connection", "The model server cannot be reached, or the connection broke."),
)


_MOST = re.compile(r"maximum context length (?:is|of) ([\d,]+)|context size \(([\d,]+) tokens")
_PROMPT = re.compile(r"([\d,]+) (?:in the messages|input tokens)|request \(([\d,]+) tokens\)")
_TOTAL = re.compile(r"(?:requested|resulted in|request has|passed) ([\d,]+) tokens")


def _too_long(error: ModelAPIError, name: str) -> str | None:
    """The sentence for a prompt that does not fit, with the numbers where the server named them; None: it is not that.

    llama.cpp names them in fields of their own, under a type that pydantic-ai does not know; vLLM in its message,
    which it also sends where the prompt alone would fit, but not with the answer that was allowed.
    """
    body = _fields(error.body)
    known = isinstance(error, ModelContextWindowExceededError)
    if not known and body.get("type") != "exceed_context_size_error":
        return None
    message = str(body.get("message", ""))
    most = _int(body.get("n_ctx")) or _number(_MOST, message)
    prompt = _int(body.get("n_prompt_tokens")) or _number(_PROMPT, message)
    total = max(prompt, _number(_TOTAL, message))
    if most and (prompt or total) > most:
        size = f"The conversation has {prompt or total:,} tokens and {name!r} reads at most {most:,}."
    elif most and prompt:
        return (
            f"The conversation has {prompt:,} tokens, which leaves too little of the {most:,} of {name!r} for the "
            "answer. Allow a shorter answer, or start a new chat."
        )
    else:
        size = f"The conversation is longer than {name!r} can read."
    return f"{size} Start a new chat or shorten the message."


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _number(pattern: re.Pattern[str], message: str) -> int:
    found = pattern.search(message)
    digits = next((group for group in found.groups() if group), "") if found else ""
    return int(digits.replace(",", "") or 0)


def _fields(body: object) -> Mapping[str, Any]:
    """The error object of a body, with or without the envelope that it comes in."""
    if not _is_dict(body):
        return {}
    inner = body.get("error")
    return inner if _is_dict(inner) else body


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


_SECRET = re.compile(r"(?i)bearer\s+\S+|\b(?:sk|pk|hf|gsk|xai|api|key|token)[-_][\w*.-]{3,}|\bAIza[\w-]+")


def _said(body: object, key: str | None) -> str:
    """The server's own sentence, if it sent one that can be shown: not where it goes on to quote a request or a key."""
    message = _fields(body).get("message")
    if not isinstance(message, str):
        return ""
    message = message.replace(key, "…") if key else message
    message = re.split(r"[{\[\n]", _SECRET.sub("…", message))[0].strip()
    return f" It says: {message[:300]}" if message else ""


def _profile(provider: VLLMProvider, name: str) -> ModelProfile:
    base = provider.model_profile(name) or ModelProfile()
    # The library's Qwen profile drops leading white space of a stream; what a model says arrives whole here. A stream
    # without a finish reason was cut, and must not look finished.
    ours = OpenAIModelProfile(
        ignore_streamed_leading_whitespace=False, openai_chat_streaming_requires_finish_reason=True
    )
    return cast(ModelProfile, {**base, **ours})


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
