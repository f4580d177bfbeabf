"""Several replicas of the page on one store: each serves every answer, and finishes those of a replica that is gone.

A replica that leaves while its run goes on is the hardest case: its run is lost at once, and it still wants to write.
"""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from agent.errors import Conflict, Limited
from agent.history import Record, now
from agent.media.store import MediaStore
from agent.settings import PublicSettings
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import GUEST_PREFIX, UNDO_SECONDS, ExpiredConversations
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.running_answers import RunningAnswers
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.takeovers import MAX_TAKEOVERS
from agent.web.chat.visitor import Visitor
from agent.web.run_event_routes import RunFrames, stream
from tests.support.history_laws import batch
from tests.support.http_client import marker
from tests.support.models import QWEN3
from tests.support.replica_houses import ANN, Build, House, begin, calls, words
from tests.support.scripted_server import Running
from tests.support.views import view_of, watch
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.slow


async def test_any_replica_shows_and_stops_an_answer(build: Build) -> None:
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


async def test_foreign_visitor_reaches_no_answer_of_another_replica(build: Build, server: Running) -> None:
    one, other, held = await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 60 hold 20 {held}")
    running: RunningAnswers = other.page.running
    assert await running.get(conversation, "bob") is None
    assert await running.find(run, "bob") is None
    assert await running.find(run, "ann") is not None
    assert await running.find(run, "bob") is None  # also when it is known here
    await running.stop([conversation], "bob")
    server.release(held)
    view = await one.until_idle(conversation)
    assert view.texts[1] == words(0, 60)


async def test_lost_text_is_continued(build: Build, server: Running) -> None:
    one, other, held = await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 60 @100 hold 20 {held}")
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
    server.release(held)
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 60)
    assert "another one has continued the text" in view.texts[-1]
    await until(lambda: not one.page.live_runs.count)  # the late writer gives up
    assert await other.texts(conversation) == view.texts


async def test_replica_that_ends_in_order_leaves_its_answers_to_others(build: Build, server: Running) -> None:
    one, other, held = await build(), await build(), marker()
    conversation, run = await begin(one, f"!tokens 100 @100 hold 20 {held}")
    await other.until_stored(run, "word9")
    live = one.page.live_runs.find(run, "ann")
    assert live is not None
    reader = asyncio.create_task(read_all(live))
    await one.page.live_runs.close()
    assert not any("event: end" in text for text in await reader)  # so the reader connects again
    await one.lose_its_runs()
    server.release(held)
    view = await other.until_idle(conversation)
    assert view.texts[1] == words(0, 100)


async def read_all(live: RunningAnswer) -> list[str]:
    return [text async for text in stream(live, RunFrames(live), "")]


@pytest.mark.full
async def test_step_begins_again_if_the_model_cannot_continue(build: Build, server: Running) -> None:
    one, other, held = await build(QWEN3), await build(QWEN3), marker()
    conversation, run = await begin(one, f'!tool note {{"text": "once"}} !tokens 60 @100 hold 20 {held}')
    await other.until_stored(run, "word9")
    await one.lose_its_runs()
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
    view = await other.until_idle(conversation)
    assert calls == ["once"]
    [button] = [one for turn in view.turns for one in turn.get("buttons", ())]
    assert button["value"]["do"] == "retry"
    assert any("Interrupted" in text for text in view.texts)


@pytest.mark.full
async def test_answer_that_loses_every_replica_ends_as_interrupted(build: Build) -> None:
    house = await build()
    conversation, run = await begin(house, "!tokens 4000 @20")
    for _ in range(MAX_TAKEOVERS + 1):
        await house.until_stored(run, "word")
        following = await build()
        await house.lose_its_runs()
        await until_async(partial(has_other_run, following, conversation, run))
        house, run = following, await following.replicas.unfinished_run(conversation, owner="ann") or ""
    assert run == ""
    view = await house.until_idle(conversation)
    assert any("Interrupted" in text for text in view.texts)
    assert len(set(calls)) == 0


async def has_other_run(house: House, conversation: str, run: str) -> bool:
    return await house.replicas.unfinished_run(conversation, owner="ann") != run


