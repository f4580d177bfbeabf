"""Reads, rebuilds and refuses ASGI requests. Knows HTTP alone."""

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
    """The answer is a status and nothing else: another's thing and a missing one look alike."""

    def __init__(self, status: int = 404, location: bytes = b"") -> None:
        self.status, self.location = status, location


def locate(scope: Scope, prefix: str) -> Scope:
    """The request at its path below `prefix`, by which it is both checked and routed. Raises `Refused`.

    A proxy may take the prefix off or leave it on. Gradio takes it off once more wherever a path begins with it, so no
    path that still has it may pass: it would be checked as one thing and routed as another.
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
    """Whether the browser speaks https, as the server or a proxy says."""
    forwarded = Headers(scope=scope).get("x-forwarded-proto", "").split(",")[0].strip()
    return "https" in (scope.get("scheme"), forwarded)


async def read_json(receive: Receive) -> dict[str, Any]:
    """The JSON object of a small body. Raises `Refused`."""
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
    """The request with this body and no other. Raises `Refused` for what JSON cannot say."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")  # half an emoji is a "?"
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400) from error
    kept = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
    sent = False

    async def said() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return {**scope, "headers": [*kept, (b"content-length", str(len(body)).encode())]}, said


def with_query(scope: Scope, **query: str) -> Scope:
    """The request with this query and no other."""
    return {**scope, "query_string": urlencode(query).encode()}


async def refuse(send: Send, status: int, location: bytes = b"") -> None:
    """Answer with this status and a short sentence."""
    body = json.dumps({"detail": SENTENCES.get(status, "Not found.")}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if location:
        headers.append((b"location", location))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
