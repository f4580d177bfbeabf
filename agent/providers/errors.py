"""Translates a provider's failure into a typed sentence for people, without key, body or trace. Logs the details.

Mistakes in the base URL are found here, too, and keys are removed from what a vendor sent.
"""

import json
import logging
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeGuard, cast
from urllib.parse import urljoin, urlsplit

import httpx2
from pydantic_ai.exceptions import (
    ContentFilterError,
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

from agent.errors import InputError, MissingKey, ProviderError, ProviderErrorKind, cause_of, without_logins
from agent.i18n.text import N_, LocalizedText, Value, _, alternatives, joined
from agent.models.catalog import ProviderSpec
from agent.models.families import short_name

HIDDEN = "…"

_STARRED = re.compile(r"\S+")
"""Words. A word with three stars is a key that the vendor has masked itself, except for its ends."""
_URL = re.compile(r"""(?i)(https?://[^\s?"'<>]*)(\?[^\s"'<>]+)?""")
_SECRETS = re.compile(
    r"""(?ix)
    (?: bearer | basic ) \s+ [^\s"',]+
    | (?P<header> (?: authorization | (?:x-)? (?:goog-)? api[-_]key ) ["']? \s* [:=] \s* ["']? ) [^\s"',&}]+
    | (?P<query> [?&] [\w-]* (?: key | token | secret ) = ) [^\s&"']+
    | (?<![a-z0-9]) (?: sk | pk | rk | hf | gsk | xai | ghp ) [-_] [\w*.-]{3,}
    | (?<![a-z0-9]) (?: api | key | token ) [-_] (?= [\w*.-]{0,200} \d ) [\w*.-]{8,}
    | (?<![a-z0-9]) (?: AIza | ya29\. | AQ\. | eyJ ) [\w.-]{6,}
    """
)
_RUN = re.compile(r"[\w+/=-]{40,}")
"""Words longer than any that people write. A word with both letters and digits is taken for a key."""
_ENDS = " \t\n\"',"
"""Characters that end a key."""
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"(?i)[a-z]")


def redact(text: str, key: str | None = None) -> str:
    """Return the text without `key` and without anything that looks like a key. Idempotent; takes linear time."""
    text = text.replace(key, HIDDEN) if key else text
    text = _STARRED.sub(lambda found: HIDDEN if "***" in found[0] else found[0], text)
    text = _URL.sub(lambda found: f"{found[1]}{HIDDEN}" if found[2] else found[0], text)
    text = _SECRETS.sub(lambda found: f"{found['header'] or found['query'] or ''}{HIDDEN}", text)
    return _RUN.sub(lambda found: HIDDEN if _DIGIT.search(found[0]) and _LETTER.search(found[0]) else found[0], text)


def cut(text: str, most: int) -> str:
    """Return at most `most` characters, without a word cut at the end: half a key does not look like a key."""
    if len(text) <= most:
        return text
    return text[: max(text.rfind(end, 0, most) for end in _ENDS) + 1]


log = logging.getLogger(__name__)

