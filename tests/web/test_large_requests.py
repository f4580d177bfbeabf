"""No request costs the server much: bodies of events, forms, imports and names of files that are made to be slow."""

import asyncio
import gc
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.errors import InputError
from agent.history import Conversation, Entry, HistoryStore, Link, Note, digest_of
from agent.settings import PublicSettings
from agent.system.request_queue import RequestQueue
from agent.web import housekeeping
from agent.web.chat.attachments import MAX_TEXT
from agent.web.chat.choices import MAX_PROMPT_CHARACTERS
from agent.web.chat.expiry import PROBE
from agent.web.chat.links import MAX_LINKS
from agent.web.chat.transcript import is_prompt
from agent.web.heavy_work import REQUESTS_EACH, REQUESTS_PER_ADDRESS, HeavyWork, RequestLimit, TooManyRequests
from agent.web.middleware import isolation
from agent.web.middleware.isolation import API, IsolationMiddleware
from agent.web.middleware.requests import (
    LARGE_BODIES,
    LARGE_BODIES_ALWAYS,
    MAX_BODY,
    MAX_HEADERS,
    MAX_NODES,
    EventBodies,
    RequestRefused,
    locate,
    parse_object,
)
from agent.web.middleware.uploads import UploadForm
from agent.web.middleware.visitor_cookie import CookieJar, VisitorCookies
from agent.web.openai_routes import MAX_MESSAGES
from tests.conftest import App
from tests.support.asgi_requests import asked, longest_step, routes_of, running_app
from tests.support.gate_rows import gate_rows
from tests.support.history_laws import chain, prompt
from tests.support.http_client import HttpVisitor, send_raw
from tests.support.scripted_server import Config, Running
from tests.support.waiting import until

