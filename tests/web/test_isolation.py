"""No visitor sees or changes anything of another visitor, whatever ids and requests one of them replays.

`HttpVisitor` is a visitor who speaks raw HTTP with its own cookie, another one's, a forged one or none. The laws:

- another visitor's id gets the same answer as a made-up id (`MATRIX`: object, verb, principal);
- no answer to the second visitor contains data of the first, and nothing of the first's stops or grows;
- a request has one meaning only: Gradio gets exactly what the middleware checked;
- every answer has the headers, every table a limit, and no body ends the process.
"""

import asyncio
import http.client
import http.cookiejar
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Browser, expect
from pydantic_ai.messages import BinaryContent
from starlette.types import Message

from agent.errors import NotFound
from agent.files.store import MediaStore
from agent.web.chat.attachments import MAX_FILES
from agent.web.middleware import isolation, requests
from agent.web.middleware.origins import POLICY, Origins, SecurityHeadersSend
from agent.web.middleware.visitor_cookie import COOKIE, MAX_AGE_SECONDS, CookieJar, VisitorCookies
from tests.conftest import CONFIG, App, Visitor, becomes
from tests.support.foreign_requests import (
    MATRIX,
    PAGE_SESSION,
    SHARED,
    Scene,
    at_work,
    closed_requests,
    comparable,
    filled,
    last_message,
    made_up_like,
    send_row,
    stored_conversations,
)
from tests.support.http_client import API, HttpVisitor, cookie_name, forged, marker, owner_in, send_raw
from tests.support.isolation_cells import BY_THE_SCENE, CELLS, PAIRS, row_named
from tests.support.media_files import random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running

HERE = "switchboard_visitor-80"
"""The name of the visitor's cookie at http://chat.example."""
LONG_RUNS = (
    CONFIG.replace("run_seconds = 60", "run_seconds = 600").replace("tools = [", 'tools = ["agent.tools:ask_user", ')
    + "[server]\nmax_upload_bytes = 400000\n"
)


@pytest.mark.parametrize(
    ("sent", "cookies", "expected"),
    [
        ({}, [], {"cache-control": "private"}),
        ({"cache-control": "no-store"}, [], {"cache-control": "no-store"}),
        ({"cache-control": "public"}, ["a=b"], {"cache-control": "no-store", "set-cookie": "a=b"}),
        ({"content-type": "text/event-stream"}, [], {"x-accel-buffering": "no"}),
        ({"content-type": "application/x-ndjson"}, [], {"x-accel-buffering": "no"}),
        ({"content-type": "text/javascript; charset=utf-8"}, [], {"cache-control": "private"}),
        ({"access-control-allow-origin": "*", "access-control-allow-credentials": "true"}, [], {}),
    ],
    ids=["plain", "not cached", "with a cookie", "stream", "lines", "script", "open to other sites"],
)
async def test_answer_gets_its_headers(sent: dict[str, str], cookies: list[str], expected: dict[str, str]) -> None:
    messages = list[Message]()

    async def keep(message: Message) -> None:
        messages.append(message)

    send = SecurityHeadersSend(keep, POLICY)
    send.cookies = cookies
    await send({"type": "http.response.start", "status": 200, "headers": httpx.Headers(sent).raw})
    always = {
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "same-origin",
        "x-content-type-options": "nosniff",
    }
    of_documents = {"content-security-policy": POLICY, "cross-origin-opener-policy": "same-origin"}
    headers = httpx.Headers(messages[0]["headers"])
    assert {name: headers[name] for name in always | expected} == always | expected
    is_document = "javascript" not in sent.get("content-type", "")
    assert {name: headers[name] for name in of_documents if name in headers} == (of_documents if is_document else {})
    assert ("permissions-policy" in headers) is is_document
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("kind", "allowed", "kept"),
    [
        ("text/javascript", "*", "*"),
        ("text/css", "*", "*"),
        ("text/javascript", "https://other.example", None),
        ("text/html", "*", None),
        ("application/json", "*", None),
        ("image/png", "*", None),
    ],
)
async def test_other_sites_read_only_static_scripts(kind: str, allowed: str, kept: str | None) -> None:
    messages = list[Message]()

    async def keep(message: Message) -> None:
        messages.append(message)

    sent = {"content-type": kind, "access-control-allow-origin": allowed, "access-control-allow-credentials": "true"}
    send = SecurityHeadersSend(keep, POLICY)
    await send({"type": "http.response.start", "status": 200, "headers": httpx.Headers(sent).raw})
    headers = httpx.Headers(messages[0]["headers"])
    assert headers.get("access-control-allow-origin") == kept
    assert "access-control-allow-credentials" not in headers


def test_scripts_and_other_sites_do_not_get_the_cookie() -> None:
    for secure, site in ((False, ["SameSite=Lax"]), (True, ["SameSite=None", "Secure", "Partitioned"])):
        pair, *attributes = CookieJar(secure, port=7860).setting("value").split("; ")
        assert pair == f"{'__Host-' if secure else ''}{COOKIE}-7860=value"
        assert attributes == ["Path=/", f"Max-Age={MAX_AGE_SECONDS}", "HttpOnly", *site]


PRINCIPALS: dict[str, Callable[[App, str], HttpVisitor]] = {
    "another": lambda app, cookie: HttpVisitor(app.url),
    "anonymous": lambda app, cookie: HttpVisitor(app.url, None),
    "forged": lambda app, cookie: HttpVisitor(app.url, forged(cookie)),
}


SERVER = Config(models=(VISION_MODEL,), rate=500.0)


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    """Start an app for this module that allows long runs and only small uploads."""
    return start_app(LONG_RUNS, VLLM_BASE_URL=server.base_url)


# Object x verb x principal


@pytest.fixture(scope="module")
def scene(own: App, server: Running) -> Iterator[Scene]:
    """The first visitor, with a running answer."""
    with at_work(own, server, HttpVisitor(own.url)) as made:
        yield made


@pytest.fixture(scope="module")
def below(start_app: Callable[..., App], server: Running) -> App:
    """Start an app that a proxy serves below /chat."""
    return start_app(LONG_RUNS, VLLM_BASE_URL=server.base_url, GRADIO_ROOT_PATH="/chat")


@pytest.fixture(scope="module")
def scene_below(below: App, server: Running) -> Iterator[Scene]:
    """The first visitor in that app, with a running answer."""
    with at_work(below, server, HttpVisitor(below.url)) as made:
        yield made


@pytest.mark.parametrize("who", PRINCIPALS)
def test_foreign_id_answers_like_a_made_up_one(scene: Scene, who: str) -> None:
    assert crossed(scene, MATRIX, PRINCIPALS[who](scene.app, scene.program.cookie or "")) == []
    scene.untouched()


def crossed(scene: Scene, rows: Sequence[tuple[Any, ...]], principal: HttpVisitor) -> list[str]:
    """Send each row as the principal, with the ids of the scene and with made-up ones.

    Return the names of those whose two answers differ, or with an answer that has the marker.
    """
    fixed, found = {"chat": scene.ids["chat"], "folder": str(scene.app.folder)}, list[str]()
    for row in rows:
        owned = {**scene.ids, **fixed, "fresh": uuid4().hex[:11]}
        made_up = {name: made_up_like(value) for name, value in owned.items()} | fixed
        real, wrong = send_row(principal, row, owned), send_row(principal, row, made_up)
        if comparable(real, owned) != comparable(wrong, made_up) or scene.marker in real.text:
            found.append(f"{row[0]} {row[1]}: {real.status} {real.text:.300}")
    return found


