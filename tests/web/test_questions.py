"""Questions and approvals on the page: buttons, typed answers, copies, restart, programs."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import expect
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Agent, Endpoint, connect
from agent.errors import Conflict, InputError, Limited, NotFound
from agent.history import Conversation, Entry, Note
from agent.history.memory import MemoryStore
from agent.models.catalog import ModelSpec
from agent.rendering.bubbles import Turn as ShownTurn
from agent.settings import ROOT, PublicSettings
from agent.suspension.suspended_run import Approve, Refuse
from agent.tools.builtin import calculate
from agent.tools.function_tools import ask_user
from agent.tools.mcp import McpServer
from agent.transfer.imported import FileLinks
from agent.transfer.portable import renewed
from agent.web.chat.attachments import MAX_TEXT
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.expiry import delete_conversation
from agent.web.chat.questions import ALLOW, QuestionId, Replies, parse_answer
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.transcript import ConversationTurn, to_turns
from agent.web.chat.turns import render_turn
from agent.web.chat.visitor import Visitor as Asker
from tests.conftest import App, Visit, Visitor
from tests.support.asking_tools import ASKING_CONFIG, send
from tests.support.scripted_server import Running
from tests.support.views import chats_of, html_of, settle, view_of, watch, written

ASK = '!text I must know. !tool ask_user {"question": "Which <b>table</b>?", "choices": ["monthly", "yearly"]} !echo'
SUM = 'calculate {"expression": "6*7"}'
SEND = '!tool send {"to": "Ann", "text": "Hi!"} !text Done.'
BOTH = '!tools ask_user {"question": "Which?"} send {"to": "Ann", "text": "Hi!"} !text Both done.'

QUESTION = QuestionId("r", "1")
QWEN = ModelSpec(id="vllm:Qwen/Qwen3-8B", name="Qwen/Qwen3-8B", label="Qwen3", provider="vllm")


# --- pure -------------------------------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "1", "name": name, "arguments": arguments}


MEANT = {
    "an answer": ("ask_user", " the monthly one ", "the monthly one"),
    "an answer that looks like leave": ("ask_user", "Allow", "Allow"),
    "leave": ("send", "Allow", Approve()),
    "leave, typed": ("send", "allow", Approve()),
    "refusal": ("send", "Refuse", Refuse()),
    "refusal with a reason": ("send", "Not to Ann.", Refuse("Not to Ann.")),
    "other arguments": ("send", '{"to": "Bob"}', Approve({"to": "Bob"})),
}


@pytest.mark.parametrize(("name", "text", "answer"), MEANT.values(), ids=MEANT)
def test_reply_is_parsed(name: str, text: str, answer: object) -> None:
    assert parse_answer(call(name), text) == answer


@pytest.mark.parametrize("text", ["", "  ", '{"to": ', '{"to":' * 30_000], ids=["none", "blank", "cut", "deep"])
def test_bad_reply_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_answer(call("send"), text)


def turn_of(
    *messages: ModelMessage, ended: str, replies: dict[str, str] | None = None, run: str = "r"
) -> ConversationTurn:
    given = {QuestionId(run, call): text for call, text in (replies or {}).items()}
    entries = [Entry(parent_id=None, message=one, note=Note(run_id="r")) for one in messages]
    entries[-1] = replace(entries[-1], note=Note(run_id="r", ended=ended))
    return to_turns(entries, replies=given)[-1]


def asked(*turns: ShownTurn) -> str:
    """Return the question that waits."""
    bubbles = [one for turn in turns for one in turn["bubbles"]]
    return next((html_of(one) for one in bubbles if (one["kind"], one["state"]) == ("question", "waiting")), "")


def said_by_person(*turns: ShownTurn) -> list[str]:
    return [html_of(one) for turn in turns for one in turn["bubbles"] if one["kind"] == "user"]


def test_questions_come_in_turn() -> None:
    said = ModelRequest(parts=[UserPromptPart("Do it.", timestamp=datetime.now(UTC))])
    first = ToolCallPart("ask_user", {"question": "Which?"}, tool_call_id="1")
    second = ToolCallPart("send", {"to": "Ann"}, tool_call_id="2")
    both = ModelResponse(parts=[first, second])
    assert "Which?" in asked(render_turn(turn_of(said, both, ended="suspended")))
    half = render_turn(turn_of(said, both, ended="suspended", replies={"1": "This."}))
    assert "Allow send to run" in asked(half)
    assert said_by_person(half) == [written("Do it."), written("This.")]
    other = render_turn(turn_of(said, both, ended="suspended", replies={"1": "This."}, run="another with equal ids"))
    assert "Which?" in asked(other)
    assert asked(render_turn(turn_of(said, both, ended="stop"))) == ""
    rest = ModelRequest(parts=[ToolReturnPart("send", "Sent.", tool_call_id="2")])
    assert "Which?" in asked(render_turn(turn_of(said, both, rest, ended="suspended")))


def test_answer_without_figures_can_be_branched() -> None:
    said = ModelRequest(parts=[UserPromptPart("Do it.", timestamp=datetime.now(UTC))])
    answer = ModelResponse(parts=[TextPart("Done.")])

    def can_branch(*messages: ModelMessage, ended: str) -> bool:
        shown = render_turn(turn_of(*messages, ended=ended))
        assert "caption" not in shown
        return shown.get("can_branch", False)

    assert can_branch(said, answer, ended="stop")
    assert can_branch(said, answer, ended="error")
    assert not can_branch(answer, ended="stop"), "its question is in an earlier part of the history"
    assert not can_branch(said, ended="error")


def test_failed_call_shows_in_title() -> None:
    prompt = ModelRequest(parts=[UserPromptPart("Do it.", timestamp=datetime.now(UTC))])
    calls = ModelResponse(
        parts=[ToolCallPart("send", {}, tool_call_id="1"), ToolCallPart("[x](y)", {}, tool_call_id="2")]
    )
    error = "ValueError: nobody  is here" + " at all" * 30 + "\nTraceback"
    failed = ModelRequest(parts=[ToolReturnPart("send", error, tool_call_id="1", outcome="failed")])

    def steps(*messages: ModelMessage, ended: str) -> list[tuple[str, str, str]]:
        shown = render_turn(turn_of(prompt, *messages, ended=ended))["bubbles"]
        return [(one["kind"], one["state"], one["title"]) for one in shown if "title" in one]

    row, first, nested, second = steps(calls, failed, ended="stop")
    assert row == ("steps", "failed", "2 tools · 2 failed")
    assert first[:2] == ("tool_call", "failed")
    assert first[2].startswith("Send · failed: nobody is here at all")
    assert first[2].endswith("…")
    assert nested == ("tool_call_result", "failed", "Failed")
    assert second == ("tool_call", "failed", "[x](y) · interrupted")
    row, *waiting = steps(calls, ended="suspended")
    assert row == ("steps", "done", "2 tools")
    assert waiting == [("tool_call", "waiting", f"{name} · waiting for you") for name in ("Send", "[x](y)")]


class SlowStore(MemoryStore):
    """A store that saves after a pause, in which others can begin."""

    pause = 0.0

    async def save(self, *args: Any, **options: Any) -> Conversation:
        await asyncio.sleep(self.pause)
        return await super().save(*args, **options)


@pytest.fixture
async def restarted(model_server: Running, tmp_path: Path) -> AsyncIterator[Callable[[], Conversations]]:
    """Yield a function to a server's conversations. Each call starts another server with the same store."""
    store, begun = SlowStore(), list[Conversations]()

    def start() -> Conversations:
        tools = [ask_user, send, calculate]
        begun.append(chats_of(model_server.base_url, tmp_path, QWEN, store=store, tools=tools, retries=0))
        return begun[-1]

    yield start
    for one in begun:
        await one.aclose()


