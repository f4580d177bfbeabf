"""Temporary chats: nothing of them is stored, only their visitor reaches them, and they are erased."""

import gc
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock
from weakref import ref

import pytest
from fastapi import FastAPI
from pydantic_ai.messages import BinaryContent
from starlette.types import Receive, Scope, Send

from agent.errors import AgentError, Conflict, HistoryError, InputError, Limited, NotFound
from agent.files.places import LocalFolder
from agent.files.references import reference_of
from agent.history import Conversation, HistoryStore, Link, RunEvent, RunEvents
from agent.i18n.translator import ENGLISH
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.settings import LocalSettings, Settings
from agent.tools.function_tools import ask_user, tool
from agent.transfer.export import Exporter
from agent.web.app import build_conversations
from agent.web.chat.choices import Choices
from agent.web.chat.own_data import OwnData, OwnDataSummary
from agent.web.chat.stored_entries import TEMPORARY_GONE
from agent.web.chat.temporary import CHATS, CHATS_EACH, GONE_SECONDS, TemporaryChats
from agent.web.chat.temporary_stores import (
    NO_LINKS,
    TemporaryMedia,
    TemporaryMemory,
    TemporaryStore,
    is_temporary,
    new_temporary_id,
)
from agent.web.chat.transcript import is_prompt
from agent.web.chat.visitor import Visitor
from agent.web.message_routes import MessageRoutes
from tests.conftest import App, becomes
from tests.support.asgi_requests import asked
from tests.support.history_laws import Law, check, laws_for
from tests.support.history_stores import STORES, TEMPORARY, Clock, subject_name
from tests.support.http_client import HttpVisitor, marker
from tests.support.media_files import random_png
from tests.support.models import FakeLocalModels
from tests.support.scripted_server import Config, Running
from tests.support.temporary_chats import begin_temporary
from tests.support.views import settle, view_of

ANN, BOB = Visitor(owner="ann"), Visitor(owner="bob")
SERVER = Config(rate=2000.0, models=("plain",))
SPEC = ModelSpec(id="local:plain", name="plain", label="Plain", provider="vllm", image=True, tools="native")
WORD = "quizzaciously"
PICTURE = random_png()
EMPTY = OwnDataSummary()


@tool
def draw() -> BinaryContent:
    """Draw something."""
    return BinaryContent(PICTURE, media_type="image/png", identifier="drawing")


