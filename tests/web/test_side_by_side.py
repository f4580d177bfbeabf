"""Several models that answer one message: what is stored, shown, limited and stopped. The page is in `page/`."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from starlette.types import Receive, Scope, Send

from agent.errors import AgentError, Conflict, HistoryError, InputError, Limited, NotFound
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, Note, Vote, now
from agent.history.codec import dump_conversation, dump_entries
from agent.history.memory import MemoryStore
from agent.i18n.translator import ENGLISH
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.rendering.bubbles import Turn, edits
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.transfer.export import Exporter
from agent.transfer.imported import MAX_VOTES, bounded
from agent.transfer.portable import read_conversation, stored_size
from agent.web import message_routes
from agent.web.app import build_conversations
from agent.web.chat import conversations, side_by_side, views
from agent.web.chat.answers import LiveRun
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import OtherModels
from agent.web.chat.ratings import RATINGS_EACH, Ratings
from agent.web.chat.sent_message import MessageId
from agent.web.chat.side_by_side import SharedConversation, columns_of, pairs, tally, votes_table
from agent.web.chat.temporary_stores import TemporaryMedia, TemporaryMemory, TemporaryStore
from agent.web.chat.transcript import is_prompt, message_text
from agent.web.chat.turns import render_turn
from agent.web.chat.visitor import Visitor
from agent.web.conversation_routes import answer_error
from agent.web.heavy_work import RequestLimit
from agent.web.message_routes import MessageRoutes
from agent.web.run_event_routes import AnswerFrames, RunEventRoutes
from tests.support.history_stores import chain, end_as_lost, prompt
from tests.support.scripted_server import Config, Running
from tests.support.turn_edits import applied
from tests.support.views import html_of, settle, view_of
from tests.support.waiting import until

ANN, BOB = Visitor(owner="ann", address="1.2.3.4"), Visitor(owner="bob")
NAMES = ("alpha", "beta", "gamma")
ASK, SLOW, AGAIN = "Which is best?", "Tell me more.", "And why?"
SERVER = Config(
    rate=0,
    models=NAMES,
    scripts={
        **{f"{name}: {ASK}": f"!text I am *{name}*." for name in NAMES},
        **{f"{name}: {AGAIN}": f"!text {name} knows why." for name in NAMES},
        **{f"{name}: {SLOW}": f"!tokens 40 hold 10 {name}" for name in NAMES},
        "beta: Fail.": "!status 400",
        "beta: Unknown.": "!status 404",
        "alpha: Fail first.": "!status 400",
        "beta: Fail first.": "!text I did not.",
        "alpha: Cut.": "!tokens 30 hold 10 again",
        "beta: Cut.": "!text I am whole.",
        "alpha: Fail.": "!text I did not.",
        "alpha: Lost.": "!tokens 40 hold 10 never",
        "beta: Lost.": "!tokens 40 hold 20 never",
    },
)
SPECS = [ModelSpec(id=f"vllm:{name}", name=name, label=name.title(), provider="vllm", prefill=True) for name in NAMES]
ALPHA, *OTHERS = [Choices(model=spec.id) for spec in SPECS]


class House:
    """The chats of a page with three models."""

    def __init__(
        self, folder: Path, server: Running, public: PublicSettings | None = None, kept: MemoryStore | None = None
    ) -> None:
        self.kept, self.memory = kept or MemoryStore(), TemporaryMemory()
        self.store = TemporaryStore(self.kept, self.memory)
        media = TemporaryMedia(MediaStore(folder)._place, self.memory)
        served = tuple(ServedModel(spec, Endpoint(server.base_url)) for spec in SPECS)
        settings = Settings(local=LocalSettings(cache_dir=folder), public=public)
        self.page = build_conversations(settings, self.store, media, Served(served), [], memory=self.memory)

    async def send(
        self, text: str, chat: str | None = None, others: Sequence[Choices] = OTHERS[:1], **more: Any
    ) -> LiveRun:
        live = await self.page.send(ANN, chat, {"text": text}, ALPHA, others=OtherModels(others, **more))
        assert live is not None
        return live

    async def settle(self) -> None:
        await settle(self.page)

    async def ask(self, text: str, chat: str | None = None, others: Sequence[Choices] = OTHERS[:1], **more: Any) -> str:
        live = await self.send(text, chat, others, **more)
        await self.settle()
        return live.conversation_id

    async def turns(self, chat: str) -> Sequence[Turn]:
        return (await view_of(self.page, "ann", chat)).turns

    async def columns(self, chat: str) -> dict[str, str]:
        """Return the texts of the last turn's columns by the names of their models."""
        return {one["name"]: text_of(one) for one in (await self.turns(chat))[-1]["columns"]}

    async def entries(self, chat: str) -> Sequence[Entry]:
        return await self.store.entries(await self.store.get(chat, owner="ann"))