SENTENCES = {
    "quota": N_("The account's quota for {model!r} is used up."),
    "refuses": N_("{who} refuses to answer this."),
    "key_refused": N_("{who} rejected the API key. Check it, or use another one."),
    "given_key_refused": N_("{who} rejected the API key. Check the key that you gave, or use another one."),
    "own_key_refused": N_("The server's key was rejected. Tell its owner."),
    "no_access": N_("{who} does not let this key use {model!r}."),
    "no_such_model": N_("{who} has no model named {model!r}."),
    "no_route": N_("{who} does not know this address (HTTP {status}). Check the base URL."),
    "no_version": N_("{who} does not know this address (HTTP {status}). The base URL usually ends in /v1: add it."),
    "picture_refused": N_("{who} refused the picture."),
    "pause_asked": N_("{who} is getting too many requests."),
    "overloaded": N_("{who} is overloaded. Try again in a moment."),
    "unavailable": N_("{who} cannot answer at the moment. Try again soon."),
    "late": N_("{who} did not answer in time."),
    "unreachable": N_("{who} cannot be reached, or the connection broke."),
    "unknown_host": N_("{who} cannot be reached: no address is known for {host}. Check the base URL and the network."),
    "nobody_listens": N_("{who} cannot be reached: no server listens at {where}."),
    "untrusted": N_("{who} cannot be reached: the certificate of {where} is not trusted."),
    "no_tls": N_("{who} cannot be reached: {where} does not answer in HTTPS. Check the base URL."),
    "no_way": N_("{who} cannot be reached: no network leads to {where}."),
    "unanswered": N_("{who} cannot be reached: {where} does not answer."),
    "cut_off": N_("The connection to {where} broke."),
    "not_attachable": N_("{model!r} can't read this attachment."),
    "gave_up_waiting": N_("{who} gave up waiting for the request (HTTP {status})."),
    "too_large": N_("This request is too large for {whom}. Attach less, or start a new chat."),
    "server_failed": N_("{who} failed (HTTP {status})."),
    "request_refused": N_("{who} refused the request (HTTP {status})."),
    "failed_in_answer": N_("{who} failed in the middle of the answer."),
    "broke_off": N_("The answer broke off: {whom} ended it too early."),
    "no_answer": N_("{who} sent an answer that can't be read."),
    "no_server": N_("What answers at {where} is no model server. Check the base URL."),
    "moved": N_("{where} sends requests on to {target}, as sites that want a login do. Check the base URL."),
    "unusable": N_("{who} could not be used. The log has the details."),
}
"""The sentences for failures, by name. The server's own words follow some of them."""
_QUOTED = ("no_access", "picture_refused", "server_failed", "request_refused", "failed_in_answer", "no_answer")

MAX_QUOTED_CHARACTERS = 300
"""Characters of a server's own sentence that are shown."""
MAX_LOGGED_CHARACTERS = 2000
"""Characters of a body that are logged."""
MAX_SEARCHED_CHARACTERS = 20_000
"""Characters of a body that are searched. Vendors need a few hundred; a search blocks the event loop."""


class UnreadableAnswer(Exception):
    """An answer that can't be read. `body` has the server's own words, if it sent any."""

    def __init__(self, words: str = "") -> None:
        super().__init__(words)
        self.body = {"message": words} if words else None


class NoModelServer(Exception):
    """A web page in place of an answer."""


def explain(
    error: Exception,
    name: str,
    provider: ProviderSpec,
    *,
    key: str | None = None,
    is_own_key: bool = False,
    base_url: str = "",
    where: str = "",
    is_secret: bool = False,
    label: str = "",
) -> ProviderError:
    """Return the failure of a request to model `name`, and log it. `key` is hidden wherever the provider quotes it.

    `is_own_key`: the user gave the key. `base_url` is the URL of a server that the user named, which can be wrong.
    `where` is the URL of any server, which only the log names if it `is_secret`. `label` is what people call the model.
    """
    body, status = _body(error), getattr(error, "status_code", None)
    if isinstance(error, ModelAPIError) and (too_long := _too_long(error, label or short_name(name), _fields(body))):
        kind: ProviderErrorKind = "context"
        sentences = too_long
    else:
        kind, key_of_text = _classify(error, body, status)
        if base_url and (route := missing_route(status, body, base_url)):
            kind, key_of_text = "unsupported", route
        values: dict[str, Value] = {
            "model": name,
            "status": status or 0,
            "where": without_login(where),
            "host": urlsplit(where).hostname or "",
            "target": _target(error, where),
        }
        if values["target"]:
            kind, key_of_text = "unsupported", "moved"
        who: dict[str, Value] = {"who": provider.label, "whom": provider.label}
        if not provider.keys_at:  # a self-hosted server: its label is a description, not a name
            who = {"who": _("The model server"), "whom": _("the model server")}
            key_of_text = "own_key_refused" if key_of_text == "key_refused" and not is_own_key else key_of_text
        if is_own_key and key_of_text == "key_refused":
            key_of_text = "given_key_refused"
        if where and not is_secret and key_of_text in ("unreachable", "late"):
            key_of_text = _cause(error, key_of_text)
        if is_secret and key_of_text in ("no_server", "moved"):
            key_of_text = "unreachable"
        sentences: list[str] = [LocalizedText(SENTENCES[key_of_text], {**values, **who})]
        quoted = (*_QUOTED, "overloaded", "unavailable", "late") if getattr(error, "in_stream", False) else _QUOTED
        if key_of_text in quoted and (quote := _quoted_message(body, key)):
            sentences.append(_('"{text}".', text=quote.removesuffix(".")))
    _log(error, name, provider, kind, key, without_login(where))
    retry_after = getattr(error, "retry_after", None)
    return ProviderError(joined(sentences), kind=kind, status=status, retry_after=retry_after)