SHOW_THE_MARKER = (
    ("temporary chat", "export"),
    ("conversation", "read current"),
    ("conversation", "export"),
    ("suspended run", "subscribe"),
    ("suspended run", "export"),
    ("ended answer", "subscribe"),
    ("export", "as owner"),
    ("search", "words"),
    ("search", "export"),
)


def test_owner_gets_only_their_own(scene: Scene) -> None:
    for row in [row for row in MATRIX if row[5]]:
        ids = {**scene.ids, "folder": str(scene.app.folder), "fresh": uuid4().hex[:11]}
        said = send_row(scene.program, row, ids)
        assert said.status == row[5], row[:2]
        if row[:2] == ("upload", "read"):
            assert said.text == scene.marker
        if row[:2] in SHOW_THE_MARKER:
            assert scene.marker in said.text, row[:2]
        if row[:2] == ("picture", "read"):
            assert said.headers["content-type"] == "image/png"
    scene.untouched()


LINK_READERS: dict[str, Callable[[Scene], HttpVisitor]] = {
    "owner": lambda scene: scene.program,
    "another": lambda scene: HttpVisitor(scene.app.url),
    "anonymous": lambda scene: HttpVisitor(scene.app.url, None),
    "forged": lambda scene: HttpVisitor(scene.app.url, forged(scene.program.cookie or "")),
}


@pytest.mark.parametrize("who", LINK_READERS)
def test_holder_of_a_link_reads_that_chat_alone(scene: Scene, who: str) -> None:
    page = LINK_READERS[who](scene).ask("GET", f"/s/{scene.ids['token']}")
    assert page.status == 200
    assert SHARED in page.text
    known = {"token", "chat", "look"}  # the latter are the numbers of events, which everybody knows
    assert [name for name, id_ in scene.ids.items() if name not in known and id_ in page.text] == []
    scene.untouched()


@pytest.mark.parametrize("token", ["token", "revoked"])
def test_holder_of_a_link_reaches_nothing_else(scene: Scene, token: str) -> None:
    """A visitor who has continued the chat in a copy, and who knows all ids, gets what a made-up id would get.

    The link of one holder was revoked after that.
    """
    holder = scene.late
    if token == "token":
        holder = HttpVisitor(scene.app.url)
        assert holder.ask("POST", f"/s/{scene.ids['token']}/continue").status == 303
    [copy] = holder.ask("GET", "/conversations").json["conversations"]
    assert SHARED in holder.ask("GET", f"/export/{copy['id']}").text
    assert holder.ask("GET", f"/s/{scene.ids[token]}").status == (200 if token == "token" else 404)
    fixed = {"chat": scene.ids["chat"], "folder": str(scene.app.folder), "token": scene.ids[token]}
    owned = {**scene.ids, **fixed, "fresh": uuid4().hex[:11]}
    made_up = {name: made_up_like(value) for name, value in owned.items()} | fixed
    for row in MATRIX:
        real, wrong = send_row(holder, row, owned), send_row(holder, row, made_up)
        assert (real.status, scene.marker in real.text) == (wrong.status, False), row[:2]
    scene.untouched()


def test_every_cell_has_a_request_or_a_reason() -> None:
    assert list(CELLS) == [*PAIRS]
    names, here = [f"{row[0]} {row[1]}" for row in MATRIX], globals()
    assert len(names) == len(set(names))
    for cell, content in CELLS.items():
        if isinstance(content, tuple):
            assert content, cell
            assert set(content) <= set(names), cell
        elif content.startswith("test_"):
            assert callable(here[content]), cell
        else:
            assert len(content.split()) > 8, cell
            assert content.endswith("."), cell
    in_cells = {name for content in CELLS.values() if isinstance(content, tuple) for name in content}
    assert set(names) == in_cells
    changes = {name for name in names if row_named(name)[5] is None}
    assert {name for step in OWNER_STEPS for name in step if name in names} == changes - BY_THE_SCENE.keys()


OWNER_STEPS: list[tuple[str, ...]] = [
    # a request, and what shows that it was carried out; the last ones end what the others need
    ("conversation pin", '"pinned":true'),
    ("conversation rename", '"title":"Mine"'),
    ("conversation move", '"title":"'),
    ("list folder add", '"name":"Mine"'),
    ("list folder change", '"name":"Mine"'),
    ("list folder begin", '"run":"'),
    ("list folder delete", ""),
    ("suspended run rename", '"title":"Mine"'),
    ("temporary chat rename", '"title":"Mine"'),
    ("link create", '"path":"/s/'),
    ("link revoke", ""),
    ("upload attach", '"success":true'),
    ("temporary chat say over http", '"run":"'),
    ("temporary chat leave", ""),
    ("message retry over http", '"run":"'),
    ("message continue over http", '"run":"'),
    ("message copy over http", '"conversation":"'),
    ("message answer over http", ""),
    ("message edit over http", '"run":"'),
    ("message show over http", ""),
    ("message undo over http", '"text":"!text'),
    ("message erase over http", ""),
    ("conversation say over http", '"run":"'),
    ("conversation say over http", '"run":"'),
    ("conversation summarize", ""),
    ("conversation drop summary", ""),
    ("suspended run answer over http", '"run":"'),
    ("running answer stop one over http", ""),
    ("running answer stop over http", ""),
    ("event cancel both", ""),
    ("temporary chat delete", ""),
    ("suspended run delete", ""),
    ("conversation delete", ""),
    ("list delete all", '"conversations":0'),
]


def test_owner_may_do_what_others_may_not(own: App, server: Running) -> None:
    """Each request that the others make in vain does what its name says if the owner makes it."""
    with at_work(own, server, HttpVisitor(own.url)) as made:
        first, ids, word = made.program, {**made.ids, "folder": str(own.folder)}, made.marker
        for name, proof in OWNER_STEPS:
            fresh = {"fresh": uuid4().hex[:11]}
            if name.startswith("message "):
                fresh["message"] = last_message(first, ids["quiet"], word)
            if name == "event cancel both":
                fresh["event"] = first.begin(made.long).json["event_id"]
            said = send_row(first, row_named(name), ids | fresh)
            assert said.status < 300, (name, said.text)
            assert proof in said.text.replace('": ', '":'), (name, said.text)
            becomes(True, lambda: is_quiet(first, ids["quiet"], ids["waiting"]))
        assert first.ask("GET", "/conversations").json["conversations"] == []


def is_quiet(program: HttpVisitor, *conversations: str) -> bool:
    """Return True if no answer is being written in these conversations."""
    rows = program.ask("GET", "/conversations").json["conversations"]
    return not any(row["state"] == "answering" for row in rows if row["id"] in conversations)


def test_unneeded_routes_are_closed(own: App) -> None:
    program = HttpVisitor(own.url)
    for method, path in closed_requests():
        said = program.ask(method, path, json={} if method in ("POST", "PUT") else None)
        assert said.status in (404, 405), path
        assert "set-cookie" not in said.headers, path