class Served:
    """Local models that are served."""

    def __init__(self, served: tuple[ServedModel, ...]) -> None:
        self.served, self.status = served, None

    async def ready(self) -> tuple[ServedModel, ...]:
        return self.served


def text_of(turn: Turn) -> str:
    return re.sub("<[^<>]*>", "", "".join(map(html_of, turn["bubbles"]))).strip()


@pytest.fixture
async def house(server: Running, tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path, server)
    yield made
    await made.page.aclose()


def told(value: object) -> list[str]:
    """Return the names of models in what a page receives."""
    return [name for name in NAMES if name in json.dumps(value).lower()]


@pytest.mark.parametrize("text", ["!text Yes.", "Unknown."])
async def test_page_gets_no_name_before_the_vote(house: House, text: str) -> None:
    """Neither the stream of the answers, nor the stored turn, nor the tree has a name, and each has them afterwards."""
    async with client_of(house) as client:
        others = [{"model": f"vllm:{name}"} for name in NAMES[1:]]
        body = {"text": text, "settings": {"model": "vllm:alpha"}, "compare": others, "blind": True}
        begun = (await client.post("/conversations", json=body)).json()
        frames = (await client.get(f"/runs/{begun['run']}/events?format=blocks")).text
    chat = begun["conversation"]
    await house.settle()
    [turn] = await house.turns(chat)
    assert [one["name"] for one in turn["columns"]] == ["A", "B", "C"]
    assert told(turn) == []
    assert told(frames) == []
    assert told([str(row) for row in (await house.page.views.tree("ann", chat))[0]]) == []
    assert [one for column in turn["columns"] for one in ("caption", "model") if one in column] == []
    choices = [button["value"]["choice"] for button in turn["buttons"]]
    assert choices == ["0", "1", "2", "tie", "bad"]
    for wrong in ("3", "", "-1", "alpha"):
        with pytest.raises(InputError):
            await house.page.vote("ann", chat, turn["id"], wrong)
    with pytest.raises(NotFound):
        await house.page.vote("bob", chat, turn["id"], "0")
    await house.page.vote("ann", chat, turn["id"], "1")
    [shown] = await house.turns(chat)
    assert sorted(told(shown)) == sorted(NAMES)
    assert "buttons" not in shown
    assert all("caption" in column for column in shown["columns"] if "error" not in str(column["bubbles"]))
    with pytest.raises(Conflict):
        await house.page.vote("ann", chat, turn["id"], "tie")
    [vote] = await house.page.votes("ann")
    names = [column["name"].lower() for column in shown["columns"]]
    assert [model.removeprefix("vllm:") for model in vote.models] == names, "the columns have another order"
    assert await house.page.votes("bob") == []


async def test_order_of_hidden_models_is_drawn_by_lot(house: House) -> None:
    orders = set[str]()
    for _ in range(40):
        chat = await house.ask(ASK, is_blind=True)
        orders.add(text_of((await house.turns(chat))[0]["columns"][0]))
        if len(orders) == 2:
            return
    pytest.fail("the first model was always the same")


async def test_votes_are_exported_imported_and_deleted_with_their_chat(house: House) -> None:
    chat = await house.ask(ASK, is_blind=True)
    [turn] = await house.turns(chat)
    await house.page.vote("ann", chat, turn["id"], "0")
    exporter = Exporter(house.store, house.page.media, "ann", ENGLISH)
    pieces = [piece async for piece in (await exporter.one(chat, "json")).pieces]
    [_, fields, *_] = json.loads(b"".join(pieces))
    copy = read_conversation(fields, lambda _: None)
    await house.store.save(replace(copy.conversation, owner="bob"), copy.entries)
    assert [vote.models for vote in await house.page.votes("bob")] == [
        vote.models for vote in await house.page.votes("ann")
    ]
    [shown] = (await view_of(house.page, "bob", copy.conversation.id)).turns
    assert {one["name"] for one in shown["columns"]} == {"Alpha", "Beta"}
    await house.page.list.delete("ann", chat)
    assert await house.page.votes("ann") == []


