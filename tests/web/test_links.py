"""Read-only links over HTTP: what a link shows, to whom, until when, and the copies that its readers make."""

import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import httpx
import pytest
from fastapi import FastAPI
from pydantic_ai.messages import (
    DocumentUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from starlette.requests import Request

from agent.errors import AgentError, NotFound
from agent.files.parts import quoted_file
from agent.files.store import ROUTE, MediaStore, new_file_id
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.i18n.translator import ENGLISH
from agent.rendering.html import html_mark
from agent.settings import LocalSettings, Settings
from agent.transfer.document import beginning, blocks_of
from agent.transfer.html import to_html
from agent.web.chat.links import MAX_DAYS, MAX_LINKS, ChatLinks, LinkChoices
from agent.web.chat.transcript import to_turns
from agent.web.chat.turns import render_turn
from agent.web.conversation_routes import answer_error
from agent.web.link_routes import HEADERS, PAGES, POLICY, LinkPageRoutes, LinkRoutes, Site, to_link_page
from tests.conftest import CONFIG, App, becomes
from tests.support.asgi_requests import never
from tests.support.foreign_requests import last_message, stored_conversations
from tests.support.history_stores import chain, started
from tests.support.hostile_texts import HOSTILE as HOSTILE_TEXTS
from tests.support.http_client import HttpVisitor, cookie_name, marker, owner_in
from tests.support.media_files import random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running

SERVER = Config(models=(VISION_MODEL,), rate=2000.0)
ALL = {"attachments": True, "later_messages": True}


def chat(app: App, *texts: str, **options: Any) -> tuple[HttpVisitor, str]:
    """Return a visitor with a chat of these messages, and its id."""
    visitor = HttpVisitor(app.url)
    for text in texts:
        visitor.say(text, **options)
    [row] = visitor.ask("GET", "/conversations").json["conversations"]
    return visitor, row["id"]


def link(visitor: HttpVisitor, conversation: str, **choices: Any) -> str:
    """Make a link and return its path."""
    answer = visitor.ask("POST", f"/conversations/{conversation}/links", json=choices)
    assert answer.status == 200, answer.text
    return answer.json["path"]


def links(visitor: HttpVisitor, conversation: str) -> list[dict[str, Any]]:
    return visitor.ask("GET", f"/conversations/{conversation}/links").json["links"]


def read(app: App, path: str, **headers: str) -> httpx.Response:
    """Read a page as anybody who has its address."""
    return httpx.get(app.url + path, headers=headers, trust_env=False)


def go_on(app: App, path: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{app.url}{path}/continue", headers=headers, trust_env=False)


def test_link_shows_the_chat_without_cookie(own: App) -> None:
    word, prompt = marker(), marker()
    owner, conversation = chat(own, f"!think Seen thoughts !text **{word}** & <b>", system_message=prompt)
    path = link(owner, conversation)
    assert re.fullmatch(r"/s/[0-9A-Za-z_-]{32}", path)
    page = read(own, path, **{"accept-language": "de"})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert f"<strong>{word}</strong> &amp; &lt;b&gt;" in page.text
    assert "Seen thoughts" in page.text
    assert '<html lang="de">' in page.text
    assert "<script" not in page.text
    assert "<h2>Verfasser dieses Chats</h2>" in page.text
    assert re.search(r">Link nur zum Lesen · \d{1,2}\. \w+ 20\d\d</p>", page.text)
    for hidden in (prompt, conversation, owner_in(owner.cookie or ""), *stored_ids(own, conversation)):
        assert hidden not in page.text
    assert "set-cookie" not in page.headers
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["x-robots-tag"] == "noindex, nofollow"
    assert page.headers["referrer-policy"] == "same-origin"
    assert "default-src 'none'; style-src 'sha256-" in page.headers["content-security-policy"]
    tags = dict(re.findall(r'<meta (?:property|name)="([^"]+)" content="([^"]*)">', page.text))
    assert tags["og:title"].startswith("!think Seen thoughts")
    assert word in tags["og:description"]
    assert tags["og:image"] == f"{own.url}/preview.png"
    assert tags["og:url"] == own.url + path
    assert tags["robots"] == "noindex, nofollow"
    assert read(own, "/preview.png").headers["content-type"] == "image/png"
    assert httpx.head(own.url + path, trust_env=False).status_code == 200


def stored_ids(app: App, conversation: str) -> list[str]:
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        rows = db.execute("SELECT id FROM entries WHERE conversation_id = ?", [conversation]).fetchall()
    db.close()
    return [row[0] for row in rows]


def test_rest_is_shown_only_if_chosen(own: App) -> None:
    owner, word, later, prompt = HttpVisitor(own.url), marker(), marker(), marker()
    picture = random_png()
    owner.say("!tokens 3", owner.upload("p.png", picture), owner.upload("notes.txt", word.encode()))
    [row] = owner.ask("GET", "/conversations").json["conversations"]
    conversation = row["id"]
    [kept] = [path.name for path in (own.folder / "data" / "media" / owner_in(owner.cookie or "")).glob("[!.]*")]
    little, much = link(owner, conversation), link(owner, conversation, **ALL, system_prompt=f" {prompt} ")
    owner.say(f"!text {later}")
    first, second = read(own, little), read(own, much)
    for hidden in (word, later, prompt, kept, "notes.txt"):
        assert hidden not in first.text
    assert first.text.count("An attachment that is not part of this link.") == 2
    for shown in (word, later, f"<pre>{prompt}</pre>", f'src="{much}/files/{kept}"', "notes.txt"):
        assert shown in second.text
    file = read(own, f"{much}/files/{kept}")
    assert (file.status_code, file.headers["content-type"]) == (200, "image/png")
    assert file.headers["cache-control"] == "no-store"
    assert file.content.startswith(picture[:8])
    other = HttpVisitor(own.url)
    other.say("!text Other", other.upload("q.png", random_png()))
    [theirs] = [path.name for path in (own.folder / "data" / "media" / owner_in(other.cookie or "")).glob("[!.]*")]
    owner.say("!text Third", owner.upload("r.png", random_png()), new=True)
    mine = {path.name for path in (own.folder / "data" / "media" / owner_in(owner.cookie or "")).glob("[!.]*")}
    [elsewhere] = mine - {kept}
    refused = [f"{little}/files/{kept}", *(f"{much}/files/{id_}" for id_ in (theirs, elsewhere, "x.png"))]
    assert [read(own, path).status_code for path in refused] == [404] * 4


def test_title_tells_of_no_hidden_version(own: App) -> None:
    """The first words of an edited message, and a title that the model wrote of them, stay with their version."""
    hidden, seen = marker(), marker()
    owner, conversation = chat(own, f"!text {hidden}")
    message = last_message(owner, conversation, hidden)
    paths, mine = list[str](), f"/conversations/{conversation}"
    assert owner.ask("PATCH", f"{mine}/messages/{message}", json={"text": f"!text {seen}"}).status == 200
    becomes("", lambda: owner.ask("GET", f"/conversations/{conversation}").json["state"])
    for title in (f"!text {hidden}", f"About {hidden}"):
        assert owner.ask("PATCH", mine, json={"title": title}).status == 200
        shown = last_message(owner, conversation, seen)
        assert owner.ask("POST", f"{mine}/messages/{shown}/copy").status == 200
        rows = owner.ask("GET", "/conversations").json["conversations"]
        assert owner.ask("GET", mine).json["title"] == title
        paths += [link(owner, row["id"]) for row in rows]
    assert len(paths) == 5
    for path in paths:
        page = read(own, path).text
        assert seen in page
        assert hidden not in page
        copied = go_on(own, path)
        reader, copy = copy_of(copied, own)
        assert hidden not in reader.ask("GET", f"/export/{copy}").text
    assert owner.ask("PATCH", mine, json={"title": "Ships"}).status == 200
    assert owner.ask("POST", f"{mine}/messages/{message}/show").status == 204
    assert "<title>Ships</title>" in read(own, link(owner, conversation)).text


def test_title_of_branch_tells_of_no_file(own: App) -> None:
    """The name of an attached file, and its first words in old titles, with the number of a branch, are in no link."""
    owner, word = HttpVisitor(own.url), marker()
    owner.say("", owner.upload(f"{word}.txt", f"{word} and more".encode()))
    [row] = owner.ask("GET", "/conversations").json["conversations"]
    old = beginning(quoted_file(f"{word}.txt", f"{word} and more"))
    assert row["title"] == f"{word}.txt"
    for title in (row["title"], old):
        assert owner.ask("PATCH", f"/conversations/{row['id']}", json={"title": title}).status == 200
        path = f"/conversations/{row['id']}/messages/{last_message(owner, row['id'], word)}/copy"
        assert owner.ask("POST", path).status == 200
        branch = owner.ask("GET", "/conversations").json["conversations"][0]
        assert branch["title"] == f"{title} (2)"
        for conversation in (row["id"], branch["id"]):
            page = read(own, link(owner, conversation)).text
            titles = re.findall(r"<title>.*?</title>|<h1.*?</h1>|og:title[^>]*", page)
            assert len(titles) == 3
            assert word not in "".join(titles)
    assert f"<title>{word}.txt</title>" in read(own, link(owner, row["id"], attachments=True)).text


HOSTILE = '''"><script>alert(1)</script></title><img src=x onerror=alert(1)>'"'''


def test_nothing_of_a_chat_becomes_markup(own: App) -> None:
    """The title is in the head, in attributes and in the text, and the answer in the description."""
    owner, conversation = chat(own, f"!text {HOSTILE} [x](javascript:alert(1)) ![y](https://evil.example/y.png)")
    assert owner.ask("PATCH", f"/conversations/{conversation}", json={"title": HOSTILE}).status == 200
    path = link(owner, conversation, system_prompt=f"</pre></details>{HOSTILE}")
    seen = Tags()
    seen.feed(read(own, path).text)
    assert {"script", "iframe", "object"}.isdisjoint(tag for tag, _ in seen.tags)
    assert [given["src"] for tag, given in seen.tags if tag == "img"] == ["/mark.svg"]
    for tag, given in seen.tags:
        assert not any(name.startswith("on") for name in given), tag
        assert not str(given.get("href", "")).startswith("javascript"), tag
    titles = [given["content"] for _, given in seen.tags if given.get("property") == "og:title"]
    assert titles == [" ".join(HOSTILE.split())]
    assert all(given.get("rel") == "noopener noreferrer" for _, given in seen.tags if "evil" in str(given.get("href")))


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def entries_with(text: str, place: str) -> list[Entry]:
    """Return a chat that has this text in one place, and a harmless one in the others."""
    told = dict.fromkeys(("file name", "tool name", "argument", "result", "model name"), "word") | {place: text}
    read = TextContent("Read.", metadata={"read": "Read.", "kind": "document", "name": told["file name"]})
    file = DocumentUrl(ROUTE + new_file_id("text/plain"), media_type="text/plain", identifier=told["file name"])
    call = ToolCallPart(told["tool name"], {"a": told["argument"]}, "1")
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart(["Hi", file, read])]),
        ModelResponse([call], model_name=told["model name"]),
        ModelRequest([ToolReturnPart(told["tool name"], told["result"], "1")]),
        ModelResponse([TextPart("Done.")], model_name=told["model name"]),
    ]
    return chain(*messages)


