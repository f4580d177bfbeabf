"""What stands between visitors: a cookie for each, and Gradio's own ids bound to whoever used them first.

Gradio takes a session hash, an event id or the path of an upload from anybody who knows it. Here each of them belongs
to the visitor who brought it, and another visitor gets the answer that a wrong id gets. Gradio routes that this page
does not need are closed. Knows HTTP, not Gradio.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import Any, cast
from urllib.parse import parse_qs, unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.visitor import COOKIE, MAX_AGE, Visitors

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "font-src 'self' data:",
        "form-action 'self'",
        "frame-ancestors 'self' https://huggingface.co",
        "base-uri 'self'",
        "object-src 'none'",
    )
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
)
API = "/gradio_api/"
CLOSED = ("proxy=", "deep_link", "run/", "api/", "call/", "runs", "run-history", "vibe", "dev/", "stream/", "file/")
MAX_BODY = 4 * 1024 * 1024
REMEMBERED = 50_000


class Walls:
    """The middleware. Owner of the table that says which visitor an id of Gradio's belongs to."""

    def __init__(self, app: ASGIApp, visitors: Visitors) -> None:
        self._app, self._visitors = app, visitors
        self._bound: OrderedDict[str, str | None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        cookie = _cookie(scope)
        visitor = self._visitors.read(cookie)
        scope.setdefault("state", {})["visitor"] = visitor
        scope["state"]["walls"] = self
        path = scope["path"]
        send = self._dressed(scope, send, fresh=visitor is None)
        if path.startswith("/monitoring") or (path.startswith(API) and path[len(API) :].startswith(CLOSED)):
            await _refuse(send, 404, "Not found.")
            return
        if not path.startswith(API):
            await self._app(scope, receive, send)
            return
        what = path[len(API) :].strip("/")
        if what in ("queue/join", "cancel", "reset"):
            body = await _body(receive)
            if body is None:
                await _refuse(send, 413, "The request is too large.")
                return
            if not self._may_use(_ids(body), visitor):
                await _refuse(send, 404, "Not found.")
                return
            receive = _replay(body, receive)
            if what == "queue/join":
                send = self._binding(send, visitor, _event)
        elif what == "queue/data" or what.startswith("heartbeat/"):
            query = parse_qs(scope["query_string"].decode("latin-1"))
            hash_ = query.get("session_hash", [None])[0] if what == "queue/data" else what.split("/")[1]
            if not self._may_use([hash_], visitor):
                await _refuse(send, 404, "Not found.")
                return
        elif what.startswith("file="):
            if not self.owns(unquote(what.removeprefix("file=")), visitor):
                await _refuse(send, 404, "Not found.")
                return
        elif what == "upload":
            send = self._binding(send, visitor, _paths)
        await self._app(scope, receive, send)

    def owns(self, id_: str, visitor: str | None) -> bool:
        """Whether this id was brought by this visitor before."""
        return id_ in self._bound and self._bound[id_] == visitor

    def _may_use(self, ids: "list[str | None]", visitor: str | None) -> bool:
        """Bind ids that are new to this visitor; False where one is another's."""
        known = [id_ for id_ in ids if id_]
        if any(self._bound.get(id_, visitor) != visitor for id_ in known):
            return False
        for id_ in known:
            self._bind(id_, visitor)
        return True

    def _bind(self, id_: str, visitor: str | None) -> None:
        self._bound[id_] = visitor
        self._bound.move_to_end(id_)
        while len(self._bound) > REMEMBERED:
            self._bound.popitem(last=False)

    def _binding(self, send: Send, visitor: str | None, ids: Callable[[Any], list[Any]]) -> Send:
        """Read the ids in a small JSON answer on its way out."""
        seen = bytearray()

        async def bound(message: Message) -> None:
            if message["type"] == "http.response.body":
                seen.extend(message.get("body", b""))
                if not message.get("more_body"):
                    try:
                        found = ids(json.loads(seen))
                    except ValueError:
                        found = list[Any]()
                    for id_ in found:
                        if isinstance(id_, str):
                            self._bind(id_, visitor)
            await send(message)

        return bound

    def _dressed(self, scope: Scope, send: Send, *, fresh: bool) -> Send:
        secure = scope.get("scheme") == "https" or Headers(scope=scope).get("x-forwarded-proto") == "https"

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers[name] = value
                if headers.get("content-type", "").startswith("text/event-stream"):
                    headers["x-accel-buffering"] = "no"
                if fresh and scope["path"] in ("/", "/config", "/config/"):
                    _, value = self._visitors.mint()
                    site = "SameSite=None; Secure" if secure else "SameSite=Lax"
                    headers.append("set-cookie", f"{COOKIE}={value}; Path=/; Max-Age={MAX_AGE}; HttpOnly; {site}")
            await send(message)

        return dressed


def _event(answer: Any) -> list[Any]:
    return [cast(dict[str, Any], answer).get("event_id")] if isinstance(answer, dict) else []


def _paths(answer: Any) -> list[Any]:
    return cast(list[Any], answer) if isinstance(answer, list) else []


def visitor_of(scope: Scope) -> str | None:
    """The visitor that the walls found in a request's cookie."""
    return cast("str | None", scope.get("state", {}).get("visitor"))


def _cookie(scope: Scope) -> str | None:
    jar = SimpleCookie(Headers(scope=scope).get("cookie", ""))
    return jar[COOKIE].value if COOKIE in jar else None


def _ids(body: bytes) -> list[str | None]:
    try:
        values: Any = json.loads(body)
    except ValueError:
        return []
    if not isinstance(values, dict):
        return []
    given = cast(dict[str, Any], values)
    return [str(given[name]) for name in ("session_hash", "event_id") if given.get(name)]


async def _body(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        body.extend(message.get("body", b""))
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"detail": sentence}).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})