def test_tally_counts_each_model_and_pair() -> None:
    def vote(choice: str, *models: str) -> Vote:
        return Vote(message="m", models=models, choice=choice)

    votes = [vote("0", "a", "b"), vote("1", "a", "b", "c"), vote("tie", "b", "a"), vote("bad", "a", "=c")]
    assert tally(votes) == {
        "a": {"won": 1, "lost": 1, "tied": 1, "bad": 1},
        "b": {"won": 1, "lost": 1, "tied": 1, "bad": 0},
        "=c": {"won": 0, "lost": 0, "tied": 0, "bad": 1},
        "c": {"won": 0, "lost": 1, "tied": 0, "bad": 0},
    }
    assert [*tally(votes)] == ["a", "b", "=c", "c"]  # the best one first
    assert pairs(votes) == [
        {"models": ["a", "b"], "first": 1, "second": 1, "neither": 1},
        {"models": ["b", "c"], "first": 1, "second": 0, "neither": 0},
        {"models": ["=c", "a"], "first": 0, "second": 0, "neither": 1},
    ]
    rows = [row.split(",") for row in votes_table(votes).splitlines()]
    assert [row[1:] for row in rows] == [
        ["choice", "best", "model_a", "model_b", "model_c", "model_d"],
        ["0", "a", "a", "b"],
        ["1", "b", "a", "b", "c"],
        ["tie", "", "b", "a"],
        ["bad", "", "a", "'=c"],
    ]


async def test_each_model_answers_on_a_branch_of_one_chat(house: House) -> None:
    chat = await house.ask(ASK, others=OTHERS)
    prompts = [entry for entry in await house.entries(chat) if is_prompt(entry)]
    assert [message_text(entry) for entry in prompts] == [ASK] * 3
    assert {entry.note.compared for entry in prompts} == {tuple(entry.id for entry in prompts)}
    assert {entry.parent_id for entry in prompts} == {None}
    assert [conversation.id for conversation in await house.kept.list("ann")] == [chat]
    [turn] = await house.turns(chat)
    assert [bubble["kind"] for bubble in turn["bubbles"]] == ["user"]
    assert await house.columns(chat) == {"Alpha": "I am alpha.", "Beta": "I am beta.", "Gamma": "I am gamma."}
    conversation = await house.store.get(chat, owner="ann")
    assert len(conversation.branches) == 2
    assert conversation.output_tokens == sum(
        entry.note.timings.output_tokens for entry in await house.entries(chat) if entry.note.timings
    )


async def test_next_message_goes_on_with_one_or_with_all(house: House) -> None:
    chat = await house.ask(ASK)
    beta = (await house.turns(chat))[-1]["columns"][1]
    [button] = beta["buttons"]
    assert (button["label"], button["value"]["do"]) == ("Go on with this answer", "show")
    await house.page.branches.choose("ann", chat, button["value"]["entry"])
    assert [one["is_chosen"] for one in (await house.turns(chat))[-1]["columns"]] == [False, True]
    live = await house.page.send(ANN, chat, {"text": AGAIN}, OTHERS[0])
    assert live is not None
    await house.settle()
    sent = live.run.result.context.messages if live.run.result else ()
    assert "I am *beta*." in str(sent)
    assert "I am *alpha*." not in str(sent)
    first, second = await house.turns(chat)
    assert [text_of(one) for one in first["columns"]] == ["I am alpha.", "I am beta."]
    assert "columns" not in second

    chat = await house.ask(ASK)
    await house.ask(AGAIN, chat)
    first, second = await house.turns(chat)
    assert [text_of(one) for one in second["columns"]] == ["alpha knows why.", "beta knows why."]
    prompts = [entry for entry in await house.entries(chat) if is_prompt(entry)]
    assert len({entry.parent_id for entry in prompts}) == 3  # each goes on from its own answer
    await house.ask(AGAIN, chat, each_from_own=False)
    prompts = [entry for entry in await house.entries(chat) if is_prompt(entry)]
    assert prompts[-1].parent_id == prompts[-2].parent_id


async def test_answer_that_fails_leaves_the_others_alone(house: House) -> None:
    chat = await house.ask("Fail.")
    columns = await house.columns(chat)
    assert columns["Alpha"] == "I did not."
    [_, beta] = (await house.turns(chat))[-1]["columns"]
    assert [bubble["kind"] for bubble in beta["bubbles"]] == ["error"]
    live = await house.page.send(ANN, chat, {"text": AGAIN}, ALPHA)
    assert live is not None
    await house.settle()
    assert text_of((await house.turns(chat))[-1]).endswith("alpha knows why.")
    [turn] = await house.turns(await house.ask("Fail first."))
    assert [one["is_chosen"] for one in turn["columns"]] == [False, True]  # the chat goes on with what is an answer


def frames_of(text: str) -> list[Any]:
    return [json.loads(line) for line in re.findall(r"^data: (.*)$", text, re.MULTILINE)]


def state_of(text: str) -> Any:
    """Return the turn to which the frames in a stream lead."""
    turn: Any = None
    for frame in frames_of(text):
        turn = frame.get("turn") or (applied(turn, frame["edits"]) if "edits" in frame else turn)
    return turn


