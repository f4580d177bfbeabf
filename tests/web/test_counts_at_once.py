"""A limit lets no more pass if many requests come at the same moment: the check and the count are one step.

Each row of `LIMITS` is a limit of a public page. Forty requests of one visitor, or of one address, come at once.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from agent.settings import PublicSettings, UploadSettings
from agent.web.chat.links import MAX_LINKS
from agent.web.chat.temporary import CHATS_EACH
from agent.web.heavy_work import REQUESTS_EACH
from agent.web.link_routes import COPIES, PAGES_EACH
from agent.web.middleware.isolation import API
from agent.web.run_event_routes import STREAMS_PER_OWNER
from agent.web.transfer_routes import EXPORTS_PER_OWNER
from tests.support.asgi_requests import Asked, asked, running_app
from tests.support.scripted_server import Config, Running
from tests.support.waiting import until

SERVER = Config(rate=0, max_model_len=1_000_000)
MANY = 40
LONG = "!tokens 4000 hold 1 {}"
"""An answer that is being written until its name is released."""
MANY_ANSWERS: dict[str, int] = dict.fromkeys(("answers_each", "answers_per_address", "answers"), 100)
MANY_MESSAGES: dict[str, int] = dict.fromkeys(("messages", "messages_per_address", "messages_in_all"), 200)


@dataclass
class Page:
    """A public page, and a visitor with a chat."""

    app: FastAPI
    server: Running
    cookie: bytes = b""
    chat: str = ""
    token: str = ""
    run: asyncio.Future[str] = field(default_factory=asyncio.Future[str])
    refused: list[Asked] = field(default_factory=list[Asked])
    address: str = "127.0.0.1"

    async def ask(self, method: str, path: str, **more: Any) -> Asked:
        """Send a request of the visitor, and wait for the whole answer."""
        return await asked(self.app, method, path, waits=True, cookie=self.cookie, address=self.address, **more)

    async def begin(self, text: str, **more: Any) -> Asked:
        return await self.ask("POST", "/conversations", body=json.dumps({"text": text, **more}).encode())

    async def idle(self) -> None:
        """Wait until no answer is being written."""
        await until(lambda: not self.app.state.conversations.live_runs.count)


Request = Callable[[Page, int], Awaitable[Asked]]


@dataclass(frozen=True)
class Limit:
    """A request that is sent forty times, the number of them that may pass, and the settings for it."""

    request: Request
    most: int
    public: dict[str, Any] = field(default_factory=dict[str, Any])
    uploads: UploadSettings = field(default_factory=UploadSettings)
    passes: Callable[[Asked], bool] = lambda answer: 200 <= answer.status < 300
    many: int = MANY


def of_newcomers(request: Request) -> Request:
    """Return a request that each time another visitor of the same network address sends."""

    async def send(page: Page, number: int) -> Asked:
        first = await asked(page.app, "GET", "/", address=ADDRESS)
        return await request(replace(page, cookie=first.cookie, address=ADDRESS), number)

    return send


ADDRESS = "192.0.2.1"


def file(number: int, size: int = 10) -> bytes:
    """Return a form with a file."""
    head = f'--b\r\ncontent-disposition: form-data; name="files"; filename="{number}.txt"\r\n\r\n'
    return head.encode() + b"x" * size + b"\r\n--b--\r\n"


async def upload_small(page: Page, number: int) -> Asked:
    return await page.ask("POST", f"{API}upload", body=file(number))


async def upload_large(page: Page, number: int) -> Asked:
    return await page.ask("POST", f"{API}upload", body=file(number, 200_000))


async def say(page: Page, number: int) -> Asked:
    return await page.begin(f"!text {number}")


async def say_long(page: Page, number: int) -> Asked:
    return await page.begin(LONG.format(number))


async def large(page: Page, number: int) -> Asked:
    return await page.begin("word " * 30_000 + f"!text {number}")


async def link(page: Page, _number: int) -> Asked:
    return await page.ask("POST", f"/conversations/{page.chat}/links", body=b"{}")


async def export(page: Page, _number: int) -> Asked:
    return await page.ask("GET", "/export")


async def import_chat(page: Page, number: int) -> Asked:
    chat = [{"uuid": f"{number}", "name": "x", "chat_messages": [{"sender": "human", "text": "x"}] * 2}]
    return await page.ask("POST", "/import", body=json.dumps(chat).encode())


async def passage(page: Page, _number: int) -> Asked:
    body = json.dumps({"document": "x", "passage": "y"}).encode()
    return await page.ask("POST", f"/conversations/{page.chat}/passage", body=body)


async def copy(page: Page, _number: int) -> Asked:
    return await page.ask("POST", f"/s/{page.token}/continue")


async def read_link(page: Page, _number: int) -> Asked:
    return await page.ask("GET", f"/s/{page.token}")


async def temporary(page: Page, number: int) -> Asked:
    return await page.begin(f"!text {number}", temporary=True)


async def stream(page: Page, number: int) -> Asked:
    """Read the stream of an answer that ends once all streams but those that may be open are refused."""
    if not number:
        page.run.set_result(json.loads((await say_long(page, number)).text)["run"])
    answer = await page.ask("GET", f"/runs/{await page.run}/events")
    page.refused += [answer] if answer.status == 429 else []
    if len(page.refused) == MANY - STREAMS_PER_OWNER:
        page.server.release("0")
    return answer


async def own_data(page: Page, _number: int) -> Asked:
    return await page.ask("GET", "/own-data")


async def search(page: Page, _number: int) -> Asked:
    return await page.ask("GET", "/conversations", query="q=x")


async def rename(page: Page, number: int) -> Asked:
    return await page.ask("PATCH", f"/conversations/{page.chat}", body=json.dumps({"title": f"{number}"}).encode())


async def program(page: Page, number: int) -> Asked:
    body = {"messages": [{"role": "user", "content": f"!text {number}"}]}
    return await page.ask("POST", "/v1/chat/completions", body=json.dumps(body).encode())


def is_copied(answer: Asked) -> bool:
    return answer.status == 303


def is_imported(answer: Asked) -> bool:
    return answer.status == 200 and '"error"' not in answer.text


def is_counted(answer: Asked) -> bool:
    return answer.status != 429 and "Try again in" not in answer.text


ENOUGH = MANY_ANSWERS | MANY_MESSAGES
COUNTED = {"own data": own_data, "searches": search, "renames": rename, "passages": passage, "uploads": upload_small}
LIMITS: dict[str, Limit] = {
    "messages of a visitor": Limit(say, 9, ENOUGH | {"messages": 10}),
    "messages of an address": Limit(of_newcomers(say), 10, ENOUGH | {"messages_per_address": 10}),
    "messages of all": Limit(of_newcomers(say), 9, ENOUGH | {"messages_in_all": 10}),
    "answers of a visitor": Limit(say_long, 2, ENOUGH | {"answers_each": 2}),
    "answers of an address": Limit(of_newcomers(say_long), 4, ENOUGH | {"answers_per_address": 4}),
    "answers of all": Limit(of_newcomers(say_long), 8, ENOUGH | {"answers": 8}),
    "answers of programs": Limit(program, 2, ENOUGH | {"answers_each": 2}),
    "storage of a visitor": Limit(large, 16, ENOUGH | {"stored_mb_per_visitor": 2}),
    "storage of all": Limit(large, 16, ENOUGH | {"stored_mb_in_all": 2}),
    "bytes of uploads": Limit(upload_large, 9, uploads=UploadSettings(mb_per_visitor=2)),
    "links": Limit(link, MAX_LINKS - 1),
    "exports at once": Limit(export, EXPORTS_PER_OWNER),
    "imports at once": Limit(import_chat, 1, passes=is_imported),
    "copies at once": Limit(copy, 1, passes=is_copied),
    "copies of newcomers": Limit(of_newcomers(copy), COPIES, passes=is_copied),
    "pages of a link at once": Limit(read_link, PAGES_EACH),
    "streams": Limit(stream, STREAMS_PER_OWNER, ENOUGH),
    "temporary chats": Limit(temporary, CHATS_EACH, ENOUGH),
    **{name: Limit(one, REQUESTS_EACH, passes=is_counted, many=2 * REQUESTS_EACH) for name, one in COUNTED.items()},
}


@asynccontextmanager
async def opened(name: str, limit: Limit, tmp_path: Path, server: Running) -> AsyncIterator[Page]:
    """Yield the page with the settings of a limit, with a chat of the visitor that a link shows."""
    public = PublicSettings(**{"links": True, "api": True, **limit.public})
    async with running_app(tmp_path, server.base_url, public=public, uploads=limit.uploads) as app:
        page = Page(app, server)
        page.cookie = (await asked(app, "GET", "/")).cookie
        await until(lambda: app.state.conversations.models.find(""))
        page.chat = json.loads((await page.begin("!text pear")).text)["conversation"]
        await page.idle()
        if "link" in name or "copies" in name:
            page.token = json.loads((await link(page, 0)).text)["path"].removeprefix("/s/")
        yield page
        for number in range(MANY):
            server.release(f"{number}")
        await page.idle()


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
async def test_limit_holds_for_requests_at_once(name: str, tmp_path: Path, server: Running) -> None:
    limit = LIMITS[name]
    async with opened(name, limit, tmp_path, server) as page:
        answers = await asyncio.gather(*(limit.request(page, number) for number in range(limit.many)))
        passed = [answer for answer in answers if limit.passes(answer)]
        told = Counter(f"{answer.status} {answer.text[:80]}" for answer in answers if not limit.passes(answer))
    assert 1 <= len(passed) <= limit.most, told
    assert all(text.startswith("4") or "error" in text for text in told), told
