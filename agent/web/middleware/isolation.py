"""Isolates visitors: binds Gradio's session hashes, event ids and upload paths to one visitor's cookie.

Gradio accepts a session hash, an event id or the path of an upload from anyone who knows it. This middleware prefixes
each session hash with the visitor's id, so the same hash from another visitor is another session. An event id or a path
works only for the visitor that received it. The middleware rebuilds each request from the checked values, so that no
second parser reads it differently, and closes all routes of Gradio that the page does not need. It knows only HTTP.
`visitor_cookie` identifies the visitor.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.errors import Limited
from agent.i18n.translator import translator_for
from agent.web.heavy_work import RequestLimit
from agent.web.middleware.origins import Origins, SecurityHeadersSend, is_foreign, policy_with
from agent.web.middleware.requests import (
    READ,
    SENTENCES,
    EventBodies,
    RequestRefused,
    locate,
    payer_of,
    refuse,
    with_body,
    with_query,
)
from agent.web.middleware.visitor_cookie import COOKIE, GUEST, CookieJar, VisitorCookies

MAX_IDS = 50_000
MAX_IDS_PER_VISITOR = 4_000
MAX_IDS_OF_GUESTS = 10_000
"""The most ids of a kind that are remembered: in total, for one visitor, and for all guests together."""


class IssuedIds:
    """A table of ids by owner. An owner is a visitor, one of their sessions, or None for a guest."""

    def __init__(self) -> None:
        self._of_account: dict[str, OrderedDict[tuple[str, str], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def owns(self, id_: str, owner: str | None) -> bool:
        """Return True if this owner has received this id."""
        return (owner or "", id_) in self._of_account.get(_account(owner), ())

    def add(self, id_: str, owner: str | None) -> None:
        """Let this owner use this id from now on.

        Each visitor has a share of the table, and all guests together have one. A full share drops its oldest ids.
        """
        account = _account(owner)
        issued, id_of_owner = self._of_account.setdefault(account, OrderedDict()), (owner or "", id_)
        self._count -= len(issued)
        issued[id_of_owner] = None
        issued.move_to_end(id_of_owner)
        while len(issued) > (MAX_IDS_OF_GUESTS if account == GUEST else MAX_IDS_PER_VISITOR):
            issued.popitem(last=False)
        self._count += len(issued)
        if self._count > MAX_IDS:
            self._forget()

    def _forget(self) -> None:
        """Drop a tenth of all ids, the oldest of the largest accounts first, to protect the shares of the others."""
        largest = [(-len(issued), account) for account, issued in self._of_account.items()]
        heapify(largest)
        while self._count > MAX_IDS * 9 // 10:
            size, account = largest[0]
            self._of_account[account].popitem(last=False)
            self._count -= 1
            if size == -1:
                del self._of_account[account]
                heappop(largest)
            else:
                heapreplace(largest, (size + 1, account))


def _account(owner: str | None) -> str:
    """Return the visitor with the share that counts the ids of this owner."""
    return (owner or GUEST).partition("-")[0]


EVENTS_EACH, EVENTS_PER_ADDRESS = 600, 2400
"""Events of the page a minute of one visitor of a public page, and of one network address. Each takes milliseconds."""
VISITS_EACH, VISITS_PER_ADDRESS = 600, 2400
"""Looks at the page, its configuration and its state a minute, in the same way. A reload needs some of them."""
API = "/gradio_api/"
HOME_PATHS = ("/", "/config", "/config/")
CHAT_PATH = re.compile(r"/c/[0-9A-Za-z_-]{1,64}")
"""The address of a conversation. It answers with the page, which then asks for the conversation."""
CONTINUE_PATH = re.compile(r"/s/[0-9A-Za-z_-]{1,64}/continue")
"""The address that copies the chat of a link. Its visitor may have come by the link, and have no cookie so far."""
OPEN_PATHS = (
    *HOME_PATHS,
    "/conversations",
    "/folders",
    "/healthz",
    "/readyz",
    "/export",
    "/own-data",
    "/prompts",
    "/votes",
    "/v1/models",
    "/theme.css",
    "/favicon.ico",
    "/robots.txt",
    "/llms.txt",
    "/agents.md",
    "/voice",
    "/manifest.json",
    "/manifest.json/",
)
OPEN_PREFIXES = (
    "/conversations/",
    "/media/",
    "/runs/",
    "/export/",
    "/temporary/",
    "/s/",
    "/assets/",
    "/pyodide/",
    "/static/",
    "/svelte/",
    "/pwa_icon/",
)
_NAME = "[0-9A-Za-z_-]{1,64}"
_MESSAGE = f"/messages/{_NAME}"
CHANGES = {
    "PATCH": re.compile(rf"/settings|/folders/{_NAME}|/conversations/{_NAME}({_MESSAGE})?"),
    "DELETE": re.compile(
        rf"/own-data|/temporary/{_NAME}|/folders/{_NAME}|/conversations/{_NAME}({_MESSAGE}|/branches/{_NAME}|/summary|/links/[0-9a-f]{{64}})?"
    ),
    "POST": re.compile(
        rf"/import|/folders|/pictures|/prompts|/markdown|/speech|/dictation|/v1/chat/completions|/temporary/{_NAME}"
        rf"|/conversations(/{_NAME}/(restore|links|passage|messages|steer|stop|summary))?"
        rf"|/conversations/{_NAME}{_MESSAGE}/(retry|continue|show|copy|answer|vote|rating)|{CONTINUE_PATH.pattern}"
    ),
}
"""The paths of our own routes that change something, by method."""
LOGIN_PATHS = ("/login/huggingface", "/login/callback", "/logout")
RUN_PATH = re.compile(r"run/\w{1,100}", re.ASCII)
"""The address of an event of the page. The page names the event twice, and the number in the body counts."""
JOIN_FIELDS = ("data", "event_data", "fn_index", "trigger_id")
REDIRECTED = b"again=1"
"""Marks the query of a redirected request, so that it is redirected only once."""
NODE_SERVER = b"x-gradio-server"
"""The header in which Gradio's Node server names the page's URL. This app does not use that server."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
ASGICall = tuple[Scope, Receive, Send]


