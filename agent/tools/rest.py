"""REST tools: makes a tool from the description of one request. The model only supplies values for placeholders.

A value in the path or the query is escaped, so that it cannot change the rest of the URL. Only the tool's author sets
the host, headers and secrets.
"""

import base64
import html
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote, quote_plus, urlencode, urlsplit

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import ConfigDict, Field
from pydantic_ai.messages import BinaryContent

from agent.errors import ConfigError, InputError, ToolError
from agent.fetch import GUARD, FetchResponse, Guard
from agent.tools.function_tools import Tool


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The headers and query fields that authorise a request. They are never shown."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redacted(self, text: str) -> str:
        """Return the text without the secrets, even if a server repeats them escaped or encoded."""
        for form in sorted({form for secret in self.secrets for form in _forms(secret)}, key=len, reverse=True):
            text = text.replace(form, "[secret]")
        return text


@dataclass(frozen=True, kw_only=True)
class Auth:
    """The authorisation of a request, with the secret from the environment variable `variable`.

    `kind` is "bearer", "basic" (the secret is "user:password"), "header" or "query". For the last two, `name` is the
    name of the header or the query field.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["bearer", "basic", "header", "query"]
    variable: str
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("bearer", "basic", "header", "query"):
            raise ConfigError(f"auth.kind must be bearer, basic, header or query, not {self.kind!r}")
        if (self.kind in ("header", "query")) != bool(self.name):
            raise ConfigError(f"auth.name is needed for header and query, and for nothing else; kind is {self.kind!r}")

    def credentials(self, env: Mapping[str, str]) -> Credentials:
        """Read the secret. Raises `ConfigError` with the variable's name if there is none or it cannot be sent."""
        secret = env.get(self.variable, "").strip()
        if not secret:
            raise ConfigError(f"the environment variable {self.variable} is not set")
        if not re.fullmatch(r"[\x20-\x7e]+", secret):
            raise ConfigError(f"the environment variable {self.variable} has characters that no header can carry")
        match self.kind:
            case "bearer":
                return Credentials(headers={"Authorization": f"Bearer {secret}"}, secrets=(secret,))
            case "basic":
                coded = base64.b64encode(secret.encode()).decode()
                _, _, password = secret.partition(":")
                secrets = tuple(filter(None, (secret, coded, password)))
                return Credentials(headers={"Authorization": f"Basic {coded}"}, secrets=secrets)
            case "header":
                return Credentials(headers={self.name: secret}, secrets=(secret,))
            case "query":
                return Credentials(query={self.name: secret}, secrets=(secret,))


