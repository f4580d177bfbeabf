"""Stored files and the messages that use them: cancelled messages, the running total, and unused files."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, FilePart, ModelRequest, ModelResponse, UserPromptPart

from agent.files.owner_files import FILE_BYTES
from agent.files.places import LocalFolder
from agent.files.store import MediaStore
from agent.history import Conversation, Note
from agent.history.memory import MemoryStore
from agent.history.sql.sqlite import SqliteStore
from agent.models.catalog import ModelSpec
from agent.providers.connection import Endpoint, ServedModel
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.web.app import build_conversations
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import KEPT_SECONDS, KNOWN_SECONDS, PROBE, ExpiredConversations, OrphanedFiles
from agent.web.chat.journal import Omitted, StoreJournal, branch
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.visitor import Visitor
from tests.conftest import App, becomes
from tests.support.history_stores import run_sql
from tests.support.media_files import PNG, random_png
from tests.support.models import FakeLocalModels
from tests.support.scripted_server import Running
from tests.support.views import chats_of

ANN = Visitor(owner="ann")


def file_of(size: int, number: int = 0) -> BinaryContent:
    return BinaryContent(bytes([number]) * size, media_type="image/png")


SEEING = ModelSpec(id="local:one", name="Qwen/Qwen3-8B", label="One", provider="vllm", image=True)


def pictures(folder: Path, count: int, data: bytes = PNG) -> list[str]:
    paths = [folder / f"{number}-{len(data)}.png" for number in range(count)]
    for path in paths:
        path.write_bytes(data)
    return [str(path) for path in paths]


def stored(folder: Path, owner: str = "ann") -> list[Path]:
    """Return the complete files of an owner."""
    return sorted((folder / owner).glob("[!.]*"))


class PausingStore(MemoryStore):
    """A store that pauses in one of its methods until `proceed` is set."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method
        self.reached, self.proceed = asyncio.Event(), asyncio.Event()

    async def _pause(self, method: str) -> None:
        if method == self._method:
            self.reached.set()
            await self.proceed.wait()

    async def get(self, conversation_id: str, *, owner: str) -> Conversation:
        await self._pause("get")
        return await super().get(conversation_id, owner=owner)

    async def save(self, conversation: Conversation, entries: Any = (), events: Any = None) -> Conversation:
        await self._pause("save")
        return await super().save(conversation, entries, events)


# Cancelled messages


@pytest.mark.parametrize(("method", "kept"), [("get", 0), ("save", 2)])
async def test_cancelled_send_keeps_named_files_only(
    tmp_path: Path, model_server: Running, method: str, kept: int
) -> None:
    """A run continues when its visitor leaves, so a message that is being saved keeps its files."""
    store = PausingStore(method)
    page = chats_of(model_server.base_url, tmp_path, SEEING, store=store)
    value = {"text": "!text Hi.", "files": [*pictures(tmp_path, 1), *pictures(tmp_path, 1, random_png())]}
    send = asyncio.create_task(page.send(ANN, "gone" if method == "get" else None, value, Choices()))
    await store.reached.wait()
    send.cancel()
    await asyncio.sleep(0)
    store.proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await send
    await page.live_runs.close(seconds=30)
    assert len(await store.list("ann")) == kept // 2
    assert len(stored(tmp_path / "media")) == kept
    await page.aclose()