class Seconds:
    """A clock that stands still until a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class House:
    """The chats of a server with this store: everything that the application builds, without its page."""

    def __init__(self, folder: Path, kept: HistoryStore, endpoint: str, max_bytes: int = 10_000_000) -> None:
        self.folder, self.kept, self.clock = folder, kept, Seconds()
        self.memory = TemporaryMemory(max_bytes)
        self.store = TemporaryStore(kept, self.memory)
        self.media = TemporaryMedia(LocalFolder(folder / "media"), self.memory)
        models = FakeLocalModels(served=(ServedModel(SPEC, Endpoint(endpoint)),))
        settings = Settings(titles=True, local=LocalSettings(cache_dir=folder, downloads=False))
        tools = [ask_user, draw]
        self.page = build_conversations(settings, self.store, self.media, models, tools, memory=self.memory)
        forget = self.page.temporary.forget
        temporary = TemporaryChats(self.memory, self.page.live_runs, forget, self.clock)
        self.page.temporary = self.page.runs.temporary = temporary
        self.page.branches._temporary = self.page.temporary

    async def begin(self, visitor: Visitor = ANN) -> str:
        return (await self.page.temporary.begin(visitor)).id

    async def say(self, chat: str | None, text: str, visitor: Visitor = ANN, **more: object) -> None:
        """Send a message and wait for the end of its answer."""
        live = await self.page.send(visitor, chat, {"text": text, **more}, Choices(tools=True))
        assert live is not None
        await live.run
        await self.ended()

    async def ended(self) -> None:
        await settle(self.page)

    async def last_prompt(self, chat: str, owner: str = "ann") -> str:
        conversation = await self.store.get(chat, owner=owner)
        return next(entry.id for entry in reversed(await self.store.history(conversation)) if is_prompt(entry))

    async def assert_nothing_kept(self) -> None:
        assert await self.kept.list("ann") == []
        assert await self.kept.search("ann", WORD) == []
        assert await self.kept.retention.size() == 0
        assert await self.kept.runs.unfinished() == []
        assert await self.media.files("ann") == {}
        assert marked_files(self.folder) == []


def marked_files(folder: Path) -> list[Path]:
    """Return the files below the folder with a word or the picture of a temporary chat."""
    return [path for path in folder.rglob("*") if path.is_file() and is_marked(path.read_bytes())]


def is_marked(data: bytes) -> bool:
    return WORD.encode() in data or PICTURE[:64] in data


@pytest.fixture
async def house(server: Running, tmp_path: Path) -> AsyncIterator[House]:
    kept = await STORES["sqlite"](tmp_path, Clock())
    made = House(tmp_path, kept, server.base_url)
    yield made
    await made.page.aclose()
    await made.store.aclose()


async def test_whole_chat_stores_nothing(house: House, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page, chat = house.page, await house.begin()
    (sent := tmp_path / "sent.png").write_bytes(random_png())
    await house.say(chat, f"!text {WORD}", files=[str(sent)])
    await house.say(chat, f"!tool draw !text {WORD}")
    await house.say(chat, f'!tool ask_user {{"question": "{WORD}?"}} !echo')
    assert await page.answer(ANN, chat, f"yes, {WORD}", Choices()) is not None
    await house.ended()
    assert "yes, " in str((await view_of(page, "ann", chat)).texts)
    await page.retry(ANN, chat, await house.last_prompt(chat), Choices(tools=True))
    await house.ended()
    await page.edit(ANN, chat, await house.last_prompt(chat), f"!text Edited {WORD}", Choices())
    await house.ended()
    edited = await house.last_prompt(chat)
    assert "Edited" in await page.undo("ann", chat, edited)
    await page.branches.choose("ann", chat, edited)
    copied = await page.branches.copy(ANN, chat, edited)
    assert is_temporary(copied)
    shown = [str((await view_of(page, "ann", one)).texts) for one in (chat, copied)]
    assert "Edited" in shown[0]
    assert shown[1].count('"media/') == shown[0].count('"media/') == 2
    await house.assert_nothing_kept()
    erased = [ref(house.memory.chats[one]) for one in (chat, copied)]
    page.temporary.erase_all("ann")
    gc.collect()
    assert [one() for one in erased] == [None, None]
    await house.assert_nothing_kept()
    await page.aclose()
    await house.store.aclose()
    assert marked_files(tmp_path) == []
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_others_do_not_reach_it(house: House) -> None:
    page, chat = house.page, await house.begin()
    await house.say(chat, f"!tool draw !text {WORD}")
    [file] = house.memory.chats[chat].place.files("ann")
    live = await page.send(ANN, chat, {"text": "!stall-after 5"}, Choices())
    assert live is not None
    assert (await page.views.view("bob", chat)).is_missing
    assert page.live_runs.find(live.run.id, "bob") is None
    refused: list[tuple[type[AgentError], Callable[[], object]]] = [
        (NotFound, lambda: house.store.get(chat, owner="bob")),
        (NotFound, lambda: house.store.runs.events(live.run.id, owner="bob")),
        (NotFound, lambda: house.store.links.of(chat, owner="bob")),
        (NotFound, lambda: house.store.label(chat, owner="bob", title="Mine")),
        (NotFound, lambda: house.store.delete(chat, owner="bob")),
        (NotFound, lambda: house.store.save(Conversation(id=chat, owner="bob", revision=1))),
        (NotFound, lambda: house.media.find("bob", file.name)),
        (NotFound, lambda: house.media.read("bob", file.name)),
        (NotFound, lambda: house.media.add("bob", BinaryContent(b"x", media_type="text/plain"), reference_of(chat))),
        (NotFound, lambda: page.list.delete("bob", chat)),
        (NotFound, lambda: Exporter(house.store, house.media, "bob", ENGLISH).one(chat, "json")),
    ]
    for error, call in refused:
        with pytest.raises(error):
            await call()  # pyright: ignore[reportGeneralTypeIssues]
    with pytest.raises(NotFound):
        page.temporary.keep("bob", chat)
    with pytest.raises(NotFound):
        page.temporary.leave("bob", chat)
    page.temporary.erase_all("bob")
    assert await house.store.entries(Conversation(id=chat, owner="bob")) == []
    assert not await house.store.retention.erase(Conversation(id=chat, owner="bob", revision=1))
    assert house.memory.get(chat, "ann").is_left is False
    assert not live.run.done
    await page.running.stop([chat], "ann")
    await house.ended()
    with pytest.raises(Conflict, match="over"):
        await house.say(chat, WORD, BOB)
    assert await house.kept.list("bob") == []


async def test_chat_is_erased_when_its_page_has_gone(house: House, caplog: pytest.LogCaptureFixture) -> None:
    page, chat, other = house.page, await house.begin(), await house.begin(BOB)
    live = await page.send(ANN, chat, {"text": f"!stall-after 5 {WORD}"}, Choices())
    assert live is not None
    while not live.log.bubbles:
        await live.run.wait_for_update(live.log.seen, timeout=1.0)
    house.clock.now += GONE_SECONDS - 1
    page.temporary.sweep()
    page.temporary.keep("bob", other)
    assert not live.run.done
    house.clock.now += 1
    page.temporary.sweep()
    assert [*house.memory.chats] == [other]
    result = await live.run
    assert result.finish_reason != "stop"
    await house.ended()
    assert (await page.views.view("ann", chat)).is_missing
    with pytest.raises(NotFound):
        page.temporary.keep("ann", chat)
    with pytest.raises(Conflict, match="was not sent"):
        await house.say(chat, WORD)
    await house.assert_nothing_kept()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_message_that_is_being_read_is_refused_after_the_end(house: House) -> None:
    chat = await house.begin()
    conversation = await house.store.get(chat, owner="ann")
    house.page.temporary.erase_all("ann")
    with pytest.raises(NotFound):
        await house.store.save(replace(conversation, title=WORD))
    with pytest.raises(HistoryError):
        await house.media.add("ann", BinaryContent(PICTURE, media_type="image/png"), reference_of(chat, "entry"))
    await house.assert_nothing_kept()


async def test_events_of_an_answer_are_in_memory(house: House) -> None:
    chat, event = await house.begin(), RunEvent.of(1, {"type": "output_text", "content": WORD})
    events = RunEvents(run_id="run", conversation_id=chat, owner="ann", events=[event])
    await house.store.runs.append(events)
    assert await house.store.runs.events("run", owner="ann") == [event]
    with pytest.raises(NotFound):
        await house.kept.runs.events("run", owner="ann")
    await house.assert_nothing_kept()


async def test_it_cannot_be_shared_but_exported(house: House) -> None:
    chat = await house.begin()
    await house.say(chat, f"!text {WORD}")
    link = Link(digest="0" * 64, conversation_id=chat, owner="ann")
    for refused in (house.store.links.put(link), house.store.links.of(chat, owner="ann")):
        with pytest.raises(InputError, match=str(NO_LINKS)[:30]):
            await refused
    exporter = Exporter(house.store, house.media, "ann", ENGLISH)
    one = [piece async for piece in (await exporter.one(chat, "json")).pieces]
    every = [piece async for piece in (await exporter.all("markdown")).pieces]
    assert WORD.encode() in b"".join(one)
    assert WORD.encode() not in b"".join(every)


async def test_own_data_ends_it(house: House) -> None:
    chat = await house.begin()
    live = await house.page.send(ANN, chat, {"text": "!stall-after 5"}, Choices())
    assert live is not None
    own_data = OwnData(house.page, house.store, house.media)
    assert await own_data.summary("ann") == EMPTY
    await own_data.delete_all("bob")
    assert [*house.memory.chats] == [chat]
    assert await own_data.delete_all("ann") == EMPTY
    assert house.memory.chats == {}
    await live.run


async def test_number_of_chats_is_limited(house: House) -> None:
    chats, there = house.page.temporary, Visitor(owner="ann", address="9.9.9.9")
    first, second = [await house.begin(there) for _ in range(CHATS_EACH)]
    with pytest.raises(Limited, match=f"{CHATS_EACH} temporary chats"):
        await house.begin(there)
    chats.leave("ann", first)
    chats.leave("ann", second)
    chats.keep("ann", first)  # another page shows it
    third = await house.begin(there)
    assert [*house.memory.chats] == [first, third]
    robots = [Visitor(owner=f"robot{number}", address="9.9.9.9") for number in range(CHATS // 2)]
    for robot in robots[:-2]:
        await house.begin(robot)
    with pytest.raises(Limited, match="no room"):
        await house.begin(robots[-1])
    await house.begin(Visitor(owner="other", address="8.8.8.8"))


async def test_memory_is_limited(server: Running, tmp_path: Path) -> None:
    kept = await STORES["sqlite"](tmp_path, Clock())
    house = House(tmp_path, kept, server.base_url, max_bytes=100_000)
    chat, there = await house.begin(), await house.begin(BOB)
    (large := tmp_path / "large.txt").write_text(f"{WORD} " * 8_000)
    with pytest.raises(Limited, match="no room"):
        await house.say(chat, "!text Hello.", files=[str(large)])
    large.unlink()
    with pytest.raises(OSError, match="no room"):
        house.memory.chats[chat].place.write("ann/file", bytes(100_001))
    await house.say(chat, "!text " + "w" * 10_000)
    with pytest.raises(Limited, match="no room"):
        await house.say(chat, "!text " + "w" * 10_000)
    await house.say(there, "!text Hello.", BOB)  # somebody with less can still write
    house.page.temporary.erase_all("ann")
    house.page.temporary.erase_all("bob")
    assert house.memory.room() == 100_000
    await house.assert_nothing_kept()
    await house.page.aclose()
    await house.store.aclose()


def test_chat_that_ends_is_written_by_its_owner_only() -> None:
    memory = TemporaryMemory()
    chat = memory.add("ann", None, 0.0)
    memory.ending[chat.id] = memory.chats.pop(chat.id)
    assert memory.to_write(chat.id, "ann") is chat
    with pytest.raises(NotFound):
        memory.to_write(chat.id, "bob")


@pytest.mark.slow
@pytest.mark.parametrize("law", laws_for(TEMPORARY), ids=lambda law: law.name)
async def test_kept_conversations_keep_all_laws(law: Law, tmp_path: Path) -> None:
    await check(law, subject_name("TEMPORARY"), tmp_path)


async def test_chat_stays_while_its_first_message_is_prepared(house: House) -> None:
    """Its page learns its id only when the message is stored, for example after a long recording was read."""
    chat = await house.begin()
    with house.page.temporary.beginning("ann", chat):
        house.clock.now += GONE_SECONDS + 1
        house.page.temporary.sweep()
    house.page.temporary.sweep()
    assert house.page.temporary.ids("ann") == [chat]
    house.clock.now += GONE_SECONDS + 1
    house.page.temporary.sweep()
    assert house.page.temporary.ids("ann") == []


def test_temporary_chat_over_http(app: App) -> None:
    ann, bob, nobody = HttpVisitor(app.url), HttpVisitor(app.url), HttpVisitor(app.url, None)
    chat, run = begin_temporary(ann)
    becomes(True, lambda: "ended" in ann.ask("GET", f"/runs/{run}/events?wait=0").text)
    assert [one.ask("POST", f"/temporary/{chat}").status for one in (ann, bob, nobody)] == [204, 404, 401]
    assert [one.ask("GET", f"/conversations/{chat}").status for one in (ann, bob)] == [200, 404]
    shared = ann.ask("POST", f"/conversations/{chat}/links", json={})
    assert shared.status == 400
    assert bob.ask("POST", f"/conversations/{chat}/links", json={}).status == 404
    assert ann.ask("GET", f"/conversations/{chat}/links").json["detail"] == str(NO_LINKS)
    assert ann.ask("GET", "/conversations").json["conversations"] == []
    assert not any(ann.ask("GET", "/own-data").json.values())
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert ann.ask("POST", f"/temporary/{chat}", headers=headers).status >= 400
    assert ann.ask("DELETE", "/own-data").status == 200
    assert ann.ask("POST", f"/temporary/{chat}").status == 404
    assert app.files_with(chat) == []


def test_message_to_a_chat_that_is_over_is_not_stored(app: App) -> None:
    """What a visitor believes to be temporary begins no other chat."""
    ann, word = HttpVisitor(app.url), marker()
    said = ann.ask("POST", f"/conversations/{new_temporary_id()}/messages", json={"text": word})
    assert (said.status, said.json["detail"]) == (409, str(TEMPORARY_GONE))
    assert ann.ask("GET", "/conversations").json["conversations"] == []
    assert app.files_with(word) == []


def test_chat_that_was_left_makes_room(app: App) -> None:
    ann = HttpVisitor(app.url)
    first, second = begin_temporary(ann)[0], begin_temporary(ann)[0]
    refused = ann.ask("POST", "/conversations", json={"text": "!text Hello.", "temporary": True})
    assert refused.status == 429
    assert HttpVisitor(app.url).ask("DELETE", f"/temporary/{first}").status == 404
    assert ann.ask("POST", "/conversations", json={"text": "!text Hello.", "temporary": True}).status == 429
    assert ann.ask("DELETE", f"/temporary/{first}").status == 204
    begin_temporary(ann)
    assert [ann.ask("POST", f"/temporary/{chat}").status for chat in (first, second)] == [404, 204]


def test_guest_keeps_it_with_the_token_of_the_page(app: App) -> None:
    guest = HttpVisitor(app.url, None)
    load = next(one["id"] for one in guest.events if [name for _, name in one["targets"]] == ["load"])
    [token] = re.findall(r'"guest": ?"([^"]+)"', guest.join(load).text)
    chat, _ = begin_temporary(guest, guest=token)
    asked = [guest.ask("POST", f"/temporary/{chat}{query}").status for query in (f"?guest={token}", "", "?guest=x")]
    assert asked == [204, 401, 401]


async def test_repeated_first_message_begins_no_second_chat(house: House) -> None:
    app = FastAPI()
    MessageRoutes(house.page, lambda _: "ann", AsyncMock(return_value=None)).add_to(app)
    bodies = [{"text": f"!text {WORD}", "temporary": True, "id": "a" * 32, "again": again} for again in (False, True)]

    async def visited(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"visitor": "ann", "isolation": None}}, receive, send)

    begun = [
        await asked(visited, "POST", "/conversations", body=json.dumps(one).encode(), waits=True) for one in bodies
    ]
    first, second = [json.loads(answer.text) for answer in begun]
    assert (first["conversation"], second["run"]) == (second["conversation"], None)
    assert list(house.page.temporary.ids("ann")) == [first["conversation"]]
    await house.ended()