def _forms(secret: str) -> set[str]:
    return {
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        html.escape(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret)[1:-1].replace("/", "\\/"),
        base64.b64encode(secret.encode()).decode(),
    }


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
MAX_BYTES = 2_000_000
MAX_CHARACTERS = 20_000
"""Characters of a result. More text does not help a model."""
MAX_ERROR_CHARACTERS = 500
"""Characters of a server's text with an error status."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CHARSETS = re.compile(
    r"charset=\"?(utf-16|iso-8859-(?:[1-9]|1[0-6])|windows-125[0-8]|gb2312|gb18030|big5|shift_jis|euc-(?:jp|kr))\b",
    re.I,
)
"""The character sets on the web. Python has others that are slow to decode, or are not character sets at all."""
_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": Annotated[float, Field(allow_inf_nan=False)],
    "boolean": bool,
}
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A value that the model can give: its JSON `type`, its meaning, and the allowed `choices`, if any.

    It is required unless it has a `default` or is `optional`. If it is not given, its placeholder is left out.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    description: str = ""
    type: Literal["string", "integer", "number", "boolean"] = "string"
    choices: tuple[str | int, ...] = ()
    default: str | int | float | bool | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise InputError(f"the type of a parameter is one of {', '.join(_TYPES)}, not {self.type!r}")

    @property
    def required(self) -> bool:
        """True if a call without it is refused."""
        return self.default is None and not self.optional


def rest_tool(
    name: str,
    url: str,
    *,
    description: str,
    parameters: Mapping[str, Parameter] | None = None,
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET",
    headers: Mapping[str, str] | None = None,
    auth: Auth | None = None,
    body: Any = None,
    result: str = "",
    timeout: float = 20.0,
    needs_approval: bool = False,
    guard: Guard = GUARD,
    env: Mapping[str, str] = os.environ,
) -> Tool:
    """Make a tool that sends one request. `{name}` in `url` (path or query) or `body` stands for the model's value.

    `body` is JSON. A string that is only a placeholder becomes the value with its type. With the header
    "Content-Type: application/x-www-form-urlencoded" it is sent as a form. `result` is a JMESPath into the answer's
    JSON. `guard` decides which hosts can be reached: public ones by default, and your own with
    `Guard(allow=("127.0.0.1:8000",))`. `timeout` is in seconds.

    The result is the answer's text, picture or sound. If the answer has an error status or does not fit, the model
    reads an error. Secrets come from `auth` and are shown nowhere. Raises `InputError` if the description is wrong,
    `ConfigError` if the environment lacks the secret.
    """
    request = _RestRequest(
        name=name,
        method=method,
        url=url,
        parameters=dict(parameters or {}),
        headers={key.title(): value for key, value in (headers or {}).items()},
        body=body,
        credentials=auth.credentials(env) if auth else Credentials(),
    )
    try:
        path = jmespath.compile(result) if result else None
    except JMESPathError as error:
        raise InputError(f"tool {name!r}: its result {result!r} is no JMESPath: {error}") from error

    async def call(**given: Any) -> str | BinaryContent:
        try:
            answer = await guard.send(
                method,
                request.address(given),
                headers=request.all_headers,
                body=request.content(given),
                max_bytes=MAX_BYTES,
                seconds=timeout,
            )
            return _read(answer, path, request.credentials)
        except (InputError, ToolError) as error:
            raise ToolError(request.credentials.redacted(str(error))) from None  # a cause could repeat a secret

    _describe(call, name, request.parameters)
    # The guard stops in time with a sentence of its own; the loop's limit is only a safety net.
    return Tool(call, name, timeout + 5, needs_approval=needs_approval, description=description)


def _describe(call: Callable[..., Any], name: str, parameters: Mapping[str, Parameter]) -> None:
    """Set the name, annotations and signature of the function. Its schema is made from them."""
    call.__name__ = call.__qualname__ = name
    call.__annotations__ = {key: _annotation(parameter) for key, parameter in parameters.items()}
    call.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]  `inspect` looks for it
        [
            inspect.Parameter(
                key,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=call.__annotations__[key],
                default=inspect.Parameter.empty if one.required else one.default,
            )
            for key, one in parameters.items()
        ]
    )


@dataclass(frozen=True, kw_only=True)
class _RestRequest:
    """The checked description: each placeholder has a parameter, and each parameter a placeholder."""

    name: str
    method: str
    url: str
    parameters: Mapping[str, Parameter]
    headers: Mapping[str, str]
    body: Any
    credentials: Credentials = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host = parts.hostname
        except ValueError as error:
            raise self._wrong(f"its url {self.url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host or "{" in parts.netloc:
            raise self._wrong(f"its url {self.url!r} must begin with http(s):// and a host without placeholders")
        if self.method not in METHODS:
            raise self._wrong(f"its method must be one of {', '.join(METHODS)}, not {self.method!r}")
        if self.body is not None and self.method in ("GET", "DELETE"):
            raise self._wrong(f"{self.method} has no body")
        if any(re.search(r"[^\x20-\x7e]", key + value) for key, value in self.headers.items()):
            raise self._wrong("its headers must be of one line and plain ASCII")
        in_path = set(_PLACEHOLDER.findall(parts.path))
        placeholders = in_path | set(_PLACEHOLDER.findall(parts.query)) | _placeholders(self.body)
        for key in sorted(placeholders ^ self.parameters.keys()):
            where = "has no parameter" if key in placeholders else "is a parameter without a placeholder"
            raise self._wrong(f"{{{key}}} {where}")
        if absent := sorted(key for key in in_path if self.parameters[key].optional):
            raise self._wrong(f"{{{absent[0]}}} is in the path and cannot be optional")
        if re.search(r"[{}]", _PLACEHOLDER.sub("", self.url)):
            raise self._wrong("a brace in its url belongs to no placeholder; write it as %7B or %7D")

    def _wrong(self, why: str) -> InputError:
        return InputError(f"tool {self.name!r}: {why}")

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers to send. By default, they ask for JSON."""
        kind = {"Content-Type": "application/json"} if self.body is not None else {}
        return {"Accept": "application/json, */*;q=0.5", **kind, **self.headers, **self.credentials.headers}

    def address(self, given: Mapping[str, Any]) -> str:
        """Return the URL with its values. Raises `ToolError` if a part of the path would be "." or ".."."""
        base, _, query = self.url.partition("#")[0].partition("?")
        start = base.index("/", base.index("//") + 2) if "/" in base.partition("//")[2] else len(base)
        path = _PLACEHOLDER.sub(lambda found: _escape(given[found[1]]), base[start:])
        if any(part in (".", "..") for part in path.split("/")):
            raise ToolError("A value in the path must not be . or .. alone.")
        pairs = [filled for pair in query.split("&") if pair and (filled := _pair(pair, given)) is not None]
        pairs += [f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in self.credentials.query.items()]
        return base[:start] + path + ("?" + "&".join(pairs) if pairs else "")

    def content(self, given: Mapping[str, Any]) -> bytes:
        """Return the body with its values."""
        if self.body is None:
            return b""
        filled = _fill(self.body, given)
        if self.all_headers["Content-Type"].startswith(FORM) and isinstance(filled, dict):
            form = cast(dict[str, Any], filled)
            return urlencode({key: _text(value) for key, value in form.items()}, errors="replace").encode()
        return json.dumps(filled).encode()