async def tags_with(text: str, place: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Return the tags of the link page, of the exported page and of the chat, with the names of their attributes."""
    store, entries = MemoryStore(), entries_with(text, place)
    conversation = Conversation(owner="ann", title=text if place == "title" else "word", head_id=entries[-1].id)
    conversation = await store.save(conversation, entries)
    links = ChatLinks(store, Settings(local=LocalSettings()))
    prompt = text if place == "system prompt" else "word"
    token, _ = await links.create("ann", conversation.id, LinkChoices(days=None, with_files=True, system_prompt=prompt))
    shared = await links.open(token)

    async def file_url(_: str) -> AsyncIterator[str]:
        yield "/file"

    site = Site(title=text if place == "name of the site" else "word", root="http://a.example")
    blocks = blocks_of(entries, ENGLISH, html_mark)
    pages = {
        "link page": [one async for one in to_link_page(shared, "http://a.example/s/x", site, file_url, ENGLISH)],
        "exported page": [one async for one in to_html(conversation.title, "", blocks, file_url, ENGLISH)],
        "chat": [html for turn in to_turns(entries) for one in render_turn(turn)["bubbles"] for html in one["blocks"]],
    }
    out = dict[str, list[tuple[str, list[str]]]]()
    for name, pieces in pages.items():
        seen = Tags()
        seen.feed("".join(pieces))
        out[name] = [(tag, [*given]) for tag, given in seen.tags]
    return out


PLACES = ("title", "system prompt", "name of the site", "file name", "tool name", "argument", "result", "model name")


@pytest.mark.parametrize("place", PLACES)
async def test_hostile_text_is_no_markup_in_any_place(place: str) -> None:
    harmless = await tags_with("word", place)
    for text in HOSTILE_TEXTS:
        assert await tags_with(text, place) == harmless, text


async def test_link_is_revoked_only_in_its_own_chat() -> None:
    store = MemoryStore()
    links = ChatLinks(store, Settings(local=LocalSettings()))
    (one, _), (other, _) = [await started(store, "Yes", owner="ann") for _ in range(2)]
    _, made = await links.create("ann", one.id, LinkChoices(days=None))
    with pytest.raises(NotFound):
        await links.revoke("ann", other.id, made.digest)
    assert [link.digest for link in await links.list("ann", one.id)] == [made.digest]
    await links.revoke("ann", one.id, made.digest)
    assert await links.list("ann", one.id) == []


def test_page_of_a_link_is_kept_and_framed_by_nobody() -> None:
    assert HEADERS["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in POLICY.split("; ")


@pytest.mark.parametrize(
    ("bodies", "statuses"),
    [
        ([{"days": days} for days in (0, 1, MAX_DAYS, MAX_DAYS + 1, True)], [400, 200, 200, 400, 400]),
        ([{"system_prompt": "x" * 20_001}, {"attachments": "no"}, {"owner": "me"}, []], [400] * 4),
        ([{}] * (MAX_LINKS + 1), [200] * MAX_LINKS + [429]),
    ],
    ids=["ten years at most", "bad choices", "number of links"],
)
async def test_link_has_limits(bodies: list[Any], statuses: list[int]) -> None:
    store = MemoryStore()
    conversation, _ = await started(store, "Yes", owner="ann")
    app = FastAPI(exception_handlers={AgentError: answer_error})
    links = ChatLinks(store, Settings(local=LocalSettings()))
    LinkRoutes(links, lambda _: "ann", AsyncMock(return_value=False)).add_to(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = [await client.post(f"/conversations/{conversation.id}/links", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == statuses
    assert len(await links.list("ann", conversation.id)) == statuses.count(200)


async def test_pages_that_are_written_at_once_are_limited(tmp_path: Path) -> None:
    """A reader who takes nothing holds the memory of a conversation, as with exports."""
    store, settings = MemoryStore(), Settings(local=LocalSettings())
    links = ChatLinks(store, settings)
    conversation, _ = await started(store, "Yes", owner="ann")
    token, _ = await links.create("ann", conversation.id, LinkChoices(days=None))
    routes = LinkPageRoutes(links, cast(Any, None), MediaStore(tmp_path), settings)

    async def opened(address: str | None) -> tuple[int, AsyncGenerator[bytes]]:
        headers = [(b"host", b"chat.example")]
        scope = {"type": "http", "method": "GET", "path": f"/s/{token}", "path_params": {"token": token}}
        more = {"headers": headers, "query_string": b"", "state": {"address": address}, "root_path": ""}
        said: Any = await routes.page(Request({**scope, **more}, never))
        pieces = said.body_iterator if said.status_code == 200 else _nothing()
        async for _piece in pieces:
            break
        return said.status_code, pieces

    held = [await opened("192.0.2.1") for _ in range(PAGES)]
    assert [status for status, _ in held].count(200) == PAGES // 2
    others = [await opened(f"192.0.2.{number}") for number in range(2, 2 + PAGES // 4)]
    assert {status for status, _ in others} == {200}
    unknown = [await opened(None) for _ in range(PAGES)]
    assert {status for status, _ in unknown} == {200, 429}
    for _, pieces in [*held, *others, *unknown]:
        await pieces.aclose()
    assert (await opened("192.0.2.1"))[0] == 200


async def _nothing() -> AsyncGenerator[bytes]:
    return
    yield b""


def test_dead_links_have_one_answer(own: App) -> None:
    owner, conversation = chat(own, "!text Yes")
    short, revoked, deleted = (link(owner, conversation, days=days) for days in (1e-7, 3, None))
    becomes(404, lambda: read(own, short).status_code)
    [first, last] = links(owner, conversation)
    path = f"/conversations/{conversation}/links"
    assert datetime.fromisoformat(first["expires_at"]) - datetime.now(UTC) < timedelta(days=3)
    assert owner.ask("DELETE", f"{path}/{first['id']}").status == 204
    assert owner.ask("DELETE", f"{path}/{first['id']}").status == 404
    assert links(owner, conversation) == [last]
    assert read(own, deleted).status_code == 200
    owner.ask("DELETE", f"/conversations/{conversation}")
    answers = [read(own, path) for path in ("/s/made-up", short, revoked, deleted)]
    assert {(one.status_code, one.text) for one in answers} == {(404, answers[0].text)}
    assert {name: value for name, value in answers[3].headers.items() if name != "date"} == {
        name: value for name, value in answers[0].headers.items() if name != "date"
    }
    assert "This link does not work" in answers[0].text
    assert [go_on(own, path).status_code for path in ("/s/made-up", short, revoked, deleted)] == [404] * 4
    owner.ask("POST", f"/conversations/{conversation}/restore")
    assert read(own, deleted).status_code == 200  # an undone deletion
    owner.ask("DELETE", "/own-data")
    assert read(own, deleted).text == answers[0].text


def copy_of(answer: httpx.Response, app: App) -> tuple[HttpVisitor, str]:
    """Return the reader, known by the cookie of the answer, and the id of the copy."""
    assert answer.status_code == 303, answer.text
    name, _, cookie = answer.headers["set-cookie"].split(";")[0].partition("=")
    assert name == cookie_name(app.url)
    return HttpVisitor(app.url, cookie), answer.headers["location"].removeprefix("/c/")


@pytest.mark.parametrize("with_files", [False, True])
def test_newcomer_continues_in_a_copy(own: App, with_files: bool) -> None:
    owner, word, prompt, noted = HttpVisitor(own.url), marker(), marker(), marker()
    owner.say(f"!tokens 3 {word}", owner.upload("p.png", random_png()), owner.upload("n.txt", noted.encode()))
    [row] = owner.ask("GET", "/conversations").json["conversations"]
    path = link(owner, row["id"], attachments=with_files, system_prompt=prompt)
    owner.say(later := f"!text {marker()}")
    reader, copied = copy_of(go_on(own, path), own)
    assert [one["id"] for one in reader.ask("GET", "/conversations").json["conversations"]] == [copied]
    assert copied != row["id"]
    export = reader.ask("GET", f"/export/{copied}").text
    assert word in export
    assert (noted in export, '"file":' in export) == (with_files, with_files)
    for hidden in (owner_in(owner.cookie or ""), row["id"], later, *stored_ids(own, row["id"])):
        assert hidden not in export
    assert stored_conversations(own)[row["id"]][1] == 4
    again = httpx.post(f"{own.url}{path}/continue", headers=dict(reader.http.headers), trust_env=False)
    assert (again.status_code, again.headers.get("set-cookie")) == (303, None)
    assert len(reader.ask("GET", "/conversations").json["conversations"]) == 2


def test_running_answer_is_stopped_in_a_copy(own: App) -> None:
    owner, conversation = chat(own, "!text Yes")
    path = link(owner, conversation, later_messages=True)
    owner.begin("!tokens 4000 @20")
    reader, copied = copy_of(go_on(own, path), own)
    page = reader.ask("GET", f"/export/{copied}?format=html").text
    assert "!tokens 4000" in page
    assert "Stopped." in page


PUBLIC = CONFIG + "[public]\non = true\n"


def page_texts(visitor: HttpVisitor) -> str:
    """Return the texts of the page's modules."""
    [path] = re.findall(r'href="([^"]*/assets/texts-[^"]*\.js)"', visitor.ask("GET", "/").text)
    return visitor.ask("GET", path).text


@pytest.mark.slow
def test_public_page_has_links_only_if_allowed(start_app: Callable[..., App], server: Running) -> None:
    app = start_app(PUBLIC + "links = true\n", VLLM_BASE_URL=server.base_url)
    owner, conversation = chat(app, "!text Yes")
    path = link(owner, conversation)
    assert "links = true" in page_texts(owner)
    assert read(app, path).status_code == 200
    assert go_on(app, path).status_code == 303
    app.stop()
    (app.folder / "app.toml").write_text(PUBLIC)
    app.start()
    for method in ("GET", "POST"):
        answer = owner.ask(method, f"/conversations/{conversation}/links", json={} if method == "POST" else None)
        assert (answer.status, answer.json["detail"]) == (404, "Links to chats are turned off on this page.")
    assert [one.status_code for one in (read(app, path), go_on(app, path))] == [404, 404]
    assert "links = false" in page_texts(owner)  # no entry in the menu