@pytest.mark.parametrize(
    ("script", "sent"),
    [
        (f"!think 5 {ASK}", ["yearly"]),
        (f"{ASK.replace('!tool', '!tools').replace(' !echo', '')} {SUM} !echo", ["yearly", "42"]),
    ],
    ids=["alone", "before another call"],
)
async def test_answer_resumes_in_another_process(
    restarted: Callable[[], Conversations], model_server: Running, script: str, sent: list[str]
) -> None:
    before = restarted()
    live = await before.send(Asker(owner="ann"), None, {"text": script}, Choices(tools=True))
    assert live is not None
    seen = [view async for view in watch(before, "ann", live.conversation_id)]
    assert (await live.run).finish_reason == "suspended"
    after = restarted()
    assert (await view_of(after, "ann", live.conversation_id)).turns == seen[-1].turns
    with pytest.raises(NotFound):
        await after.answer(Asker(owner="bob"), live.conversation_id, "yearly", Choices())
    went_on = await after.answer(
        Asker(owner="ann"), live.conversation_id, "yearly", Choices()
    )  # tools are now turned off
    assert went_on is not None
    seen = [view async for view in watch(after, "ann", live.conversation_id)]
    assert (await went_on.run).finish_reason == "stop"
    again = await view_of(after, "ann", live.conversation_id)
    assert again.turns == seen[-1].turns
    assert said_by_person(*again.turns)[1:] == [written("yearly")]
    assert asked(*again.turns) == ""
    results = [one for one in model_server.journal()[-1]["body"]["messages"] if one["role"] == "tool"]
    assert [one["content"] for one in results] == sent
    await settle(after)
    with pytest.raises(Conflict, match="no longer open"):
        await after.answer(Asker(owner="ann"), live.conversation_id, "monthly", Choices())