# The same below a root path, which Gradio removes from a path once more than a proxy does


@pytest.mark.parametrize("prefix", ["", "/chat", "/chat/chat", "/chat/chat/chat"])
def test_closed_routes_below_a_root_path(below: App, prefix: str) -> None:
    program = HttpVisitor(below.url, None)
    for method, path in closed_requests():
        body = json.dumps({}).encode() if method in ("POST", "PUT") else b""
        assert send_raw(below, method, prefix + path, body)[0] in (404, 405), prefix + path
    assert program.ask("GET", "/chat/").status == 200  # a proxy can keep the prefix


@pytest.mark.parametrize("prefix", [pytest.param("", marks=pytest.mark.full), "/chat"])
def test_matrix_below_a_root_path(scene_below: Scene, prefix: str) -> None:
    cookie, url = scene_below.program.cookie or "", scene_below.app.url + prefix
    assert crossed(scene_below, MATRIX, HttpVisitor(url)) == []
    for row in [row for row in MATRIX if row[5]]:
        ids = {**scene_below.ids, "folder": str(scene_below.app.folder), "fresh": uuid4().hex[:11]}
        assert send_row(HttpVisitor(url, cookie), row, ids).status == row[5], row[:2]
    scene_below.untouched()


@pytest.mark.parametrize("prefix", ["/chat/chat", "/chat/chat/chat", "/chat/", "//chat", "/chat/./", "/chat%2f"])
def test_repeated_or_unclear_prefix_reaches_nothing(scene_below: Scene, prefix: str) -> None:
    """This includes the owner, because the checked path and the routed path could differ."""
    ids = {**scene_below.ids, "folder": str(scene_below.app.folder), "fresh": uuid4().hex[:11]}
    cookie = {"cookie": scene_below.program.http.headers["cookie"]}
    for _, _, method, path, body, _ in MATRIX:
        target = prefix + filled(path if path.startswith("/") else API + path, ids)
        content = filled(body, ids | {"page_session": filled(PAGE_SESSION, ids)}).encode() if body else b""
        status, _, text = send_raw(scene_below.app, method, target, content, **cookie)
        assert status in (404, 405), target
        assert scene_below.marker not in text, target
    scene_below.untouched()


async def test_root_path_can_be_a_url() -> None:
    """Gradio removes the whole URL, and a request can have that URL as its target."""
    seen: list[str] = []

    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await _echo(scope, receive, send)

    guard = isolation.IsolationMiddleware(gradio, VisitorCookies("key"), "https://example.org/chat")
    for path in ("https://example.org/chat/config", "/chat/chat/config", "chat/config", "*", ""):
        assert await status_of(guard, path) == 404, path
    for path in ("/config", "/chat/config"):
        assert await status_of(guard, path) == 200, path
    assert seen == ["/config", "/config"]


async def status_of(app: isolation.IsolationMiddleware, path: str) -> int:
    """Return the status of a GET with an unnormalised path."""
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return said[0]["status"]


# A request has one meaning only


PATHS = [
    "//gradio_api/queue/data",
    "/gradio_api//queue/data",
    "/gradio_api/./queue/data",
    "/gradio_api/x/../queue/data",
    "/./gradio_api/queue/data",
    "/gradio_api%2fqueue%2fdata",
    "/%67radio_api/queue/data",
    "/gradio_api/queue/%64ata",
    "/gradio_api/queue/data/",
    "/gradio_api/queue/data;x",
    "/gradio_api/queue/data%00",
    "/gradio_api\\queue\\data",
    "/GRADIO_API/queue/data",
    "/Gradio_api/Queue/Data",
    "http://127.0.0.1/gradio_api/queue/data",
]
QUERIES = [
    "session_hash={theirs}",
    "session_hash={mine}&session_hash={theirs}",
    "session_hash={theirs}&session_hash={mine}",
    "session_hash=&session_hash={theirs}",
    "session_hash={mine};session_hash={theirs}",
    "session%5fhash={theirs}",
    "session_hash=%20{theirs}",
    "session_hash={theirs}%00",
    "session_hash[]={theirs}",
    "session_hash={owner}-{theirs}",
    "session_hash=../{owner}-{theirs}",
]


def test_no_url_spelling_reads_foreign_session(scene: Scene) -> None:
    second = HttpVisitor(scene.app.url)
    names = {"theirs": scene.ids["session"], "mine": second.session, "owner": scene.ids["owner"]}
    tricks = [f"{path}?{QUERIES[0]}" for path in PATHS] + [f"{API}queue/data?{query}" for query in QUERIES]
    for cookie in (second.cookie, forged(scene.program.cookie or ""), None):
        headers = {"cookie": f"{cookie_name(scene.app.url)}={cookie}"} if cookie else {}
        for trick in tricks:
            status, _, text = send_raw(scene.app, "GET", trick.format(**names), **headers)
            assert "process_" not in text, trick
            assert status < 500, trick
    scene.untouched()


def joins(theirs: str, mine: str, owner: str, chat: int) -> list[tuple[str, bytes, str]]:
    """Return bodies that try to act in another visitor's session: target, body, content type."""
    message = [{"text": "!text intruder", "files": []}, "", {"new": True}, None]
    body = {"data": message, "fn_index": chat}
    data = json.dumps(message)
    rest = f'"data": {data}, "fn_index": {chat}'
    texts = [
        f'{{{rest}, "session_hash": "{theirs}"}}',
        f'{{"session_hash": "{mine}", {rest}, "session_hash": "{theirs}"}}',
        f'{{"session_hash": "{theirs}", {rest}, "session_hash": "{mine}"}}',
        f'{{{rest}, "session\\u005fhash": "{theirs}"}}',
        f'{{{rest}, "session_hash": ["{theirs}"]}}',
        f'{{{rest}, "session_hash": {{"a": "{theirs}"}}}}',
        f'{{{rest}, "session_hash": "{owner}-{theirs}"}}',
        f'{{{rest}, "session_hash": "{theirs}\\u0000"}}',
        f'{{{rest}, "session_hash": " {theirs}"}}',
        f'{{{rest}, "session_hash": 5}}',
        f'{{{rest}, "session_hash": ""}}',
        f'{{{rest}, "session_hash": null}}',
        f'{{{rest}, "session_hash": "x<gradio-sep>y"}}',
        f'{{{rest}, "session_hash": "{mine}", "event_id": "{theirs}", "batched": true, "simple_format": true}}',
        f"[{{{rest}}}]",
    ]
    made = [(f"{API}queue/join", text.encode(), "application/json") for text in texts]
    made += [(f"{API}queue/join", text.encode(), "text/plain") for text in texts[:2]]
    made += [(f"{API}queue/join", texts[0].encode(code), "application/json") for code in ("utf-16", "utf-8-sig")]
    made += [(f"{API}queue/join?session_hash={theirs}", json.dumps(body).encode(), "application/json")]
    made += [(f"{API}queue/join?session_hash={mine}", texts[0].encode(), "application/json")]
    form = f"session_hash={theirs}&fn_index={chat}&data={data}".encode()
    made += [(f"{API}queue/join", form, "application/x-www-form-urlencoded")]
    made += [(target, texts[0].encode(), "application/json") for target in spelled("queue/join")]
    return made