@pytest.mark.full
async def test_page_of_another_replica_keeps_an_answer_of_a_public_page(build: Build) -> None:
    public = PublicSettings()
    one, other = await build(public=public, grace=2), await build(public=public, grace=2)
    conversation, _ = await begin(one, "!tokens 120 @20")
    async with aclosing(watch(other.page, "ann", conversation)) as views:
        async for view in views:
            last = view
    assert last.texts[1] == words(0, 120)


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
    view = await other.until_idle(live.conversation)
    texts = view.texts
    assert "word9" in texts[1]  # what was written stays
    assert any("Enter the key again" in text for text in texts)
    stored = [event.json for event in await other.store.runs.events(live.run_id, owner="ann")]
    assert not any("of-ann" in text for text in stored)


async def test_quota_keeps_what_another_replica_answers(build: Build, tmp_path: Path) -> None:
    """A guest's chat makes room for another guest's message only when no replica writes in it."""
    one, other = await build(), await build()
    guest, next_guest = (Visitor(owner=f"{GUEST_PREFIX}{number}", guest=True) for number in (1, 2))
    live = await one.page.send(guest, None, {"text": "!tokens 4000 @20"}, Choices())
    assert live is not None
    limits, media = PublicSettings(stored_mb_of_guests=1), MediaStore(tmp_path / "media")
    quota = StorageQuota(limits, other.store, media, tmp_path, free=lambda _: 10**12)

    async def reserve() -> None:
        async with quota.reservation(next_guest, other.page.live_runs.is_busy) as reserve:
            await reserve(1_000_000)

    with pytest.raises(Limited, match="no room for this message"):
        await reserve()
    assert await other.store.get(live.conversation, owner=guest.owner)
    await live.stop()
    await live.wait_for_end()
    await reserve()
    assert await other.store.list(guest.owner) == []


@pytest.mark.full
async def test_quota_sees_reservations_of_other_replicas(build: Build, tmp_path: Path) -> None:
    """A guest that sends a message elsewhere keeps its chats, and its message takes room here, until it is stored."""
    one, other = await build(), await build()
    guest, next_guest = (Visitor(owner=f"{GUEST_PREFIX}{number}", guest=True) for number in (1, 2))
    record = await one.store.save(Record(owner=guest.owner, expires_at=now() + timedelta(hours=1)))
    limits, media = PublicSettings(stored_mb_of_guests=1), MediaStore(tmp_path / "media")
    here, there = (StorageQuota(limits, house.store, media, tmp_path, free=lambda _: 10**12) for house in (other, one))

    async def reserve(size: int) -> None:
        async with here.reservation(next_guest, other.page.live_runs.is_busy) as reserve:
            await reserve(size)

    async with there.reservation(guest, one.page.live_runs.is_busy) as reserve_there:
        await reserve_there(400_000)
        with pytest.raises(Limited, match="no room for this message"):
            await reserve(1_000_000)
        with pytest.raises(Limited, match="no room for this message"):
            await reserve(700_000)
        await reserve(500_000)
    assert await other.store.get(record.id, owner=guest.owner)
    await reserve(1_000_000)
    assert await other.store.list(guest.owner) == []


@pytest.mark.full
async def test_expiry_keeps_what_another_replica_answers(build: Build, tmp_path: Path) -> None:
    one, other = await build(), await build()
    await one.halt()  # it would end a run that it does not know
    expired = ExpiredConversations(other.store, MediaStore(tmp_path / "media"), other.page.live_runs.is_busy)
    record = await one.store.save(Record(owner="ann"))
    await one.store.runs.append(batch(record, 1, "a"))
    await other.store.retention.set_expiry(record, now() - timedelta(hours=1))
    assert await expired.delete() == 0
    await one.replicas.leave()
    assert await expired.delete() == 1


async def test_deletion_can_be_undone_while_others_clean_up(build: Build, tmp_path: Path) -> None:
    one, other = await build(), await build()
    expired = ExpiredConversations(other.store, MediaStore(tmp_path / "media"), other.page.live_runs.is_busy)
    record = await one.store.save(Record(owner="ann"))
    await one.page.list.delete("ann", record.id)
    assert await expired.delete() == 0
    await one.page.list.restore("ann", record.id)
    assert await other.store.get(record.id, owner="ann")
    await one.page.list.delete("ann", record.id)
    assert await expired.delete(at=now() + timedelta(seconds=UNDO_SECONDS + 1)) == 1
