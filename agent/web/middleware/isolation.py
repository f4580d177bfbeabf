"""Isolates visitors: binds Gradio's session hashes, event ids and upload paths to one visitor's cookie.

Gradio accepts a session hash, an event id or the path of an upload from anyone who knows it. This middleware prefixes
each session hash with the visitor's id, so the same hash from another visitor is another session. An event id or a path
works only for the visitor that received it. The middleware rebuilds each request from the checked values, so that no
second parser reads it differently, and closes all routes of Gradio that the page does not need. It knows HTTP alone.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.web.middleware.origins import Origins, is_foreign
from agent.web.middleware.requests import READ, RequestRefused, locate, read_json, refuse, with_body, with_query
from agent.web.middleware.security_headers import POLICY, SecurityHeadersSend
from agent.web.middleware.visitor_cookie import COOKIE, CookieJar, VisitorCookies

API = "/gradio_api/"
HOME = ("/", "/config", "/config/")
OPEN = (*HOME, "/healthz", "/readyz", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/manifest.json/")
OPEN_BELOW = ("/media/", "/assets/", "/static/", "/svelte/", "/pwa_icon/")
LOGIN = ("/login/huggingface", "/login/callback", "/logout")
JOIN = ("data", "event_data", "fn_index", "trigger_id")
REMEMBERED = 50_000
REMEMBERED_EACH = 4_000
REMEMBERED_OF_GUESTS = 10_000
"""The most ids that are remembered: in total, for one visitor, and for all guests together."""
GUEST = "guest"
"""Replaces the visitor's id in the sessions of visitors without a cookie."""
AGAIN = b"again=1"
"""Marks the query of a redirected request, so that it is redirected only once."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
Passed = tuple[Scope, Receive, Send]


class IsolationMiddleware:
    """The middleware. Owns the table of event ids and uploads, by the visitor that received them.

    `root_path` is the path or URL at which a proxy shows the page; requests arrive without it. `framed_by` are origins
    that may show the page in a frame, besides the hub's own. `login`: visitors may log in to the hub. `origins` are the
    page's own names, `icons` the paths of its icons, and `events` the number of inputs of each event (or None).
    """

    def __init__(
        self,
        app: ASGIApp,
        visitors: VisitorCookies,
        root_path: str = "",
        framed_by: tuple[str, ...] = (),
        *,
        login: bool = False,
        origins: Origins | None = None,
        icons: tuple[str, ...] = (),
        events: Mapping[int, int] | None = None,
    ) -> None:
        self._app, self._visitors = app, visitors
        self._origins, self._events = origins or Origins(), events
        self._open = (*OPEN, *icons, *(LOGIN if login else ()))
        self._policy, self._login = " ".join((POLICY, *framed_by)), LOGIN if login else ()
        self._prefix = urlsplit(root_path).path
        self._given: dict[str, OrderedDict[tuple[str, str], None]] = {}
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page opens no web socket
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = SecurityHeadersSend(send, self._policy)
        try:
            scope = locate(scope, self._prefix)
            self._origins.check(scope)
            scope, visitor = self._identify(scope, answer)
            await self._app(*await self._checked(scope, receive, answer, visitor))
        except RequestRefused as refused:
            await refuse(answer, refused.status, refused.location)
        except Exception:
            if not answer.begun:
                await refuse(answer, 500)
            raise

    def _identify(self, scope: Scope, answer: SecurityHeadersSend) -> tuple[Scope, str | None]:
        """Return the request (without cookies if it is foreign) and its visitor. Sets the cookie of a newcomer."""
        # A login comes back from the hub's page, and Gradio then needs the state that it keeps in its cookie.
        known = scope["path"] in (*HOME, *self._login[:2]) or not is_foreign(Headers(scope=scope))
        visitor = self._visitor(scope, answer) if known else None
        scope.setdefault("state", {}).update(visitor=visitor, isolation=self)
        return scope if known else _without_cookies(scope), visitor

    def _visitor(self, scope: Scope, answer: SecurityHeadersSend) -> str | None:
        """Return the visitor in the cookie. The first request of a browser or a program gets a new cookie.

        If a request has two different cookies, one is foreign, and the server cannot tell which. Both are ignored. The
        answer deletes the foreign cookie and redirects, so that a message and its answer are in the same session.
        """
        jar = CookieJar.of(scope, self._prefix)
        values, begins = jar.values(scope), scope["method"] == "GET" and scope["path"] in HOME
        if len(values) > 1:
            answer.cookies.extend(jar.expiring(scope["path"]))
            query: bytes = scope["query_string"]
            if scope["path"] not in HOME and AGAIN not in query.split(b"&"):
                raise RequestRefused(307, location=b"?" + query + b"&" + AGAIN)
            return None
        visitor = self._visitors.read(values.pop()) if values else None
        if visitor is None and not jar.secure:  # over https a sibling host could hand its own visitor to a newcomer
            old = jar.values(scope, COOKIE)
            visitor = self._visitors.read(old.pop()) if len(old) == 1 else None
            if visitor and begins:
                answer.cookies.append(f"{COOKIE}=; Path={jar.path}; Max-Age=0")
                answer.cookies.append(jar.setting(self._visitors.cookie(visitor)))
        if visitor is None and begins:
            answer.cookies.append(jar.setting(self._visitors.mint()[1]))
        return visitor

    def owns(self, id_: str, owner: str | None) -> bool:
        """Return True if this owner has received this id."""
        return (owner or "", id_) in self._given.get(_account(owner), ())

    def give(self, id_: str, owner: str | None) -> None:
        """Let this owner use this id from now on.

        Each visitor has a share of the table, and all guests together have one. A full share drops its oldest ids.
        """
        account = _account(owner)
        given, id_of_owner = self._given.setdefault(account, OrderedDict()), (owner or "", id_)
        self._count -= len(given)
        given[id_of_owner] = None
        given.move_to_end(id_of_owner)
        while len(given) > (REMEMBERED_OF_GUESTS if account == GUEST else REMEMBERED_EACH):
            given.popitem(last=False)
        self._count += len(given)
        if self._count > REMEMBERED:
            self._forget()

    def _forget(self) -> None:
        """Drop a tenth of all ids, the oldest of the largest accounts first, to protect the shares of the others."""
        largest = [(-len(given), account) for account, given in self._given.items()]
        heapify(largest)
        while self._count > REMEMBERED * 9 // 10:
            size, account = largest[0]
            self._given[account].popitem(last=False)
            self._count -= 1
            if size == -1:
                del self._given[account]
                heappop(largest)
            else:
                heapreplace(largest, (size + 1, account))

    async def _checked(self, scope: Scope, receive: Receive, send: Send, visitor: str | None) -> Passed:
        """Return the checked request for the application. Raises `RequestRefused`."""
        method, path = scope["method"], scope["path"]
        if not path.startswith(API):
            return self._checked_page(scope), receive, send
        what = path[len(API) :]
        if method in READ and what.startswith("file="):
            if not self.owns(what.removeprefix("file="), visitor):
                raise RequestRefused
            return with_query(scope), receive, send
        if method == "GET" and what.startswith("heartbeat/"):
            path = f"{API}heartbeat/{_session(visitor, what.removeprefix('heartbeat/'))}"
            return {**with_query(scope), "path": path, "raw_path": path.encode()}, receive, send
        if method == "POST":
            return await self._checked_post(what, scope, receive, send, visitor)
        if method == "GET":
            return self._checked_get(what, scope, visitor), receive, send
        raise RequestRefused

    def _checked_page(self, scope: Scope) -> Scope:
        """Return the scope of a request for the page, its files, or a route of our own."""
        if scope["method"] not in READ:
            raise RequestRefused(405)
        path = scope["path"]
        if path not in self._open and not path.startswith(OPEN_BELOW):
            raise RequestRefused
        return self._home(scope) if path in HOME else scope

    async def _checked_post(self, what: str, scope: Scope, receive: Receive, send: Send, visitor: str | None) -> Passed:
        """Return a checked POST to Gradio's API: an event, its end, or an upload."""
        match what:
            case "queue/join":
                asked = await read_json(receive)
                if not all(isinstance(path, str) and self.owns(path, visitor) for path in _paths(asked.get("data"))):
                    raise RequestRefused
                session = scope["state"]["session"] = _session(visitor, asked.get("session_hash"))
                self._check_event(asked)
                said = {name: asked[name] for name in JOIN if name in asked} | {"session_hash": session}
                return *with_body(scope, receive, said), self._giving(send, session, _event)
            case "cancel":
                asked = await read_json(receive)
                session, event = _session(visitor, asked.get("session_hash")), asked.get("event_id")
                if not isinstance(event, str) or not self.owns(event, session):
                    raise RequestRefused
                said = {"session_hash": session, "fn_index": _number(asked.get("fn_index")), "event_id": event}
                return *with_body(scope, receive, said), send
            case "reset":
                event = (await read_json(receive)).get("event_id")
                if not isinstance(event, str):
                    raise RequestRefused(400)
                return *with_body(scope, receive, {"event_id": event}), send
            case "upload":
                ids = QueryParams(scope["query_string"]).getlist("upload_id")
                scope = with_query(scope, upload_id=_session(visitor, *ids)) if ids else with_query(scope)
                return scope, receive, self._giving(send, visitor, _listed)
            case _:
                raise RequestRefused

    def _checked_get(self, what: str, scope: Scope, visitor: str | None) -> Scope:
        """Return the scope of a GET to Gradio's API: events, the progress of an upload, or public information."""
        query = QueryParams(scope["query_string"])
        match what:
            case "queue/data":
                session = scope["state"]["session"] = _session(visitor, *query.getlist("session_hash"))
                return with_query(scope, session_hash=session)
            case "upload_progress":
                return with_query(scope, upload_id=_session(visitor, *query.getlist("upload_id")))
            case "info":
                # Without a page Gradio keeps the first asker's Host header in the answer, for everybody.
                every = {"all_endpoints": "1"} if "all_endpoints" in query else {}
                return with_query(scope, page="", **every)
            case "startup-events" | "theme.css" | "app_id":
                return with_query(scope)
            case _:
                raise RequestRefused

    def _home(self, scope: Scope) -> Scope:
        """Return the request for the page without deep links. Raises `RequestRefused` for any second page."""
        query = QueryParams(scope["query_string"])
        if query.get("page"):
            raise RequestRefused
        return with_query(scope, **{name: query[name] for name in query if name not in ("page", "deep_link")})

    def _check_event(self, asked: dict[str, Any]) -> None:
        """Raise `RequestRefused` for an event that the page does not have or that Gradio could not read."""
        number, data = _number(asked.get("fn_index")), asked.get("data")
        if asked.get("trigger_id") is not None:
            _number(asked["trigger_id"])
        if not isinstance(data, list):
            raise RequestRefused(400)
        if self._events is None:
            return
        if number not in self._events:
            raise RequestRefused
        if len(cast(list[Any], data)) < self._events[number]:  # Gradio would print what there is, with a traceback
            raise RequestRefused(400)

    def _giving(self, send: Send, owner: str | None, ids: Callable[[Any], list[Any]]) -> Send:
        """Wrap `send`: give the ids in a small JSON answer to `owner` when the answer is sent."""
        seen = bytearray()

        async def giving(message: Message) -> None:
            if message["type"] == "http.response.body":
                seen.extend(message.get("body", b""))
                if not message.get("more_body"):
                    try:
                        found = ids(json.loads(seen))
                    except ValueError:
                        found = list[Any]()
                    for id_ in found:
                        if isinstance(id_, str):
                            self.give(id_, owner)
            await send(message)

        return giving