async def test_stop_stops_one_or_all(house: House) -> None:
    async with client_of(house) as client:
        body = {
            "text": SLOW,
            "settings": {"model": "vllm:alpha"},
            "compare": [{"model": "vllm:beta"}, {"model": "vllm:gamma"}],
        }
        begun = (await client.post("/conversations", json=body)).json()
        chat, runs = begun["conversation"], begun["runs"]
        assert begun["run"] == runs[0]
        following = asyncio.create_task(client.get(f"/runs/{runs[0]}/events?format=blocks"))
        together = house.page.live_runs.together[chat]
        await until(lambda: all("word9" in "".join(bubble.text for bubble in one.bubbles) for one in together.answers))
        other = await house.store.save(Conversation(owner="ann"))
        for at in (other.id, chat):  # the first one is not the answer's chat
            assert together.answers[1].run.cancel_reason is None
            assert (await client.post(f"/conversations/{at}/stop", json={"run": runs[1]})).status_code == 204
        await until(lambda: together.answers[1].is_ended)
        assert len(house.page.live_runs.of(chat)) == 2
        with pytest.raises(Conflict):
            await house.page.send(ANN, chat, {"text": AGAIN}, ALPHA)
        half = state_of((await client.get(f"/runs/{runs[0]}/events?format=blocks&wait=0")).text)  # as after a reload
        assert [one["is_running"] for one in half["columns"]] == [True, False, True]
        assert [one["buttons"][0]["label"] for one in half["columns"] if one["is_running"]] == ["Stop", "Stop"]
        await client.post(f"/conversations/{chat}/stop")
        frames = (await following).text
    await house.settle()
    for run in runs:
        events = [event.value for event in await house.store.runs.events(run, owner="ann")]
        switched = [event["is_type_switched"] for event in events if event["type"] == "output_text"]
        assert switched == [True, *([False] * (len(switched) - 1))]
    [stored] = await house.turns(chat)
    assert state_of(frames) == stored
    assert frames_of(frames)[-1] == {"stored": True, "complete": False}
    assert ["Stopped" in one["caption"] for one in stored["columns"]] == [True] * 3


def test_edits_of_columns_lead_to_the_next_turn() -> None:
    def turn(text: str, **more: Any) -> Any:
        bubble = {"kind": "output_text", "state": "done", "blocks": [text]}
        return {"id": "1", "is_running": False, "bubbles": [bubble], **more}

    states = [
        turn("?", columns=[turn("a"), turn("b")]),
        turn("?", columns=[turn("a"), turn("bc")]),
        turn("?", columns=[turn("ad", name="A"), turn("bc")], kept="1 file"),
        turn("?", columns=[turn("a")]),
        turn("?"),
    ]
    assert edits(states[0], states[1]) == [["column", 1, [["tail", 0, 0, 0, "c"]]]]
    for old, new in product(states, states):
        assert {"columns": [], **applied(old, edits(old, new))} == {"columns": [], **new}


async def test_another_process_shows_and_stops_all(house: House, server: Running, tmp_path: Path) -> None:
    other = House(tmp_path, server, kept=house.kept)
    live = await house.send(SLOW)
    keeping = asyncio.create_task(house.page.live_runs.keep_leases(house.kept))
    for one in house.page.live_runs.of(live.conversation_id):
        await until(lambda one=one: any("word9" in bubble.text for bubble in one.bubbles))
        await one.log.store_events()
    shown = await other.columns(live.conversation_id)
    assert [text.split()[-1] for text in shown.values()] == ["word9"] * 2
    assert shown == await house.columns(live.conversation_id)
    await other.page.running.stop([live.conversation_id], "ann")
    together = house.page.live_runs.together[live.conversation_id]
    await until(lambda: together.is_end_stored)
    keeping.cancel()
    captions = [one["caption"] for one in (await other.turns(live.conversation_id))[-1]["columns"]]
    assert ["Stopped" in caption for caption in captions] == [True, True]
    await other.page.aclose()


async def test_continued_column_stays_among_the_others(house: House, server: Running) -> None:
    cut = await house.send("Cut.")
    chat, together = cut.conversation_id, house.page.live_runs.together[cut.conversation_id]
    await until(lambda: together.answers[1].is_ended and "word9" in "".join(one.text for one in cut.bubbles))
    await house.page.running.stop([chat], "ann")
    await house.settle()
    [alpha, _] = (await house.turns(chat))[-1]["columns"]
    [button] = alpha["buttons"]
    assert button["value"]["do"] == "continue"
    await house.page.continue_answer(ANN, chat, button["value"]["entry"], "Please.", ALPHA)
    running = (await house.turns(chat))[-1]["columns"]
    assert [(one["name"], one["is_running"]) for one in running] == [("Alpha", True), ("Beta", False)]
    server.release("again")
    await house.settle()
    columns = await house.columns(chat)
    assert columns["Alpha"].endswith("word29")
    assert columns["Beta"] == "I am whole."


