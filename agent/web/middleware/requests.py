"""Reads, rebuilds and refuses ASGI requests. Knows only HTTP."""

import json
import re
from typing import Any, cast
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

READ = ("GET", "HEAD")
MAX_BODY = 4 * 1024 * 1024

SENTENCES = {
    307: "Once more.",
    400: "Not understood.",
    403: "A page of another site may not do this.",
    405: "Not allowed.",
    413: "Too large.",
    421: "This server has no page of that name: name it under [server] hosts, or in SWITCHBOARD_HOSTS.",
    429: "Too many requests at once. Try again in a moment.",
    500: "Something went wrong.",
}

_AMBIGUOUS = re.compile(r"//|\\|[\x00-\x1f\x7f]|/\.{1,2}(/|$)")
_ENCODED_SLASH = re.compile(rb"%(2f|5c)", re.IGNORECASE)


class RequestRefused(Exception):
    """Refuses a request with a status and nothing else. Missing files and other visitors' files look alike."""

    def __init__(self, status: int = 404, location: bytes = b"") -> None:
        self.status, self.location = status, location


def locate(scope: Scope, prefix: str) -> Scope:
    """Return the request with its path below `prefix`, for both the checks and the routing. Raises `RequestRefused`.

    A proxy can remove the prefix or keep it. Gradio removes it once more if a path still begins with it. Such paths are
    refused, because they would be checked as one path and routed as another.
    """
    path: str = scope["path"]
    if _AMBIGUOUS.search(path) or _ENCODED_SLASH.search(scope.get("raw_path") or b""):
        raise RequestRefused
    if prefix and _is_below(path, prefix):
        path = path[len(prefix) :] or "/"
        if _is_below(path, prefix):
            raise RequestRefused
    if not path.startswith("/"):
        raise RequestRefused
    try:
        scope["query_string"].decode()
    except UnicodeDecodeError as error:
        raise RequestRefused(400) from error
    return {**scope, "path": path, "raw_path": quote(path).encode(), "root_path": ""}


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def is_secure(scope: Scope) -> bool:
    """Return True if the browser uses https, as reported by the server or a proxy."""
    forwarded = Headers(scope=scope).get("x-forwarded-proto", "").split(",")[0].strip()
    return "https" in (scope.get("scheme"), forwarded)


async def read_json(receive: Receive) -> dict[str, Any]:
    """Read a small body and return its JSON object. Raises `RequestRefused`."""
    body = bytearray()
    while True:
        message = await receive()
        body.extend(message.get("body", b""))
        if len(body) > MAX_BODY:
            raise RequestRefused(413)
        if message["type"] == "http.disconnect":
            raise RequestRefused(400)
        if not message.get("more_body"):
            break
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400) from error
    if not isinstance(value, dict):
        raise RequestRefused(400)
    return cast(dict[str, Any], value)


def with_body(scope: Scope, receive: Receive, value: dict[str, Any]) -> tuple[Scope, Receive]:
    """Return the request with this body. Raises `RequestRefused` if the value is not valid JSON."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")  # half an emoji: "?"
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400) from error
    headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
    sent = False

    async def receive_body() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, receive_body


def with_query(scope: Scope, **query: str) -> Scope:
    """Return the request with this query."""
    return {**scope, "query_string": urlencode(query).encode()}


async def refuse(send: Send, status: int, location: bytes = b"") -> None:
    """Send this status with a short message."""
    body = json.dumps({"detail": SENTENCES.get(status, "Not found.")}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if location:
        headers.append((b"location", location))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