def visitor_id_of(scope: Scope) -> str | None:
    """Return the id of the visitor in the request's cookie, or None."""
    return cast("str | None", scope.get("state", {}).get("visitor"))


def session_hash_of(scope: Scope) -> str | None:
    """Return the session hash of a checked request to Gradio's queue, or None."""
    return cast("str | None", scope.get("state", {}).get("session"))


def _without_cookies(scope: Scope) -> Scope:
    """Return the request without cookies, including that of the login session."""
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"cookie"]}


def _session(visitor: str | None, *given: Any) -> str:
    """Return a client's id with the visitor's id before it. Raises `RequestRefused` unless exactly one is given."""
    if len(given) != 1 or not isinstance(given[0], str) or not _ID.fullmatch(given[0]):
        raise RequestRefused
    return f"{visitor or GUEST}-{given[0]}"


def _account(owner: str | None) -> str:
    """Return the visitor whose share counts the ids of an owner, which is a visitor or one of their sessions."""
    return (owner or GUEST).partition("-")[0]


def _number(value: Any) -> int:
    """Return the number of an event. Raises `RequestRefused`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise RequestRefused(400)
    return value


def _paths(value: Any) -> Iterator[Any]:
    """Yield the `path` of everything in a message that can be a file."""
    left: list[Any] = [value]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            given = cast(dict[str, Any], found)
            if "path" in given:
                yield given["path"]
            left += given.values()
        elif isinstance(found, list):
            left += cast(list[Any], found)


def _event(answer: Any) -> list[Any]:
    return [cast(dict[str, Any], answer).get("event_id")] if isinstance(answer, dict) else []


def _listed(answer: Any) -> list[Any]:
    return cast(list[Any], answer) if isinstance(answer, list) else []