class SlowFolder(LocalFolder):
    """A place of files that writes nothing until it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reached, self.proceed = threading.Event(), threading.Event()

    def write(self, name: str, data: bytes) -> None:
        self.reached.set()
        assert self.proceed.wait(30)
        super().write(name, data)


async def test_cancelled_addition_ends_before_its_removal(tmp_path: Path) -> None:
    """Otherwise a file whose message was given up would stay, because its reference came after the removal."""
    place = SlowFolder(tmp_path)
    media = MediaStore(place)
    adding = asyncio.create_task(media.add("ann", file_of(100), "one"))
    assert await asyncio.to_thread(place.reached.wait, 30)
    adding.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not adding.done()
    place.proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert len(stored(tmp_path)) == 1


# The running total


async def test_total_follows_each_change(tmp_path: Path) -> None:
    media = MediaStore(tmp_path)
    assert await media.sizes() == {}
    large = await media.add("ann", file_of(10_000), "one")
    assert await media.add("ann", file_of(10_000), "two") == large, "the same file was stored twice"
    small = await media.add("ann", file_of(1), "one")
    theirs = await media.add("bob", file_of(5000), "one")
    assert await media.sizes() == {"ann": 10_000 + FILE_BYTES, "bob": 5000}
    assert await MediaStore(tmp_path).sizes() == await media.sizes(), "a restart counts differently"
    assert await media.remove_references("ann", {large: ["one", "three"]}) == 0
    assert (await media.sizes())["ann"] == 10_000 + FILE_BYTES
    assert await media.remove_references("ann", {large: ["two"], small: ["two"]}) == 1
    assert await media.sizes() == {"ann": FILE_BYTES, "bob": 5000}
    await media.remove_references("ann", {small: ["one"]})
    await media.remove_references("bob", {theirs: ["one"]})
    assert await media.sizes() == {}
    assert not (tmp_path / "ann").exists()


async def test_recount_finds_changes_of_others(tmp_path: Path) -> None:
    media, other = MediaStore(tmp_path), MediaStore(tmp_path)
    theirs = await media.add("ann", file_of(5000), "one")
    assert await media.sizes() == {"ann": 5000}
    await other.remove_references("ann", {theirs: ["one"]})
    await other.add("bob", file_of(7000), "one")
    assert await media.sizes() == {"ann": 5000}
    await media.recount()
    assert await media.sizes() == {"bob": 7000}


async def test_recount_amid_writes_is_exact(tmp_path: Path) -> None:
    media = MediaStore(tmp_path)

    async def work(owner: str) -> None:
        for number in range(20):
            first, _ = [await media.add(owner, file_of(5000, 2 * number + place), "one") for place in range(2)]
            await media.remove_references(owner, {first: ["one"]})

    await asyncio.gather(*(work(f"v{number}") for number in range(5)), *(media.recount() for _ in range(20)))
    assert await media.sizes() == {f"v{number}": 100_000 for number in range(5)}


async def test_failed_removal_removes_the_others(tmp_path: Path) -> None:
    media = MediaStore(tmp_path)
    stuck, other = [await media.add("ann", file_of(5000, number), "one") for number in range(2)]
    (tmp_path / "ann" / stuck).unlink()
    (tmp_path / "ann" / stuck / "folder").mkdir(parents=True)  # cannot be unlinked
    with pytest.raises(OSError, match=stuck):
        await media.remove_references("ann", {stuck: ["one"], other: ["one"]})
    assert [path.name for path in stored(tmp_path)] == [stuck], "the others were not removed"


async def test_send_reads_no_folder(tmp_path: Path, model_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    store, media, models = MemoryStore(), MediaStore(tmp_path / "media"), FakeLocalModels()
    models.served = (ServedModel(SEEING, Endpoint(model_server.base_url)),)
    settings = Settings(local=LocalSettings(cache_dir=tmp_path), public=PublicSettings(stored_mb_per_visitor=1))
    quota = partial(StorageQuota, settings.public, store, media, tmp_path / "media")
    page = build_conversations(settings, store, media, models, quota=quota)
    for number in range(30):
        await media.add(f"other{number}", file_of(100), "one")
    await media.sizes()  # the first message after a start reads the folders
    scanned, scandir = list[str](), os.scandir

    def counting(path: Any = ".") -> Any:
        scanned.append(os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    for _ in range(3):
        live = await page.send(ANN, None, {"text": "!text Hi.", "files": pictures(tmp_path, 2)}, Choices())
        assert live is not None
        await live.run
    assert [path for path in scanned if path.startswith(str(tmp_path / "media"))] == []
    assert (await media.sizes())["ann"] == FILE_BYTES, "the same picture was stored more than once"
    await page.aclose()


# Files without a message


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryStore | SqliteStore]:
    made = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "history.sqlite")
    yield made
    await made.aclose()


async def talk(store: MemoryStore | SqliteStore, media: MediaStore, folder: Path, owner: str) -> list[str]:
    """Store a conversation with an abandoned branch. Return the ids of a visitor's and a model's file in each."""
    journal = StoreJournal(store, media, Conversation(owner=owner), Omitted())
    ids = list[str]()
    for _ in range(2):
        mine = BinaryContent(os.urandom(100), media_type="image/png")
        made = BinaryContent.narrow_type(BinaryContent(os.urandom(100), media_type="image/png"))
        await journal.write(ModelRequest([UserPromptPart(["See", mine])]), Note())
        await journal.write(ModelResponse([FilePart(made)]), Note(ended="stop"))
        journal.conversation = branch(journal.conversation, None)
    ids += [path.name for path in stored(folder, owner)]
    await store.save(journal.conversation)
    assert len(ids) == 4
    return ids


async def test_orphaned_files_go_after_a_day(store: MemoryStore | SqliteStore, tmp_path: Path) -> None:
    media, now = MediaStore(tmp_path / "media"), time()
    named = await talk(store, media, tmp_path / "media", "ann")
    for owner in ("ann", "bob"):
        for number in range(2):
            await media.add(owner, file_of(100, number), "gone")
    young = await media.add("ann", file_of(100, 2), "gone")
    begun = await media.add("ann", file_of(100, 3), "one")
    draft, notes = tmp_path / "media" / "ann" / ".draft", tmp_path / "media" / "ann" / "notes.txt"
    for path in (draft, notes):
        path.write_bytes(b"x")
    for path in (tmp_path / "media").rglob("*"):
        if path.is_file() and young not in path.parts:
            os.utime(path, (now - KEPT_SECONDS - 60, now - KEPT_SECONDS - 60))
    await media.add("ann", file_of(100, 3), "two")  # a message that is not stored yet
    ahead = 0.0
    chore = OrphanedFiles(store, media, clock=lambda: now + ahead)
    assert await chore.remove() == 4
    assert {path.name for path in stored(tmp_path / "media")} == {*named, young, begun, notes.name}
    assert not draft.exists()
    assert not (tmp_path / "media" / "bob").exists()
    assert await media.sizes() == {"ann": 7 * FILE_BYTES}
    ahead = KEPT_SECONDS - 1
    assert await chore.remove() == 0, "all messages were read again on the same day"
    ahead = KEPT_SECONDS + 60
    assert await chore.remove() == 2
    assert {path.name for path in stored(tmp_path / "media")} == {*named, notes.name}


@pytest.mark.parametrize("has_chats", [True, False], ids=["chats", "empty"])
async def test_start_ends_deletions_of_a_killed_process(
    store: MemoryStore | SqliteStore, tmp_path: Path, *, has_chats: bool
) -> None:
    """Only if no other process uses the history: its files can belong to messages that are on their way."""
    media, now = MediaStore(tmp_path / "media"), time()
    named = await talk(store, media, tmp_path / "media", "ann")
    await media.add("bob", file_of(100, 1), "gone")
    await ExpiredConversations(store, media, lambda _: False).delete()
    if not has_chats:  # as `OwnData.delete_all` does first
        [conversation] = await store.list("ann")
        assert await store.retention.erase(conversation)
    for is_only, removed in ((False, 0), (True, 1 if has_chats else 1 + len(named))):
        chore = OrphanedFiles(
            store, media, clock=lambda: now + 2 * KNOWN_SECONDS, is_only=lambda is_only=is_only: is_only
        )
        assert await chore.remove() == removed
    young = await media.add("ann", file_of(100, 2), "gone")
    os.utime(tmp_path / "media" / "ann" / young, (now + 3 * KNOWN_SECONDS, now + 3 * KNOWN_SECONDS))
    assert await chore.remove() == 0


@pytest.mark.parametrize("age", [2 * KEPT_SECONDS, 120], ids=["old", "young"])
async def test_files_of_a_lost_history_stay_when_new_chats_come(
    store: MemoryStore | SqliteStore, tmp_path: Path, age: float
) -> None:
    """It is noticed at the start. A day later, it has chats, and the files of the lost ones look like nobody's."""
    media, now = MediaStore(tmp_path / "media"), time()
    lost = await media.add("bob", file_of(100, 1), "lost")
    os.utime(tmp_path / "media" / "bob" / lost, (now - age, now - age))
    assert await OrphanedFiles(store, media, clock=lambda: now - 60).remove() == 0
    await store.save(Conversation(owner="bob"))
    named = await talk(store, media, tmp_path / "media", "ann")
    for owner in ("ann", "bob"):
        await media.add(owner, file_of(100, 2), "gone")
    for days in (2, 400):
        later = now + days * KEPT_SECONDS
        await OrphanedFiles(store, media, clock=lambda later=later: later).remove()
        assert [path.name for path in stored(tmp_path / "media")] == named
        assert [path.name for path in stored(tmp_path / "media", "bob")] == [lost]