def spelled(route: str) -> list[str]:
    return [path.replace("queue/data", route) for path in PATHS if "queue/data" in path]


def test_no_body_spelling_acts_in_foreign_session(own: App, server: Running) -> None:
    first, second, word = HttpVisitor(own.url), HttpVisitor(own.url), marker()
    first.say(f"!text {word}")
    assert first.cookie is not None
    owner = owner_in(first.cookie)
    for cookie in (second.cookie, None):
        headers = {"cookie": f"{cookie_name(own.url)}={cookie}"} if cookie else {}
        for target, body, kind in joins(first.session, second.session, owner, first.chat):
            status, _, text = send_raw(own, "POST", target, body, **headers, **{"content-type": kind})
            assert status < 500, body
            assert word not in text
    chunked = {"data": [None], "fn_index": 1, "session_hash": first.session}
    second.ask(
        "POST", f"{API}queue/join", content=iter([json.dumps(chunked).encode()[:20], json.dumps(chunked).encode()[20:]])
    )
    assert "intruder" not in first.listen(seconds=0.5)
    again = first.say("!text and on we go")
    assert "intruder" not in again
    line = server.journal()[-1]["body"]["messages"]
    assert [message["content"] for message in line if message["role"] == "user"] == [
        f"!text {word}",
        "!text and on we go",
    ]
    assert [row[1] for row in stored_conversations(own).values() if row[0] == owner] == [4]


def test_binding_a_session_hash_first_gains_nothing(own: App) -> None:
    thief, first, word = HttpVisitor(own.url), HttpVisitor(own.url), marker()
    thief.session = first.session
    thief.say("!text thief was here")
    assert thief.begin("!tokens 9000 @20", new=True).status == 200
    said = first.say(f"!text {word}")
    assert word in said
    assert "thief" not in said
    heard = thief.listen(seconds=0.5)
    assert "process_generating" in heard
    assert word not in heard


def test_client_without_cookie_has_a_session(own: App) -> None:
    """Only the session hash identifies it: it opens this guest's session and no session of a visitor with a cookie."""
    guest, other, visitor, word = HttpVisitor(own.url, None), HttpVisitor(own.url, None), HttpVisitor(own.url), marker()
    visitor.session = guest.session
    assert word in guest.say(f"!text {word}")
    assert word in guest.say("!echo")
    assert word not in other.say("!echo")
    assert word not in visitor.say("!echo")


def test_same_file_of_two_visitors_stays_for_both(own: App) -> None:
    first, second, same = HttpVisitor(own.url), HttpVisitor(own.url), marker().encode()
    path, other = first.upload("same.txt", same), second.upload("same.txt", same)
    assert "got it" in first.say("!text got it", path)
    assert first.ask("GET", f"{API}file={other}").status == 404
    assert second.ask("GET", f"{API}file={other}").text == same.decode()


def test_many_files_at_once_belong_to_uploader(own: App) -> None:
    first = HttpVisitor(own.url)
    name = "a-rather-long-name-" * 6
    files = [("files", (f"{name}{number}.txt", marker().encode())) for number in range(MAX_FILES)]
    said = first.ask("POST", f"{API}upload", files=files)
    assert len(said.json) == MAX_FILES
    assert first.ask("HEAD", f"{API}file={said.json[-1]}").status == 200


def test_only_uploaded_files_are_accepted(own: App) -> None:
    """Files of the server and URLs to fetch are refused."""
    with beacon() as (url, hits):
        second = HttpVisitor(own.url)
        for path in (url + "/a.png", "/etc/passwd", str(own.folder / "data" / "secret"), "app.py", ["x"], None, 5):
            for where in ({"path": path}, {"path": path, "meta": {"_type": "gradio.FileData"}, "url": url}):
                said = second.join(second.chat, [{"text": "hm", "files": [where]}, "", {}, None])
                assert said.status == 404
                assert second.join(second.chat, [{"text": "hm"}, "", {"deep": [where]}, None]).status == 404
        assert hits == []


def test_page_of_another_site_is_not_the_visitor(own: App) -> None:
    first = HttpVisitor(own.url)
    path = first.upload("mine.txt", b"mine")
    for site, status in (("same-origin", 200), ("none", 200), ("cross-site", 404), ("same-site", 404)):
        headers = {"sec-fetch-site": site, "origin": "http://evil.example"}
        said = first.ask("GET", f"{API}file={path}", headers=headers)
        assert said.status == status, site
        assert "access-control-allow-credentials" not in said.headers
    assert "set-cookie" not in first.ask("GET", "/", headers={"sec-fetch-site": "cross-site"}).headers
    assert first.ask("GET", f"{API}file={path}").text == "mine"


def test_forged_host_reaches_no_other_answer(own: App) -> None:
    for target in (f"{API}info", "/", "/config", f"{API}info?all_endpoints=True"):
        assert send_raw(own, "GET", target, host="evil.example")[0] == 421
        assert send_raw(own, "GET", target, **{"x-forwarded-host": "evil.example"})[0] == 421
        assert "evil.example" not in send_raw(own, "GET", target)[2], target
        status, _, said = send_raw(own, "GET", target, **{"x-gradio-server": "http://evil.example/"})
        assert (status, "evil.example" in said) == (200, False), target
    for host in ("", "a b", "evil.example:99999", "[::1", "\xff"):
        assert send_raw(own, "GET", "/", host=host)[0] == 400, host
        assert send_raw(own, "GET", "/", **{"x-forwarded-host": host})[0] == 400, host


