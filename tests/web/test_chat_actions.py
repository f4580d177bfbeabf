"""The actions of a conversation besides their limits: during an answer, with attachments, and when refused."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from starlette.requests import Request

from agent.errors import Conflict, InputError, Limited
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.history.sql.sqlite import SqliteStore
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.settings import PublicSettings, UploadSettings
from agent.tools.function_tools import ask_user
from agent.web.chat.answers import STILL_WRITING
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.questions import QuestionId
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor
from agent.web.middleware.isolation import IsolationMiddleware
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.sending import send_message
from agent.web.ui.api import ChatApi
from agent.web.ui.handlers import Handlers
from agent.web.unsent_files import UnsentFiles
from tests.support.media_files import picture, sound
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of, html_of, settle, view_of, widgets, written

ANN = Visitor(owner="ann")
SEES = ModelSpec(id="local:sees", name="sees", label="Sees", provider="vllm", image=True, licence="Apache-2.0")
TWO = '!tools ask_user {"question": "First?"} ask_user {"question": "Second?"} !text Done.'


SERVER = Config(rate=0, models=("sees",))


@pytest.fixture
def store() -> MemoryStore:
    """The store of the page. A test gives another one as its parameter."""
    return MemoryStore()


@pytest.fixture
async def page(server: Running, tmp_path: Path, store: MemoryStore) -> AsyncIterator[Conversations]:
    """The conversations of a page that downloads nothing, so that it can transcribe nothing."""
    made = chats_of(server.base_url, tmp_path, SEES, store=store, tools=[ask_user])
    yield made
    await made.aclose()


async def first(page: Conversations, text: str, *files: Path, **choices: Any) -> tuple[str, str]:
    """Send a message. Return the ids of its conversation and of the message."""
    message = {"text": text, "files": [str(file) for file in files]}
    live = await page.send(ANN, None, message, Choices(**choices))
    assert live is not None
    return live.conversation_id, (await view_of(page, "ann", live.conversation_id)).turns[0]["id"]


VERBS: dict[str, Callable[[Conversations, str, str], Awaitable[object]]] = {
    "undo": lambda page, at, id_: page.undo("ann", at, id_),
    "retry": lambda page, at, id_: page.retry(ANN, at, id_, Choices()),
    "edit": lambda page, at, id_: page.edit(ANN, at, id_, "!text Other.", Choices()),
    "send": lambda page, at, _: page.send(ANN, at, {"text": "!text More."}, Choices()),
    "answer": lambda page, at, _: page.answer(ANN, at, "yes", Choices()),
    "continue": lambda page, at, id_: page.continue_answer(ANN, at, id_, "More.", Choices()),
}


async def test_title_follows_the_first_message(page: Conversations, store: MemoryStore) -> None:
    conversation, one = await first(page, "One.")
    await settle(page)

    async def title() -> str:
        return (await store.get(conversation, owner="ann")).title

    async def last(text: str) -> str:
        await settle(page)
        turn = (await view_of(page, "ann", conversation)).turns[-1]
        assert html_of(turn["bubbles"][0]) == written(text)
        return turn["id"]

    await page.edit(ANN, conversation, one, "Two.", Choices())
    assert await title() == "Two."
    two = await last("Two.")
    await page.branches.choose("ann", conversation, one)
    assert await title() == "One."
    await page.branches.choose("ann", conversation, two)
    assert await title() == "Two."
    await page.undo("ann", conversation, two)
    await page.send(ANN, conversation, {"text": "Three."}, Choices())
    assert await title() == "Three."
    await last("Three.")
    await page.send(ANN, conversation, {"text": "More."}, Choices())
    await page.edit(ANN, conversation, await last("More."), "Other.", Choices())
    assert await title() == "Three."
    await page.retry(ANN, conversation, await last("Other."), Choices())
    assert await title() == "Three."
    await settle(page)


async def test_title_that_was_given_stays(page: Conversations, store: MemoryStore) -> None:
    conversation, one = await first(page, "One.")
    await settle(page)
    await store.label(conversation, owner="ann", title="Numbers")
    await page.edit(ANN, conversation, one, "Two.", Choices())
    await settle(page)
    await page.branches.choose("ann", conversation, one)
    assert (await store.get(conversation, owner="ann")).title == "Numbers"


@pytest.mark.parametrize("verb", VERBS)
async def test_verb_is_refused_during_an_answer(page: Conversations, verb: str) -> None:
    conversation, message = await first(page, "!tokens 9000 @20")
    with pytest.raises(Conflict) as refused:
        await VERBS[verb](page, conversation, message)
    assert refused.value.text == STILL_WRITING
    assert page.live_runs.is_busy(conversation)
    await page.running.stop([conversation], "ann")
    await settle(page)
    assert [turn["id"] for turn in (await view_of(page, "ann", conversation)).turns] == [message]


class PausingStore(MemoryStore):
    """A store that waits after it has read a history, like a database that is slow to send it."""

    pause: Callable[[], Awaitable[object]] | None = None

    async def history(self, conversation: Conversation, **wanted: Any) -> list[Entry]:
        found = await super().history(conversation, **wanted)
        if pause := self.pause:
            self.pause = None
            await pause()
        return found


@pytest.mark.parametrize("store", [PausingStore()])
async def test_answer_that_ends_during_a_view_is_complete(page: Conversations, store: PausingStore) -> None:
    conversation, _ = await first(page, "!tokens 20 @100")
    store.pause = lambda: settle(page)
    view = await page.views.view("ann", conversation)
    assert view.live is None
    assert view.turns[-1].note is not None
    assert view.turns[-1].note.ended == "stop"


@pytest.mark.parametrize("store", [PausingStore()])
async def test_answer_that_begins_during_a_view_is_running(page: Conversations, store: PausingStore) -> None:
    conversation, message = await first(page, "!text Short.")
    await settle(page)
    store.pause = lambda: page.retry(ANN, conversation, message, Choices())
    view = await page.views.view("ann", conversation)
    assert view.live is not None
    assert [turn.user for turn in view.turns] == []


async def test_only_its_owner_stops_an_answer(page: Conversations) -> None:
    conversation, _ = await first(page, "!tokens 9000 @20")
    await page.running.stop([conversation], "bob")
    live = page.live_runs.get(conversation, "ann")
    assert live is not None
    assert live.run.cancel_reason is None
    await page.running.stop([conversation], "ann")
    assert live.run.cancel_reason == "user_request"


@pytest.mark.parametrize("verb", ["edit", "retry"])
@pytest.mark.parametrize("text", ["!text Seen.", ""])
async def test_attachments_stay_with_their_message(
    page: Conversations, server: Running, tmp_path: Path, verb: str, text: str
) -> None:
    (tmp_path / "red.png").write_bytes(picture("PNG"))
    (tmp_path / "notes.txt").write_text("some notes")
    conversation, message = await first(page, text, tmp_path / "red.png", tmp_path / "notes.txt")
    await settle(page)
    earlier = server.journal()[-1]["body"]["messages"][-1]["content"]
    await VERBS[verb](page, conversation, message)
    await settle(page)
    later = server.journal()[-1]["body"]["messages"][-1]["content"]
    files = earlier[1:] if text else earlier
    assert [part["type"] for part in files] == ["image_url", "text"]
    spoken = {"edit": "!text Other.", "retry": text}[verb]
    assert later == ([{"type": "text", "text": spoken}] if spoken else []) + files


async def test_reply_to_one_of_two_questions_meets_the_limits(page: Conversations, server: Running) -> None:
    conversation, _ = await first(page, TWO, tools=True)
    await settle(page)
    for limits in (PublicSettings(messages=1), PublicSettings(answers_each=1)):
        page.runs.rate_limiter = RateLimiter(limits)
        place = page.runs.rate_limiter.reserve_answer(ANN)
        if limits.messages == 1:
            place.release()
        with pytest.raises(Limited):
            await page.answer(ANN, conversation, "one", Choices())
    assert page.replies.get(conversation) is None
    page.runs.rate_limiter = RateLimiter(PublicSettings(messages=2))
    for reply, ends in (("one", False), ("two", True)):
        assert (await page.answer(ANN, conversation, reply, Choices()) is not None) is ends
    await settle(page)
    assert [one["content"] for one in server.journal()[-1]["body"]["messages"][-2:]] == ["one", "two"]


async def by_page(page: Conversations, message: dict[str, Any], switch: bool, request: gr.Request) -> None:
    """Send with the composer."""
    assert request.request is not None
    await send_message(page, ANN, None, message, Choices(extract_text=switch), request.request.scope)


async def by_program(page: Conversations, message: dict[str, Any], switch: bool, request: gr.Request) -> None:
    """Call the endpoint for programs."""
    async for _ in ChatApi(page).chat(message, "", {"extract_text": switch}, request):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("switch", [False, True], ids=["off", "on"])
@pytest.mark.parametrize("way", [by_page, by_program])
async def test_switch_for_transcription_reaches_the_message(
    page: Conversations, tmp_path: Path, way: Callable[..., Awaitable[None]], switch: bool
) -> None:
    """The model cannot hear, and the transcriber is not on this disk. Only a visitor who requested it is told so."""
    file = tmp_path / "said.wav"
    file.write_bytes(sound("wav"))
    isolation = IsolationMiddleware(Request({"type": "http"}), VisitorCookies("key"))
    isolation.uploads.add(str(file), "ann")
    with closing(UnsentFiles(tmp_path / "unsent", UploadSettings())) as unsent:
        state = {"visitor": "ann", "address": None, "isolation": isolation, "uploads": unsent}
        request = gr.Request(Request({"type": "http", "headers": [], "state": state}), session_hash="page")
        with pytest.raises((gr.Error, InputError)) as refused:
            await way(page, {"text": "", "files": [str(file)]}, switch, request)
    assert ("is not on this disk, and downloads are off" in str(refused.value)) is switch
    assert ("cannot hear" in str(refused.value)) is not switch


async def test_licence_of_the_model_is_shown(page: Conversations) -> None:
    state = {"visitor": "ann", "address": None}
    request = gr.Request(Request({"type": "http", "headers": [], "state": state}), session_hash="page")
    for licence, shown in (("Apache-2.0", True), ("", False)):
        page.models.local.served = (ServedModel(replace(SEES, licence=licence), Endpoint("http://127.0.0.1:1/v1")),)
        updates = await Handlers(page, widgets()).model_chosen(SEES.id, {}, None, request)
        assert ("Apache-2.0 licence" in updates[widgets().about]) is shown


async def go_on(page: Conversations, chat: str, id_: str) -> object:
    """Continue the answer to a message."""
    return await page.continue_answer(ANN, chat, id_, "Go on.", Choices())


ACTIONS: dict[str, Callable[[Conversations, str, str], Awaitable[object]]] = {
    "continue": go_on,
    "retry": lambda page, chat, id_: page.retry(ANN, chat, id_, Choices()),
    "edit": lambda page, chat, id_: page.edit(ANN, chat, id_, "!text Other.", Choices()),
    "undo": lambda page, chat, id_: page.undo(ANN.owner, chat, id_),
    "version": lambda page, chat, id_: page.branches.choose(ANN.owner, chat, id_),
    "branch": lambda page, chat, id_: page.branches.copy(ANN, chat, id_),
    "answer": lambda page, chat, id_: page.answer(ANN, chat, "yes", Choices(), QuestionId(id_, id_)),
}
NAMES = {"empty": "", "half": "\ud800", "NUL": "a\0", "huge": "x" * 1_000_000, "path": "../'\"<b>"}


@pytest.mark.parametrize("name", ACTIONS)
async def test_bad_id_gets_a_sentence(
    server: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """So does the id of another visitor's message. Nothing is changed, and no traceback is logged."""
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        page = chats_of(server.base_url, tmp_path, SEES, store=store, tools=[ask_user])
        chat, _message = await first(page, "!text One.")
        await settle(page)
        other = await page.send(Visitor(owner="ben"), None, {"text": "!text Two."}, Choices())
        assert other
        [foreign] = (await view_of(page, "ben", other.conversation_id)).turns
        await settle(page)
        before = await view_of(page, "ann", chat)
        for id_ in [*NAMES.values(), foreign["id"]]:
            with pytest.raises(Conflict) as refused:
                await ACTIONS[name](page, chat, id_)
            known = ("That message is no longer in this chat", "has gone on since then", "no longer open")
            assert any(sentence in str(refused.value) for sentence in known), id_
            assert len(str(refused.value)) < 200
        assert await view_of(page, "ann", chat) == before
        assert not [one for one in caplog.records if one.exc_info]
        await page.aclose()
