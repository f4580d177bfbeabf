"""The routes below `/conversations` of the running app, and the page at `/c/<id>`. Isolation is in `test_isolation`."""

import asyncio
import json
import re
import threading
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Limited
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.system.threads import LOOKS
from agent.web.app import create_app
from agent.web.conversation_routes import MAX_MARKDOWN_BODY
from agent.web.heavy_work import REQUESTS_EACH, REQUESTS_PER_ADDRESS, RequestLimit
from tests.conftest import App
from tests.support.asgi_requests import asked, routes_of, running_app
from tests.support.documents import pdf
from tests.support.http_client import HttpVisitor, send_raw
from tests.support.turn_edits import check_turn


async def test_answers_about_a_visitor_are_kept_by_no_cache(tmp_path: Path) -> None:
    """In process: an answer that sets a cookie is not cached anyway, so the visitor has one."""
    async with running_app(tmp_path) as app:
        cookie = (await asked(app, "GET", "/")).cookie
        for method, path in (
            ("GET", "/conversations"),
            ("GET", "/conversations/none"),
            ("POST", "/conversations"),
            ("POST", "/conversations/none/messages"),
            ("GET", "/own-data"),
            ("GET", "/export"),
            ("DELETE", "/temporary/none"),
        ):
            answer = await asked(
                app, method, path, body=b"{}", waits=True, cookie=cookie, content_type=b"application/json"
            )
            assert b"no-store" in dict(answer.headers)[b"cache-control"], f"{method} {path}"


async def test_choice_with_a_fault_stores_nothing(tmp_path: Path) -> None:
    async with running_app(tmp_path) as app:
        cookie, remembered = (await asked(app, "GET", "/")).cookie, app.state.conversations.remembered
        for fault, body in (
            ("effort must be", b'{"model": "openai:gpt-6-luna", "effort": "much"}'),
            ("model must be", b'{"model": " ", "effort": "low"}'),
            ("No model named", b'{"model": "nobody:x", "effort": "low"}'),
            ("effort must be", b'{"effort": 0, "tools": true}'),
            ("effort must be", b'{"tools": true, "effort": []}'),
            ("effort must be", b'{"effort": false, "max_tokens": 64}'),
            ("max_tokens", b'{"effort": "low", "max_tokens": 0}'),
            ("max_tokens", b'{"max_tokens": 0, "effort": "low"}'),
            ("tools", b'{"model": "openai:gpt-6-luna", "tools": "true"}'),
            ("tools", b'{"tools": "true", "temperature": 0.5}'),
            ("tools", b'{"temperature": 0.5, "tools": "true"}'),
        ):
            answer = await asked(app, "PATCH", "/settings", body=body, waits=True, cookie=cookie)
            assert (answer.status, fault in answer.text, len(remembered)) == (400, True, 0), answer.text
        body = b'{"model": "openai:gpt-6-luna", "effort": "low"}'
        assert (await asked(app, "PATCH", "/settings", body=body, waits=True, cookie=cookie)).status == 204
        assert len(remembered) == 1


async def test_no_route_lets_another_site_change_anything(tmp_path: Path) -> None:
    """The routes are those of the app itself, so a new one is tried without being listed."""
    statuses = dict[str, set[int]]()
    async with running_app(tmp_path, public=PublicSettings(links=True, api=True)) as app:
        cookie = (await asked(app, "GET", "/")).cookie
        for method, path in dict.fromkeys(routes_of(app.routes)):
            named, sites = re.sub(r"\{[^}]*\}", "0" * 32, path), statuses.setdefault(f"{method} {path}", set())
            if method not in ("GET", "HEAD"):
                for site in SITES:
                    sites.add((await asked(app, method, named, body=b"{}", waits=True, cookie=cookie, **site)).status)
    assert {route for route, found in statuses.items() if found - {403}} == set()
    assert sum(bool(found) for found in statuses.values()) > 25


SITES: tuple[dict[str, bytes], ...] = (
    {"origin": b"https://evil.example"},
    {"origin": b"null"},
    {"sec_fetch_site": b"cross-site"},
    {"sec_fetch_site": b"same-site"},
)
"""What browsers say of a page of another site."""


async def test_text_in_markdown_is_shown_and_kept_nowhere(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, local=LocalSettings(cache_dir=tmp_path, downloads=False))
    app = await create_app(settings, say=lambda _: None)
    async with app.router.lifespan_context(app):
        cookie = (await asked(app, "GET", "/")).cookie

        async def shown(body: bytes) -> Any:
            answer = await asked(app, "POST", "/markdown", body=body, waits=True, cookie=cookie)
            return json.loads(answer.text) if answer.status == 200 else answer.status

        text = "# Plan\n\n<script>1</script> [a](javascript:1) \ufdd01 x\ufdd1"
        assert await shown(json.dumps({"text": text}).encode()) == {
            "blocks": ["<h1>Plan</h1>\n", "<p>&lt;script&gt;1&lt;/script&gt; [a](javascript:1) \ufffd1 x\ufffd</p>\n"]
        }
        assert await shown(rb'{"text": "a \ud800 b"}') == {"blocks": ["<p>a \ufffd b</p>\n"]}
        wrong = (
            b"{}",
            b'{"text": 1}',
            b'{"text": "a", "id": "b"}',
            b"[]",
            b'{"text": "%s"}' % (b"a" * MAX_MARKDOWN_BODY),
        )
        for body in wrong:
            assert await shown(body) == 400