def explained(error: BaseException | None) -> ProviderError | None:
    """Return the error that a model in this process has explained itself, from the causes of `error`."""
    while error is not None and not isinstance(error, ProviderError):
        error = error.__cause__
    return error


def missing_key(provider: ProviderSpec) -> MissingKey:
    """Return the error for a provider that needs a key when there is none. Nothing was sent."""
    return MissingKey(
        _(
            "{who} needs a key. Set {names} in the environment, or pass api_key=... to Agent.",
            who=provider.label,
            names=alternatives(provider.key_names),
        )
    )


def is_broken_key(key: str | None) -> bool:
    """Return True for a key that the header of a request cannot hold."""
    return key is not None and not (key.isascii() and key.isprintable())


def broken_key(provider: ProviderSpec) -> InputError:
    """Return the error for a key that no request can carry. It does not repeat the key."""
    return InputError(
        _("The key for {who} has a line break or another character that no key has: copy it again.", who=provider.label)
    )


Classification = tuple[ProviderErrorKind, str]

_BY_PATTERN: tuple[tuple[str, ProviderErrorKind, str], ...] = (
    (
        r"credit balance|available credits|any credits|included credits|spending limit|insufficient_quota",
        "quota",
        "quota",
    ),
    (
        r"content_filter|content_policy|invalid_prompt|usage (?:policy|policies|guidelines)|safety_check|was flagged",
        "refusal",
        "refuses",
    ),
    (
        r"api_key_invalid|api[ _]key (?:is )?(?:not valid|invalid|expired|not found)"
        r"|(?:incorrect|invalid|malformed|missing)[ _](?:x-)?api[-_ ]key",
        "key",
        "key_refused",
    ),
    (r"insufficient permissions|location is not supported|unsupported_country", "access", "no_access"),
    (r"model_not_(?:found|supported)|model\b.{0,80}\bdoes not exist", "unknown_model", "no_such_model"),
    (
        r"invalid_image|unsupported_image|image_(?:too|parse|url|file|content)|could not process image"
        r"|(?:support|accept|process)\w{0,9} (?:image|vision)|image (?:input|data|exceeds|was|format)",
        "unsupported",
        "picture_refused",
    ),
)
"""Failures that the vendors' codes, types and messages reveal, whatever their status."""

_BY_TYPE: tuple[tuple[tuple[type[Exception], ...], ProviderErrorKind, str], ...] = (
    ((ModelQuotaExceededError,), "quota", "quota"),
    ((ContentFilterError,), "refusal", "refuses"),
    ((ModelAuthenticationError,), "key", "key_refused"),
    ((ModelNotFoundError,), "unknown_model", "no_such_model"),
    ((ModelRateLimitError,), "rate_limit", "pause_asked"),
    ((ModelOverloadedError,), "overloaded", "overloaded"),
    ((ModelUnavailableError,), "overloaded", "unavailable"),
    ((httpx2.ConnectTimeout, httpx2.ConnectError), "connection", "unreachable"),
    ((ModelTimeoutError, httpx2.TimeoutException, TimeoutError), "connection", "late"),
    ((ModelConnectionError, httpx2.TransportError, ConnectionError), "connection", "unreachable"),
    ((NotImplementedError,), "unsupported", "not_attachable"),
    ((UnreadableAnswer,), "malformed", "no_answer"),
    ((NoModelServer,), "malformed", "no_server"),
)

_BY_STATUS: dict[int, Classification] = {
    403: ("access", "no_access"),
    408: ("server", "gave_up_waiting"),
    413: ("unsupported", "too_large"),
}