async def test_refused_model_stores_nothing(house: House, server: Running) -> None:
    before = len(server.journal())
    for others in ([Choices(model="anthropic:claude-opus-4-8")], [ALPHA], [*OTHERS, *OTHERS]):
        with pytest.raises(AgentError):
            await house.page.send(ANN, None, {"text": ASK}, ALPHA, others=OtherModels(others))
    assert await house.kept.list("ann") == []
    assert len(server.journal()) == before


async def test_tokens_and_cost_of_all_answers_are_added() -> None:
    store = MemoryStore()
    before = await store.save(Conversation(owner="ann", cost=1.0, input_tokens=10, output_tokens=20))
    shared = SharedConversation(before, [None, None])
    for place, cost in enumerate((0.5, 0.25)):
        [entry] = chain(prompt(f"{place}"))
        after = replace(before, head_id=entry.id, cost=1 + cost, input_tokens=13, output_tokens=27)
        await shared.add(store, place, before, after, entry, None)
    stored = await store.get(before.id, owner="ann")
    assert (stored.cost, stored.input_tokens, stored.output_tokens) == (1.75, 16, 34)


async def test_erased_message_is_gone_for_all_models(house: House) -> None:
    chat = await house.ask(ASK)
    [turn] = await house.turns(chat)
    await house.page.erase("ann", chat, turn["id"])
    assert not await house.store.following(await house.store.get(chat, owner="ann"), None)


async def test_limits_count_each_answer(server: Running, tmp_path: Path) -> None:
    house = House(tmp_path, server, PublicSettings(messages=3, answers_each=2))
    with pytest.raises(InputError, match="at most 2"):
        await house.ask(ASK, others=OTHERS)
    assert await house.kept.list("ann") == []
    chat = await house.ask(ASK)
    with pytest.raises(Limited, match="3 messages a minute"):
        await house.ask(AGAIN, chat)
    assert len(await house.turns(chat)) == 1
    await house.page.aclose()


async def test_edit_asks_all_again(house: House) -> None:
    chat = await house.ask(ASK)
    [turn] = await house.turns(chat)
    beta = turn["columns"][1]["id"].removeprefix("answer-")
    await house.page.branches.choose("ann", chat, beta)
    await house.page.edit(ANN, chat, beta, AGAIN, ALPHA)
    await house.settle()
    assert await house.columns(chat) == {"Alpha": "alpha knows why.", "Beta": "beta knows why."}
    [edited] = await house.turns(chat)
    versions = edited["question_versions"]
    assert (versions["number"], len(versions["ids"])) == (2, 2)
    await house.page.branches.choose("ann", chat, versions["ids"][0])
    assert await house.columns(chat) == {"Alpha": "I am alpha.", "Beta": "I am beta."}