async def test_client_that_goes_ends_the_showing_of_a_text(tmp_path: Path) -> None:
    async with running_app(tmp_path) as app:
        cookie, free, gone = (await asked(app, "GET", "/")).cookie, threading.Event(), asyncio.Event()
        busy = [asyncio.create_task(LOOKS.run(free.wait)) for _ in range(2)]
        gone.set()
        body = b'{"text": "a"}'
        answer = await asked(app, "POST", "/markdown", body=body, waits=True, gone=gone, cookie=cookie)
        free.set()
        await asyncio.gather(*busy)
        assert answer.status == 499


def told(app: App, *texts: str) -> tuple[HttpVisitor, list[str]]:
    """Return a visitor with a conversation for each text, and their ids, the newest first."""
    visitor = HttpVisitor(app.url)
    for number, text in enumerate(texts):
        visitor.say(f"!text Yes. {text}", new=number > 0)
    return visitor, [row["id"] for row in listed(visitor)["conversations"]]


def listed(visitor: HttpVisitor, query: str = "") -> Any:
    answer = visitor.ask("GET", f"/conversations{query}")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


def test_owner_lists_changes_and_deletes(app: App) -> None:
    visitor, [third, second, first] = told(app, "First thing", "Second thing", "Third thing")
    path = f"/conversations/{second}"
    page = listed(visitor, "?limit=2")
    assert [row["id"] for row in page["conversations"]] == [third, second]
    assert page["next"] == 2
    assert [row["id"] for row in listed(visitor, "?offset=2&limit=2")["conversations"]] == [first]
    changed = visitor.ask("PATCH", path, json={"title": "Quite <another> title", "pinned": True})
    assert (changed.status, changed.json["title"], changed.json["pinned"]) == (200, "Quite <another> title", True)
    assert visitor.ask("GET", path).json == changed.json
    assert [row["id"] for row in listed(visitor)["pinned"]] == [second]
    for offset in ("-1", "99999999999999999999", "x"):
        assert visitor.ask("GET", f"/conversations?offset={offset}").status == 400
    [hit] = listed(visitor, "?q=second+THING")["hits"]
    assert (hit["id"], hit["excerpt"], hit["in_title"]) == (second, ["Yes. ", "Second", " ", "thing", ""], False)
    place = visitor.ask("GET", f"{path}/messages/{hit['entry']}").json
    assert (place["is_answer"], place["is_shown"], place["message"] != hit["entry"]) == (True, True, True)
    asked = visitor.ask("GET", f"{path}/messages/{place['message']}").json
    assert asked == place | {"is_answer": False}
    assert visitor.ask("GET", f"{path}/messages/nothing").status == 404
    assert HttpVisitor(app.url).ask("GET", f"{path}/messages/{hit['entry']}").status in (401, 404)
    assert visitor.ask("DELETE", path).status == 204
    assert visitor.ask("DELETE", path).status == 404
    assert listed(visitor, "?q=second")["hits"] == []
    assert visitor.ask("POST", path + "/restore").json == changed.json
    assert visitor.ask("POST", path + "/restore").status == 404
    assert [row["id"] for row in listed(visitor)["pinned"]] == [second]


def test_turns_are_read_as_blocks(app: App) -> None:
    visitor, [chat] = told(app, "First <b>")
    for number in range(2, 18):
        visitor.say(f"!text *Yes*. {number}", new=False)
    path = f"/conversations/{chat}"
    shown = visitor.ask("GET", f"{path}?format=blocks").json
    assert (shown["id"], shown["run"], shown["is_complete"]) == (chat, "", True)
    turns = list[Any]()
    while True:
        assert 1 <= len(shown["turns"]) <= 15
        turns = [*shown["turns"], *turns]
        if not shown["has_earlier"]:
            break
        shown = visitor.ask("GET", f"{path}?format=blocks&before={turns[0]['id']}").json
    assert len({turn["id"] for turn in turns}) == len(turns) == 17
    for turn in turns:
        check_turn(turn)
    assert turns[1]["bubbles"][1]["blocks"] == ["<p><em>Yes</em>. 2</p>\n"]
    assert turns[0]["bubbles"][0]["blocks"] == ["<p>!text Yes. First &lt;b&gt;</p>\n"]
    text = visitor.ask("GET", f"{path}/messages/{turns[1]['id']}/text").json
    assert text == {"message": "!text *Yes*. 2", "answer": "*Yes*. 2"}
    for wrong in (
        f"{path}?format=blocks&before=nothing",
        f"{path}/messages/nothing/text",
        "/conversations/x?format=blocks",
    ):
        assert visitor.ask("GET", wrong).status == 404