async def test_bad_arguments_are_refused_and_asking_continues(restarted: Callable[[], Conversations]) -> None:
    page = restarted()
    live = await page.send(Asker(owner="ann"), None, {"text": SEND}, Choices(tools=True))
    assert live is not None
    await settle(page)
    with pytest.raises(InputError, match="do not fit"):
        await page.answer(Asker(owner="ann"), live.conversation_id, '{"to": 5, "shout": true}', Choices())
    assert "Allow send to run" in asked(*(await view_of(page, "ann", live.conversation_id)).turns)
    refused = await page.answer(Asker(owner="ann"), live.conversation_id, "Not now.", Choices())
    assert refused is not None
    assert (await refused.run).finish_reason == "stop"


FOREIGN = {
    # who answers, in which chat, and the run and the call that the pressed button names
    "another visitor": ("bob", "chat", "run", "call"),
    "another chat": ("ann", "other chat", "run", "call"),
    "no chat": ("ann", "none", "run", "call"),
    "another chat's question": ("ann", "chat", "other run", "other call"),
    "another run": ("ann", "chat", "other run", "call"),
    "no call": ("ann", "chat", "run", "none"),
    "no run": ("ann", "chat", "none", "call"),
    "nothing": ("ann", "chat", "none", "none"),
}


async def suspended(page: Conversations, owner: str) -> tuple[str, QuestionId]:
    """Begin a chat that waits for an approval. Return its id and that of the question."""
    live = await page.send(Asker(owner=owner), None, {"text": SEND}, Choices(tools=True))
    assert live is not None
    await settle(page)
    conversation = await page.store.get(live.conversation_id, owner=owner)
    turn = to_turns(await page.store.history(conversation))[-1]
    assert turn.question is not None
    return conversation.id, QuestionId(turn.run, turn.question["id"])