async def test_damaged_message_keeps_its_files(tmp_path: Path) -> None:
    media, now = MediaStore(tmp_path / "media"), time()
    store = await SqliteStore.open(tmp_path / "history.sqlite")
    named = await talk(store, media, tmp_path / "media", "ann")
    await run_sql(store, "UPDATE entries SET entry = '{' || entry")
    assert await OrphanedFiles(store, media, clock=lambda: now + 2 * KEPT_SECONDS).remove() == 0
    assert [path.name for path in stored(tmp_path / "media")] == named
    await store.aclose()


def test_empty_history_removes_no_files(start_app: Callable[..., App], tmp_path: Path) -> None:
    media = tmp_path / "data" / "media" / "ann"
    media.mkdir(parents=True)
    old, young = media / f"{'0' * 32}.png", media / f"{'1' * 32}.png"
    for path in (old, young):
        path.write_bytes(PNG)
    os.utime(old, (time() - KEPT_SECONDS - 60, time() - KEPT_SECONDS - 60))
    app = start_app(SWITCHBOARD_DATA=str(tmp_path / "data"))
    becomes(True, lambda: "The history is empty, but 1 visitors have files" in app.log)
    app.stop()
    assert {*media.iterdir()} == {old, young}
    os.utime(young, (time() - KEPT_SECONDS - 60, time() - KEPT_SECONDS - 60))
    app = start_app(
        "[history]\nhousekeeping_minutes = 0.01", SWITCHBOARD_DATA=str(tmp_path / "data"), SWITCHBOARD_STORE="memory"
    )
    with closing(sqlite3.connect(tmp_path / "data" / "history.sqlite")) as base:
        assert base.execute("SELECT count(*) FROM conversations WHERE owner != ?", [PROBE]).fetchone() == (0,)
    app.stop()
    assert {*media.iterdir()} == {old, young}, "files of a stored history were judged by a store in memory"