async def test_allowed_host_names() -> None:
    """Without a list, a page that others can reach accepts any name. A hostile name for this machine is refused."""
    here = Origins(["chat.example"], any_host=False)
    here.add("https://abc.gradio.live")
    served = ["chat.example", "CHAT.example:8443", "abc.gradio.live", "localhost:7860", "127.0.0.1:1", "[::1]:7860"]
    served += ["127.8.9.1", "a.localhost"]
    refused = ["evil.example", "evil.gradio.live", "chat.example.evil.example", "10.0.0.1", "0.0.0.0:7860", "chat"]
    for origins, others in ((here, 421), (Origins(), 200)):
        transport = httpx.ASGITransport(
            app=isolation.IsolationMiddleware(_echo, VisitorCookies("key"), origins=origins)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http_:
            for host in served:
                assert (await http_.get("/", headers={"host": host})).status_code == 200, host
            for host in refused:
                assert (await http_.get("/", headers={"host": host})).status_code == others, host
                assert (await http_.get("/readyz", headers={"host": host})).status_code == 200, host
    said = (
        await _once(isolation.IsolationMiddleware(_echo, VisitorCookies("key"), origins=here), host="evil.example")
    ).json()
    assert "SWITCHBOARD_HOSTS" in said["detail"]


async def _once(app: isolation.IsolationMiddleware, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as http_:
        return await http_.get("/", headers=headers)


POSTS = [
    # url, origin, sec-fetch-site, other headers, passes
    ("http://127.0.0.1:7860", None, None, {}, True),  # a program
    ("http://127.0.0.1:7860", "http://127.0.0.1:7860", "same-origin", {}, True),
    ("http://127.0.0.1:7860", "http://127.0.0.1:7860", None, {}, True),
    ("http://127.0.0.1:7860", "http://127.0.0.1:7861", None, {}, False),
    ("http://127.0.0.1:7860", "http://localhost:7860", None, {}, False),
    ("http://127.0.0.1:7860", "null", None, {}, False),
    ("http://127.0.0.1:7860", "http://evil.example", None, {}, False),
    ("http://127.0.0.1:7860", "http://evil.example", "same-origin", {}, False),
    ("http://127.0.0.1:7860", None, "cross-site", {}, False),
    ("http://127.0.0.1:7860", None, "same-site", {}, False),
    ("http://127.0.0.1:7860", "http://[", None, {}, False),
    ("http://127.0.0.1:7860", "http://127.0.0.1:7860.evil.example", None, {}, False),
    ("https://chat.example", "https://chat.example", "same-origin", {}, True),
    ("https://chat.example", "https://chat.example:443", None, {}, True),
    ("https://chat.example", "http://chat.example", None, {}, False),
    ("https://chat.example", "https://chat.example:8443", None, {}, False),
    ("https://chat.example", "https://huggingface.co", "cross-site", {}, False),
    # Behind a proxy the app sees http, and maybe its own address.
    ("http://chat.example", "https://chat.example", "same-origin", {"x-forwarded-proto": "https"}, True),
    ("http://chat.example", "http://chat.example", None, {"x-forwarded-proto": "https"}, False),
    ("http://chat.example", "https://chat.example", "same-origin", {}, True),
    ("http://127.0.0.1:7860", "https://chat.example", "same-origin", {"x-forwarded-host": "chat.example"}, True),
    ("http://127.0.0.1:7860", "https://listed.example", "same-origin", {}, True),
]


@pytest.mark.parametrize(("url", "origin", "site", "more", "passes"), POSTS)
async def test_allowed_origins_can_post(
    url: str, origin: str | None, site: str | None, more: dict[str, str], passes: bool
) -> None:
    headers = more | ({"origin": origin} if origin else {}) | ({"sec-fetch-site": site} if site else {})
    transport = httpx.ASGITransport(
        app=isolation.IsolationMiddleware(_echo, VisitorCookies("key"), origins=Origins(["listed.example"]))
    )
    async with httpx.AsyncClient(transport=transport, base_url=url, headers=headers) as http_:
        for target in ("upload", "queue/join", "cancel", "reset"):
            body = {"session_hash": "s", "fn_index": 0, "data": [], "event_id": "e"}
            said = await http_.post(API + target, json=body)
            if passes:
                assert said.status_code == (404 if target == "cancel" else 200)  # no such event exists
            else:
                assert said.status_code == 403
                assert said.json() == {"detail": "A page of another site may not do this."}
        assert (await http_.get("/")).status_code == 200


def test_cross_site_post_leaves_nothing(own: App) -> None:
    """The raw requests carry the visitor's cookie, as browsers send it if the cookie is not bound to a site."""
    first, word = HttpVisitor(own.url), marker()
    foreign = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    said = first.ask("POST", f"{API}upload", files={"files": (f"{word}.txt", b"x")}, headers=foreign)
    assert said.status == 403
    assert not list((own.folder / "tmp").rglob(f"{word}.txt"))
    body = {"data": [{"text": f"!text {word}", "files": []}, "", {}, None], "fn_index": first.chat, "session_hash": "s"}
    assert first.ask("POST", f"{API}queue/join", json=body, headers=foreign).status == 403
    assert owner_in(first.cookie or "") not in {row[0] for row in stored_conversations(own).values()}


BAD = [
    ("GET", "/?page=x", None), ("GET", "/config?page=x", None),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": 99_999, "data": []}),
    ("POST", "run/predict", {"session_hash": "s", "fn_index": 99_999, "data": []}),
    ("POST", "run/predict", {"session_hash": "s", "fn_index": None, "data": []}),
    ("POST", "run/predict", {"session_hash": "s", "fn_index": 1, "data": "MARK"}),
    ("POST", "run/MARK-MARK", {"session_hash": "s", "fn_index": 1, "data": []}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": -1, "data": []}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": None, "data": []}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": "1", "data": []}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": True, "data": []}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": 2**70, "data": []}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": 1, "data": "MARK"}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": 1, "data": {"MARK": 1}}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": 1}),
    ("POST", "queue/join", {"session_hash": "s", "fn_index": 1, "data": [], "trigger_id": "MARK"}),
    ("POST", "queue/join", {"session_hash": "MARK MARK", "fn_index": 1, "data": []}),
    ("POST", "cancel", {"session_hash": "s", "fn_index": "MARK", "event_id": "MARK"}),
    ("POST", "reset", {"event_id": ["MARK"]}),
    ("POST", "upload", "MARK"), ("POST", "upload?upload_id=%20", "MARK"),
    ("GET", "queue/data?session_hash=MARK%20", None), ("GET", "queue/data", None), ("GET", "heartbeat/MARK%20", None),
    ("GET", "upload_progress?upload_id=MARK", None), ("GET", "startup-events%FF", None),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target", "body"), BAD)
def test_bad_request_is_a_short_4xx(own: App, method: str, target: str, body: Any) -> None:
    word, before = marker(), len(own.log)
    content = json.dumps(body).replace("MARK", word).encode() if body is not None else b""
    path = (target if target.startswith("/") else API + target).replace("MARK", word)
    status, _, text = send_raw(own, method, path, content, **{"content-type": "application/json"})
    assert 400 <= status < 500
    assert set(json.loads(text)) == {"detail"}
    assert len(text) < 300
    assert word not in text
    assert own.log[before:] == ""


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b"5", b'"x"', b"\xff", b"[" * 50_000, b'{"a":' * 50_000, b'{"data": [NaN]}',
     b'{"data": [1e999]}', b'{"data": [-Infinity]}', b'{"data": [' + b"9" * 5000 + b"]}"],
    ids=lambda body: body[:12].decode(errors="replace"),
)  # fmt: skip
async def test_malformed_message_is_rejected(body: bytes) -> None:
    transport = httpx.ASGITransport(app=isolation.IsolationMiddleware(_echo, VisitorCookies("key")))
    async with httpx.AsyncClient(transport=transport, base_url="http://chat.example") as http_:
        for route in ("queue/join", "cancel", "reset"):
            text = body.replace(b'{"data"', b'{"session_hash": "s", "data"')
            said = await http_.post(API + route, content=text)
            assert said.status_code in ((400, 413) if route != "cancel" else (400, 404, 413)), route


# Headers