SERVER = Config(rate=0, max_model_len=1_000_000)
MOST_SECONDS = 0.05
"""The most processor time of one step of the event loop."""
MOST_OF_A_CHAT = MOST_SECONDS / 2
"""The same for a stored chat, which is half as large as it can be."""
SLOW_BODIES = {
    "nulls": b"[" + b"null," * (MAX_BODY // 5),
    "lists": b"[" + b"[]," * (MAX_BODY // 3),
    "objects": b"[" + b"{}," * (MAX_BODY // 3),
    "open lists": b"[" * MAX_BODY,
    "nested objects": b'{"a":' * (MAX_BODY // 5),
    "one number": b"1" * MAX_BODY,
    "numbers": b'{"data":[' + (b"1" * 4000 + b",") * (MAX_BODY // 4001 - 1) + b"1]}",
    "endless numbers": b'{"data":[' + b"1e9999," * (MAX_NODES // 2) + b"1]}",
    "equal keys": b"{" + b'"a":1,' * (MAX_BODY // 6),
    "keys": b"{" + b"".join(b'"%d":1,' % number for number in range(MAX_BODY // 11)),
    "escapes": b'{"data":["' + b"\\u0000" * (MAX_BODY // 6 - 3) + b'"]}',
    "quotes": b'"' * MAX_BODY,
    "escaped quotes": b'"' + b'\\"' * (MAX_BODY // 2 - 1),
    "spaces": b'{"data":' + b" " * (MAX_BODY - 16) + b"[]}",
    "no UTF-8": b'{"data":"' + b"\xff" * (MAX_BODY - 16) + b'"}',
    "UTF-32": ("[" + "[]," * (MAX_BODY // 16)).encode("utf-32"),
    "too long": b" " * (MAX_BODY + 1),
    "unknown event": b'{"session_hash":"a","fn_index":7,"data":["' + b"a" * (MAX_BODY - 64) + b'"]}',
}


async def nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError("The request was not refused.")


def owns_none(_event: str, _session: str) -> bool:
    return False


class Counting:
    """A limit that refuses nothing."""

    def __init__(self) -> None:
        self.counted = 0

    def check(self, owner: str, address: str | None) -> None:
        """Do nothing."""

    def count(self, owner: str, address: str | None) -> None:
        self.counted += 1


@pytest.mark.parametrize("route", ["queue/join", "run/predict", "cancel", "reset"])
@pytest.mark.parametrize("body", SLOW_BODIES.values(), ids=SLOW_BODIES.keys())
async def test_refusal_of_an_event_is_cheap_and_counted(route: str, body: bytes) -> None:
    statuses, limit = list[int](), Counting()

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    app = IsolationMiddleware(nothing, VisitorCookies("key"), events={0: 1}, owns_event=owns_none, limit=limit)
    path = API + route
    scope: Scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
    }  # fmt: skip
    began = thread_time()
    await app(scope, receive, send)
    assert thread_time() - began < 0.05
    assert statuses[0] in (400, 404, 413)
    assert limit.counted == 1


def test_longest_message_fits_with_the_longest_prompt() -> None:
    data: list[Any] = [
        {"text": "\N{GRINNING FACE}" * MAX_TEXT, "files": []},
        "\N{GRINNING FACE}" * MAX_PROMPT_CHARACTERS,
    ]
    body = json.dumps({"data": data}, ensure_ascii=False).encode()
    assert len(body) < MAX_BODY - 32_000
    assert parse_object(body)["data"] == data


def test_bodies_in_memory_are_shared_by_address() -> None:
    """Slow bodies of one address leave places for another one."""
    bodies, held = EventBodies(None), list[object]()
    for _ in range(LARGE_BODIES):
        with suppress(RequestRefused):
            held.append(bodies._large_place("192.0.2.1"))  # pyright: ignore[reportPrivateUsage]
    for _ in range(LARGE_BODIES_ALWAYS):
        held.append(bodies._large_place("192.0.2.2"))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "form",
    [
        b"--b\r\nx: " + b"y" * 100_000,
        b"".join(b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n\r\n' for _ in range(99)),
    ],
    ids=["long header", "many parts"],
)
def test_form_with_long_headers_or_many_parts_is_refused(form: bytes, tmp_path: Path) -> None:
    upload = UploadForm(b"b", tmp_path, most_files=16, most_bytes=1000)
    with pytest.raises(InputError):
        upload.write(form)


LONG_NAMES = {
    "one name": "x" * 256,
    "a name of other letters": "%C3%A9" * 128,
    "a long path": "x/" * 3000,
    "NUL": "x%00.js",
    "half of an emoji": "%ED%A0%80.js",
    "parents": "../../../etc/passwd",
    "encoded parents": "%2e%2e/%2e%2e/etc/passwd",
}


@pytest.mark.parametrize("name", LONG_NAMES.values(), ids=LONG_NAMES.keys())
def test_impossible_name_is_not_found(app: App, name: str) -> None:
    routes = (
        "/static/", "/static/fonts/", "/assets/", "/svelte/", "/media/", "/conversations/", "/s/", "/c/",
        "/runs/", "/export/", f"{API}file=", f"{API}file=/", "/custom_component/", f"{API}custom_component/", "/theme/",
    )  # fmt: skip
    visitor = HttpVisitor(app.url)
    assert {
        route: send_raw(app, "GET", route + name, cookie=visitor.http.headers["cookie"])[0] for route in routes
    } == dict.fromkeys(routes, 404)


@pytest.mark.parametrize("size", [33_000, 65_400, 65_600])
def test_too_long_address_is_refused_with_a_sentence(app: App, size: int) -> None:
    cookie, refused = HttpVisitor(app.url).http.headers["cookie"], list[tuple[int, str]]()
    for method, route in (
        *(
            ("GET", one)
            for one in ("/", "/c/", "/config", "/conversations", "/media/", "/v1/models", "/s/", "/static/")
        ),
        *(("GET", one) for one in (f"{API}queue/data", f"{API}file=", "/export", "/readyz")),
        *(
            ("POST", one)
            for one in (
                f"{API}upload",
                f"{API}queue/join",
                f"{API}run/predict",
                "/conversations",
                "/import",
                "/s/x/continue",
            )
        ),
        *(("DELETE", one) for one in ("/own-data", "/conversations/x")),
    ):
        for more in ("?q=" + "x" * size, "?" + "a=b&" * (size // 4), "/" + "x" * size, "%C3" * (size // 3)):
            status, _headers, text = send_raw(app, method, route + more, cookie=cookie)
            refused.append((status, text))
    assert {status for status, _text in refused} <= {400, 414}, Counter(refused)
    assert all("too long" in text or "Invalid HTTP request" in text for _status, text in refused)


async def test_head_of_a_request_is_read_in_short_time() -> None:
    """Each look for a header reads them all, and a cookie header can have 60,000 cookies."""
    headers, secret = [(b"host", b"chat.example")], VisitorCookies("a secret of this test")
    visitor, value = secret.mint()
    jar = CookieJar(secure=False)
    headers.append((b"cookie", f"{jar.name}={value}{'; a=b' * 10_000}; {jar.name}=late".encode()))
    scope = {"type": "http", "path": "/", "query_string": b"", "headers": headers}
    assert secret.read(*jar.values(locate(scope, ""))) == visitor
    scope["headers"] = [*headers, *((b"x", b"y") for _ in range(MAX_HEADERS))]
    with pytest.raises(RequestRefused) as refused:
        locate(scope, "")
    assert refused.value.status == 431


ID = "0" * 32
COSTLY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "search": ("GET", "/conversations?q=x", {}),
    "find a message": ("GET", f"/conversations/{ID}/messages/x", {}),
    "passage": ("POST", f"/conversations/{ID}/passage", {"json": {"document": "x", "passage": "y"}}),
    "rename": ("PATCH", f"/conversations/{ID}", {"json": {"title": "x"}}),
    "delete": ("DELETE", f"/conversations/{ID}", {}),
    "restore": ("POST", f"/conversations/{ID}/restore", {}),
    "make a link": ("POST", f"/conversations/{ID}/links", {"json": {}}),
    "what is kept": ("GET", "/own-data", {}),
    "import": ("POST", "/import", {"content": b"[]"}),
    "upload": ("POST", f"{API}upload", {"content": b"x"}),
    "refused event": ("POST", f"{API}queue/join", {"content": b"["}),
}
"""A request for each costly route. It counts even if it is refused. Messages are tested with their own limits."""
OWN_LIMITS = ("search", "upload", "refused event")
"""Routes with different counts. All other routes count with searches."""


def test_costly_routes_count_per_address_and_per_visitor(start_app: Callable[..., App]) -> None:
    app = start_app("[public]\non = true\n")

    def is_refused(name: str, visitor: HttpVisitor) -> bool:
        method, path, more = COSTLY[name]
        answer = visitor.ask(method, path, **more)
        return re.search(r"Try again in \d+ s\.", answer.text) is not None and answer.status in (413, 429)

    visitors = [HttpVisitor(app.url, address="192.0.2.1") for _ in range(REQUESTS_PER_ADDRESS // REQUESTS_EACH)]
    for name in OWN_LIMITS:
        for visitor in visitors:
            assert not any(is_refused(name, visitor) for _ in range(REQUESTS_EACH)), name
            assert is_refused(name, visitor), name
    newcomer, other = HttpVisitor(app.url, address="192.0.2.1"), HttpVisitor(app.url, address="192.0.2.200")
    assert {name for name in COSTLY if not is_refused(name, newcomer)} == set()
    assert {name for name in COSTLY if is_refused(name, other)} == set()
    guest = HttpVisitor(app.url, None, address="192.0.2.1")
    assert all(is_refused(name, guest) for name in ("import", "upload", "refused event"))


UNCOUNTED = {
    "parts of the page, and its state": r"/(healthz|readyz|manifest\.json|(robots|llms)\.txt|agents\.md|theme\.css)",
    "files of the program": r"/(favicon\.ico|mark\.svg|(preview|icon-\d+)\.png|(svelte|static|assets)/.*|pwa_icon.*)",
    "switched off": r"/(openapi\.json|login/?|logout|monitoring.*|gradio_api/deep_link)|",
    "a row of the list, or a short page of it": r"/conversations/\{id_\}(/links)?|/conversations",
    "a file of the visitor, sent in pieces": r"/media/\{id_\}",
    "notes in memory": r"/temporary/\{id_\}",
    "counted with the messages": r"/v1/.*",
}
"""The routes that are not counted, by the reason. Only `GET` and `HEAD` of those of chats."""


async def test_every_route_counts_or_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The routes are those of the app itself. All limits are full."""

    def refuse(*_: object) -> None:
        raise TooManyRequests(7)

    monkeypatch.setattr(RequestLimit, "count", refuse)
    monkeypatch.setattr(RequestLimit, "check", refuse)
    counted, free = set[str](), set[str]()
    async with running_app(tmp_path, public=PublicSettings(links=True)) as app:
        cookie = (await asked(app, "GET", "/")).cookie
        for method, path in dict.fromkeys(routes_of(app.routes)):
            named = re.sub(r"\{[^}]*\}", "0" * 32, path).replace("links/" + "0" * 32, "links/" + "0" * 64)
            body = b"" if method in ("GET", "HEAD", "DELETE") else b"{}"
            answer = await asked(app, method, named, cookie=cookie, body=body, waits=True)
            (counted if "in 7 s" in answer.text else free).add(f"{method} {path}")
    known = [rf"{'(GET|HEAD)' if 'conversations' in one else '[A-Z]+'} ({one})" for one in UNCOUNTED.values()]
    assert {route for route in free if not any(re.fullmatch(one, route) for one in known)} == set()
    assert len(counted) > 25


async def test_visits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor can reload each second, and no machine gets the page as often as it asks."""
    assert isolation.VISITS_EACH >= 60 * 10, "a reload asks for the page and for some of its parts"
    monkeypatch.setattr(isolation, "VISITS_EACH", 3)
    monkeypatch.setattr(isolation, "VISITS_PER_ADDRESS", 5)
    statuses = list[int]()
    async with running_app(tmp_path, public=PublicSettings()) as app:
        for number in range(2):
            cookie = (await asked(app, "GET", "/", address=f"192.0.2.{8 + number}")).cookie
            for method, path in (("GET", "/"), ("HEAD", f"/c/{ID}"), ("GET", "/config"), ("GET", f"{API}info")):
                answer = await asked(app, method, path, cookie=cookie, address="192.0.2.1", waits=True)
                statuses.append(answer.status)
    assert statuses == [200, 200, 200, 429, 200, 200, 429, 429]


async def test_events_of_the_page_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is quick, but as many as a machine sends would leave others no time."""
    monkeypatch.setattr(isolation, "EVENTS_EACH", 3)
    monkeypatch.setattr(isolation, "EVENTS_PER_ADDRESS", 5)
    statuses = list[int]()
    async with running_app(tmp_path, public=PublicSettings()) as app:
        loaded = next(number for number, event in app.state.page.fns.items() if event.api_name == "page_loaded")
        body = json.dumps({"data": [], "fn_index": loaded, "session_hash": "a"}).encode()
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
            cookie = (await asked(app, "GET", "/")).cookie
            for _ in range(4):
                answer = await asked(app, "POST", f"{API}run/predict", body=body, cookie=cookie, address=address)
                statuses.append(answer.status)
    assert statuses == [200, 200, 200, 429, 200, 200, 429, 429, 200, 200, 200, 429]


LARGEST_NAMES = {
    "letters": "x" * 20_000,
    "digits": "1" * 20_000,
    "escapes": "%E0%B8%A9" * 2_000,
    "equal signs": "a=b&" * 5_000,
    "dots": "../" * 7_000,
}
LARGEST_HEADERS = {
    "accept-language": b"en;q=0.1," * 6_000,
    "cookie": b"a=b; " * 12_000,
    "range": b"bytes=" + b"0-1," * 15_000,
    "content-type": b"multipart/form-data; boundary=" + b"b" * 60_000,
    "x-forwarded-for": b"1.1.1.1," * 7_000,
    "if-none-match": b'"a",' * 15_000,
    "origin": b"http://" + b"[" * 60_000,
}
LARGEST_BODIES = {
    **{name: SLOW_BODIES[name] for name in ("nulls", "open lists", "keys", "escapes", "numbers", "UTF-32", "no UTF-8")},
    "a text": b'{"title":"' + b"\xef\xb7\xba" * 300_000 + b'"}',
    "small parts": b'--b\r\ncontent-disposition: form-data; name="files"; filename="x"\r\n\r\nx\r\n' * 12_000,
    "a long part": b"--b\r\nx: " + b"y" * MAX_BODY,
    "objects of an export": b"[" + b"{}," * (MAX_BODY // 3) + b"{}]",
}


def largest_requests(method: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the parts of the largest requests to a route."""
    named = re.sub(r"\{[^}]*\}", "0" * 32, path)
    for name, text in LARGEST_NAMES.items():
        if named != path:
            yield f"path of {name}", {"path": re.sub(r"\{[^}]*\}", lambda _, text=text: text, path)}
        yield f"query of {name}", {"path": named, "query": f"{text}&format={text}&q={text}"[:30_000]}
    for name, value in LARGEST_HEADERS.items():
        yield f"long {name}", {"path": named, name.replace("-", "_"): value}
    for name, body in LARGEST_BODIES.items() if method != "GET" else ():
        yield f"body of {name}", {"path": named, "body": body}


async def slowest_of(app: ASGIApp, method: str, **parts: Any) -> tuple[float, str]:
    """Return the longest step of the loop while it answers a request. One that is slow is tried again."""
    steps = list[tuple[float, str]]()
    while len(steps) < 3 and (not steps or steps[-1][0] > MOST_SECONDS):  # a busy machine can be slow
        with longest_step() as longest:
            await asked(app, method, **parts)
        steps += longest
    return min(steps)


@pytest.mark.slow
async def test_no_route_holds_the_loop(tmp_path: Path) -> None:
    """The routes are those of the app itself, so a new one is tried without being listed."""
    slow, count = list[str](), 0
    async with running_app(tmp_path) as app:
        cookie = (await asked(app, "GET", "/")).cookie
        for method, path in dict.fromkeys(routes_of(app.routes)):
            for name, parts in largest_requests(method, path):
                seconds, step = await slowest_of(app, method, **{"cookie": cookie, **parts})
                count += 1
                if seconds > MOST_SECONDS:
                    slow.append(f"{method} {path}: {name}: {seconds:.3f} s in {step[:300]}")
    assert count > 500
    assert not slow, "\n".join(slow)


TEXT = "\ufdfa word *of* `it` $x$ [1] <b>\n" * 40_000
LOOKUP = [
    (ToolCallPart("look", {"at": "x" * 100}, f"{n}"), ToolReturnPart("look", "found", f"{n}")) for n in range(1000)
]
LARGE_CHATS: dict[str, Callable[[], list[ModelMessage]]] = {
    "many messages": lambda: [prompt("Asked."), ModelResponse([TextPart("Answered.")])] * 4000,
    "steps": lambda: [
        prompt("Look."),
        *(one for call, result in LOOKUP for one in (ModelResponse([call]), ModelRequest([result]))),
    ],
    "a question": lambda: [
        *LARGE_CHATS["many messages"](),
        ModelResponse([ToolCallPart("ask_user", {"question": "?"})]),
    ],
}
"""What an import, a model or tools can store, as much of it as they can in one way."""


async def stored_chat(
    store: HistoryStore, owner: str, messages: list[ModelMessage], versions: int = 300
) -> tuple[Conversation, str, tuple[str, str]]:
    """Store a chat with these messages, further versions of its first message, and links.

    Return it, the token of a link, and the ids of its last question and of another version of the first one.
    """
    entries = chain(*messages)
    is_question = isinstance(messages[-1], ModelResponse) and isinstance(messages[-1].parts[-1], ToolCallPart)
    end = Note(run_id="1", ended="suspended") if is_question else Note(run_id="1", ended="cancelled", detail=TEXT)
    entries[-1] = replace(entries[-1], note=end)
    begins = [Entry(parent_id=None, message=prompt(f"Version {number}")) for number in range(versions)]
    conversation = Conversation(
        owner=owner, title="pear", head_id=entries[-1].id, branches=tuple(one.id for one in begins)
    )
    conversation = await store.save(conversation, [*entries, *begins])
    for number in range(MAX_LINKS):
        link = Link(
            digest=digest_of(f"{conversation.id}{number}"),
            conversation_id=conversation.id,
            owner=owner,
            system_prompt="x" * 20_000,
        )
        await store.links.put(link)
    asked_last = next(entry.id for entry in reversed(entries) if is_prompt(entry))
    return conversation, f"{conversation.id}0", (asked_last, begins[0].id)


def request_to_stored(
    method: str, path: str, conversation: Conversation, token: str, entry: str, **more: str
) -> dict[str, Any]:
    """Return the parts of a request to a route of stored chats, which name what is stored. `more` are further names."""
    names = {
        "id_": conversation.id,
        "conversation": conversation.id,
        "token": token,
        "digest": digest_of(f"{conversation.id}1"),
        **more,
    }
    body: dict[str, Any] = {}
    if path.endswith("/passage"):
        body = {"document": "a.pdf", "page": 1, "passage": "word of it " * 50}
    elif path == "/conversations" or ("/messages" in path and (method == "PATCH" or path.endswith("/messages"))):
        body = {"text": LONGEST}
    elif method == "PATCH":
        body = {"title": "x" * 4000}
    found = re.sub(r"\{(\w+)\}", lambda one: names.get(one[1], entry), path)
    return {
        "path": found,
        "body": b"" if method in ("GET", "DELETE") else json.dumps(body, ensure_ascii=False).encode(),
    }


def order_of_stored(route: tuple[str, str]) -> tuple[bool, bool, bool, str]:
    """Sort the routes that read before those that get a new chat each, because an export has all chats."""
    method, path = route
    return path == "/own-data", method == "DELETE", method not in ("GET", "HEAD"), path


LONGEST = "!tokens 5 ".ljust(MAX_TEXT, "\N{GRINNING FACE}")
LOOKS = {
    "/conversations": ["", "q=word", "q=pear"],
    "/conversations/{id_}": ["", "format=blocks"],
    **{path: ["format=json", "format=markdown", "format=html"] for path in ("/export", "/export/{conversation}")},
}
"""The queries of the routes that have some."""


@pytest.mark.slow
@pytest.mark.parametrize("messages", gate_rows(LARGE_CHATS, ("steps",)))
async def test_no_route_of_a_large_chat_holds_the_loop(
    tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], list[ModelMessage]]
) -> None:
    """A request that changes a chat gets a new one. A full garbage collection belongs to no route."""
    monkeypatch.setattr(housekeeping, "IDLE_LOOK_SECONDS", 3600.0)
    slow, statuses = list[str](), Counter[int]()
    owner, value = VisitorCookies.in_folder(tmp_path).mint()
    cookie = f"{CookieJar(secure=False).name}={value}".encode()
    async with running_app(tmp_path, server.base_url, tools=("agent.tools:ask_user",)) as app:
        stored = re.compile(r"/conversations|/export|/s/|/own-data")
        routes = [(method, path) for method, path in routes_of(app.routes) if stored.match(path)]
        chats = app.state.conversations
        await until(lambda: chats.models.find(""))
        for number in range(60):
            await chats.store.save(Conversation(owner=owner, title=f"pear {number}"))
        conversation, token, asked_in = await stored_chat(chats.store, owner, messages())
        assert (await asked(app, "POST", f"/s/{token}/continue")).status == 499  # hung up, so it is not copied
        assert {*await chats.store.retention.sizes()} <= {owner, PROBE}
        was_changed = False
        for method, path in sorted(routes, key=order_of_stored):
            for query, entry in product(LOOKS.get(path, [""]), range(2 if "{entry}" in path else 1)):
                steps = list[tuple[float, str]]()
                while len(steps) < 3 and (not steps or steps[-1][0] > MOST_OF_A_CHAT):  # a busy machine can be slow
                    if was_changed:
                        conversation, token, asked_in = await stored_chat(chats.store, owner, messages())
                    parts = request_to_stored(method, path, conversation, token, asked_in[entry])
                    with longest_step() as longest:
                        answer = await asked(app, method, cookie=cookie, query=query, waits=True, **parts)
                        statuses[answer.status] += 1
                        was_changed = method not in ("GET", "HEAD") and answer.status < 400
                        await until(lambda: not chats.live_runs.count)
                    steps += longest
                if min(steps)[0] > MOST_OF_A_CHAT:
                    slow.append(f"{method} {path}?{query}: {min(steps)[0]:.3f} s in {min(steps)[1][:200]}")
    assert not slow, "\n".join(slow)
    assert sum(count for status, count in statuses.items() if status < 400) > 25


LEAVES = ("after the head", "in the body", "in the answer", "without reading on")
LONG_ANSWERS = [prompt("Asked."), ModelResponse([TextPart("A *word*.\n\n" * 2_000)])] * 20
"""The messages of a chat that takes several pages to read."""


class HeldPlaces:
    """The places that requests hold, or wait for, in this process."""

    def __init__(self) -> None:
        every = gc.get_objects()
        self._work = [one for one in every if isinstance(one, HeavyWork)]
        self._queues = [one for one in every if isinstance(one, RequestQueue)]

    @property
    def count(self) -> int:
        return sum(one._used for one in self._work) + sum(len(one._served) + len(one._waiting) for one in self._queues)


def tasks_of_requests() -> set[asyncio.Task[Any]]:
    """Return all tasks but that which wipes what was deleted."""
    return {task for task in asyncio.all_tasks() if "_wipe_later" not in str(task.get_coro())}


async def leave(app: ASGIApp, method: str, when: str, meanwhile: Callable[[], Awaitable[None]], **parts: Any) -> None:
    """Send a request as a client that goes away at this moment. `meanwhile` is awaited while it does not read on."""
    gone, has_begun = asyncio.Event(), asyncio.Event()

    async def unread(scope: Scope, receive: Receive, send: Send) -> None:
        async def first_piece(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" or (b"content-type", b"text/event-stream") in message["headers"]:
                has_begun.set()
                await gone.wait()

        await app(scope, receive, first_piece)

    body: bytes = parts.pop("body", b"")
    if when == "after the head":
        await asked(app, method, is_cut=True, content_length=str(len(body) or 1).encode(), **parts)
    elif when == "in the body":
        await asked(app, method, is_cut=True, body=body[: len(body) // 2], **parts)
    else:
        answer = asyncio.ensure_future(asked(unread, method, body=body, gone=gone, **parts))
        begun = asyncio.ensure_future(has_begun.wait())
        await asyncio.wait([answer, begun], return_when=asyncio.FIRST_COMPLETED)
        if when == "without reading on" and not answer.done():
            await meanwhile()
        gone.set()
        await answer
        begun.cancel()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("when", LEAVES)
async def test_no_route_works_for_a_client_that_left(tmp_path: Path, server: Running, when: str) -> None:
    """It gives its places back, and no task of it goes on. Routes and names are those of the app, as above."""
    (owner, value), (_, other) = (VisitorCookies.in_folder(tmp_path).mint() for _ in range(2))
    cookie, stranger = (f"{CookieJar(secure=False).name}={one}".encode() for one in (value, other))
    stayed = list[str]()
    async with running_app(tmp_path, server.base_url) as app:
        chats = app.state.conversations
        await until(lambda: chats.models.find(""))

        async def serves_others() -> None:
            assert (await asked(app, "GET", "/export", cookie=stranger, waits=True)).status == 200

        await serves_others()
        sent = await asked(
            app, "POST", "/conversations", body=b'{"text": "!tokens 60 hold 20 A"}', cookie=cookie, waits=True
        )
        run = json.loads(sent.text)["run"]
        routes = dict.fromkeys(routes_of(app.routes))
        conversation, token, asked_in = await stored_chat(chats.store, owner, LONG_ANSWERS, 2)
        tasks, places = tasks_of_requests(), HeldPlaces()
        assert not places.count

        def is_over() -> bool:
            return chats.live_runs.count <= 1 and tasks_of_requests() <= tasks and not places.count

        for method, path in sorted(routes, key=lambda one: (one[1] == "/own-data", one[0] == "DELETE", one[1])):
            for query in LOOKS.get(path, [""]):
                if method != "GET":
                    conversation, token, asked_in = await stored_chat(chats.store, owner, LONG_ANSWERS, 2)
                parts = request_to_stored(method, path, conversation, token, asked_in[0], run_id=run)
                parts["body"] = LARGEST_BODIES["a text"] if parts["body"] == b"{}" else parts["body"]
                await leave(app, method, when, serves_others, cookie=cookie, query=query, **parts)
                try:
                    await until(is_over, seconds=20)
                except TimeoutError:
                    stayed.append(f"{method} {path}?{query}: {places.count}, {tasks_of_requests() - tasks}")
                    tasks = tasks_of_requests()
        server.release("A")
    assert not stayed, "\n".join(stayed)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_no_long_conversation_of_a_program_holds_the_loop(
    tmp_path: Path, server: Running, *, streamed: bool
) -> None:
    messages = [{"role": role, "content": "Hi"} for role in ("user", "assistant")] * (MAX_MESSAGES // 2 - 1)
    messages += [{"role": "user", "content": "Hi"}] * 2
    async with running_app(tmp_path, server.base_url) as app:
        await until(lambda: app.state.conversations.models.find(""))
        body = json.dumps(
            {"model": app.state.conversations.models.find("").id, "messages": messages, "stream": streamed}
        )
        assert (await asked(app, "POST", "/v1/chat/completions", body=body.encode(), waits=True)).status == 200
        seconds, step = await slowest_of(app, "POST", path="/v1/chat/completions", body=body.encode(), waits=True)
    assert seconds < MOST_SECONDS, step