def _classify(error: Exception, body: object, status: int | None) -> Classification:
    """Return the kind and the name of the sentence. The most specific sign comes first."""
    fields = _fields(body)
    if status is None or status < 500:
        searched = " ".join((*_codes(fields), _message(fields)))[:MAX_SEARCHED_CHARACTERS]
        for pattern, kind, sentence in _BY_PATTERN:
            if kind == "unknown_model" and status == 403:  # the model exists, but not for this key
                continue
            if re.search(pattern, searched, re.IGNORECASE | re.DOTALL):
                return kind, sentence
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    for types, kind, sentence in _BY_TYPE:
        if isinstance(error, types):
            return kind, sentence
    if isinstance(error, ModelHTTPError):
        if error.status_code >= 500 or error.status_code == 409:
            return "server", "server_failed"
        return "unsupported", "request_refused"
    if isinstance(error, ModelAPIError) and error.in_stream and fields:  # the server's own words, but no known code
        return "server", "failed_in_answer"
    if isinstance(error, ModelAPIError | UnexpectedModelBehavior):
        if "finish_reason" in error.message or "ended without" in error.message:
            return "interrupted", "broke_off"
        return "malformed", "no_answer"
    return "malformed", "unusable"


def _cause(error: BaseException, sentence: str) -> str:
    """Return the name of the sentence for a connection that failed or broke. `sentence` is the one for its type."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) and len(chain) < 10:
        chain.append(inner)
    if any(isinstance(one, httpx2.ConnectTimeout) for one in chain):
        return "unanswered"
    if sentence == "late" or not any(isinstance(one, httpx2.ConnectError | ConnectionRefusedError) for one in chain):
        return "late" if sentence == "late" else "cut_off"
    return cause_of(error) or "unanswered"


def _target(error: BaseException, where: str) -> str:
    """Return the address that a redirect leads to, without its login and query; "" for other failures."""
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, httpx2.Response) or not response.has_redirect_location:
        return ""
    try:
        parts = urlsplit(urljoin(where, response.headers["location"][:MAX_LOGGED_CHARACTERS]))
        return f"{without_login(parts.geturl())}{parts.path}"[:MAX_QUOTED_CHARACTERS]
    except ValueError:
        return ""


def _with_numbers(pattern: str) -> re.Pattern[str]:
    """Return the pattern with `<n>` for a number. Its digits are limited, so that a search takes linear time."""
    return re.compile(pattern.replace("<n>", r"([\d,]{1,20})"), re.IGNORECASE)


_LIMIT = _with_numbers(
    r"maximum (?:context|prompt) length (?:is|of) <n>|context size \(<n> tokens|tokens > <n> maximum"
    r"|tokens allowed \(<n>\)|context limit: [\d,]{1,20} \+ [\d,]{1,20} > <n>|max_new_tokens. must be <= <n>"
)
_PROMPT = _with_numbers(
    r"(?<![\d,])<n> (?:in the messages|input tokens|tokens >)|request \(<n> tokens\)|input token count \(<n>\)"
    r"|context limit: <n> \+|given: <n> .inputs. tokens"
)
_TOTAL = _with_numbers(r"(?:requested|resulted in|request has|request contains|passed) <n> tokens")
_OVERFLOW = re.compile(
    r"exceed_context_size_error|context_length_exceeded|exceeds the context window|maximum (?:context|prompt) length"
    r"|prompt is too long|input token count|input length and .?max_tokens.? exceed|.inputs. tokens \+ .max_new_tokens",
    re.IGNORECASE,
)


def _too_long(error: ModelAPIError, label: str, fields: Mapping[str, Any]) -> list[str]:
    """Return the sentences for a prompt that is too long, with the server's numbers if there are any; [] for others.

    llama.cpp sends the numbers in fields of their own, the others in their message. vLLM sends this message also if the
    prompt alone would fit, but not together with the answer's allowed length.
    """
    message = _message(fields)
    known = isinstance(error, ModelContextWindowExceededError)
    if not known and not _OVERFLOW.search(" ".join((*_codes(fields), message))[:MAX_SEARCHED_CHARACTERS]):
        return []
    most = _int(fields.get("n_ctx")) or _number(_LIMIT, message)
    prompt = _int(fields.get("n_prompt_tokens")) or _number(_PROMPT, message)
    total = max(prompt, _number(_TOTAL, message))
    if most and (prompt or total) > most:
        size = _(
            "The conversation has {count:,} tokens and {model} reads at most {most:,}.",
            count=prompt or total,
            model=label,
            most=most,
        )
    elif most and prompt:
        return [
            _(
                "The conversation has {count:,} tokens, which leaves too little of the {most:,} "
                "of {model} for the answer. Allow a shorter answer, or start a new chat.",
                count=prompt,
                model=label,
                most=most,
            )
        ]
    else:
        size = _("The conversation is longer than {model} can read.", model=label)
    return [size, _("Start a new chat or shorten the message.")]


def refusal_words(error: ModelAPIError) -> str:
    """Return all words of a refusal: its message, codes, a gateway's quote of another server, and FastAPI's details.

    "" if the prompt is too long, which is no refusal of anything in it.
    """
    fields = _fields(_body(error))
    found: list[object] = [*_codes(fields), fields.get("message"), fields.get("param")]
    metadata: object = fields.get("metadata")
    found += [metadata.get("raw")] if _is_dict(metadata) else []
    detail: object = fields.get("detail")
    for item in cast(list[object], detail) if isinstance(detail, list) else [detail]:
        if _is_dict(item):  # without "input", which quotes the request
            way = ".".join(map(str, cast(list[object], item.get("loc") or [])))
            found += [way, item.get("msg"), item.get("type")]
        else:
            found.append(item)
    text = " ".join(str(one) for one in found if one)[:MAX_LOGGED_CHARACTERS]
    return "" if _OVERFLOW.search(text) else text


def _message(fields: Mapping[str, Any]) -> str:
    return str(fields.get("message", ""))[:MAX_SEARCHED_CHARACTERS]


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _number(pattern: re.Pattern[str], message: str) -> int:
    found = pattern.search(message)
    digits = next((group for group in found.groups() if group), "") if found else ""
    return int(digits.replace(",", "") or 0)


def _body(error: Exception) -> object:
    """Return the vendor's error body. For an error in a stream, the library sometimes keeps only the text."""
    body: object = getattr(error, "body", None)
    if body is None and isinstance(error, ModelAPIError) and error.in_stream:
        code, type_ = error.provider_error_code, error.provider_error_type
        return {"code": code, "type": type_, "message": error.message.removeprefix(f"{code}: ")}
    return body


