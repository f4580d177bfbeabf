"""A deletion can be undone at any replica, with one PostgreSQL or Redis."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent.errors import NotFound
from agent.history import Record, now
from agent.media.store import MediaStore
from agent.web.chat.conversation_list import ConversationList
from agent.web.chat.expiry import UNDO_SECONDS, RetentionPeriods
from tests.conftest import App
from tests.support.http_client import HttpVisitor
from tests.support.replica_houses import Build, House, two_processes
from tests.support.scripted_server import Running

pytestmark = pytest.mark.slow

DAYS = RetentionPeriods(visitor=timedelta(days=3))


def with_periods(house: House, folder: Path) -> ConversationList:
    """Return the list of a replica that keeps conversations for some days."""
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


async def test_first_replica_erases_only_what_is_still_deleted(build: Build) -> None:
    one, other = await build(), await build()
    kept, gone = [await one.store.save(Record(owner="ann")) for _ in range(2)]
    for record in (kept, gone):
        await one.page.list.delete("ann", record.id)
    await other.page.list.restore("ann", kept.id)
    for record in (kept, gone):  # as after `UNDO_SECONDS`
        one.page.list._begin_to_erase(record.id)
    await asyncio.wait(one.page.list._erasing)
    assert await other.store.get(kept.id, owner="ann") == kept
    with pytest.raises(NotFound):
        await other.page.list.restore("ann", gone.id)
    assert await other.store.retention.expiring(now(), owners="ann") == []


async def test_undone_deletion_expires_as_before(build: Build, tmp_path: Path) -> None:
    one, other = [with_periods(await build(), tmp_path) for _ in range(2)]
    store = (await build()).store
    record = await store.save(Record(owner="ann"))
    assert await store.retention.set_expiry(record, record.updated_at + timedelta(days=3))
    before = await store.get(record.id, owner="ann")
    await one.delete("ann", record.id)
    await other.restore("ann", record.id)
    assert await store.get(record.id, owner="ann") == before
    await one.aclose()


async def test_only_a_recent_deletion_is_undone(build: Build, tmp_path: Path) -> None:
    """Neither an old deletion is undone, nor one of another owner, nor is a conversation kept whose time is over."""
    house = await build()
    other, store = with_periods(house, tmp_path), house.store
    record = await store.save(Record(owner="ann"))
    for seconds, owner in ((UNDO_SECONDS + 1, "ann"), (1, "an"), (1, "ann2")):
        await store.retention.set_expiry(record, now() - timedelta(seconds=seconds))
        with pytest.raises(NotFound):
            await other.restore(owner, record.id)
    over = replace(DAYS, visitor=timedelta())
    media = MediaStore(tmp_path / "media")
    with pytest.raises(NotFound):
        await ConversationList(store, media, house.page.running, house.page.replies, periods=over).restore(
            "ann", record.id
        )
    await other.restore("ann", record.id)
    assert (await store.get(record.id, owner="ann")).expires_at == record.updated_at + timedelta(days=3)