class IsolationMiddleware:
    """The middleware. Owns the table of `uploads`, by the visitor that received their paths.

    `root_path` is the path or URL at which a proxy shows the page. `framed_by` are origins that can show the page in a
    frame, besides the hub's own. `login`: visitors can log in to the hub. `origins` are the page's own names, `icons`
    the paths of its icons, and `events` has the number of inputs of each event (None: not checked). `owns_event` tells
    whether the event with this id waits or runs for this session (None: no event can be cancelled). `calls` has the
    number of each event that programs can call by its name, and `session_of` returns the session of an event.
    `python_site` is the address of Pyodide's files on another site, which the page's policy allows then.
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
        owns_event: Callable[[str, str], bool] | None = None,
        calls: Mapping[str, int] = MappingProxyType({}),
        session_of: Callable[[str], str | None] = lambda _: None,
        limit: RequestLimit | None = None,
        python_site: str = "",
    ) -> None:
        self._bodies = EventBodies(limit)
        self._events_limit = RequestLimit(EVENTS_EACH, EVENTS_PER_ADDRESS) if limit else None
        self._visits_limit = RequestLimit(VISITS_EACH, VISITS_PER_ADDRESS) if limit else None
        self._app, self._visitors = app, visitors
        self._origins, self._events, self._owns_event = origins or Origins(), events, owns_event
        self._calls, self._session_of = {f"call/{name}": number for name, number in calls.items()}, session_of
        self._open = (*OPEN_PATHS, *icons, *(LOGIN_PATHS if login else ()))
        self._policy, self._login = " ".join((policy_with(python_site), *framed_by)), LOGIN_PATHS if login else ()
        self._prefix = urlsplit(root_path).path
        self.uploads = IssuedIds()

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
            await self._app(*await self._check_request(scope, receive, answer, visitor))
        except RequestRefused as refused:
            sentence = translator_for(Headers(scope=scope))(SENTENCES.get(refused.status, ""))
            await refuse(answer, refused.status, refused.location, sentence=sentence)
        except Limited as error:
            translator = translator_for(Headers(scope=scope))
            await refuse(answer, 429, sentence=translator(error.text))
        except Exception:
            if not answer.begun:
                await refuse(answer, 500)
            raise

    def _identify(self, scope: Scope, answer: SecurityHeadersSend) -> tuple[Scope, str | None]:
        """Return the request (without cookies if it is foreign) and its visitor. Sets the cookie of a newcomer."""
        # A login comes back from the hub's page, and Gradio then needs the state that it keeps in its cookie.
        headers = Headers(scope=scope)
        is_own = _is_home(scope) or scope["path"] in self._login[:2] or not is_foreign(headers)
        is_own = is_own and (scope["path"] not in self._login[2:] or _is_from_page(headers))
        visitor = self._visitor(scope, answer) if is_own else None
        scope.setdefault("state", {}).update(visitor=visitor, isolation=self)
        return _without_headers(scope, NODE_SERVER, *(() if is_own else (b"cookie",))), visitor

    def _visitor(self, scope: Scope, answer: SecurityHeadersSend) -> str | None:
        """Return the visitor in the cookie. The first request of a browser or a program gets a new cookie.

        If a request has two different cookies, one is foreign, and the server cannot tell which. Both are ignored. The
        answer deletes the foreign cookie and redirects, so that a message and its answer are in the same session.
        """
        jar = CookieJar.of(scope, self._prefix)
        values, is_page_load = jar.values(scope), scope["method"] == "GET" and _is_home(scope)
        is_copy = scope["method"] == "POST" and CONTINUE_PATH.fullmatch(scope["path"]) is not None
        if len(values) > 1:
            answer.cookies.extend(jar.expiring(scope["path"]))
            query: bytes = scope["query_string"]
            if not _is_home(scope) and REDIRECTED not in query.split(b"&"):
                raise RequestRefused(307, location=b"?" + query + b"&" + REDIRECTED)
            return None
        visitor = self._visitors.read(values.pop()) if values else None
        if visitor is None and not jar.secure:  # over https a sibling host could hand its own visitor to a newcomer
            old = jar.values(scope, COOKIE)
            visitor = self._visitors.read(old.pop()) if len(old) == 1 else None
            if visitor and is_page_load:
                answer.cookies.append(f"{COOKIE}=; Path={jar.path}; Max-Age=0")
                answer.cookies.append(jar.setting(self._visitors.cookie(visitor)))
        if visitor is None and (is_page_load or is_copy):
            minted, cookie = self._visitors.mint()
            answer.cookies.append(jar.setting(cookie))
            visitor = minted if is_copy else None
        return visitor

    async def _check_request(self, scope: Scope, receive: Receive, send: Send, visitor: str | None) -> ASGICall:
        """Return the checked request for the application. Raises `RequestRefused`."""
        method, path = scope["method"], scope["path"]
        if self._visits_limit is not None and method in READ and (path.startswith(API) or _is_home(scope)):
            self._visits_limit.count(*payer_of(scope, visitor))
        if not path.startswith(API):
            return self._check_page_request(scope), receive, send
        route = path[len(API) :]
        if method in READ and route.startswith("file="):
            if not self.uploads.owns(route.removeprefix("file="), visitor):
                raise RequestRefused
            return with_query(scope), receive, send
        if method == "GET" and route.startswith("heartbeat/"):
            path = f"{API}heartbeat/{_session(visitor, route.removeprefix('heartbeat/'))}"
            return {**with_query(scope), "path": path, "raw_path": path.encode()}, receive, send
        if method == "POST":
            return await self._check_post(route, scope, receive, send, visitor)
        if method == "GET":
            return self._check_get(route, scope, visitor), receive, send
        raise RequestRefused

    def _check_page_request(self, scope: Scope) -> Scope:
        """Return the scope of a request for the page, its files, or a route of our own."""
        path, method = scope["path"], scope["method"]
        if method not in READ:
            if method in CHANGES and CHANGES[method].fullmatch(path):
                return scope
            raise RequestRefused(405)
        if CHAT_PATH.fullmatch(path):
            path, scope = "/", {**scope, "path": "/", "raw_path": b"/"}
        if path not in self._open and not path.startswith(OPEN_PREFIXES):
            raise RequestRefused
        return self._without_deep_link(scope) if path in HOME_PATHS else scope

    async def _check_post(
        self, route: str, scope: Scope, receive: Receive, send: Send, visitor: str | None
    ) -> ASGICall:
        """Return a checked POST to Gradio's API: an event, its end, or an upload."""
        match route:
            case _ if route == "queue/join" or route in self._calls or RUN_PATH.fullmatch(route):
                is_direct = route.startswith("run/")
                if is_direct:
                    scope = {**scope, "path": f"{API}run/predict", "raw_path": f"{API}run/predict".encode()}
                if self._events_limit is not None:
                    self._events_limit.count(*payer_of(scope, visitor))
                async with self._bodies.read(scope, receive, visitor) as body:
                    if route in self._calls:  # which needs no session: then each call begins one
                        body = {"session_hash": uuid4().hex, **body, "fn_index": self._calls[route]}
                    session = scope["state"]["session"] = _session(visitor, body.get("session_hash"))
                    self._check_event(body, is_direct=is_direct)
                    if not all(
                        isinstance(one, str) and self.uploads.owns(one, visitor) for one in _paths(body.get("data"))
                    ):
                        raise RequestRefused
                    checked = {name: body[name] for name in JOIN_FIELDS if name in body} | {"session_hash": session}
                    return *with_body(scope, receive, checked), send
            case "cancel" if self._owns_event is not None:
                async with self._bodies.read(scope, receive, visitor) as body:
                    session, event = _session(visitor, body.get("session_hash")), body.get("event_id")
                    if not isinstance(event, str) or not self._owns_event(event, session):
                        raise RequestRefused
                    checked = {"session_hash": session, "fn_index": _number(body.get("fn_index")), "event_id": event}
                    return *with_body(scope, receive, checked), send
            case "reset":
                async with self._bodies.read(scope, receive, visitor) as body:
                    event = body.get("event_id")
                    if not isinstance(event, str):
                        raise RequestRefused(400)
                    return *with_body(scope, receive, {"event_id": event}), send
            case "upload":
                return with_query(scope), receive, send
            case _:
                raise RequestRefused

    def _check_get(self, route: str, scope: Scope, visitor: str | None) -> Scope:
        """Return the scope of a GET to Gradio's API: events, or public information."""
        query = QueryParams(scope["query_string"])
        name, _, event = route.rpartition("/")
        if name in self._calls:
            session = self._session_of(event)
            if session is None or not session.startswith(f"{visitor or GUEST}-"):
                raise RequestRefused
            scope["state"]["session"] = session
            return with_query(scope)
        match route:
            case "queue/data":
                session = scope["state"]["session"] = _session(visitor, *query.getlist("session_hash"))
                return with_query(scope, session_hash=session)
            case "info":
                # Without `page`, Gradio caches the first answer for everybody, with the Host header of its request.
                every = {"all_endpoints": "1"} if "all_endpoints" in query else {}
                return with_query(scope, page="", **every)
            case "startup-events" | "theme.css" | "app_id":
                return with_query(scope)
            case _:
                raise RequestRefused

    def _without_deep_link(self, scope: Scope) -> Scope:
        """Return the request for the page without deep links. Raises `RequestRefused` if it names a page."""
        query = QueryParams(scope["query_string"])
        if query.get("page"):
            raise RequestRefused
        return with_query(scope, **{name: query[name] for name in query if name not in ("page", "deep_link")})

    def _check_event(self, body: dict[str, Any], *, is_direct: bool) -> None:
        """Raise `RequestRefused` for an event that the page does not have or that Gradio could not read.

        Those of the page are answered directly, and those of programs go through the queue.
        """
        number, data = _number(body.get("fn_index")), body.get("data")
        if body.get("trigger_id") is not None:
            _number(body["trigger_id"])
        if not isinstance(data, list):
            raise RequestRefused(400)
        if self._events is None:
            return
        if number not in self._events or is_direct == (number in self._calls.values()):
            raise RequestRefused
        if len(cast(list[Any], data)) < self._events[number]:  # Gradio would print the data, with a traceback
            raise RequestRefused(400)