def test_every_answer_has_the_policy(own: App) -> None:
    cookie = {"cookie": f"{cookie_name(own.url)}={HttpVisitor(own.url).cookie}"}
    asked = [
        ("GET", "/", 200), ("GET", "/config", 200), ("GET", "/healthz", 200), ("GET", "/nothing", 404),
        ("GET", "/media/x", 404), ("POST", "/", 405), ("GET", "/config/", 200), ("GET", "/assets/../x", 404),
        ("GET", "/pyodide/0/pyodide.mjs", 404),
        ("GET", f"{API}file=/etc/passwd", 404), ("GET", f"{API}proxy=http://127.0.0.1", 404),
        ("POST", f"{API}queue/join", 400), ("POST", f"{API}upload", 400), ("GET", f"{API}info", 200),
        ("GET", f"{API}queue/data?session_hash=none", 404), ("GET", f"{API}heartbeat/none", 200),
    ]  # fmt: skip
    for method, target, status in asked:
        got, headers, _ = send_raw(own, method, target, **cookie)
        assert (got, target) == (status, target)
        assert headers["content-security-policy"] == POLICY, target
        assert headers["x-content-type-options"] == "nosniff", target
        assert headers["referrer-policy"] == "same-origin", target
        assert headers["cross-origin-opener-policy"] == "same-origin", target
        assert "camera=(self), " in headers["permissions-policy"], target
        assert "geolocation=()" in headers["permissions-policy"], target
    body = json.dumps({"data": [], "fn_index": 999, "session_hash": "x"}).encode()
    got, headers, text = send_raw(
        own, "POST", f"{API}queue/join", body, **cookie, **{"content-type": "application/json"}
    )
    assert got == 404
    assert headers["content-security-policy"] == POLICY
    assert "Traceback" not in text
    for route in ("queue/join", "cancel", "reset"):
        assert send_raw(own, "POST", API + route, b"x" * (requests.MAX_BODY + 1), **cookie)[0] == 413
    assert HttpVisitor(own.url).ask("POST", f"{API}upload", files={"files": ("big.txt", b"x" * 500_000)}).status == 413