@pytest.mark.parametrize("left", [2, 1])
async def test_edit_says_which_models_are_gone(house: House, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await house.ask(ASK, others=OTHERS)
    [turn] = await house.turns(chat)
    known = {spec.id: spec for spec in SPECS[:left]}
    monkeypatch.setattr(house.page.models, "get", known.get)
    await house.page.edit(ANN, chat, turn["id"], AGAIN, ALPHA)
    await house.settle()
    [edited] = await house.turns(chat)
    gone = ", ".join(SPECS[number].id for number in range(left, 3))
    shown = edited["columns"] if left > 1 else [edited]
    assert len(shown) == left
    assert all(f"is not available any more: {gone}" in one["caption"] for one in shown)


async def test_edit_keeps_what_each_model_had_before(house: House) -> None:
    chat = await house.ask(ASK)
    await house.ask(AGAIN, chat)
    second = (await house.turns(chat))[1]
    await house.page.edit(ANN, chat, second["id"], ASK, ALPHA)
    await house.settle()
    assert await house.columns(chat) == {"Alpha": "I am alpha.", "Beta": "I am beta."}
    edited = [one for one in await house.entries(chat) if is_prompt(one)][-2:]
    first = [one for one in await house.entries(chat) if is_prompt(one)][:2]
    parents = [one.parent_id for one in edited]
    assert len({*parents}) == 2
    for one, parent in zip(first, parents, strict=True):
        assert parent in await house.store.following(await house.store.get(chat, owner="ann"), one.id)


class FullFor(MemoryStore):
    """A store that has no room for the first message to one model."""

    def __init__(self, model: str, times: int) -> None:
        super().__init__()
        self._model, self._times = model, times

    async def save(self, conversation: Conversation, entries: Sequence[Entry], events: Any = None) -> Conversation:
        if self._times and any(entry.note.model == self._model for entry in entries):
            self._times -= 1
            raise HistoryError("The disk is full.")
        return await super().save(conversation, entries, events)


async def test_column_says_that_its_message_was_not_stored(server: Running, tmp_path: Path) -> None:
    house = House(tmp_path, server, kept=FullFor("vllm:beta", 1))
    live = await house.send(ASK)
    assert [one["name"] for one in (await house.turns(live.conversation_id))[-1]["columns"]] == ["Alpha", "Beta"]
    await house.settle()
    columns = await house.columns(live.conversation_id)
    assert columns["Alpha"] == "I am alpha."
    assert "The disk is full." in columns["Beta"]
    [turn] = await house.turns(live.conversation_id)
    assert [one["is_chosen"] for one in turn["columns"]] == [True, False]
    await house.page.aclose()


async def test_store_that_stays_full_keeps_the_other_answers(server: Running, tmp_path: Path) -> None:
    house = House(tmp_path, server, kept=FullFor("vllm:beta", 9))
    live = await house.send(ASK, others=OTHERS)
    await house.settle()
    assert await house.columns(live.conversation_id) == {"Alpha": "I am alpha.", "Gamma": "I am gamma."}
    await house.page.aclose()


async def test_message_to_all_sent_again_is_stored_once(house: House) -> None:
    message = MessageId("a" * 32)
    live = await house.page.send(ANN, None, {"text": ASK}, ALPHA, None, message, OtherModels(OTHERS))
    assert live is not None
    await house.settle()
    assert await house.page.find_sent("ann", None, replace(message, again=True)) == live.conversation_id
    assert (await house.turns(live.conversation_id))[0]["id"] == "a" * 32


async def test_lost_process_keeps_the_text_of_each(house: House, server: Running) -> None:
    live = await house.send("Lost.")
    answers = house.page.live_runs.together[live.conversation_id].answers
    for one, last in zip(answers, ("word9", "word19"), strict=True):
        assert isinstance(one, LiveRun)
        await until(lambda one=one, last=last: any(last in bubble.text for bubble in one.bubbles))
        await one.log.store_events()
        one.log._can_store = False
    assert await end_as_lost(house.kept) == 2
    for one in answers:
        assert isinstance(one, LiveRun)
        one.log.give_up()
    await house.settle()
    columns = await house.columns(live.conversation_id)
    assert "word9" in columns["Alpha"]
    assert "word19" in columns["Beta"]
    assert "word19" not in columns["Alpha"]
    conversation = await house.store.get(live.conversation_id, owner="ann")
    assert len({conversation.head_id, *conversation.branches}) == 2


async def test_temporary_chat_has_columns_and_leaves_nothing(house: House) -> None:
    chat = (await house.page.temporary.begin(ANN)).id
    await house.ask(ASK, chat)
    assert await house.columns(chat) == {"Alpha": "I am alpha.", "Beta": "I am beta."}
    await house.send(SLOW, chat)
    house.page.temporary.erase_all("ann")
    await house.settle()
    assert not house.page.live_runs.together
    assert await house.kept.list("ann") == []


async def test_export_shows_the_chosen_answer_and_json_all(house: House) -> None:
    chat = await house.ask(ASK)
    exporter = Exporter(house.store, house.page.media, "ann", ENGLISH)

    async def saved(form: str) -> str:
        return b"".join([piece async for piece in (await exporter.one(chat, form)).pieces]).decode()

    for form in ("markdown", "html"):
        text = await saved(form)
        assert "alpha" in text
        assert "beta" not in text
    [_, fields, *_] = json.loads(await saved("json"))
    copy = read_conversation(fields, lambda _: None)
    conversation = await house.store.save(replace(copy.conversation, owner="ann"), copy.entries)
    assert conversation.id != chat
    assert await house.columns(conversation.id) == {"Alpha": "I am alpha.", "Beta": "I am beta."}


async def test_another_visitor_reaches_none_of_the_answers(house: House, server: Running) -> None:
    live = await house.send(SLOW)
    together = house.page.live_runs.together[live.conversation_id]
    for one in together.answers:
        assert await house.page.running.find_for_page(one.run_id, "bob") is None
    assert await house.page.running.get(live.conversation_id, "bob") is None
    await house.page.running.stop([live.conversation_id], "bob")
    assert not together.is_ended
    with pytest.raises(NotFound):
        await house.store.get(live.conversation_id, owner="bob")
    for name in NAMES:
        server.release(name)
    await house.settle()


def client_of(house: House, *limited: Any) -> httpx.AsyncClient:
    """Return a client of the routes, as Ann."""
    app, frames = FastAPI(), AnswerFrames(house.page.views.running_turn)
    MessageRoutes(house.page, lambda _: "ann", no_login, *limited).add_to(app)
    RunEventRoutes(house.page.running, house.store, lambda _: "ann", lambda live, _: frames.of(live, ENGLISH)).add_to(
        app
    )
    app.add_exception_handler(AgentError, answer_error)

    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"isolation": None}}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(with_state), base_url="http://page")


