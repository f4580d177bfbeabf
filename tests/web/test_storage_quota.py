"""The storage quota of a public page: which messages are refused, what is deleted for space, and what stays."""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect
from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart

from agent.errors import HistoryError, Limited
from agent.files.references import references_in
from agent.files.store import MediaStore
from agent.history import Conversation, Note
from agent.history.key_value import KeyValueRetention
from agent.history.memory import MemoryStore
from agent.settings import PublicSettings
from agent.web.chat.expiry import GUEST_PREFIX, RetentionPeriods
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.visitor import Visitor as Asker
from tests.conftest import App, Visit
from tests.support.http_client import HttpVisitor, owner_in
from tests.support.media_files import HALF_MB, random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running

ANN, BOB, GUESTS = Asker(owner="ann"), Asker(owner="bob"), Asker(owner=f"{GUEST_PREFIX}0", guest=True)
LIFETIMES = RetentionPeriods(guest=timedelta(days=1), visitor=timedelta(days=30))


class StickyStore(MemoryStore):
    """A store that cannot erase some of its conversations. `on_choice` is called when a guest was chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = set[str]()
        self.on_choice: Callable[[], Awaitable[object]] | None = None
        self.retention = StickyRetention(self._storage, self.stuck)

    async def following(self, conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        call, self.on_choice = self.on_choice, None
        if call is not None:
            await call()
        return await super().following(conversation, entry_id)


@dataclass(frozen=True)
class StickyRetention(KeyValueRetention):
    stuck: set[str]

    async def erase_unused(self, owner: str, conversations: Sequence[Conversation]) -> bool:
        if not self.stuck.isdisjoint(conversation.id for conversation in conversations):
            raise HistoryError("The file is locked.")
        return await super().erase_unused(owner, conversations)


def make_old(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))


def large_file(size: int) -> BinaryContent:
    return BinaryContent(os.urandom(size), media_type="image/png")


class Room:
    """A store with files of 0.4 MB, and its quota."""

    def __init__(self, folder: Path, *, free: int = 10**12, **limits: int) -> None:
        self.store, self.media, self.folder = StickyStore(), MediaStore(folder), folder
        self.busy = set[str]()
        self.is_busy: Callable[[str], bool] = self.busy.__contains__
        limit, busy = PublicSettings(**limits), lambda id_: self.is_busy(id_)  # type: ignore[arg-type]
        self.quota = StorageQuota(limit, self.store, self.media, folder, busy, free=lambda _: free)

    async def talk(self, owner: str) -> Conversation:
        """Store a conversation with a file."""
        journal = StoreJournal(self.store, self.media, Conversation(owner=owner), Omitted(), LIFETIMES)
        mine = large_file(400_000)
        await journal.write(ModelRequest([UserPromptPart(["See", mine])]), Note(ended="stop"))
        return journal.conversation

    async def reserve(self, visitor: Asker, size: int) -> None:
        async with self.quota.reservation(visitor) as reserve:
            await reserve(size)

    async def owners(self) -> set[str]:
        """Return the owners that have files."""
        return {folder.name for folder in self.folder.iterdir()}


async def test_visitor_has_a_quota(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_per_visitor=1)
    for _ in range(2):
        await room.reserve(ANN, 400_000)
        await room.talk("ann")
    with pytest.raises(Limited, match="may take 1 MB here"):
        await room.reserve(ANN, 400_000)
    await room.reserve(ANN, 100_000)
    await room.reserve(BOB, 400_000)
    assert await room.owners() == {"ann"}


async def test_reserved_space_is_used(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_per_visitor=1)
    async with room.quota.reservation(ANN) as reserve:
        await reserve(600_000)
        with pytest.raises(Limited):
            await room.reserve(ANN, 600_000)
    await room.reserve(ANN, 600_000)


async def test_oldest_guests_make_space_for_guests(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_of_guests=2)
    guests = [await room.talk(f"{GUEST_PREFIX}{number}") for number in range(4)]
    await room.talk("ann")
    room.busy.add(guests[1].id)
    await room.reserve(GUESTS, 1_000_000)  # the guests' own conversation is the oldest
    assert await room.owners() == {GUESTS.owner, guests[1].owner, "ann"}
    with pytest.raises(Limited, match="no room for this message"):
        await room.reserve(GUESTS, 1_500_000)
    assert await room.owners() == {GUESTS.owner, guests[1].owner, "ann"}


async def test_only_guests_make_space_for_all(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_in_all=2)
    for owner in (f"{GUEST_PREFIX}1", "ann", "bob", f"{GUEST_PREFIX}2"):
        await room.talk(owner)
    await room.reserve(ANN, 700_000)
    assert await room.owners() == {"ann", "bob", f"{GUEST_PREFIX}2"}
    with pytest.raises(Limited, match="no room for this message"):
        await room.reserve(ANN, 1_300_000)
    assert await room.owners() == {"ann", "bob", f"{GUEST_PREFIX}2"}, "a refused message deleted something"


async def test_disk_is_shared_with_others(tmp_path: Path) -> None:
    room = Room(tmp_path, free=1_000_000, stored_disk_percent=50)
    await room.reserve(ANN, 400_000)
    with pytest.raises(Limited, match="no room for this message"):
        await room.reserve(ANN, 600_000)
    await room.talk("ann")  # what is stored is part of the disk
    await room.reserve(ANN, 250_000)


async def test_too_few_guests_keep_all_they_have(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_of_guests=2)
    guests = [await room.talk(f"{GUEST_PREFIX}{number}") for number in range(5)]
    room.busy |= {guests[1].id, guests[3].id}
    with pytest.raises(Limited, match="no room for this message"):
        await room.reserve(GUESTS, 1_000_000)  # 1 MB must go, and 0.8 MB could
    assert await room.owners() == {guest.owner for guest in guests}
    await room.reserve(GUESTS, 700_000)
    assert await room.owners() == {GUESTS.owner, guests[1].owner, guests[3].owner}


async def test_guest_who_begins_meanwhile_is_kept(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_of_guests=2)
    guests = [await room.talk(f"{GUEST_PREFIX}{number}") for number in range(1, 5)]
    asked = list[str]()

    def busy(id_: str) -> bool:
        """Return True for the second guest, which begins an answer when the first one is deleted."""
        asked.append(id_)
        return id_ == guests[1].id and guests[0].owner not in {folder.name for folder in tmp_path.iterdir()}

    room.is_busy = busy
    await room.reserve(GUESTS, 1_000_000)
    assert await room.owners() == {guests[1].owner, guests[3].owner}
    assert await room.store.entries(guests[1])


async def test_guest_with_a_reservation_is_kept(tmp_path: Path) -> None:
    """Between the reservation and the answer, the message is being stored."""
    room = Room(tmp_path, stored_mb_of_guests=2)
    for number in range(1, 5):
        await room.talk(f"{GUEST_PREFIX}{number}")
    async with room.quota.reservation(Asker(owner=f"{GUEST_PREFIX}1", guest=True)) as reserve:
        await reserve(10_000)
        await room.reserve(GUESTS, 1_000_000)
    assert await room.owners() == {f"{GUEST_PREFIX}{number}" for number in (1, 4)}


async def test_guest_that_cannot_be_deleted_stops_no_others(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_of_guests=2)
    guests = [await room.talk(f"{GUEST_PREFIX}{number}") for number in range(1, 5)]
    room.store.stuck.add(guests[0].id)
    await room.reserve(GUESTS, 1_000_000)
    assert await room.owners() == {guests[0].owner, guests[3].owner}


async def test_guest_that_comes_back_keeps_everything(tmp_path: Path) -> None:
    """A guest begins a new conversation with a file, in another process, when it was chosen as the oldest."""
    room = Room(tmp_path, stored_mb_of_guests=1)
    old = await room.talk(f"{GUEST_PREFIX}1")
    room.store.on_choice = partial(room.talk, old.owner)
    with pytest.raises(Limited, match="no room for this message"):
        await room.reserve(GUESTS, 900_000)
    new, before = await room.store.list(old.owner)
    assert before == old
    for conversation in (old, new):
        files = references_in(conversation.id, await room.store.entries(conversation))
        assert len(files) == 1
        assert [await room.media.read(old.owner, id_) for id_ in files]


async def test_new_file_without_its_message_is_kept(tmp_path: Path) -> None:
    """It can belong to a message that another process is about to store."""
    room = Room(tmp_path, stored_mb_of_guests=1)
    guest = await room.talk(f"{GUEST_PREFIX}1")
    id_ = await room.media.add(guest.owner, large_file(100_000), "message")
    await room.reserve(GUESTS, 800_000)
    assert await room.store.list(guest.owner) == []
    assert set(await room.media.files(guest.owner)) == {id_}


async def test_files_that_nobody_names_make_room_too(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_of_guests=1)
    await room.talk(f"{GUEST_PREFIX}1")
    await room.media.add(f"{GUEST_PREFIX}1", large_file(400_000), "message")
    make_old(tmp_path)
    await room.reserve(GUESTS, 900_000)
    assert await room.owners() == set()


async def test_quota_counts_after_deletion_and_restart(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_per_visitor=1)
    file = await room.media.add("ann", large_file(900_000), "message")
    for current in (room, Room(tmp_path, stored_mb_per_visitor=1)):
        with pytest.raises(Limited):
            await current.reserve(ANN, 200_000)
    await room.media.remove_references("ann", {file: ["message"]})
    await room.reserve(ANN, 200_000)


async def test_address_leaves_space_to_others(tmp_path: Path) -> None:
    """Many cookies of one address get half of all storage, those of the next address a third."""
    room = Room(tmp_path, stored_mb_in_all=10)
    guest = await room.talk(f"{GUEST_PREFIX}1")

    async def fill(address: str) -> int:
        """Send a message with each of many cookies. Return how many were stored."""
        for number in range(30):
            owner = f"{address.replace('.', '-')}-{number}"
            try:
                await room.reserve(Asker(owner=owner, address=address), 400_000)
            except Limited:
                return number
            await room.talk(owner)
        return 30

    got = {address: await fill(address) for address in ("1.2.3.4", "1.2.3.5", "1.2.3.6")}
    assert got == {"1.2.3.4": 11, "1.2.3.5": 6, "1.2.3.6": 3}
    assert guest.owner in await room.owners()
    await room.reserve(Asker(owner="new", address="1.2.3.7"), 400_000)
    await room.reserve(Asker(owner="unknown"), 400_000)


async def test_address_always_gets_a_hundredth(tmp_path: Path) -> None:
    room = Room(tmp_path, stored_mb_in_all=10)
    for number in range(24):
        await room.talk(f"v{number}")  # their addresses are unknown, as after a restart
    await room.reserve(Asker(owner="new", address="1.2.3.4"), 90_000)
    with pytest.raises(Limited, match="no room for this message"):
        await room.reserve(Asker(owner="new", address="1.2.3.4"), 300_000)


async def test_private_page_has_no_limit(tmp_path: Path) -> None:
    quota = StorageQuota(None, MemoryStore(), MediaStore(tmp_path), tmp_path, free=lambda _: 0)
    async with quota.reservation(ANN) as reserve:
        await reserve(10**15)


# The page

CONFIG = """
[public]
on = true
messages = 1000
stored_mb_per_visitor = 1
stored_mb_of_guests = 1
"""


SERVER = Config(models=(VISION_MODEL,), rate=500.0)


def files(own: App) -> dict[str, int]:
    """Return the number of files of each owner."""
    return {folder.name: len(list(folder.glob("[!.]*"))) for folder in (own.folder / "data" / "media").glob("*")}


def test_message_over_the_limit_stores_and_asks_nothing(own: App, server: Running) -> None:
    visitor, guests = HttpVisitor(own.url), [HttpVisitor(own.url, None), HttpVisitor(own.url, None)]
    owner = owner_in(str(visitor.cookie))
    for program in (visitor, *guests):
        for _ in range(2):
            assert '"stop"' in program.say("!text Hi.", program.upload("a.png", random_png(HALF_MB)), new=True)
    before, asked = files(own), len(server.journal())
    assert before[owner] == 2
    assert sorted(before.values()) == [2, 2], "the first guest's files were not deleted for the second"
    path = visitor.upload("a.png", random_png(HALF_MB))
    assert "may take 1 MB here" in visitor.say("!text Hi.", path)
    assert (files(own), len(server.journal())) == (before, asked)
    assert Path(path).exists(), "it cannot be sent again"
    assert '"stop"' in visitor.say("!text It fits.")


@pytest.mark.gate("A refused message stays in the composer.")
def test_refused_message_stays_in_the_composer(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    for number in range(3):
        visitor.attach((f"{number}.png", random_png(HALF_MB)))
        expect(visitor.page.locator("#attached li")).to_have_count(1)
        if number < 2:
            visitor.ask(f"!text Hi {number}.")
    visitor.say("!text A long thought")
    expect(visitor.hint).to_contain_text("may take 1 MB here")
    visitor.shot("stored_too_much")
    expect(visitor.box).to_have_value("!text A long thought")
    expect(visitor.page.locator("#attached li")).to_have_count(1)
    expect(visitor.page.locator("#composer .file")).to_have_count(1)
