"""Finds mistakes in the base URL of a server: before any request, or in the server's answer to one."""

import re
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from agent.errors import InputError, without_logins
from agent.i18n.text import _

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