async def test_approval_counts_only_for_its_question(
    restarted: Callable[[], Conversations], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approval by somebody else, for something else, again, or too late is refused and changes nothing."""
    monkeypatch.setenv("SWITCHBOARD_DATA", str(tmp_path))
    here, there, ann = restarted(), restarted(), Asker(owner="ann")
    chat, question_id = await suspended(here, "ann")
    other, other_id = await suspended(here, "ann")
    ids = {"none": "", "chat": chat, "run": question_id.run, "call": question_id.call}
    ids |= {"other chat": other, "other run": other_id.run, "other call": other_id.call}
    before = [(await view_of(here, "ann", one)).turns for one in (chat, other)]
    for page in here, there:
        for name, (who, where, run, call_id) in FOREIGN.items():
            with pytest.raises((Conflict, NotFound)):
                await page.answer(Asker(owner=who), ids[where], ALLOW, Choices(), QuestionId(ids[run], ids[call_id]))
            assert [(await view_of(page, "ann", one)).turns for one in (chat, other)] == before, name
    assert await there.answer(ann, chat, ALLOW, Choices(), question_id) is not None
    await settle(there)
    [prompt] = (await here.store.history(await here.store.get(other, owner="ann")))[:1]
    await here.undo("ann", other, prompt.id)
    for page in here, there:
        for late in ((chat, question_id), (other, other_id)):
            with pytest.raises(Conflict):
                await page.answer(ann, late[0], ALLOW, Choices(), late[1])
    assert (tmp_path / "sent.txt").read_text() == "Ann: Hi!\n"


async def test_approved_call_is_made_by_one_process(
    restarted: Callable[[], Conversations], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_DATA", str(tmp_path))
    pages, ann = [restarted(), restarted()], Asker(owner="ann")
    chat, question_id = await suspended(pages[0], "ann")
    SlowStore.pause = 0.2
    try:
        answers = [page.answer(ann, chat, ALLOW, Choices(), question_id) for page in pages * 2]
        results = await asyncio.gather(*answers, return_exceptions=True)
    finally:
        SlowStore.pause = 0
    for page in pages:
        await settle(page)
    assert sorted(type(one).__name__ for one in results) == ["Conflict", "Conflict", "Conflict", "LiveRun"]
    assert (tmp_path / "sent.txt").read_text() == "Ann: Hi!\n"


async def test_replies_are_bounded_and_forgotten(restarted: Callable[[], Conversations]) -> None:
    page, ann = restarted(), Asker(owner="ann")
    live = await page.send(ann, None, {"text": BOTH}, Choices(tools=True))
    assert live is not None
    await settle(page)
    page.runs.rate_limiter = RateLimiter(PublicSettings(messages=1))
    page.runs.rate_limiter.reserve_answer(ann).release()
    with pytest.raises(Limited, match="1 message a minute"):
        await page.answer(ann, live.conversation_id, "yearly", Choices())
    page.runs.rate_limiter = RateLimiter(None)
    assert await page.answer(ann, live.conversation_id, "yearly", Choices()) is None
    assert page.replies.get(live.conversation_id)
    conversation = await page.store.get(live.conversation_id, owner="ann")
    await page.replies.forget_deleted(page.store)
    assert page.replies.get(live.conversation_id)
    assert await delete_conversation(page.store, page.media, conversation, page.live_runs.is_busy)
    await page.replies.forget_deleted(page.store)
    assert page.replies.get(live.conversation_id) is None
    assert page.replies.size == 0


THINGS = McpServer.stdio(sys.executable, ["-m", "tests.support.mcp_server", "stdio"], name="things", cwd=ROOT)


async def waiting_for_reply(page: Conversations, chat: str) -> str:
    return asked(*(await view_of(page, "ann", chat)).turns)


@pytest.mark.slow
async def test_questions_of_servers_are_asked_field_by_field(model_server: Running, tmp_path: Path) -> None:
    """Also after a restart. What does not fit is asked again, and the rest is not."""
    store, ann = MemoryStore(), Asker(owner="ann")
    pages = [chats_of(model_server.base_url, tmp_path, QWEN, store=store, tools=[THINGS]) for _ in range(2)]
    live = await pages[0].send(ann, None, {"text": "!tool things-order {} !text Ordered."}, Choices(tools=True))
    assert live is not None
    await settle(pages[0])
    page, chat = pages[1], live.conversation_id
    assert (await view_of(page, "ann", chat)).turns == (await view_of(pages[0], "ann", chat)).turns
    assert re.search(r"Things-order asks:.*Your order \(Dish\)", await waiting_for_reply(page, chat), re.DOTALL)
    assert await page.answer(ann, chat, "fish", Choices()) is None
    [turn] = (await view_of(page, "ann", chat)).turns
    assert said_by_person(turn)[-1] == written("fish")
    assert [one["label"] for one in turn["buttons"]] == ["Yes", "No", "Refuse"]
    assert await page.answer(ann, chat, "yes", Choices()) is None
    assert await page.answer(ann, chat, "Refuse", Choices()) is not None
    await settle(page)
    assert "It takes one of soup, cake, not" in await waiting_for_reply(page, chat)
    assert await page.answer(ann, chat, "cake", Choices()) is not None
    await settle(page)
    [turn] = (await view_of(page, "ann", chat)).turns
    assert asked(turn) == ""
    assert "cake" in str(turn)
    sent = model_server.journal()[-1]["body"]["messages"]
    assert json.loads(sent[-1]["content"]) == {"dish": "cake", "warm": True, "note": None}
    for one in pages:
        await one.aclose()


@pytest.mark.slow
async def test_requests_of_servers_to_the_model_are_approved(model_server: Running, tmp_path: Path) -> None:
    server, ann = replace(THINGS, sampling=True), Asker(owner="ann")
    page = chats_of(model_server.base_url, tmp_path, QWEN, tools=[server])
    live = await page.send(ann, None, {"text": '!tool things-poem {"topic": "tea"} !text Read.'}, Choices(tools=True))
    assert live is not None
    await settle(page)
    shown = await waiting_for_reply(page, live.conversation_id)
    assert "The MCP server things wants to ask the model" in shown
    assert "A poem about tea" in shown
    changed = json.dumps({"text": "!text Warm leaves."})
    assert await page.answer(ann, live.conversation_id, changed, Choices()) is not None
    await settle(page)
    results = [one for one in model_server.journal()[-1]["body"]["messages"] if one["role"] == "tool"]
    assert results[-1]["content"].startswith("Warm leaves.")
    await page.aclose()


async def test_questions_of_agents_below_are_asked(model_server: Running, tmp_path: Path) -> None:
    """The row of the call shows what the agent does, and its question reaches it after a restart."""
    child = Agent(connect(QWEN, Endpoint(model_server.base_url)), tools=[ask_user, send, calculate])
    store, ann, tools = MemoryStore(), Asker(owner="ann"), [child.as_tool("Looks things up.", name="research")]
    pages = [chats_of(model_server.base_url, tmp_path, QWEN, store=store, tools=tools) for _ in range(2)]
    task = json.dumps({"task": ASK.replace("!echo", "!text Found.")}).replace("!", "\\u0021")
    live = await pages[0].send(ann, None, {"text": f"!tool research {task}"}, Choices(tools=True))
    assert live is not None
    outputs = live.run.outputs
    await settle(pages[0])
    assert "".join(text for _, text in outputs) == "I must know.\nask_user…\n"
    assert "Research asks:" in await waiting_for_reply(pages[1], live.conversation_id)
    with pytest.raises(NotFound):
        await pages[1].answer(Asker(owner="bob"), live.conversation_id, "yearly", Choices())
    went_on = await pages[1].answer(ann, live.conversation_id, "yearly", Choices())
    assert went_on is not None
    await settle(pages[1])
    [turn] = (await view_of(pages[1], "ann", live.conversation_id)).turns
    assert asked(turn) == ""
    assert "Found." in str(turn)
    for one in pages:
        await one.aclose()
    await child.aclose()


async def test_import_brings_no_suspended_run_below() -> None:
    entry = Entry(parent_id=None, message=ModelResponse(parts=[]), note=Note(ended="suspended", suspension="{}"))
    [new] = renewed([entry], FileLinks(lambda _: None))
    assert (new.note.ended, new.note.suspension) == ("suspended", "")


@pytest.mark.slow
def test_long_replies_evict_no_short_ones() -> None:
    replies, short = Replies(max_bytes=1_000_000), Conversation(owner="ann")
    replies.put(short, {QUESTION: "yearly"})
    for owner in range(50):
        newest = Conversation(owner=str(owner))
        replies.put(newest, {QUESTION: "x" * MAX_TEXT})
        assert replies.size <= 1_000_000
    assert replies.get(short.id) == {QUESTION: "yearly"}
    assert replies.get(newest.id) is not None
    with pytest.raises(InputError, match="200,001 characters"):
        replies.put(short, {QUESTION: "yearly", QuestionId("r", "2"): "x" * (MAX_TEXT - 5)})
    assert replies.get(short.id) == {QUESTION: "yearly"}
    for number in range(5000):
        replies.put(Conversation(owner=str(number)), {QUESTION: "yearly"})
    assert replies.size <= 1_000_000


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asking(start_app: Callable[..., App]) -> App:
    return start_app(ASKING_CONFIG)


def visitor_with_tools(visit: Visit, app: App, **how: Any) -> Visitor:
    visitor = visit(app.url, **how)
    visitor.allow_tools()
    return visitor


def question(visitor: Visitor) -> Any:
    return visitor.chat.locator('[data-kind="question"][data-state="waiting"]')


def press(visitor: Visitor, label: str) -> None:
    visitor.chat.get_by_role("button", name=label, exact=True).click()


def sent(app: App) -> list[str]:
    file = app.folder / "data" / "sent.txt"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.gate("A tool that needs approval runs only when approved.")
def test_tool_runs_only_when_approved(asking: App, visit: Visit, model_server: Running) -> None:
    visitor = visitor_with_tools(visit, asking)
    visitor.say(SEND)
    expect(question(visitor)).to_contain_text("Allow send to run with these values?")
    expect(question(visitor)).to_contain_text('"to": "Ann"')
    visitor.shot("approval")
    expect(visitor.page).to_have_title(re.compile("^Waiting for you · "))
    expect(visitor.page.locator("#chats li").get_by_label("Waiting for you")).to_be_attached()
    already = sent(asking)
    press(visitor, "Refuse")
    expect(visitor.bubbles.filter(has_text="Done.")).to_be_visible()
    visitor.idle()
    assert sent(asking) == already
    visitor.say(SEND)
    expect(question(visitor)).to_be_visible()
    press(visitor, "Allow")
    expect(question(visitor)).to_have_count(0)
    visitor.idle()
    assert sent(asking) == [*already, "Ann: Hi!"]
    expect(visitor.page).not_to_have_title(re.compile("Waiting"))
    visitor.say(SEND)
    expect(question(visitor)).to_be_visible()
    visitor.idle()
    visitor.say('{"to": "Bob", "text": "Changed."}')
    expect(question(visitor)).to_have_count(0)
    visitor.idle()
    assert sent(asking) == [*already, "Ann: Hi!", "Bob: Changed."]
    visitor.say(SEND)
    expect(question(visitor)).to_be_visible()
    visitor.idle()
    visitor.say("Ann is on holiday.")
    expect(question(visitor)).to_have_count(0)
    visitor.idle()
    assert len(sent(asking)) == len(already) + 2
    results = [m["content"] for m in model_server.journal()[-1]["body"]["messages"] if m["role"] == "tool"]
    assert "Ann is on holiday." in results[-1]


def test_programs_answer_with_next_message(asking: App) -> None:
    client = Client(asking.url, verbose=False)
    try:
        said = {"text": ASK, "files": []}
        first = client.predict(said, "", {"tools": True}, api_name="/chat")
        assert first["finish_reason"] == "suspended"
        assert first["bubbles"][-1]["content"]["arguments"]["choices"] == ["monthly", "yearly"]
        second = client.predict({"text": "monthly", "files": []}, "", {"tools": True}, api_name="/chat")
        assert second["finish_reason"] == "stop"
        got = json.loads(second["text"].removeprefix("```json\n").removesuffix("\n```"))
        assert [one["content"] for one in got["messages"] if one["role"] == "tool"] == ["monthly"]
    finally:
        client.close()
