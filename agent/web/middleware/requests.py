"""Reads, rebuilds and refuses ASGI requests, and checks their bodies: one unambiguous length, and a time limit.

Knows only HTTP.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, cast
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.i18n.text import _
from agent.system.threads import TEXTS
from agent.web.client_address import client_address
from agent.web.heavy_work import HeavyWork, RequestLimit, RequestSlot, TooManyRequests

READ = ("GET", "HEAD")
MAX_BODY = 960 * 1024
"""Bytes of the largest event: a message of 200,000 characters and a system prompt of 20,000, four bytes each, and what
stands around them. Parsing them takes a few milliseconds."""
MAX_SMALL_BODY = 16 * 1024
"""Bytes of an event without a long text. Larger bodies count as costly requests."""
MAX_NODES = 10_000
"""The most strings, arrays, objects and commas in a body. The page sends some hundreds."""
MAX_DIGITS = 20
"""The most characters of a whole number. Longer ones take time that grows with the square of their length."""
LARGE_BODIES = 64
"""The most bodies above `MAX_SMALL_BODY` that are read at once, because they are in memory."""
LARGE_BODIES_ALWAYS = 4
"""The number of such bodies that one network address can always send. Beyond it, the address has its share."""
MAX_SEGMENT = 255
"""Bytes of a file name. No system has files with longer names."""
MAX_PATH = 2048
MAX_HEADERS = 200
"""The most headers of a request. Browsers and proxies send some dozens, and each look for one reads them all."""
MAX_URL = 16_384
"""Bytes of a path with its query. The server refuses a longer head of a request."""
MAX_FIELDS = 100
"""The most fields of a query. The page sends a few, and each takes longer than its bytes."""
MAX_COOKIES = 1000
"""The cookies of a request that are looked at. Browsers send at most some hundreds."""

SENTENCES = {
    307: "Once more.",
    400: _("Not understood."),
    403: _("A page of another site may not do this."),
    405: "Not allowed.",
    413: _("This is too large for the server."),
    414: "The address is too long.",
    421: "This server has no page of that name: name it under [server] hosts, or in SWITCHBOARD_HOSTS.",
    429: _("Too many requests at once. Try again in a moment."),
    431: "The request has too many headers.",
    500: _("Something went wrong."),
}
"""The sentence on a refused request, by status. The marked ones reach visitors, and are translated for them."""

_AMBIGUOUS = re.compile(r"//|\\|[\x00-\x1f\x7f]|/\.{1,2}(/|$)")
# One node of a JSON text, with what stands before it.
_NODE = re.compile(r'[^"\[{,]*+(?:[\[{,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?)', re.DOTALL)
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
    if len(scope["headers"]) > MAX_HEADERS:
        raise RequestRefused(431)
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_URL:
        raise RequestRefused(414)
    if scope["query_string"].count(b"&") >= MAX_FIELDS:
        raise RequestRefused(414)
    if not _is_possible(path):
        raise RequestRefused
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


def _is_possible(path: str) -> bool:
    """Return False for a path that no file can have."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= MAX_PATH and all(len(part) <= MAX_SEGMENT for part in encoded.split(b"/"))


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def cookies_of(scope: Scope, name: str) -> set[str]:
    """Return the different values of a cookie in a request, among its first cookies."""
    headers = Headers(scope=scope).getlist("cookie")
    pairs = islice((pair.partition("=") for header in headers for pair in header.split(";")), MAX_COOKIES)
    return {value.strip() for key, _, value in pairs if key.strip() == name}


def is_secure(scope: Scope) -> bool:
    """Return True if the browser uses https, as reported by the server or a proxy."""
    forwarded = Headers(scope=scope).get("x-forwarded-proto", "").split(",")[0].strip()
    return "https" in (scope.get("scheme"), forwarded)


class EventBodies:
    """Reads the bodies of events. Owns the places of large bodies, of which each network address has a share.

    A refused request counts in `limit`, and so does a large body. Who has used up the limit is refused before the body
    is read. Without a limit all are read. Bodies above `most_bytes` or with more than `most_nodes` are refused.
    """

    def __init__(
        self,
        limit: RequestLimit | None,
        *,
        most_bytes: int = MAX_BODY,
        most_nodes: int = MAX_NODES,
        at_once: int = LARGE_BODIES,
    ) -> None:
        self._limit, self._most_bytes, self._most_nodes = limit, most_bytes, most_nodes
        self._large = HeavyWork(at_once, each=at_once, always=LARGE_BODIES_ALWAYS)

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive, visitor: str | None) -> AsyncGenerator[dict[str, Any]]:
        """Read the JSON object in the body. Count it if the block refuses the request. Raises `RequestRefused`."""
        who, is_counted = payer_of(scope, visitor), False
        address = who[1]

        def count() -> None:
            nonlocal is_counted
            if self._limit is not None and not is_counted:
                is_counted = True
                self._limit.count(*who)

        try:
            if self._limit is not None:
                self._limit.check(*who)
            body, place = bytearray(), None
            try:
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > self._most_bytes:
                        raise RequestRefused(413)
                    if place is None and len(body) > MAX_SMALL_BODY:
                        place = self._large_place(address)
                        count()
                    if message["type"] == "http.disconnect":
                        raise RequestRefused(400)
                    if not message.get("more_body"):
                        break
                # A long text would hold the loop.
                parse = partial(parse_object, body, self._most_nodes)
                value = await TEXTS.run(parse) if len(body) > MAX_BODY else parse()
            finally:
                if place is not None:
                    place.release()
            yield value
        except RequestRefused:
            count()
            raise

    def _large_place(self, address: str | None) -> RequestSlot:
        try:
            return self._large.place("", address)
        except TooManyRequests as error:
            raise RequestRefused(429) from error


