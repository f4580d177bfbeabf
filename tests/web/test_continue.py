"""Continuing an unfinished answer on the page: one bubble live and stored, its figures, and what may follow."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Conflict
from agent.history import HistoryStore, now
from agent.history.memory import MemoryStore
from agent.history.sql.sqlite import SqliteStore
from agent.models.catalog import ModelSpec
from agent.rendering.bubbles import Turn
from agent.web.chat.answers import LiveRun
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor
from tests.support.history_stores import end_as_lost
from tests.support.models import QWEN3
from tests.support.script_language import token
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of, settle, view_of, watch, written

ANN = Visitor(owner="ann")
SPEC = replace(QWEN3, prefill=True)
PLEASE = "Continue exactly where you stopped."


def page_of(
    server: Running, folder: Path, store: HistoryStore, *specs: ModelSpec, keep_days: float = 0
) -> Conversations:
    return chats_of(server.base_url, folder, *specs or (SPEC,), store=store, keep_days=keep_days)


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def page(server: Running, tmp_path: Path, store: MemoryStore) -> AsyncIterator[Conversations]:
    made = page_of(server, tmp_path, store)
    yield made
    await made.aclose()


async def cut(page: Conversations, text: str = "!length 5", **choices: Any) -> tuple[str, str]:
    """Send a message and wait for its answer. Return the ids of its conversation and of the message."""
    live = await page.send(ANN, None, {"text": text}, Choices(**choices))
    assert live is not None
    await settle(page)
    [turn] = (await view_of(page, "ann", live.conversation_id)).turns
    return live.conversation_id, turn["id"]


def without_tags(markup: str) -> str:
    return re.sub("<[^<>]*>", "", markup)


def first_button(turn: Turn) -> str:
    """Return what the first button below an answer does."""
    return turn.get("buttons", [])[0]["value"]["do"]


def words(first: int, last: int) -> str:
    return "".join(map(token, range(first, last)))


async def test_continued_answer_is_one_bubble_live_and_stored(page: Conversations) -> None:
    conversation, message = await cut(page)
    assert (await page.continue_answer(ANN, conversation, message, PLEASE, Choices()))[1] == ""
    texts: list[str] = []
    async with aclosing(watch(page, "ann", conversation)) as views:
        async for view in views:
            assert [one["kind"] for one in view.bubbles] == ["user", "output_text"]
            texts.append(view.texts[1])
            last = view
    assert "word4" in texts[0]  # the text so far never disappears
    assert texts == sorted(texts, key=len)
    assert texts[-1] == written(words(0, 10))
    stored = await view_of(page, "ann", conversation)
    assert stored.turns == last.turns
    [turn] = stored.turns
    assert "11 tokens" in without_tags(turn.get("caption", ""))  # the space at the seam is one of them, too
    assert first_button(turn) == "continue"


async def test_next_request_and_branches_know_one_answer(page: Conversations, server: Running) -> None:
    conversation, message = await cut(page)
    for _ in range(2):
        await page.continue_answer(ANN, conversation, message, PLEASE, Choices())
        await settle(page)
    await page.send(ANN, conversation, {"text": "!text Thanks."}, Choices())
    await settle(page)
    asked, answer, _thanks = server.journal()[-1]["body"]["messages"][-3:]
    assert (asked["content"], answer["content"]) == ("!length 5", words(0, 15))
    [_, thanks] = (await view_of(page, "ann", conversation)).turns
    with pytest.raises(Conflict, match="gone on since"):  # it is no longer the last answer
        await page.continue_answer(ANN, conversation, message, PLEASE, Choices())
    assert await page.undo("ann", conversation, thanks["id"]) == "!text Thanks."
    await page.retry(ANN, conversation, message, Choices())
    await settle(page)
    again, anew = server.journal()[-1]["body"], await view_of(page, "ann", conversation)
    assert [one["role"] for one in again["messages"]][-2:] == ["system", "user"]
    assert anew.texts[1] == written(words(0, 5))
    await page.continue_answer(ANN, conversation, anew.turns[0]["id"], PLEASE, Choices())
    await settle(page)
    assert await page.undo("ann", conversation, anew.turns[0]["id"]) == "!length 5"
    assert not (await view_of(page, "ann", conversation)).turns


async def wait_for_word(page: Conversations, conversation: str, word: int) -> LiveRun:
    """Wait until the running answer has this word."""
    live = page.live_runs.get(conversation, "ann")
    assert live is not None
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            if live.log.bubbles and f"word{word} " in live.log.bubbles[-1].text:
                break
    return live


@pytest.mark.slow
async def test_continued_answer_can_be_stopped(page: Conversations) -> None:
    conversation, message = await cut(page, "!pace 2 !length 3")
    await page.continue_answer(ANN, conversation, message, PLEASE, Choices())
    await wait_for_word(page, conversation, 3)
    await page.running.stop([conversation], "ann")
    await settle(page)
    [_, text, caption] = (stopped := await view_of(page, "ann", conversation)).texts
    assert "word3" in text
    assert "Stopped" in caption
    assert first_button(stopped.turns[0]) == "continue"
    assert (await page.continue_answer(ANN, conversation, message, PLEASE, Choices()))[1] == ""
    await settle(page)
    [_, more, caption] = (await view_of(page, "ann", conversation)).texts
    assert without_tags(more).startswith(without_tags(text).rstrip())
    assert "Reached the length limit" in caption


async def test_stopped_answer_without_text_is_not_continued(page: Conversations) -> None:
    live = await page.send(ANN, None, {"text": "!think 5 @50 !wait 60"}, Choices())
    assert live is not None
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            if live.log.bubbles:
                break
    await page.running.stop([live.conversation_id], "ann")
    await settle(page)
    [turn] = (await view_of(page, "ann", live.conversation_id)).turns
    assert "Stopped" in turn.get("caption", "")
    assert "buttons" not in turn


async def test_failed_continuation_can_be_continued(page: Conversations, server: Running) -> None:
    conversation, message = await cut(page)
    config, server.server.config = server.server.config, Config(api_key="another")
    assert (await page.continue_answer(ANN, conversation, message, PLEASE, Choices()))[1] == ""
    await settle(page)
    failed = await view_of(page, "ann", conversation)
    assert [one["kind"] for one in failed.bubbles] == ["user", "output_text", "error"]
    assert failed.texts[1] == written(words(0, 5))
    assert first_button(failed.turns[0]) == "continue"
    server.server.config = config
    assert (await page.continue_answer(ANN, conversation, message, PLEASE, Choices()))[1] == ""
    await settle(page)
    [_, text, caption] = (await view_of(page, "ann", conversation)).texts
    assert text == written(words(0, 10))
    assert "11 tokens" in without_tags(caption)


async def test_reasoning_alone_gets_a_message(page: Conversations, server: Running) -> None:
    conversation, message = await cut(page, '!json [{"reasoning": "First I add."}, {"finish": "length"}]')
    assert (await page.continue_answer(ANN, conversation, message, PLEASE, Choices()))[1] == SPEC.label
    await settle(page)
    assert server.journal()[-1]["body"]["messages"][-1] == {"role": "user", "content": PLEASE}


@pytest.mark.parametrize("end", ["stop", "length"])
async def test_empty_answer_can_be_tried_again(page: Conversations, end: str) -> None:
    conversation, _ = await cut(page, f'!json [{{"finish": "{end}"}}]')
    [turn] = (await view_of(page, "ann", conversation)).turns
    assert first_button(turn) == "retry"


async def test_other_servers_get_a_message(server: Running, tmp_path: Path, store: MemoryStore) -> None:
    page = page_of(server, tmp_path, store, QWEN3)
    conversation, message = await cut(page)
    assert (await page.continue_answer(ANN, conversation, message, "!text The rest.", Choices()))[1] == QWEN3.label
    await settle(page)
    body = server.journal()[-1]["body"]
    assert "continue_final_message" not in body
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "user"]
    shown = await view_of(page, "ann", conversation)
    assert [[one["kind"] for one in turn["bubbles"]] for turn in shown.turns] == [["user", "output_text"]] * 2
    assert all("caption" in turn for turn in shown.turns)
    await page.aclose()


async def test_undo_and_continue_at_once_exclude_each_other(server: Running, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "history.sqlite")
    page = page_of(server, tmp_path, store)
    for is_undo_first in (True, False):
        conversation, message = await cut(page)
        both = [
            page.undo("ann", conversation, message),
            page.continue_answer(ANN, conversation, message, PLEASE, Choices()),
        ]
        done = await asyncio.gather(*both[:: 1 if is_undo_first else -1], return_exceptions=True)
        await settle(page)
        shown = (await view_of(page, "ann", conversation)).texts
        assert [isinstance(one, Conflict) for one in done].count(True) == 1, done
        assert (shown[1] == written(words(0, 10))) if shown else "!length 5" in done
    await page.aclose()
    await store.aclose()


@pytest.mark.slow
async def test_continued_chat_does_not_expire_meanwhile(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = timedelta()
    monkeypatch.setattr("agent.history.values.now", lambda: now() + later)
    store = MemoryStore(lambda: now() + later)
    page = page_of(server, tmp_path, store, keep_days=1)
    conversation, message = await cut(page, "!pace 10 !length 10")
    later = timedelta(days=1, seconds=-0.5)
    assert (await page.continue_answer(ANN, conversation, message, PLEASE, Choices()))[1] == ""
    later = timedelta(days=1, seconds=5)
    await settle(page)
    [_, text, caption] = (await view_of(page, "ann", conversation)).texts
    assert text == written(words(0, 20))
    assert "length limit" in caption
    await page.aclose()


async def killed_at(page: Conversations, store: MemoryStore, conversation: str, word: int) -> MemoryStore:
    """Wait until the running answer has this word. Return the store as the next server finds it if this one dies."""
    live = await wait_for_word(page, conversation, word)
    await live.log.store_if_due()
    left, kept = MemoryStore(), vars(store._storage)
    vars(left._storage).update(deepcopy({name: kept[name] for name in kept.keys() - {"clock"}}))
    live.run.cancel()
    await settle(page)
    assert await end_as_lost(left) == 1
    return left


@pytest.mark.slow
async def test_answer_is_continued_after_each_kill(
    server: Running, tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.web.chat.journal.EVENT_STORE_SECONDS", 0.0)
    page = page_of(server, tmp_path, store)
    live = await page.send(ANN, None, {"text": "!reasoning Hm. !tokens 60 @60"}, Choices())
    assert live is not None
    conversation = live.conversation_id
    for word in (10, 30):
        store = await killed_at(page, store, conversation, word)
        await page.aclose()
        page = page_of(server, tmp_path, store)
        shown = await view_of(page, "ann", conversation)
        assert [one["kind"] for one in shown.bubbles] == ["user", "reasoning", "output_text", "error"]
        assert f"word{word}" in shown.texts[2]
        assert "Interrupted" in shown.texts[3]
        [turn] = shown.turns
        assert turn.get("can_branch")
        assert (await page.continue_answer(ANN, conversation, turn["id"], PLEASE, Choices()))[1] == ""
    await settle(page)
    [_, thought, text, caption] = (await view_of(page, "ann", conversation)).texts
    assert (thought, text) == (written("Hm."), written(words(0, 60)))
    assert "≈" in caption  # nobody counted the tokens of the killed servers
    assert [one["role"] for one in server.journal()[-1]["body"]["messages"]] == ["system", "user", "assistant"]
    await page.aclose()


async def test_answer_lost_during_a_tool_gets_a_message(server: Running, tmp_path: Path, store: MemoryStore) -> None:
    """Nobody knows what the tool has done, so it is not run again."""
    page = page_of(server, tmp_path, store)
    conversation_id, message = await cut(page, "!text Let me look. !tool clock {} !text Late.")
    conversation = await store.get(conversation_id, owner="ann")
    called = (await store.history(conversation))[1]
    assert [part.part_kind for part in called.message.parts] == ["text", "tool-call"]
    await store.save(replace(conversation, head_id=called.id))  # as if the server had died then
    lost = await view_of(page, "ann", conversation_id)
    assert lost.texts[1] == written("Let me look.")
    assert first_button(lost.turns[0]) == "continue"
    assert (await page.continue_answer(ANN, conversation_id, message, "!text It is late.", Choices()))[1] == SPEC.label
    await settle(page)
    sent = server.journal()[-1]["body"]["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "tool", "assistant", "user"]
    await page.aclose()
