"""A deletion can be undone at any process that shares a PostgreSQL or Redis."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest

from agent.errors import NotFound
from agent.files.store import MediaStore
from agent.history import Conversation, now
from agent.web.chat.conversation_list import ConversationList
from agent.web.chat.expiry import UNDO_SECONDS, ExpiredConversations, RetentionPeriods
from tests.conftest import App
from tests.support.http_client import HttpVisitor
from tests.support.replica_houses import Build, House, two_processes
from tests.support.scripted_server import Running

pytestmark = pytest.mark.slow

DAYS = RetentionPeriods(visitor=timedelta(days=3))


class ProcessClock(datetime):
    """The clock of this process, which is wrong by `ahead`."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + cls.ahead


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Return a function that sets the clock of this process, but not that of the database."""
    monkeypatch.setattr("agent.history.values.datetime", ProcessClock)
    return lambda ahead: monkeypatch.setattr(ProcessClock, "ahead", ahead)


def with_periods(house: House, folder: Path) -> ConversationList:
    """Return the list of a process that keeps conversations for some days."""
    media = MediaStore(folder / "media")
    return ConversationList(house.store, media, house.page.running, house.page.replies, periods=DAYS)


def test_deletion_is_undone_by_another_process(
    name: str, start_app: Callable[..., App], server: Running, tmp_path: Path
) -> None:
    one, other = two_processes(start_app, name, tmp_path, server)
    visitor = HttpVisitor(one.url)
    visitor.say("!text Yes. First thing")
    elsewhere, stranger = HttpVisitor(other.url, visitor.cookie), HttpVisitor(other.url)
    [row] = visitor.ask("GET", "/conversations").json["conversations"]
    path = f"/conversations/{row['id']}"
    assert visitor.ask("DELETE", path).status < 300
    assert elsewhere.ask("GET", path).status == 404
    assert stranger.ask("POST", path + "/restore").status == 404
    assert elsewhere.ask("POST", path + "/restore").json == row
    for asked in (visitor, elsewhere):
        assert asked.ask("GET", "/conversations").json["conversations"] == [row]
    assert elsewhere.ask("DELETE", path).status < 300
    assert visitor.ask("POST", path + "/restore").json == row
    assert visitor.ask("GET", path).json == row


async def test_first_process_erases_only_what_is_still_deleted(build: Build) -> None:
    one, other = await build(), await build()
    kept, gone = [await one.store.save(Conversation(owner="ann")) for _ in range(2)]
    for conversation in (kept, gone):
        await one.page.list.delete("ann", conversation.id)
    await other.page.list.restore("ann", kept.id)
    for conversation in (kept, gone):  # as after `UNDO_SECONDS`
        one.page.list._begin_to_erase(conversation.id)
    await asyncio.wait(one.page.list._erasing)
    assert await other.store.get(kept.id, owner="ann") == kept
    with pytest.raises(NotFound):
        await other.page.list.restore("ann", gone.id)
    assert await other.store.retention.expiring(now(), owners="ann") == []


async def test_undone_deletion_expires_as_before(build: Build, tmp_path: Path) -> None:
    one, other = [with_periods(await build(), tmp_path) for _ in range(2)]
    store = (await build()).store
    conversation = await store.save(Conversation(owner="ann"))
    assert await store.retention.set_expiry(conversation, conversation.updated_at + timedelta(days=3))
    before = await store.get(conversation.id, owner="ann")
    await one.delete("ann", conversation.id)
    await other.restore("ann", conversation.id)
    assert await store.get(conversation.id, owner="ann") == before
    await one.aclose()


async def test_only_a_recent_deletion_is_undone(build: Build, tmp_path: Path) -> None:
    """Neither an old deletion is undone, nor one of another owner, nor is a conversation kept whose time is over."""
    house = await build()
    other, store = with_periods(house, tmp_path), house.store
    conversation = await store.save(Conversation(owner="ann"))
    for seconds, owner in ((UNDO_SECONDS + 1, "ann"), (1, "an"), (1, "ann2")):
        await store.retention.set_expiry(conversation, now() - timedelta(seconds=seconds))
        with pytest.raises(NotFound):
            await other.restore(owner, conversation.id)
    over = replace(DAYS, visitor=timedelta())
    media = MediaStore(tmp_path / "media")
    with pytest.raises(NotFound):
        await ConversationList(store, media, house.page.running, house.page.replies, periods=over).restore(
            "ann", conversation.id
        )
    await other.restore("ann", conversation.id)
    assert (await store.get(conversation.id, owner="ann")).expires_at == conversation.updated_at + timedelta(days=3)


@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(hours=-2)], ids=["ahead", "behind"])
async def test_processes_whose_clocks_differ_agree(
    build: Build, tmp_path: Path, set_clock: Callable[[timedelta], None], ahead: timedelta
) -> None:
    """A deletion can be undone for `UNDO_SECONDS` by the clock of the database, whatever those of the processes say."""
    one, house = with_periods(await build(), tmp_path), await build()
    other, store = with_periods(house, tmp_path), house.store
    expired = ExpiredConversations(store, MediaStore(tmp_path / "media"), house.page.live_runs.is_busy)
    conversation = await store.save(Conversation(owner="ann"))
    for mine, others in ((ahead, timedelta()), (timedelta(), ahead)):
        set_clock(mine)
        await one.delete("ann", conversation.id)
        set_clock(others)
        with pytest.raises(NotFound):
            await store.get(conversation.id, owner="ann")
        assert await expired.delete() == 0
        await other.restore("ann", conversation.id)
        assert (await store.get(conversation.id, owner="ann")).id == conversation.id
        await store.retention.set_expiry(
            conversation, await store.retention.time() - timedelta(seconds=UNDO_SECONDS + 1)
        )
        with pytest.raises(NotFound):
            await other.restore("ann", conversation.id)
        await store.retention.set_expiry(conversation, None)
    set_clock(ahead)
    await store.retention.set_expiry(conversation, await store.retention.time() - timedelta(seconds=UNDO_SECONDS + 1))
    assert await expired.delete() == 1
    await one.aclose()