def _fields(body: object) -> Mapping[str, Any]:
    """Return the error object of a body, with or without its envelope, and the server's words as its message."""
    if isinstance(body, list):  # Google
        body = next((one for one in cast(list[object], body)), None)
    if isinstance(body, str):
        return {"message": words_of(body)}
    if not _is_dict(body):
        return {}
    inner = body.get("error")
    table = inner if _is_dict(inner) else body
    words = words_of(table)
    return {**table, "message": words} if words else table


_WORDS = (
    *("message", "detail", "details", "msg", "error_message", "error_msg", "reason", "description", "error", "errors"),
    *("status_msg", "text", "content", "raw"),
)


def words_of(value: object, depth: int = 5) -> str:
    """Return the server's own words in an error, wherever they are; "" for none. A text can hold their JSON."""
    if isinstance(value, str):
        if depth and value.lstrip()[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                return words_of(json.loads(value[:MAX_SEARCHED_CHARACTERS]), depth - 1) or value
        return value
    if depth and isinstance(value, list):
        return next((words for one in cast(list[object], value) if (words := words_of(one, depth - 1))), "")
    if not depth or not _is_dict(value):
        return ""
    metadata = value.get("metadata")  # of a gateway, which quotes another server
    quoted = words_of(metadata.get("raw"), depth - 1) if _is_dict(metadata) else ""
    if quoted and quoted.lstrip()[:1] not in ("{", "["):  # JSON in which no words were found
        return quoted
    return next((words for name in _WORDS if (words := words_of(value.get(name), depth - 1))), "")


def _codes(fields: Mapping[str, Any]) -> list[str]:
    """Return the machine-readable codes and types, with the reasons that Google puts among its details."""
    details: object = fields.get("details")
    items = cast(list[object], details) if isinstance(details, list) else []
    found = [fields.get("code"), fields.get("type"), *(item.get("reason") for item in items if _is_dict(item))]
    return [one for one in found if isinstance(one, str)]


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _quoted_message(body: object, key: str | None) -> str:
    """Return the server's own sentence, cut before any quote of a request and without keys; "" for none."""
    message = _fields(body).get("message")
    if not isinstance(message, str):
        return ""
    message = re.split(r"[{\[<\n]|Traceback", redact(cut(message, MAX_SEARCHED_CHARACTERS), key), maxsplit=1)[0].strip()
    return message[:MAX_QUOTED_CHARACTERS]


def _log(error: Exception, name: str, provider: ProviderSpec, kind: str, key: str | None, where: str) -> None:
    """Log the redacted details: the exception and its cause, the status, the vendor's request id, and the body."""
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    request = next((headers[one] for one in ("x-request-id", "request-id") if one in headers), "-")
    status = getattr(error, "status_code", "-")
    cause = f" from {type(error.__cause__).__name__}" if error.__cause__ else ""
    body = _body(error)
    text = body if isinstance(body, str) else str(error) if body is None else json.dumps(body, default=str)
    text = redact(cut(text, MAX_SEARCHED_CHARACTERS), key)[:MAX_LOGGED_CHARACTERS]
    what = f"{type(error).__name__}{cause}"
    if where and kind in ("connection", "timeout", "unsupported"):
        what += f" at {where}"
    if kind == "key" and provider.key_names:
        what += f", check {' or '.join(provider.key_names)}"
    # %-arguments, and no exc_info: a handler would print the exception with the unredacted body.
    log.warning(
        "%s, model %s: %s (%s, status %s, request %s): %r", provider.id, name, kind, what, status, request, text
    )
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", redact(cut("".join(traceback.format_exception(error)), 10 * MAX_SEARCHED_CHARACTERS), key))


_ROUTES = ("/chat/completions", "/completions", "/responses", "/messages", "/embeddings")
"""The ends of addresses that people copy from examples of requests. The SDKs append them to the base URL."""
_MISSING_ROUTE = (
    *("not found", "file not found", "page not found", "404 page not found", "404 not found"),
    *("method not allowed", "invalid url", "unknown request url", "unknown url", "no route", "cannot post"),
)
"""The beginnings of messages of servers that do not know the route of a request."""


def check_base_url(url: str) -> None:
    """Raise `InputError` with the cure if no request to the URL can succeed. It does not repeat a login."""
    given = without_logins(repr(url))
    try:
        parts = urlsplit(url)
        _port = parts.port
    except ValueError:  # brackets around what is no address, or no port
        raise InputError(_("The base URL {url} has no host.", url=given)) from None
    if parts.scheme not in ("http", "https"):
        bare = url.rpartition("://")[2] or "127.0.0.1:8000/v1"
        raise InputError(
            _(
                "The base URL {url} must begin with http:// or https://, as in {example}.",
                url=given,
                example=without_logins(repr(f"http://{bare}")),
            )
        )
    if not parts.hostname:
        raise InputError(_("The base URL {url} has no host.", url=given))
    path = parts.path.rstrip("/")
    if route := next((one for one in _ROUTES if path.endswith(one)), None):
        raise InputError(
            _(
                "The base URL {url} must end before {route}: {example}.",
                url=given,
                route=repr(route),
                example=without_logins(repr(f"{parts.scheme}://{parts.netloc}{path.removesuffix(route)}")),
            )
        )


def missing_route(status: int | None, body: object, base_url: str) -> Literal["no_route", "no_version"] | None:
    """Return the name of the sentence for a server that does not know the route at all; None if it may know it.

    A server that knows the route answers 404 for an unknown model, too, but then its message names the model.
    """
    if status not in (404, 405):
        return None
    message: object = body
    if isinstance(body, dict):
        table = cast(dict[str, Any], body)
        inner = table.get("error")
        table = cast(dict[str, Any], inner) if isinstance(inner, dict) else table
        message = inner if isinstance(inner, str) else table.get("message", table.get("detail"))
    text = str(message or "")[:500].strip().lower()
    is_page = isinstance(body, str) and "model" not in text
    if not (is_page or body is None or text.startswith(_MISSING_ROUTE)) or "model" in text:
        return None
    has_version = any(part[:1] == "v" and part[1:2].isdigit() for part in urlsplit(base_url).path.split("/"))
    return "no_route" if has_version else "no_version"


def without_login(url: str) -> str:
    """Return the address of a server, without user, password and path. It need not be a valid one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split(r'[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"
