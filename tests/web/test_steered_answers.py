"""A message to a running answer: stored once as the visitor's own, or given back. The library's laws are in `core/`."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from agent.errors import AgentError, Conflict, InputError, Limited
from agent.files.store import MediaStore
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.i18n.translator import ENGLISH
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.rendering.bubbles import Turn
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.transfer.export import Exporter
from agent.transfer.portable import read_conversation
from agent.transfer.shared import shared_entries
from agent.web import message_routes
from agent.web.app import build_conversations
from agent.web.chat.answers import MOST_STEERING, LiveRun
from agent.web.chat.choices import Choices
from agent.web.chat.sent_message import MessageId
from agent.web.chat.transcript import to_turns
from agent.web.chat.visitor import Visitor
from agent.web.conversation_routes import answer_error
from agent.web.message_routes import MessageRoutes
from tests.support.asgi_requests import Asked, asked
from tests.support.history_stores import end_as_lost
from tests.support.models import FakeLocalModels
from tests.support.scripted_server import Config, Running
from tests.support.views import html_of, settle, view_of, watch
from tests.support.waiting import until

ANN = Visitor(owner="ann")
SPEC = ModelSpec(id="vllm:m", name="m", label="M", provider="vllm", tools="native")
CHOICES = Choices(model=SPEC.id, tools=True)
TEXT = "!text Steered."


class House:
    """The chats of a page whose model has a tool. `look` waits as long as `is_open` is not set."""

    def __init__(self, folder: Path, server: Running, public: PublicSettings | None = None) -> None:
        self.store, self.server, self.is_open = MemoryStore(), server, asyncio.Event()
        self.began = asyncio.Event()
        models = FakeLocalModels(served=(ServedModel(SPEC, Endpoint(server.base_url)),))
        settings = Settings(local=LocalSettings(cache_dir=folder), public=public)
        self.page = build_conversations(settings, self.store, MediaStore(folder), models, tools=[self.look])
        self.is_open.set()

    async def look(self) -> str:
        """Look around."""
        self.began.set()
        await self.is_open.wait()
        return "seen"

    async def begin(self) -> tuple[LiveRun, str]:
        """Begin an answer whose tool is running. Return it with the name of its chat."""
        self.is_open.clear()
        live = await self.page.send(ANN, None, {"text": "!tool look {} !text Not said."}, CHOICES)
        assert live is not None
        await self.began.wait()
        return live, live.conversation_id

    async def steer(self, chat: str, text: str = TEXT, id_: str = "") -> bool:
        return await self.page.steer(ANN, chat, text, MessageId(id_ or uuid4().hex))

    async def waiting(self, live: LiveRun, count: int = 1) -> None:
        """Wait until so many messages wait for the next step."""
        await until(lambda: len(live.run.steering) == count)

    async def steered_turn(self) -> tuple[str, Turn]:
        """Steer an answer to its end. Return the name of its chat, and its only turn."""
        live, chat = await self.begin()
        steered = asyncio.create_task(self.steer(chat))
        await self.waiting(live)
        await self.settle()
        assert await steered
        [turn] = await self.turns(chat)
        return chat, turn

    async def settle(self) -> None:
        self.is_open.set()
        await settle(self.page)

    async def turns(self, chat: str) -> list[Turn]:
        return [*(await view_of(self.page, "ann", chat)).turns]


@pytest.fixture
async def house(server: Running, tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path, server)
    yield made
    made.is_open.set()
    await made.page.aclose()


SERVER = Config(rate=0, models=("m",))


def kinds(turn: Turn) -> list[str]:
    return [bubble["kind"] for bubble in turn["bubbles"]]


async def test_message_is_stored_as_the_visitors_own(house: House) -> None:
    live, chat = await house.begin()
    views = list[Turn]()

    async def watching() -> None:
        async for shown in watch(house.page, "ann", chat):
            views.append(shown.turns[-1])

    watched, id_ = asyncio.create_task(watching()), uuid4().hex
    steered = asyncio.create_task(house.steer(chat, id_=id_))
    await house.waiting(live)
    [running] = await house.turns(chat)
    assert running.get("can_steer")
    await house.settle()
    await watched
    assert await steered
    [turn] = await house.turns(chat)
    assert kinds(turn) == ["user", "tool_call", "tool_call_result", "user", "output_text"]
    assert "!text Steered." in html_of(turn["bubbles"][3])
    assert html_of(turn["bubbles"][4]) == "<p>Steered.</p>\n"
    assert turn["steered"] == [id_]
    assert views[-1] == turn
    conversation = await house.store.get(chat, owner="ann")
    [entry] = await house.store.find(conversation, ids=[id_])
    assert entry.note.run_id == live.run_id
    assert [len(sent["body"]["messages"]) for sent in house.server.journal()[-2:]] == [2, 6]


async def test_answer_that_ends_before_gives_it_back(house: House) -> None:
    live = await house.page.send(ANN, None, {"text": "!tokens 9 hold 3 LATE"}, CHOICES)
    assert live is not None
    await until(lambda: bool(live.run.responses))
    steered = asyncio.create_task(house.steer(live.conversation_id))
    await house.waiting(live)
    house.server.release("LATE")
    assert not await steered
    await house.settle()
    assert not await house.steer(live.conversation_id)
    assert [kinds(turn) for turn in await house.turns(live.conversation_id)] == [["user", "output_text"]]


async def test_stop_gives_it_back(house: House) -> None:
    live, chat = await house.begin()
    steered = asyncio.create_task(house.steer(chat))
    await house.waiting(live)
    await live.stop()
    assert not await steered
    await house.settle()
    assert kinds((await house.turns(chat))[0]).count("user") == 1


async def test_model_without_tools_takes_none(house: House) -> None:
    choices = replace(CHOICES, tools=False)
    live = await house.page.send(ANN, None, {"text": "!tokens 9 hold 3 ALONE"}, choices)
    assert live is not None
    assert not await house.steer(live.conversation_id)
    assert "can_steer" not in (await house.turns(live.conversation_id))[0]
    house.server.release("ALONE")
    await house.settle()


async def test_message_sent_twice_is_stored_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    live, chat = await house.begin()
    id_, save, inside, go_on = uuid4().hex, house.store.save, asyncio.Event(), asyncio.Event()

    async def slow(conversation: Conversation, entries: Sequence[Entry] = (), *more: Any) -> Conversation:
        if any(one.id == id_ for one in entries):
            inside.set()
            await go_on.wait()
        return await save(conversation, entries, *more)

    monkeypatch.setattr(house.store, "save", slow)
    first = asyncio.create_task(house.steer(chat, id_=id_))
    await house.waiting(live)
    given_up, second = (asyncio.create_task(house.steer(chat, id_=id_)) for _ in range(2))
    await until(lambda: live._steering[id_] == 3)
    given_up.cancel()
    house.is_open.set()
    await inside.wait()
    third = asyncio.create_task(house.steer(chat, id_=id_))
    await until(lambda: live._steering[id_] == 3)
    go_on.set()
    assert [await first, await second, await third] == [True, True, True]
    assert await live.steer(TEXT, id_)  # also after it was stored
    assert await house.steer(chat, id_=id_)  # also after the answer
    await house.settle()
    assert not live._steering
    assert kinds((await house.turns(chat))[0])[-1] == "output_text"
    assert (await house.turns(chat))[0]["steered"] == [id_]
    assert await house.page.find_sent("ann", chat, MessageId(id_, again=True)) == chat


async def test_empty_and_long_messages_are_refused(house: House) -> None:
    _live, chat = await house.begin()
    for text in ("", " \n", "x" * 200_001):
        with pytest.raises(InputError):
            await house.steer(chat, text)
    with pytest.raises(InputError):
        await house.page.steer(ANN, chat, "", MessageId("a" * 32))
    await house.settle()


async def test_message_counts_for_the_limits(server: Running, tmp_path: Path) -> None:
    house = House(tmp_path, server, PublicSettings(messages=2, answers_each=1))
    live, chat = await house.begin()
    first = asyncio.create_task(house.steer(chat))
    await house.waiting(live)
    with pytest.raises(Limited, match="2 messages a minute"):
        await house.steer(chat)
    first.cancel()
    await until(lambda: first.done())
    again = asyncio.create_task(house.steer(chat))  # the one that came back counts no more
    await house.waiting(live, 2)
    await house.settle()
    assert await again
    with pytest.raises(Limited, match="2 messages a minute"):
        house.page.runs.rate_limiter.reserve_answer(ANN)
    await house.page.aclose()


async def test_repeat_during_its_first_copy_counts_once(server: Running, tmp_path: Path) -> None:
    house = House(tmp_path, server, PublicSettings(messages=2, answers_each=1))
    live, chat = await house.begin()
    id_ = uuid4().hex
    first = asyncio.create_task(house.steer(chat, id_=id_))
    await house.waiting(live)
    second = asyncio.create_task(house.steer(chat, id_=id_))  # of the two messages a minute, one is left for neither
    await until(lambda: live.counted[id_].callers == 2)
    first.cancel()
    await until(lambda: live.counted[id_].callers == 1)
    with pytest.raises(Limited, match="2 messages a minute"):
        await house.steer(chat)
    await house.settle()
    assert await second
    assert live.run.steered == [id_]
    await house.page.aclose()


async def test_only_so_many_messages_wait_for_a_step(house: House) -> None:
    live, chat = await house.begin()
    ids = [uuid4().hex for _ in range(MOST_STEERING)]
    waiting = [asyncio.create_task(house.steer(chat, id_=one)) for one in ids]
    await house.waiting(live, MOST_STEERING)
    with pytest.raises(Conflict, match="10 messages"):
        await house.steer(chat)
    again = asyncio.create_task(house.steer(chat, id_=ids[0]))
    await until(lambda: live._steering[ids[0]] == 2)
    await house.settle()
    assert all(await asyncio.gather(again, *waiting))


async def test_retry_edit_and_undo_are_of_the_whole_turn(house: House) -> None:
    chat, turn = await house.steered_turn()
    await house.page.retry(ANN, chat, turn["id"], CHOICES)
    await house.settle()
    [again] = await house.turns(chat)
    assert kinds(again) == ["user", "tool_call", "tool_call_result", "output_text"]
    assert again["answer_versions"]["number"] == 2
    await house.page.branches.choose("ann", chat, turn["id"])
    [shown] = await house.turns(chat)
    assert kinds(shown) == kinds(turn)
    await house.page.undo("ann", chat, turn["id"])
    assert await house.turns(chat) == []


async def test_exports_and_copies_keep_its_place(house: House) -> None:
    chat, turn = await house.steered_turn()
    exporter = Exporter(house.store, house.page.media, "ann", ENGLISH)

    async def saved(form: str) -> str:
        return b"".join([piece async for piece in (await exporter.one(chat, form)).pieces]).decode()

    assert re.search(r"look.*You.*!text Steered.*Steered", await saved("markdown"), re.DOTALL)
    [_, fields, *_] = json.loads(await saved("json"))
    read = read_conversation(fields, lambda _: None)
    [linked] = to_turns([*shared_entries(read.entries, ENGLISH, with_files=False)])
    assert [bubble.first.type for bubble in linked.bubbles][2:] == ["user_message", "output_text"]
    imported = await house.store.save(replace(read.conversation, owner="ann"), read.entries)
    assert [kinds(one) for one in await house.turns(imported.id)] == [kinds(turn)]
    copy = await house.page.branches.copy(ANN, chat, turn["id"])
    [copied] = await house.turns(copy)
    assert [bubble["blocks"] for bubble in copied["bubbles"]] == [bubble["blocks"] for bubble in turn["bubbles"]]


async def test_lost_process_keeps_the_message(house: House) -> None:
    live, chat = await house.begin()
    text = "!tokens 30 hold 10 LOST"
    steered = asyncio.create_task(house.steer(chat, text))
    await house.waiting(live)
    house.is_open.set()
    assert await steered
    await until(lambda: "word9" in "".join(one.text for one in live.bubbles))
    await live.log.store_events()
    live.log._can_store = False
    assert await end_as_lost(house.store) == 1
    live.run.cancel()
    await house.settle()
    [turn] = await house.turns(chat)
    assert kinds(turn)[3:5] == ["user", "output_text"]
    assert text in html_of(turn["bubbles"][3])


async def no_login(_: object) -> None:
    return None


@pytest.mark.parametrize("seconds", [0.0, message_routes.SIGN_SECONDS])
async def test_client_that_hangs_up_takes_it_back(
    house: House, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(message_routes, "SIGN_SECONDS", seconds)
    live, chat = await house.begin()
    app, gone = FastAPI(), asyncio.Event()
    MessageRoutes(house.page, lambda _: "ann", no_login).add_to(app)
    app.add_exception_handler(AgentError, answer_error)

    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"isolation": None}}, receive, send)

    async def post(text: str, id_: str, **more: Any) -> Asked:
        body, kind = json.dumps({"text": text, "id": id_}).encode(), b"application/json"
        path = f"/conversations/{chat}/steer"
        return await asked(with_state, "POST", path, body=body, waits=True, content_type=kind, **more)

    posted = asyncio.create_task(post(TEXT, uuid4().hex, gone=gone))
    await house.waiting(live)
    gone.set()
    assert (await posted).status == (499 if seconds else 200)
    await until(lambda: all(one.is_taken.cancelled() for one in live.run.steering))
    kept = asyncio.create_task(post("!text Kept.", uuid4().hex))
    await house.waiting(live, 2)
    assert (await post(TEXT, "no id")).status == 400
    house.is_open.set()
    answer = await kept
    assert (answer.status, json.loads(answer.text)) == (200, {"steered": True})
    assert answer.text.startswith("{" if seconds else " ")  # signs of life
    await house.settle()
    assert [html_of(one) for one in (await house.turns(chat))[0]["bubbles"] if one["kind"] == "user"][1:] == [
        "<p>!text Kept.</p>\n"
    ]