def visitor_id_of(scope: Scope) -> str | None:
    """Return the id of the visitor in the request's cookie, or None."""
    return cast("str | None", scope.get("state", {}).get("visitor"))


def session_hash_of(scope: Scope) -> str | None:
    """Return the session hash of a checked request to Gradio's queue, or None."""
    return cast("str | None", scope.get("state", {}).get("session"))


def _is_home(scope: Scope) -> bool:
    """Return True if the request is for the page or its configuration."""
    return scope["path"] in HOME_PATHS or CHAT_PATH.fullmatch(scope["path"]) is not None


def _is_from_page(headers: Headers) -> bool:
    """Return True if a request that changes something by a GET can come from the page's own button.

    What models write cannot make such a request: pictures do not navigate, and links have no referrer there.
    """
    mode = headers.get("sec-fetch-mode")
    return mode is None or (mode == "navigate" and "referer" in headers)


def _without_headers(scope: Scope, *names: bytes) -> Scope:
    """Return the request without these headers. Without `cookie` it has no login session either."""
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in names]}


def _session(visitor: str | None, *given: Any) -> str:
    """Return a client's id with the visitor's id before it. Raises `RequestRefused` unless exactly one is given."""
    if len(given) != 1 or not isinstance(given[0], str) or not _ID.fullmatch(given[0]):
        raise RequestRefused
    return f"{visitor or GUEST}-{given[0]}"


def _number(value: Any) -> int:
    """Return the number of an event. Raises `RequestRefused`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise RequestRefused(400)
    return value


def _paths(value: Any) -> Iterator[Any]:
    """Yield each `path` in a message, because it can be a file."""
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