async def no_login(_: object) -> None:
    return None


@pytest.mark.parametrize(
    "compared", [["{own}"] * 1000, ["other"], "{own}", [1, None]], ids=["repeated", "foreign", "text", "odd"]
)
async def test_mark_in_a_file_makes_no_columns_of_its_own(house: House, compared: Any) -> None:
    """Each repeat of an id would be one more column with the whole answer."""
    entry = Entry(parent_id=None, message=ModelRequest([UserPromptPart("Hello")]))
    raw = json.loads(dump_entries([entry])[0])
    raw["note"]["compared"] = json.loads(json.dumps(compared).replace("{own}", entry.id))
    conversation = json.loads(dump_conversation(Conversation(owner="ann", head_id=entry.id)))
    read = read_conversation({"conversation": conversation, "entries": [raw]}, lambda _: None)
    assert read.entries[0].note.compared in ((), (read.entries[0].id,))
    stored = replace(entry, note=Note(compared=(entry.id,) * 1000))
    assert await columns_of(house.store, Conversation(owner="ann"), [stored]) == {}


async def test_columns_of_a_whole_chat_are_read_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import can name any messages as one message. What follows each of them can be the whole chat."""
    monkeypatch.setattr(side_by_side, "MOST_FOLLOWING", 150)
    store, read = MemoryStore(), list[int]()
    entries = chain(*(prompt(f"{number}") for number in range(100)))
    for number in range(60, 100):
        note = Note(compared=(entries[number].id, *(entries[2 * (99 - number) + other].id for other in range(2))))
        entries[number] = replace(entries[number], note=note)
    conversation = await store.save(Conversation(owner="ann", head_id=entries[-1].id), entries)
    following = store.following

    async def counted(conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        read.append(len(ids := await following(conversation, entry_id)))
        return ids

    monkeypatch.setattr(store, "following", counted)
    columns = await columns_of(store, conversation, entries[60:])
    assert sum(read) < 150 + 100
    assert 0 < len(columns) < 40


async def test_column_shows_what_followed_its_message_last() -> None:
    store, parts = MemoryStore(), [ModelResponse([TextPart(text)]) for text in ("first", "second")]
    ids = ("a" * 32, "b" * 32)
    both = [
        replace(one, id=id_, parent_id=None, note=Note(compared=ids))
        for one, id_ in zip(chain(prompt("0"), prompt("0")), ids, strict=True)
    ]
    answers = [Entry(parent_id=ids[1], message=part) for part in parts]
    conversation = await store.save(Conversation(owner="ann", head_id=ids[0]), [*both, *answers])
    columns = await columns_of(store, conversation, both[:1])
    assert [column[-1].id for column in columns[ids[0]]] == [ids[0], answers[1].id]


async def test_message_to_all_is_found_by_each_of_its_ids(house: House) -> None:
    """A process that is killed after the first write can have stored any one of the messages."""
    message = MessageId("b" * 32)
    for number, id_ in enumerate(message.for_models(4)):
        entry = Entry(id=id_, parent_id=None, message=ModelRequest([UserPromptPart("Hello")]))
        chat = Conversation(id=f"{number}" * 32, owner="ann", head_id=id_)
        await house.store.save(chat, [entry])
        assert await house.page.find_sent("ann", chat.id, replace(message, again=True)) == chat.id


async def test_copy_before_the_vote_tells_no_name(house: House) -> None:
    """A copy has one of the answers alone. After the vote, its name is known."""
    chat = await house.ask("!text Yes.", is_blind=True)
    [turn] = await house.turns(chat)
    copy = await house.page.branches.copy(ANN, chat, turn["id"])
    [copied] = await house.turns(copy)
    assert ("columns" not in copied, told(copied)) == (True, [])
    assert "caption" not in copied
    with pytest.raises(InputError):
        await house.page.vote("ann", copy, turn["id"], "0")
    await house.page.vote("ann", chat, turn["id"], "0")
    [shown] = await house.turns(await house.page.branches.copy(ANN, chat, turn["id"]))
    assert told(shown) != []


async def test_running_answer_alone_tells_no_name(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other answers can be too long to be read beside it."""

    async def none(*_: object) -> Any:
        return {}

    monkeypatch.setattr(views, "columns_of", none)
    live = await house.send("!text Yes.", is_blind=True)
    running = await house.page.views.running_turn(house.page.live_runs.together[live.conversation_id])
    await house.settle()
    turn = render_turn(running.turn(0.0))
    assert ("columns" not in turn, told(turn)) == (True, [])


