"""Several processes of the page on one store: each serves every answer, and finishes those of a process that is gone.

A process that loses its lease while its run goes on is the hardest case: its run is lost, and it still wants to write.
The pages that ask for the rest of an answer are in test_replica_processes.py. Here, the test asks.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from fastapi import FastAPI

from agent.errors import AgentError, Conflict, Limited, NotFound
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, RunEvent
from agent.history.values import RunEvents
from agent.settings import PublicSettings
from agent.web.chat.answers import RunningAnswer, RunningAnswers
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import GUEST_PREFIX
from agent.web.chat.recovery import MAX_LOST
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.visitor import Visitor
from agent.web.conversation_routes import answer_error
from agent.web.message_routes import MessageRoutes
from agent.web.run_event_routes import RunFrames, stream
from tests.support.history_stores import started
from tests.support.http_client import marker
from tests.support.models import QWEN3
from tests.support.replica_houses import ANN, Build, House, begin, calls, words
from tests.support.scripted_server import Running
from tests.support.views import view_of, watch
from tests.support.waiting import until

pytestmark = pytest.mark.slow


async def test_any_process_shows_and_stops_an_answer(build: Build) -> None:
    one, other = await build(), await build()
    conversation, _ = await begin(one, "!tokens 4000 @40")
    [row] = (await other.page.list.page("ann")).rows
    assert row.state == "answering"
    with pytest.raises(Conflict, match="still being written"):
        await other.page.send(ANN, conversation, {"text": "Again."}, Choices())
    shown: list[str] = []
    async with aclosing(watch(other.page, "ann", conversation)) as views:
        async for view in views:
            if view.is_busy and "word0" in str(view.texts[1:]):
                shown.append(view.texts[1])
                if "word99" in shown[-1]:
                    await other.page.running.stop([conversation], "ann")
            last = view
    assert shown == sorted(shown, key=len)
    assert len(set(shown)) > 3  # it grew while it was shown
    stored = [await view_of(house.page, "ann", conversation) for house in (one, other)]
    assert last.turns == stored[0].turns == stored[1].turns
    assert "Stopped" in last.texts[-1]
    assert "word3999" not in last.texts[1]


async def test_foreign_visitor_reaches_no_answer_of_another_process(build: Build, server: Running) -> None:
    one, other, held = await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 60 hold 20 {held}")
    await other.until_stored(run, "word9")
    running: RunningAnswers = other.page.running
    assert await running.get(conversation, "bob") is None
    assert await running.find(run, "bob") is None
    assert await running.find(run, "ann") is not None
    assert await running.find(run, "bob") is None  # also when it is known here
    await running.stop([conversation], "bob")
    await one.lose_its_runs()
    bob = Visitor(owner="bob")
    await other.until_idle(conversation)
    with pytest.raises(NotFound):
        await other.page.finish_lost(bob, conversation, run)
    await other.page.finish_lost(ANN, conversation, run)
    server.release(held)
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 60)


async def test_lost_text_is_continued_once(build: Build, server: Running) -> None:
    """Of several pages that ask for the rest, one is heard. The late writer can store nothing."""
    one, other, third, held = await build(), await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 60 @100 hold 20 {held}")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    assert await other.until_ended(conversation, run) == "lost"
    asked = [house.page.finish_lost(ANN, conversation, run) for house in (other, third, other)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["Conflict", "Conflict", "LiveRun"]
    server.release(held)
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 60)
    assert "another one has continued the text" in view.texts[-1]
    await until(lambda: not one.page.live_runs.count)
    assert await other.texts(conversation) == view.texts
    with pytest.raises(Conflict):
        await third.page.finish_lost(ANN, conversation, run)


async def test_process_that_ends_in_order_leaves_its_answers_to_others(build: Build, server: Running) -> None:
    one, other, held = await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 100 @100 hold 20 {held}")
    await other.until_stored(run, "word9")
    live = one.page.live_runs.find(run, "ann")
    assert live is not None
    reader = asyncio.create_task(read_all(live))
    await one.page.live_runs.close()
    assert not any("event: end" in text for text in await reader)  # so the reader connects again
    assert await other.until_ended(conversation, run) == "released"
    await other.page.finish_lost(ANN, conversation, run)
    server.release(held)
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 100)


async def read_all(live: RunningAnswer) -> list[str]:
    return [text async for text in stream(live, RunFrames(live), "")]


async def test_process_that_goes_down_sends_page_to_another(build: Build, server: Running) -> None:
    """It answers with 503, which a proxy and the page try again. A second request for the same rest is refused."""
    one, other, third, held = await build(), await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 60 @100 hold 20 {held}")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    await other.until_ended(conversation, run)
    other.page.live_runs.is_closing = True
    assert await asked_for_rest(other, conversation, run) == 503
    assert await asked_for_rest(third, conversation, run) == 200
    assert await asked_for_rest(third, conversation, run) == 409
    server.release(held)
    view = await third.until_idle(conversation)
    assert view.texts[1] == words(0, 60)


async def asked_for_rest(house: House, conversation: str, run: str) -> int:
    """Ask for the rest of a lost run over the route. Return the status."""
    app = FastAPI(exception_handlers={AgentError: answer_error})
    MessageRoutes(house.page, lambda _: "ann", AsyncMock(return_value=None)).add_to(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        path = f"/conversations/{conversation}/messages/message/continue"
        return (await client.post(path, json={"run": run})).status_code


async def test_answer_without_text_is_begun_again(build: Build, server: Running) -> None:
    """The process was lost while the model was still silent. The message is neither lost nor asked twice."""
    one, other, held = await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 30 hold 0 {held}")
    await other.until_stored(run, "begun")
    await one.lose_its_runs()
    await other.finish(conversation, run)
    server.release(held)
    view = await other.until_idle(conversation)
    assert len(view.turns) == 1
    assert view.texts[1] == words(0, 30)


@pytest.mark.full
async def test_step_begins_again_if_the_model_cannot_continue(build: Build, server: Running) -> None:
    one, other, held = await build(QWEN3), await build(QWEN3), marker()
    conversation, run = await begin(one, f'!tool note {{"text": "once"}} !tokens 60 @100 hold 20 {held}')
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    await other.finish(conversation, run)
    server.release(held)
    view = await other.until_idle(conversation)
    texts = view.texts
    assert words(0, 60) in texts
    assert "has begun this step again" in texts[-1]
    assert calls == ["once"]  # finished steps are kept


async def test_tool_of_unknown_outcome_waits_for_the_visitor(build: Build) -> None:
    one, other = await build(), await build()
    conversation, run = await begin(one, '!tool nap {"text": "once"} !text Done.')
    await other.until_stored(run, "tool_call")
    await one.lose_its_runs()
    assert await other.until_ended(conversation, run) == ""
    with pytest.raises(Conflict):
        await other.page.finish_lost(ANN, conversation, run)
    view = await view_of(other.page, "ann", conversation)
    assert calls == ["once"]
    [button] = [one for turn in view.turns for one in turn.get("buttons", ())]
    assert button["value"]["do"] == "retry"
    assert any("Interrupted" in text for text in view.texts)


QUESTIONS = '!tools ask_user {"question": "Which?"} pay {"text": "once"} !text Done.'


@pytest.mark.parametrize(
    ("script", "replies", "goes_on"),
    [
        ('!tool ask_user {"question": "Which?"} !text Done.', ["The red one."], True),
        (QUESTIONS, ["The red one.", "Refuse"], True),
        (QUESTIONS, ["The red one.", "Allow"], False),
    ],
    ids=["reply", "refusal", "allowed call"],
)
async def test_replies_outlive_the_process_that_got_them(
    build: Build, monkeypatch: pytest.MonkeyPatch, script: str, replies: Sequence[str], goes_on: bool
) -> None:
    """They are stored before the visitor hears that they came. A call that was allowed can have been made."""
    one, other = await build(), await build()
    conversation, _ = await begin(one, script)
    await one.until_idle(conversation)
    save, is_over = one.store.save, asyncio.Event()

    async def save_late(conversation: Conversation, entries: Sequence[Entry] = (), *rest: Any) -> Conversation:
        if entries:
            await is_over.wait()
        return await save(conversation, entries, *rest)

    monkeypatch.setattr(one.store, "save", save_late)
    for reply in replies:
        live = await one.page.answer(ANN, conversation, reply, Choices(tools=True))
    assert live is not None
    try:
        await one.lose_its_runs()
        assert bool(await other.until_ended(conversation, live.run_id)) == goes_on
        if goes_on:
            await other.page.finish_lost(ANN, conversation, live.run_id)
        texts = " ".join((await other.until_idle(conversation)).texts)
    finally:
        is_over.set()
    assert "The red one." in texts
    assert texts.count("Done.") == 1 + goes_on  # the first one is in the message
    assert not (await other.store.get(conversation, owner="ann")).pending
    assert calls == ["once"] * replies.count("Allow")


@pytest.mark.full
async def test_answer_that_loses_every_process_ends_as_interrupted(build: Build) -> None:
    house = await build()
    conversation, run = await begin(house, "!tokens 4000 @20")
    for _ in range(MAX_LOST):
        await house.until_stored(run, "word")
        following = await build()
        await house.lose_its_runs()
        run, house = (await following.finish(conversation, run)).run_id, following
    await house.until_stored(run, "word")
    last = await build()
    await house.lose_its_runs()
    assert await last.until_ended(conversation, run) == ""
    view = await view_of(last.page, "ann", conversation)
    assert any("Interrupted" in text for text in view.texts)


@pytest.mark.parametrize("script", ["!tokens 4000 @20", "!wait 30 !text Late."], ids=["with-text", "without"])
async def test_stop_of_lost_answer_is_obeyed(build: Build, script: str) -> None:
    """The visitor presses Stop after the process is gone and before anybody has noticed it."""
    one, other = await build(), await build()
    conversation, run = await begin(one, script)
    await other.until_stored(run, "word9" if "tokens" in script else "begun")
    await one.halt()
    await other.page.running.stop([conversation], "ann")
    await one.lose_its_runs()
    assert await other.until_ended(conversation, run) == ""
    shown = (await view_of(other.page, "ann", conversation)).texts
    assert any("Stopped" in text for text in shown)
    assert not any("word3999" in text for text in shown)


async def test_late_writer_that_says_nothing_is_cancelled(build: Build) -> None:
    """A run that waits for a tool or its model writes nothing, so that no refusal tells it that it was lost."""
    one, other = await build(), await build()
    conversation, run = await begin(one, '!tool nap {"text": "once"} !text Done.')
    await other.until_stored(run, "tool_call")
    await one.lose_its_runs()
    await other.until_ended(conversation, run)
    await one.wake()
    await until(lambda: not one.page.live_runs.count)
    view = await one.until_idle(conversation)
    assert view.texts == await other.texts(conversation)
    assert calls == ["once"]


async def test_answer_with_a_visitors_key_asks_for_it_again(
    build: Build, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUGGINGFACE_BASE_URL", server.base_url)
    for name in ("HF_TOKEN", "HUGGINGFACE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    one, other = await build(), await build()
    one.page.models.keys.put("ann", "huggingface", "of-ann")
    model = "huggingface:Qwen/Qwen3-8B"
    live = await one.page.send(ANN, None, {"text": "!tokens 60 hold 20 for-ever"}, Choices(model=model))
    assert live is not None
    await other.until_stored(live.run_id, "word9")
    await one.lose_its_runs()
    assert await other.until_ended(live.conversation_id, live.run_id) == ""
    texts = await other.texts(live.conversation_id)
    assert "word9" in texts[1]  # what was written stays
    assert any("Enter the key again" in text for text in texts)
    stored = [event.json for event in await other.store.runs.events(live.run_id, owner="ann")]
    assert not any("of-ann" in text for text in stored)


async def test_deleted_conversation_is_not_continued(build: Build) -> None:
    one, other = await build(), await build()
    conversation, run = await begin(one, "!tokens 4000 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    await other.until_ended(conversation, run)
    await other.store.delete(conversation, owner="ann")
    with pytest.raises(NotFound):
        await other.page.finish_lost(ANN, conversation, run)
    assert await other.store.runs.unfinished() == []


async def test_damaged_run_blocks_nothing(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    """A lost run that cannot be ended is logged, and its conversation can be used."""
    house = await build()
    conversation, _ = await started(house.store, owner="ann")
    damaged = RunEvents(run_id="bad", conversation_id=conversation.id, owner="ann", events=[RunEvent(1, "no JSON")])
    await house.store.runs.append(damaged)
    await house.lose_its_runs()
    assert not await house.page.running.is_busy(conversation.id, "ann")
    assert "bad could not be ended" in caplog.text


async def test_housekeeping_ends_what_nobody_looks_at(build: Build) -> None:
    one, other = await build(), await build()
    _, run = await begin(one, "!tokens 4000 @20")
    await other.until_stored(run, "word9")
    await other.page.running.lost.end_all()
    assert [found.run_id for found in await other.store.runs.unfinished()] == [run]
    await one.lose_its_runs()
    await other.page.running.lost.end_all()
    assert await other.store.runs.unfinished() == []


async def test_expired_lease_must_stay_so(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage, the first process that is back ends no run of others, which are back a moment later."""
    monkeypatch.setattr("agent.web.chat.recovery.CONFIRM_SECONDS", 3600.0)
    one, other = await build(), await build()
    conversation, run = await begin(one, "!tokens 60 @20")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    assert await other.page.running.is_busy(conversation, "ann")
    await one.wake()
    await one.store.runs.hold([run])
    monkeypatch.setattr("agent.web.chat.recovery.CONFIRM_SECONDS", 0.0)
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 60)
    assert not any("another one" in text for text in view.texts)


async def test_quota_keeps_what_another_process_answers(build: Build, tmp_path: Path) -> None:
    """A guest's chat makes room for another guest's message only when no process writes in it."""
    one, other = await build(), await build()
    guest, next_guest = (Visitor(owner=f"{GUEST_PREFIX}{number}", guest=True) for number in (1, 2))
    live = await one.page.send(guest, None, {"text": "!tokens 4000 @20"}, Choices())
    assert live is not None
    limits, media = PublicSettings(stored_mb_of_guests=1), MediaStore(tmp_path / "media")
    quota = StorageQuota(limits, other.store, media, tmp_path, other.page.live_runs.is_busy, free=lambda _: 10**12)

    async def reserve() -> None:
        async with quota.reservation(next_guest) as reserve:
            await reserve(1_000_000)

    with pytest.raises(Limited, match="no room for this message"):
        await reserve()
    assert await other.store.get(live.conversation_id, owner=guest.owner)
    await live.stop()
    await live.wait_for_end()
    await reserve()
    assert await other.store.list(guest.owner) == []