@pytest.mark.parametrize("proto", ["http", "https", "forwarded"])
async def test_cookie_is_hidden_from_scripts_and_other_sites(proto: str) -> None:
    visitors = VisitorCookies("key")
    transport = httpx.ASGITransport(app=isolation.IsolationMiddleware(_echo, visitors))
    url = "https://chat.example" if proto == "https" else "http://chat.example"
    headers = {"x-forwarded-proto": "https, http"} if proto == "forwarded" else {}
    async with httpx.AsyncClient(transport=transport, base_url=url, headers=headers) as http_:
        given = (await http_.get("/")).headers
        flags = given["set-cookie"].split("; ")[1:]
        assert {"HttpOnly", "Path=/", f"Max-Age={365 * 24 * 3600}"} <= set(flags)
        secure = {"SameSite=None", "Secure", "Partitioned"}
        assert secure <= set(flags) if proto != "http" else "SameSite=Lax" in flags and not secure & set(flags)
        assert given["cache-control"] == "no-store"
        http_.cookies.clear()
        value = given["set-cookie"].split(";")[0]
        again = await http_.get("/", headers={"cookie": value})
        assert "set-cookie" not in again.headers
        assert again.json()["visitor"] == visitors.read(value.partition("=")[2])


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with its visitor."""
    if scope["path"] == "/media/broken":
        raise RuntimeError("broken")
    body = json.dumps({"visitor": isolation.visitor_id_of(scope)}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


async def test_only_own_cookie_is_a_visitor() -> None:
    visitors = VisitorCookies("key")
    visitor, value = visitors.mint()
    mine = f"{HERE}={value}"
    strangers = [
        f"{HERE}={VisitorCookies('other').cookie(visitor)}", f"{HERE}={visitor}", f"{HERE}={forged(value)}",
        f"{HERE}=", f"{HERE}", f"x{mine}", f"{HERE}={value}x", f"{HERE}={value.split('.')[0]}", "\xff=\xfe",
        f"{HERE}=" + "." * 100, f"{HERE}={'A' * 9000}.{'B' * 9000}", "a@b=c", "; ; ;",
    ]  # fmt: skip
    kin = [mine, f'prefs={{"a":1}}; {mine}', f"a@b=c; {mine}", f"{mine}; x=y", f" {mine} ;", f'q="; {mine}']
    transport = httpx.ASGITransport(app=isolation.IsolationMiddleware(_echo, visitors))
    async with httpx.AsyncClient(transport=transport, base_url="http://chat.example") as http_:
        for cookie in strangers:
            said = await http_.get("/healthz", headers=[(b"cookie", cookie.encode("latin-1"))])
            assert said.json()["visitor"] is None, cookie
        for cookie in kin:
            assert (await http_.get("/healthz", headers={"cookie": cookie})).json()["visitor"] == visitor, cookie
        split = [("cookie", "a=b"), ("cookie", mine)]
        assert (await http_.get("/healthz", headers=split)).json()["visitor"] == visitor


@pytest.mark.parametrize(
    ("url", "root", "name", "path"),
    [
        ("https://chat.example", "", "__Host-switchboard_visitor", "/"),
        ("https://chat.example:8443", "", "__Host-switchboard_visitor-8443", "/"),
        ("https://chat.example", "/chat", "__Host-switchboard_visitor_chat", "/"),
        ("https://chat.example", "https://chat.example/a/b", "__Host-switchboard_visitor_a%2Fb", "/"),
        ("http://127.0.0.1:7860", "", "switchboard_visitor-7860", "/"),
        ("http://[::1]:7860", "", "switchboard_visitor-7860", "/"),
        ("http://localhost", "/7860", "switchboard_visitor-80_7860", "/7860"),
    ],
)
async def test_cookie_name_distinguishes_pages(url: str, root: str, name: str, path: str) -> None:
    transport = httpx.ASGITransport(app=isolation.IsolationMiddleware(_echo, VisitorCookies("key"), root))
    async with httpx.AsyncClient(transport=transport, base_url=url) as http_:
        [given] = (await http_.get("/")).headers.get_list("set-cookie")
        assert given.startswith(f"{name}=")
        assert f"; Path={path};" in given
        assert "Domain" not in given


async def test_two_cookies_cancel_each_other() -> None:
    visitors = VisitorCookies("key")
    (_, mine), (_, theirs) = visitors.mint(), visitors.mint()
    transport = httpx.ASGITransport(app=isolation.IsolationMiddleware(_echo, visitors))
    async with httpx.AsyncClient(transport=transport, base_url="http://a.b.example") as http_:
        for pair in ((mine, theirs), (theirs, mine), (mine, "x"), ("", mine)):
            cookie = {"cookie": "; ".join(f"{HERE}={value}" for value in pair)}
            page = await http_.get("/", headers=cookie)
            assert page.json()["visitor"] is None
            assert not any(f"{HERE}={value};" in str(page.headers.get_list("set-cookie")) for value in pair if value)
            sent = await http_.post(f"{API}queue/join?x=1", headers=cookie, json={})
            assert (sent.status_code, sent.headers["location"]) == (307, "?x=1&again=1")
            again = await http_.get(f"{API}info?x=1&again=1", headers=cookie)
            assert again.json()["visitor"] is None  # if the foreign cookie cannot be deleted
        expired = sent.headers.get_list("set-cookie")
        assert f"{HERE}=; Path=/gradio_api; Max-Age=0" in expired
        assert f"{HERE}=; Path=/gradio_api/queue/join; Max-Age=0; Domain=b.example" in expired
        assert f"{HERE}=; Path=/; Max-Age=0; Domain=a.b.example" in expired
        assert f"{HERE}=; Path=/; Max-Age=0" not in expired  # the visitor's own
        twice = {"cookie": f"{HERE}={mine}; {HERE}={mine}"}
        assert (await http_.get("/", headers=twice)).json()["visitor"] == visitors.read(mine)


async def test_old_cookie_is_carried_over_on_http() -> None:
    visitors = VisitorCookies("key")
    visitor, value = visitors.mint()
    transport = httpx.ASGITransport(app=isolation.IsolationMiddleware(_echo, visitors))
    old, other = {"cookie": f"{COOKIE}={value}"}, {"cookie": f"{COOKIE}={value}; {COOKIE}={visitors.mint()[1]}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://chat.example") as http_:
        page = await http_.get("/", headers=old)
        assert page.json()["visitor"] == visitor
        deleted, kept = page.headers.get_list("set-cookie")
        assert deleted == f"{COOKIE}=; Path=/; Max-Age=0"
        assert kept.startswith(f"{HERE}={value};")
        http_.cookies.clear()
        assert (await http_.get("/", headers=other)).json()["visitor"] is None
        http_.cookies.clear()
        newer = {"cookie": f"{HERE}={visitors.mint()[1]}; {COOKIE}={value}"}
        assert (await http_.get("/", headers=newer)).json()["visitor"] != visitor
    async with httpx.AsyncClient(transport=transport, base_url="https://chat.example") as http_:
        assert (await http_.get("/", headers=old)).json()["visitor"] is None


async def test_internal_error_has_the_policy() -> None:
    transport = httpx.ASGITransport(
        app=isolation.IsolationMiddleware(_echo, VisitorCookies("key")), raise_app_exceptions=False
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://chat.example") as http_:
        said = await http_.get("/media/broken")
        assert said.status_code == 500
        assert said.headers["content-security-policy"] == POLICY


def test_policy_names_no_other_site() -> None:
    sources = {name: set(given) for name, *given in (one.split() for one in POLICY.split(";"))}
    assert sources.pop("frame-ancestors") == {"'self'", "https://huggingface.co"}
    assert sources["img-src"] == sources["media-src"] == sources["connect-src"] == {"'self'", "data:", "blob:"}
    own = {"'self'", "'none'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:"}
    assert all(given <= own for given in sources.values())
    assert sources["default-src"] == {"'self'"}


async def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling the tables gives access to nobody's data."""
    monkeypatch.setattr(isolation, "MAX_IDS", 100)
    monkeypatch.setattr(isolation, "MAX_IDS_PER_VISITOR", 100)
    number = iter(range(10_000))

    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        answer = {"event_id": f"e{next(number)}"}
        if scope["path"].endswith("upload"):
            answer = [f"/tmp/{next(number)}.txt"]
            scope["state"]["isolation"].uploads.add(answer[0], scope["state"]["visitor"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    visitors = VisitorCookies("key")
    guard = isolation.IsolationMiddleware(gradio, visitors)
    (first, mine), (second, theirs) = visitors.mint(), visitors.mint()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url="http://chat.example") as http_:
        path = (await http_.post(f"{API}upload", headers={"cookie": f"{HERE}={mine}"})).json()[0]
        assert guard.uploads.owns(path, first)
        for session in range(400):
            cookie = {"cookie": f"{HERE}={theirs}"}
            await http_.post(f"{API}upload", headers=cookie)
            await http_.post(f"{API}queue/join", headers=cookie, json={"session_hash": f"s{session}", "data": []})
            await http_.get(f"{API}queue/data?session_hash=s{session}", headers=cookie)
        assert guard.uploads.owns(path, first)
        assert not guard.uploads.owns(path, second)
        assert (await http_.get(f"{API}file={path}", headers={"cookie": f"{HERE}={theirs}"})).status_code == 404
    assert len(guard.uploads) <= 100


@pytest.mark.parametrize("owner", ["ann", None], ids=["visitor", "guest"])
def test_flood_of_ids_evicts_no_others(owner: str | None) -> None:
    ids = isolation.IssuedIds()
    ids.add("/tmp/a.txt", owner)
    ids.add("event", f"{owner or 'guest'}-session")
    for number in range(60_000):
        ids.add(f"e{number}", f"flood{number % 20}-session")
    assert ids.owns("/tmp/a.txt", owner)
    assert ids.owns("event", f"{owner or 'guest'}-session")
    assert not ids.owns("e0", "flood0-session")
    assert ids.owns("e59999", "flood19-session")
    assert len(ids) == sum(map(len, ids._of_account.values())) <= isolation.MAX_IDS
    for number in range(5_000):
        ids.add(f"e{number}", "one")
    assert not ids.owns("e0", "one")


async def test_only_its_own_session_cancels_an_event() -> None:
    visitors = VisitorCookies("key")
    (mine, my_cookie), (_, other_cookie) = visitors.mint(), visitors.mint()
    pending = {("event", f"{mine}-s")}
    guard = isolation.IsolationMiddleware(_echo, visitors, owns_event=lambda *asked: asked in pending)
    transport = httpx.ASGITransport(app=guard)

    async def status(cookie: str, session: str = "s") -> int:
        body = {"session_hash": session, "event_id": "event", "fn_index": 0}
        headers = {"cookie": f"{HERE}={cookie}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://chat.example", headers=headers) as http_:
            return (await http_.post(f"{API}cancel", json=body)).status_code

    assert await status(my_cookie) == 200
    assert await status(other_cookie) == await status(my_cookie, "t") == await status("") == 404
    pending.clear()  # it has ended
    assert await status(my_cookie) == 404


# The app's own files


A, B, C = "a" * 32, "b" * 32, "c" * 32 + ".png"
CLIMBS = [
    (A, f"../{B}/{C}"), (A, f"{C}/.."), ("..", C), ("", C), (A, C.upper()), (A, f"{C}\n"), (f"{B}/../{A}", C),
    (A, C.replace("png", "svg")), (A, "\0"), (f"{A}\n", C), (A, ""), (A, f"/{C}"), (A, f"./{C}"), (A, f"{C}x"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "id_"), CLIMBS)
async def test_no_name_escapes_the_owner_folder(tmp_path: Any, owner: str, id_: str) -> None:
    for folder in (A, B, "", f"{A}\n"):
        (tmp_path / "media" / folder).mkdir(parents=True, exist_ok=True)
        for name in (C, f"{C}x", f"{C}\n", C.upper(), C.replace("png", "svg")):
            (tmp_path / "media" / folder / name).write_bytes(b"secret")
    with pytest.raises(NotFound):
        await MediaStore(tmp_path / "media").read(owner, id_)


async def test_only_its_owner_reads_a_picture(tmp_path: Any) -> None:
    store = MediaStore(tmp_path)
    picture = BinaryContent(random_png(), media_type="image/png")
    kept = await store.add(A, picture, "message")
    assert (await store.read(A, kept)).data == picture.data
    assert await store.add(B, picture, "message") != kept, "an id tells that another owner has the same file"
    with pytest.raises(NotFound):
        await store.read(B, kept)
    assert (tmp_path / A).stat().st_mode & 0o077 == 0


# Many requests at once, and invalid ones


async def test_many_sessions_hear_only_themselves(own: App) -> None:
    words = [marker() for _ in range(20)]

    async def one(http_: httpx.AsyncClient, word: str) -> tuple[str, str]:
        given = await http_.get("/config")
        headers = {"cookie": given.headers["set-cookie"].split(";")[0]}
        chat = next(event["id"] for event in given.json()["dependencies"] if event["api_name"] == "chat")
        name = {"files": (f"{word}.txt", word.encode())}
        path = (await http_.post(f"{API}upload", files=name, headers=headers)).json()[0]
        session, heard = uuid4().hex[:11], ""
        for turn in range(2):
            files = [{"path": path, "meta": {"_type": "gradio.FileData"}}] if turn == 0 else []
            body = {"session_hash": session, "fn_index": chat}
            message = {"text": f"!tokens 30 @200 !text {word}-{turn} !echo", "files": files}
            await http_.post(f"{API}queue/join", headers=headers, json={**body, "data": [message, "", {}]})
            query = {"session_hash": session}
            heard += (await http_.get(f"{API}queue/data", params=query, headers=headers)).text
        return word, heard

    limits = httpx.Limits(max_connections=120)
    async with httpx.AsyncClient(base_url=own.url, timeout=110, limits=limits, trust_env=False) as http_:
        http_.cookies.jar.set_policy(NoCookies())
        said = await asyncio.gather(*(one(http_, word) for word in words))
    for word, heard in said:
        assert f"{word}-0" in heard
        assert f"{word}-1" in heard
        assert not [other for other in words if other != word and other in heard]


class NoCookies(http.cookiejar.DefaultCookiePolicy):
    """Stores no cookies. Each session sends its own."""

    def set_ok(self, cookie: Any, request: Any) -> bool:
        return False


def nonsense(dice: random.Random, program: HttpVisitor) -> bytes:
    """Return a body similar to one of the page's, with a random fault."""
    odd: list[Any] = [
        None, True, -1, 2**70, 1e308, "", "\ud800", "\0", [], {}, [[]], {"path": "/etc/passwd"}, "x" * 5000,
        {"text": "\ud800"}, {"text": ["x"], "files": "x"}, {"index": [], "value": {}}, {"index": -5, "value": None},
    ]  # fmt: skip
    event = dice.choice([*program.events, *[one for one in program.events if one["id"] == program.chat] * 20])
    data = [dice.choice(odd) for _ in event["inputs"]]
    body: dict[str, Any] = {"session_hash": program.session, "fn_index": event["id"], "data": data}
    body["event_data"] = dice.choice(odd)
    if dice.random() < 0.5:
        body[dice.choice([*body, "trigger_id", "event_id", "oauth_token", "batched"])] = dice.choice(odd)
    text = json.dumps(body).encode()
    match dice.randrange(12):
        case 0:
            return text[: dice.randrange(len(text))]
        case 1:
            return b"[" * 30_000 + b"]" * 30_000
        case 2:
            return (
                json.dumps(body | {"data": []}).encode().replace(b"[]", b'[{"a":' + b"[" * 400 + b"]" * 400 + b"}]", 1)
            )
        case 3:
            return dice.randbytes(200)
        case 4:
            return text.replace(b"null", dice.choice([b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000]))
        case _:
            return text


def test_no_body_crashes_the_process(own: App) -> None:
    dice, program = random.Random(7), HttpVisitor(own.url)
    routes = [*["queue/join"] * 5, *["run/predict"] * 5, "cancel", "reset", "upload", "heartbeat/x", "component_server"]
    kinds = [*["application/json"] * 7, "text/plain", "multipart/form-data; boundary=b", ""]
    assert own.process is not None
    begun = answered = 0
    for _ in range(300):
        headers = {"content-type": dice.choice(kinds), "cookie": f"{cookie_name(own.url)}={program.cookie}"}
        _, given, text = send_raw(own, "POST", API + dice.choice(routes), nonsense(dice, program), **headers)
        assert given["content-security-policy"] == POLICY
        assert "Traceback" not in text
        begun += text.startswith('{"event_id"')
        answered += text.startswith('{"data"')
    assert begun > 3
    assert answered > 3
    assert program.listen().count("process_completed") == begun
    assert own.process.poll() is None
    word = marker()
    assert word in HttpVisitor(own.url).say(f"!text {word}")


# In real Chromium


class Beacon(BaseHTTPRequestHandler):
    """Answers all requests and records them."""

    def do_GET(self) -> None:
        self.server.hits.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-type", "text/html" if self.path == "/page" else "image/png")
        self.end_headers()
        self.wfile.write(b"<p>another site</p>" if self.path == "/page" else random_png())

    do_POST = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


class beacon:
    """Another site's server on loopback: its URL and its recorded requests."""

    def __enter__(self) -> tuple[str, list[str]]:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Beacon)
        self._server.hits = []  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}", self._server.hits  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.gate("No visitor sees another's conversation.")
