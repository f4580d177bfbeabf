"""A provider's failure as a sentence for people, typed; no key, body or trace is in it."""

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

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

from agent.catalog import ProviderSpec
from agent.errors import ProviderError, ProviderErrorKind


def explain(error: Exception, name: str, provider: ProviderSpec, *, key: str | None = None) -> ProviderError:
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
            kind="server" if error.status_code >= 500 or error.status_code in (408, 409) else "unsupported",
            status=error.status_code,
        )
    if isinstance(error, ModelAPIError | UnexpectedModelBehavior):
        return ProviderError("The model server sent something that is not an answer.", kind="malformed")
    return ProviderError(f"The model server could not be used ({type(error).__name__}).", kind="malformed")


def no_key(provider: ProviderSpec) -> ProviderError:
    """What to say where a vendor wants a key and there is none; the vendor was not asked."""
    return ProviderError(f"{provider.label} needs a key. Set {provider.key_names[0]}, or type a key.", kind="key")


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