def payer_of(scope: Scope, visitor: str | None) -> tuple[str, str | None]:
    """Return the owner and the address that a request counts for. The guests at one address are one owner."""
    address = client_address(scope)
    return visitor or f"guest {address}", address


def parse_object(body: bytes | bytearray, most_nodes: int = MAX_NODES) -> dict[str, Any]:
    """Return the JSON object in a body, in a time that its size bounds. Raises `RequestRefused`."""
    try:
        text = body.decode("utf-8", "surrogatepass")
        at, nodes = 0, 0
        while found := _NODE.match(text, at):
            at, nodes = found.end(), nodes + 1
            if nodes > most_nodes:
                raise RequestRefused(413)
        value: Any = json.loads(text, parse_int=_short_number)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400) from error
    if not isinstance(value, dict):
        raise RequestRefused(400)
    return cast(dict[str, Any], value)


def _short_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("The number is too long.")
    return int(digits)


def declared_bytes(headers: Headers) -> int:
    """Return the length of the body that a request declares, or 0. It can be wrong."""
    digits = headers.get("content-length", "")
    return int(digits[:MAX_DIGITS]) if digits.isascii() and digits.isdigit() else 0


def with_body(scope: Scope, receive: Receive, value: dict[str, Any]) -> tuple[Scope, Receive]:
    """Return the request with this body as JSON. Raises `RequestRefused` if the value is not valid JSON."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")  # half an emoji: "?"
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400) from error
    about_body = (b"content-length", b"transfer-encoding", b"content-type", b"content-encoding")
    headers = [pair for pair in scope["headers"] if pair[0] not in about_body]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    sent = False

    async def receive_body() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return {**scope, "headers": headers}, receive_body


def with_query(scope: Scope, **query: str) -> Scope:
    """Return the request with this query."""
    return {**scope, "query_string": urlencode(query).encode()}


async def refuse(send: Send, status: int, location: bytes = b"", *, sentence: str = "") -> None:
    """Send this status with a short message."""
    body = json.dumps({"detail": sentence or SENTENCES.get(status, "Not found.")}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if location:
        headers.append((b"location", location))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


BODY_SECONDS = 30.0
"""The most seconds between two pieces of a body, and the seconds that every body has in total."""
BODY_BYTES_PER_SECOND = 2_000
"""The lowest average rate of a body that takes longer than `BODY_SECONDS`."""


class BodyLength:
    """Middleware that answers 400 to a request with two lengths, and closes the connection.

    With both `Content-Length` and `Transfer-Encoding`, or with the latter in HTTP/1.0, a proxy can read another length
    than this server. The rest of the body would then count as a request of another visitor (request smuggling).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        names = {name for name, _ in scope.get("headers", ())}
        if b"transfer-encoding" in names and (b"content-length" in names or scope.get("http_version") == "1.0"):
            await _close(send, 400)
        else:
            await self._app(scope, receive, send)


class BodyTimeout:
    """Middleware that answers 408 to a request with a body that pauses or trickles."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a time limit for its body. The application sees a lost connection if time is up."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        body, has_begun = _TimedBody(receive), False

        async def send_unless_late(message: Message) -> None:
            nonlocal has_begun
            if has_begun or not body.is_late:
                has_begun = True
                await send(message)

        try:
            await self._app(scope, body.receive, send_unless_late)
        except Exception:
            if has_begun or not body.is_late:
                raise
        if body.is_late and not has_begun:
            await _close(send, 408)


class _TimedBody:
    """A body that is received with a time limit. Only the time that the server waits for more of it counts."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._waited, self._size, self._is_complete = 0.0, 0, False
        self.is_late = False

    async def receive(self) -> Message:
        """Return the next message, or a disconnect if it comes too late."""
        if self._is_complete:
            return await self._receive()
        time_left, began = BODY_SECONDS + self._size / BODY_BYTES_PER_SECOND - self._waited, monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, min(BODY_SECONDS, time_left)))
        except TimeoutError:
            self.is_late = self._is_complete = True
            return {"type": "http.disconnect"}
        self._waited += monotonic() - began
        self._size += len(message.get("body", b""))
        self._is_complete = not message.get("more_body")
        return message


async def _close(send: Send, status: int) -> None:
    """Answer with this status and close the connection."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