RENT = "The rent of the hall is 812 euros."


def test_passage_comes_on_a_picture_of_its_page(app: App) -> None:
    visitor = HttpVisitor(app.url)
    visitor.say("!text Yes.", visitor.upload("report.pdf", pdf(["Nothing.", RENT])))
    [row] = listed(visitor)["conversations"]
    path, asked = f"/conversations/{row['id']}/passage", {"document": "report.pdf", "page": 2, "passage": RENT}
    answer = visitor.ask("POST", path, json=asked)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json
    assert b64decode(found.pop("picture")).startswith(b"\x89PNG")
    assert found == {"document": "report.pdf", "page": 2, "count": 2, "is_found": True}
    for other in (HttpVisitor(app.url), HttpVisitor(app.url, None)):
        refused = other.ask("POST", path, json=asked)
        nowhere = other.ask("POST", path.replace(row["id"], "0" * 32), json=asked)
        assert refused.status in (401, 404)
        assert (refused.status, refused.text) == (nowhere.status, nowhere.text)
    for change, status, sentence in (
        ({"page": 3}, 400, "report.pdf has no page 3; it has 2."),
        ({"page": 0}, 400, "report.pdf has no page 0; it has 2."),
        ({"page": 10**15}, 400, "report.pdf has no page"),
        ({"document": "boat.pdf"}, 404, "This document is no longer in the chat."),
        ({"page": "2"}, 400, 'Send {"document"'),
        ({"page": True}, 400, 'Send {"document"'),
        ({"passage": None}, 400, 'Send {"document"'),
        ({"owner": "me"}, 400, 'Send {"document"'),
        ({"passage": "x" * 20_000}, 400, "The body is longer than"),
    ):
        refused = visitor.ask("POST", path, json=asked | change)
        assert refused.status == status, change
        assert refused.json["detail"].startswith(sentence)
    assert visitor.ask("POST", path, json=asked, headers={"sec-fetch-site": "cross-site"}).status in (401, 403)


def test_every_address_of_a_chat_answers_with_the_same_page(app: App) -> None:
    visitor, [conversation] = told(app, "A secret thing")

    def page(path: str, who: HttpVisitor) -> str:
        answer = who.ask("GET", path)
        assert answer.status == 200
        assert "A secret thing" not in answer.text
        return re.sub(r"[0-9a-f]{32}|\"app_id\": ?\d+", "", answer.text)

    own = page(f"/c/{conversation}", visitor)
    assert '<base href="/"' in own
    assert own == page("/", visitor)
    stranger = HttpVisitor(app.url)
    assert page(f"/c/{conversation}", stranger) == page(f"/c/{'0' * 32}", stranger)
    status, headers, _ = send_raw(app, "GET", f"/c/{conversation}")
    assert (status, "set-cookie" in headers) == (200, True)


def test_public_page_limits_searches_and_changes() -> None:
    time = 0.0
    limit = RequestLimit(clock=lambda: time)
    for _ in range(REQUESTS_EACH):
        limit.count("ann", "192.0.2.1")
    with pytest.raises(Limited, match="in 60 s"):
        limit.count("ann", "192.0.2.1")
    for number in range(REQUESTS_PER_ADDRESS - REQUESTS_EACH):
        limit.count(f"visitor {number}", "192.0.2.1")
    with pytest.raises(Limited):
        limit.count("bob", "192.0.2.1")
    limit.count("bob", "192.0.2.2")
    time = 60.0
    limit.count("ann", "192.0.2.1")


async def test_searches_of_visitors_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One visitor searches many times at once, and another one once, who waits for one search of the first at most."""
    async with running_app(tmp_path) as app:
        first, second = [(await asked(app, "GET", "/")).cookie for _ in range(2)]
        begun, gate, is_second_begun = list[str](), asyncio.Event(), asyncio.Event()

        async def slow(owner: str, query: str) -> list[Any]:
            begun.append(query)
            if query == "d":
                is_second_begun.set()
            await gate.wait()
            return []

        monkeypatch.setattr(app.state.conversations.list, "search", slow)
        asking = [
            asyncio.ensure_future(asked(app, "GET", "/conversations", f"q={query}", waits=True, cookie=cookie))
            for query, cookie in (("a", first), ("b", first), ("c", first), ("d", second))
        ]
        await is_second_begun.wait()
        assert begun == ["a", "d"]
        gate.set()
        await asyncio.gather(*asking)
        assert sorted(begun) == ["a", "b", "c", "d"]
