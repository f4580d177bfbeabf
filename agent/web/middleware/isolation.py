"""What stands between visitors: a cookie for each, and Gradio's own ids made good for nobody but one visitor.

Gradio takes a session hash, an event id or the path of an upload from anybody who knows it. Here a session hash goes on
to Gradio only together with the name of the visitor who sent it, so that the same hash from somebody else is another
session; an event id or a path is good only for who was given it. A request is rebuilt from what was checked, so that no
two parsers can read it differently, and what the page does not need of Gradio is closed. Knows HTTP, not Gradio.
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
"""Ids that are remembered in all, of one visitor and of all guests together."""
GUEST = "guest"
"""Stands for the visitor in the sessions of those who have no cookie."""
AGAIN = b"again=1"
"""In the query of a request that the isolation redirected to itself, so that this happens only once."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
Passed = tuple[Scope, Receive, Send]


class IsolationMiddleware:
    """The middleware. Owner of the table that says which event ids and uploads were given to whom.

    `root_path` is where a proxy shows the page, a path or a URL; requests come without it. `framed_by` are origins
    that may show the page in a frame, besides the hub's own. `login`: visitors may log in to the hub. `origins` are the
    page's own names, `icons` the paths of its pictures, and `events` says how many inputs each event has (or None).
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
        """The request as it counts, and its visitor. The answer makes a newcomer a visitor."""
        # A login comes back from the hub's page, and Gradio then needs the state that it keeps in its cookie.
        known = scope["path"] in (*HOME, *self._login[:2]) or not is_foreign(Headers(scope=scope))
        visitor = self._visitor(scope, answer) if known else None
        scope.setdefault("state", {}).update(visitor=visitor, isolation=self)
        return scope if known else _without_cookies(scope), visitor

    def _visitor(self, scope: Scope, answer: SecurityHeadersSend) -> str | None:
        """The visitor that the cookie names. The pages that browsers and programs begin with make newcomers visitors.

        Of two different values one is a stranger's, and nobody can say which. Neither counts. The answer deletes the
        stranger's and has the request made again, so that nobody's message ends in another session than its answer.
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
        """Whether this id was given to this owner before."""
        return (owner or "", id_) in self._given.get(_account(owner), ())

    def give(self, id_: str, owner: str | None) -> None:
        """From now on this id is good for this owner.

        Each visitor has a share, and all guests have one: who is given more forgets those given longest ago.
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
        """Forget a tenth of all ids, always the oldest of whoever has most, so that nobody takes the others' room."""
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
        """What to hand to the application. Raises `RequestRefused`."""
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
        """The scope of a request for the page, its files, or a route of our own."""
        if scope["method"] not in READ:
            raise RequestRefused(405)
        path = scope["path"]
        if path not in self._open and not path.startswith(OPEN_BELOW):
            raise RequestRefused
        return self._home(scope) if path in HOME else scope

    async def _checked_post(self, what: str, scope: Scope, receive: Receive, send: Send, visitor: str | None) -> Passed:
        """What to hand on of a POST to Gradio's API: an event, its end, or an upload."""
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
        """The scope of a GET to Gradio's API: a stream of events, the progress of an upload, or what all may read."""
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
        """The request for the page, which has no second page and no saved states. Raises `Refused`."""
        query = QueryParams(scope["query_string"])
        if query.get("page"):
            raise RequestRefused
        return with_query(scope, **{name: query[name] for name in query if name not in ("page", "deep_link")})

    def _check_event(self, asked: dict[str, Any]) -> None:
        """Raise `Refused` for an event that the page does not have or that Gradio could not read."""
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
        """Note whom the ids in a small JSON answer are given to, on its way out."""
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
    """The visitor that the isolation found in a request's cookie."""
    return cast("str | None", scope.get("state", {}).get("visitor"))


def session_hash_of(scope: Scope) -> str | None:
    """The session that a request to Gradio's queue is for, as the isolation let it through."""
    return cast("str | None", scope.get("state", {}).get("session"))


def _without_cookies(scope: Scope) -> Scope:
    """The request as a stranger's: the session, too, is a cookie."""
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"cookie"]}


def _session(visitor: str | None, *given: Any) -> str:
    """An id that a client made up, as the visitor's own. Raises `Refused` unless there is exactly one."""
    if len(given) != 1 or not isinstance(given[0], str) or not _ID.fullmatch(given[0]):
        raise RequestRefused
    return f"{visitor or GUEST}-{given[0]}"


def _account(owner: str | None) -> str:
    """The visitor whose share an owner's ids take, be it the visitor or one of their sessions."""
    return (owner or GUEST).partition("-")[0]


def _number(value: Any) -> int:
    """The number of an event. Raises `Refused`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise RequestRefused(400)
    return value


def _paths(value: Any) -> Iterator[Any]:
    """The `path` of everything in a message that may be a file."""
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