async def test_vote_is_on_the_letter_that_the_page_shows(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page leaves an answer out that is too long to read. The others keep their letters."""
    chat = await house.ask(ASK, others=OTHERS, is_blind=True)
    [first] = await house.turns(chat)
    ids = [column["id"].removeprefix("answer-") for column in first["columns"]]
    models = {entry.id: entry.note.model for entry in await house.entries(chat)}
    find = house.store.find

    async def without_second(*given: Any, **more: Any) -> Sequence[Entry]:
        return [one for one in await find(*given, **more) if "most_bytes" not in more or one.id != ids[1]]

    await house.page.branches.choose("ann", chat, ids[0])
    monkeypatch.setattr(house.store, "find", without_second)
    [turn] = await house.turns(chat)
    assert [one["name"] for one in turn["columns"]] == ["A", "C"]
    assert [button["value"]["choice"] for button in turn["buttons"]] == ["0", "2", "tie", "bad"]
    await house.page.vote("ann", chat, turn["id"], "2")
    [vote] = await house.page.votes("ann")
    assert vote.models[int(vote.choice)] == models[ids[2]]


async def test_votes_of_an_import_are_few_and_past(house: House) -> None:
    """There is one for each message to several models, at a time with a zone that has been."""
    one, other, alone = entries = chain(*(prompt(f"{number}") for number in range(3)))
    both = Note(compared=(one.id, other.id))
    entries = [replace(one, note=both), replace(other, note=both), alone]
    raw = [json.loads(text) for text in dump_entries(entries)]
    conversation = json.loads(dump_conversation(Conversation(owner="ann", head_id=alone.id)))
    votes = [
        {"message": message, "models": ["a", "b"], "choice": "0", "at": at}
        for message in (one.id, other.id, alone.id, "?")
        for at in ("2001-01-01T00:00:00", "9000-01-01T00:00:00Z") * 500
    ]
    fields = {**conversation, "votes": votes}
    read = read_conversation({"conversation": fields, "entries": raw}, lambda _: None)
    [vote] = read.conversation.votes
    assert vote.at.tzinfo is not None
    assert stored_size(read.entries, votes=read.conversation.votes) > stored_size(read.entries)
    given = replace(vote, models=("a",))
    assert bounded(replace(read.conversation, votes=(given,))).votes == ()  # one model has not been compared
    assert len(bounded(replace(read.conversation, votes=(vote,) * 1000)).votes) == MAX_VOTES
    raw = [json.loads(text) for text in dump_entries(entries)]
    later = {**fields, "votes": votes[1:2]}
    [vote] = read_conversation({"conversation": later, "entries": raw}, lambda _: None).conversation.votes
    assert vote.at <= now()
    await house.store.save(replace(read.conversation, owner="ann"), read.entries)
    chat = await house.ask(ASK, is_blind=True)
    await house.page.vote("ann", chat, (await house.turns(chat))[0]["id"], "0")
    assert len(await house.page.votes("ann")) == 2


async def test_votes_are_counted_off_the_loop(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()

    def seen(votes: Any) -> Any:
        threads.append(threading.current_thread().name)
        return tally(votes)

    monkeypatch.setattr(message_routes, "tally", seen)
    async with client_of(house) as client:
        assert (await client.get("/votes")).json()["votes"] == []
        table = await client.get("/votes?format=csv")
        assert table.text.startswith("at,")
        assert table.headers["content-disposition"] == 'attachment; filename="votes.csv"'
        assert table.headers["cache-control"] == (await client.get("/votes")).headers["cache-control"] == "no-store"
    assert threads
    assert all(name.startswith("looks") for name in threads)
    monkeypatch.setattr(conversations, "MOST_VOTES", 1)
    votes = [Vote(message="m", models=("a", "b"), choice="0", at=now() - timedelta(days=days)) for days in (2, 1, 3)]
    await house.store.save(Conversation(owner="ann", votes=tuple(votes)))
    assert await house.page.votes("ann") == votes[1:2]  # the newest one


async def test_one_visitor_cannot_fill_the_file_of_ratings(house: House, tmp_path: Path) -> None:
    path = tmp_path / "ratings.jsonl"
    chat = await house.ask(f"!text {'x' * 30_000}")
    [turn] = await house.turns(chat)
    async with client_of(house, RequestLimit(), Ratings(path)) as client:
        rating = {"good": True, "text": True, "reason": "y" * 1000}
        where = f"/conversations/{chat}/messages/{turn['id']}/rating"
        said = [(await client.post(where, json=rating)).status_code for _ in range(RATINGS_EACH + 1)]
    assert (set(said[:-1]) <= {200, 204}, said[-1]) == (True, 429)
    assert all(len(line) < 12_000 for line in path.read_text().splitlines())
    assert len(path.read_text().splitlines()) == RATINGS_EACH