class _Absent:
    """A marker for parts to leave out of a body."""


def _annotation(parameter: Parameter) -> Any:
    kind: Any = Literal[parameter.choices] if parameter.choices else _TYPES[parameter.type]
    if not parameter.required and parameter.default is None:
        kind = kind | None
    return Annotated[kind, Field(description=parameter.description or None)]


def _placeholders(body: Any) -> set[str]:
    match body:
        case str():
            return set(_PLACEHOLDER.findall(body))
        case dict():
            return set[str]().union(*map(_placeholders, cast(dict[str, Any], body).values()))
        case list():
            return set[str]().union(*map(_placeholders, cast(list[Any], body)))
        case _:
            return set()


def _fill(body: Any, given: Mapping[str, Any]) -> Any:
    match body:
        case str() if found := _PLACEHOLDER.fullmatch(body):
            return _Absent if given[found[1]] is None else given[found[1]]
        case str():
            if any(given[key] is None for key in _PLACEHOLDER.findall(body)):
                return _Absent
            return _PLACEHOLDER.sub(lambda found: _text(given[found[1]]), body)
        case dict():
            pairs = ((key, _fill(one, given)) for key, one in cast(dict[str, Any], body).items())
            return {key: one for key, one in pairs if one is not _Absent}
        case list():
            return [filled for one in cast(list[Any], body) if (filled := _fill(one, given)) is not _Absent]
        case _:
            return body


def _pair(pair: str, given: Mapping[str, Any]) -> str | None:
    if any(given[key] is None for key in _PLACEHOLDER.findall(pair)):
        return None
    return _PLACEHOLDER.sub(lambda found: _escape(given[found[1]]), pair)


def _escape(value: Any) -> str:
    return quote(_text(value), safe="", errors="replace")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read(answer: FetchResponse, path: Any, credentials: Credentials) -> str | BinaryContent:
    """Return the part of an answer that the model gets. Raises `ToolError`."""
    kind = answer.media_type
    if not 200 <= answer.status < 300:
        text = credentials.redacted(_decode(answer)).strip()
        raise ToolError(
            f"The server answered with status {answer.status}: {_truncate(text, MAX_ERROR_CHARACTERS) or 'nothing'}"
        )
    if path is None:
        if kind.startswith(("image/", "audio/")):
            return BinaryContent(answer.data, media_type=kind)
        if kind == "application/octet-stream" and b"\0" in answer.data:
            raise ToolError(f"The server answered with {len(answer.data):,} bytes that are no text.")
        return _truncate(credentials.redacted(_compact(_decode(answer))), MAX_CHARACTERS)
    try:
        found = path.search(json.loads(answer.data))
    except JMESPathError as error:
        raise ToolError(f"The answer does not fit {path.expression!r}: {error}") from error
    except (ValueError, RecursionError) as error:
        text = _truncate(credentials.redacted(_decode(answer)), MAX_ERROR_CHARACTERS)
        raise ToolError(f"The server answered with {kind}, which is not JSON: {text}") from error
    if found is None:
        raise ToolError(f"The answer has nothing at {path.expression!r}.")
    return _truncate(credentials.redacted(_readable(found)), MAX_CHARACTERS)


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _compact(text: str) -> str:
    """Return JSON without white space, which only costs the model tokens; any other text unchanged."""
    try:
        return _readable(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _decode(answer: FetchResponse) -> str:
    named = _CHARSETS.search(answer.content_type)
    return answer.data.decode(named[1] if named else "utf-8", "replace")


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