@pytest.mark.browser
def test_second_page_shows_nothing_of_first(own: App, visit: Callable[..., Visitor]) -> None:
    first, second, word, other = visit(own.url, fresh=True), visit(own.url, fresh=True), marker(), marker()
    for visitor, mine in ((first, word), (second, other)):
        visitor.open_settings()
        visitor.page.get_by_label("System prompt").fill(f"system-{mine}")
        visitor.close_settings()
        files = [
            {"name": f"file-{mine}.txt", "mimeType": "text/plain", "buffer": f"content-{mine}".encode()},
            {"name": f"picture-{mine}.png", "mimeType": "image/png", "buffer": random_png()},
        ]
        visitor.page.locator("#composer input[type=file]").set_input_files(files)
        expect(visitor.page.locator("#composer .file")).to_have_count(2)
        visitor.ask(f"!text answer-{mine}")
    first.say(f"!tokens 9000 @20 !text {word}")
    expect(first.chat).to_contain_text("word7")
    second.page.reload()
    expect(second.chat).to_contain_text(f"answer-{other}")
    assert word not in second.page.content()
    second.page.locator("#new").click()
    second.ask("!echo")
    assert word not in second.page.content()
    first.stop.click()


@pytest.mark.gate("An answer loads nothing from other sites.")
@pytest.mark.browser
def test_answer_loads_nothing_from_elsewhere(browser: Browser, own: App) -> None:
    with beacon() as (url, hits):
        page = browser.new_context().new_page()
        page.add_init_script(
            "window.refused = []; addEventListener('securitypolicyviolation', e => refused.push(e.blockedURI))"
        )
        visitor = Visitor(page)
        visitor.open(own.url)
        visitor.ask(
            f"!text ![x]({url}/markdown.png) <img src={url}/html.png> <audio src={url}/a.wav autoplay></audio> "
            f"<video src={url}/v.mp4 autoplay></video> <link rel=stylesheet href={url}/s.css> <iframe src={url}/f>"
        )
        # The server escapes HTML. This is what a text could do that gets around it.
        page.evaluate(
            "src => document.querySelector('#chat .answer .part').append(Object.assign(new Image(), { src }))",
            f"{url}/html.png",
        )
        page.wait_for_function("url => refused.includes(`${url}/html.png`)", arg=url)
        assert hits == []
        page.context.close()
