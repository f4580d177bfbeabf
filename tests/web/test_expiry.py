"""Expiry: conversations are deleted with their files after their retention period, and no others are."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.messages import BinaryContent, FilePart, ModelRequest, ModelResponse, UserPromptPart

from agent.files.store import MediaStore
from agent.history import Conversation, Entry, Link, Note, now, open_store
from agent.history.memory import MemoryStore
from agent.history.sql.sqlite import SqliteStore
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.system.steady_time import SteadyTime
from agent.web.chat.expiry import GUEST_PREFIX, MARGIN, ExpiredConversations, RetentionPeriods, add_missing_expiry
from agent.web.chat.journal import Omitted, StoreJournal
from tests.conftest import App, becomes
from tests.support.clocks import Clock
from tests.support.gate_rows import gate_rows
from tests.support.history_stores import STORES, chain, prompt, run_sql, started
from tests.support.http_client import HttpVisitor, marker, owner_in
from tests.support.media_files import random_png
from tests.support.replica_houses import two_processes
from tests.support.scripted_server import Running
from tests.support.temporary_chats import begin_temporary

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ANN, ANON = "ann", f"{GUEST_PREFIX}1"
PRIVATE = Settings(local=LocalSettings(cache_dir=Path(os.devnull)), guest_hours=2, run_seconds=600)
KEPT = {
    "guest": (PRIVATE, ANON, False, 2 * HOUR),
    "guest while answered": (PRIVATE, ANON, True, 2 * HOUR),
    "guest while answered for longer": (replace(PRIVATE, guest_hours=0.1), ANON, True, HOUR / 6 + MARGIN),
    "visitor": (PRIVATE, ANN, False, None),
    "visitor with a setting": (replace(PRIVATE, keep_days=2), ANN, False, 2 * DAY),
    "visitor of a public page": (replace(PRIVATE, public=PublicSettings()), ANN, False, 30 * DAY),
    "visitor of a public page for ever": (
        replace(PRIVATE, keep_days=2, public=PublicSettings(keep_days=0)),
        ANN,
        False,
        None,
    ),
}


@pytest.mark.parametrize(("settings", "owner", "running", "kept"), KEPT.values(), ids=KEPT)
def test_lifetimes_come_from_settings(settings: Settings, owner: str, running: bool, kept: timedelta | None) -> None:
    at = now()
    assert RetentionPeriods.of(settings).until(owner, running=running, at=at) == (at + kept if kept else None)


class House:
    """A store and files, with a clock that tests can set forward."""

    def __init__(self, folder: Path, kind: type[MemoryStore] = MemoryStore) -> None:
        self.ahead = timedelta()
        self.store = kind(lambda: now() + self.ahead)
        self.media = MediaStore(folder)
        self.folder, self.busy = folder, set[str]()
        self.expired = ExpiredConversations(self.store, self.media, lambda id_: id_ in self.busy)

    async def talk(self, owner: str, lifetimes: RetentionPeriods, *, ended: str | None = "stop") -> Conversation:
        """Store a conversation with a picture from the visitor and one from the model."""
        journal = StoreJournal(self.store, self.media, Conversation(owner=owner), Omitted(), lifetimes)
        mine = BinaryContent(random_png(), media_type="image/png")
        made = BinaryContent.narrow_type(BinaryContent(random_png(), media_type="image/png"))
        await journal.write(ModelRequest([UserPromptPart(["See", mine])]), Note())
        await journal.write(ModelResponse([FilePart(made)]), Note(ended=ended))
        return journal.conversation

    async def delete(self, *busy: str, limit: int = 50) -> int:
        self.busy = set(busy)
        return await self.expired.delete(at=now() + self.ahead, limit=limit)

    def files(self, owner: str) -> int:
        return len(list(self.folder.glob(f"{owner}/[!.]*")))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


SHORT = RetentionPeriods(guest=HOUR, visitor=DAY, run=HOUR)


async def test_expired_conversation_goes_with_its_files_alone(house: House) -> None:
    await house.talk(ANON, SHORT)
    kept = await house.talk(ANN, SHORT)
    other = Conversation(owner=ANN)
    await house.store.save(other)
    assert (house.files(ANON), house.files(ANN)) == (2, 2)
    assert await house.delete() == 0
    house.ahead = HOUR
    assert await house.delete() == 1
    assert (house.files(ANON), house.files(ANN)) == (0, 2)
    assert not (house.folder / ANON).exists()
    assert len(await house.store.history(kept)) == 2
    house.ahead = DAY
    assert await house.delete() == 1
    assert house.files(ANN) == 0
    assert [conversation.id for conversation in await house.store.list(ANN)] == [other.id]


@pytest.mark.parametrize("jump", [HOUR, DAY, 365 * DAY], ids=["hour", "day", "year"])
def test_jump_of_the_clock_counts_after_a_day(jump: timedelta) -> None:
    """A jump ahead and back changes nothing, and a clock that was set right is believed after a day."""
    elapsed, begin = Clock(), now()
    time = SteadyTime(elapsed)
    assert time(begin) == begin
    for minute, ahead in enumerate([jump, -jump, jump, timedelta(), -jump, timedelta()], 1):
        elapsed.now += 60
        assert abs(time(begin + minute * timedelta(minutes=1) + ahead) - begin) <= timedelta(minutes=minute, seconds=1)
    for hours, ahead in ((7, jump), (14, -jump), (30, jump), (53, jump), (55, jump)):
        elapsed.now = 1000 + hours * 3600
        shown = time(begin + hours * HOUR + ahead)
        assert abs(shown - (begin + hours * HOUR + (ahead if hours == 55 else timedelta()))) < timedelta(seconds=1)


async def test_jump_of_the_clock_deletes_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, ahead = await house.talk(ANN, SHORT), timedelta()
    monkeypatch.setattr("agent.history.values.now", lambda: now() + ahead)
    assert await house.expired.delete() == 0
    for ahead in (HOUR, 365 * DAY, -365 * DAY, timedelta()):
        assert await house.expired.delete() == 0
        house.ahead = ahead
        conversation = await house.talk(ANN, SHORT) if ahead < timedelta() else conversation
        assert conversation.expires_at is not None
        assert conversation.expires_at > now() + DAY - HOUR
        house.ahead = timedelta()
    assert await house.store.get(conversation.id, owner=ANN)


@pytest.mark.parametrize("kind", ["sqlite", "json", "memory"])
async def test_jump_of_the_clock_hides_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats can be read and answered while the clock is wrong. A clock set back can only keep more."""
    store, began, ahead = await open_store(kind, folder=tmp_path), now(), timedelta()
    monkeypatch.setattr("agent.history.values.datetime", _Ahead(lambda: ahead))
    async with aclosing(store):
        entries = chain(prompt("pear"))
        conversation = Conversation(owner=ANN, expires_at=began + HOUR, head_id=entries[0].id)
        conversation = await store.save(conversation, entries)
        link = Link(digest="digest", conversation_id=conversation.id, owner=ANN, expires_at=began + HOUR)
        await store.links.put(link)
        deleted = await store.save(Conversation(owner=ANN, expires_at=began + HOUR))
        assert await store.retention.set_expiry(deleted, await store.retention.time())
        for ahead in (timedelta(), 365 * DAY, -365 * DAY, timedelta()):
            is_back = ahead < timedelta()
            assert conversation.id in [one.id for one in await store.list(ANN)]
            assert is_back or len(await store.list(ANN)) == 1
            assert await store.history(conversation) == entries
            assert await store.links.get("digest") == link
            conversation = await store.save(conversation)
            at = await store.retention.time()
            assert at - began < timedelta(minutes=5)
            assert [one.id for one in await store.retention.expiring(at)] == ([] if is_back else [deleted.id])


class _Ahead:
    """A `datetime` whose clock is set ahead."""

    def __init__(self, ahead: Callable[[], timedelta]) -> None:
        self._ahead = ahead

    def now(self, zone: tzinfo) -> datetime:
        return datetime.now(zone) + self._ahead()


async def test_clock_far_ahead_at_a_start_is_believed_a_day_later(house: House) -> None:
    """No chat expires by a clock that is far ahead of the last use of the history, and by one that stays so."""

    async def start() -> int:
        return await ExpiredConversations(house.store, house.media, lambda _: False).delete()

    await house.talk(ANN, SHORT)
    assert await start() == 0
    for hours in (1, 23):
        house.ahead = hours * HOUR
        assert await start() == 0
    for house.ahead in (365 * DAY, 365 * DAY + 23 * HOUR, 2 * DAY, 2 * DAY + 23 * HOUR):
        assert await start() == 0
    house.ahead = 3 * DAY
    assert await start() == 1


async def test_doubted_clock_still_deletes_what_had_expired(house: House) -> None:
    await house.talk(ANON, SHORT)
    await house.talk(ANN, SHORT)
    house.ahead = HOUR * 2
    await ExpiredConversations(house.store, house.media, lambda _: True).delete()
    house.ahead = 365 * DAY
    assert await ExpiredConversations(house.store, house.media, lambda _: False).delete() == 1
    assert (house.files(ANON), house.files(ANN)) == (0, 2)


async def test_busy_conversation_is_kept(house: House) -> None:
    at_work = await house.talk(ANON, SHORT, ended=None)
    house.ahead = HOUR * 1.5
    assert await house.delete() == 0
    house.ahead = DAY
    assert await house.delete(at_work.id) == 0
    assert await house.delete() == 1


async def test_question_waits_as_long_as_any_last_message(house: House) -> None:
    asked = await house.talk(ANON, SHORT, ended="suspended")
    house.ahead = HOUR * 0.9
    assert await house.delete() == 0
    assert await house.store.get(asked.id, owner=ANON)


async def test_next_message_extends_the_lifetime(house: House) -> None:
    conversation = await house.talk(ANN, SHORT)
    journal = StoreJournal(house.store, house.media, conversation, Omitted(), SHORT)
    await journal.write(ModelRequest([UserPromptPart("And?")]), Note())
    assert journal.conversation.expires_at is not None
    assert conversation.expires_at is not None
    assert journal.conversation.expires_at > conversation.expires_at


async def test_round_has_a_limit(house: House) -> None:
    for _ in range(5):
        await house.talk(ANON, SHORT)
    house.ahead = DAY
    assert [await house.delete(limit=3) for _ in range(3)] == [3, 2, 0]


async def test_conversation_without_files_is_deleted(house: House) -> None:
    conversation = await house.talk(ANON, SHORT)
    house.ahead = DAY
    for file in house.folder.glob(f"{ANON}/[!.]*"):
        file.unlink()
    assert await house.delete() == 1
    assert not await house.store.retention.erase(conversation)


async def test_damaged_file_name_deletes_nothing_else(house: House) -> None:
    outside = house.folder.parent / "outside.png"
    outside.write_bytes(b"x")
    content = BinaryContent(b"", media_type="image/png", identifier="../../outside.png")
    entry = Entry(parent_id=None, message=ModelResponse([FilePart(BinaryContent.narrow_type(content))]))
    conversation = Conversation(owner=ANON, head_id=entry.id, expires_at=now())
    await house.store.save(conversation, [entry])
    assert await house.delete() == 1
    assert outside.exists()
    outside.unlink()


class ReadingStore(MemoryStore):
    """A store that calls a function after it has read entries."""

    meanwhile: Callable[[Conversation], Awaitable[None]] | None = None

    async def find(self, conversation: Conversation, **wanted: Any) -> Sequence[Entry]:
        found = await super().find(conversation, **wanted)
        if self.meanwhile is not None:
            await self.meanwhile(conversation)
        return found


@pytest.mark.parametrize("saved", [False, True], ids=["begun", "saved"])
async def test_answer_that_begins_meanwhile_keeps_its_files(tmp_path: Path, saved: bool) -> None:
    house = House(tmp_path, ReadingStore)
    await house.talk(ANON, SHORT)
    house.ahead = DAY

    async def begin(conversation: Conversation) -> None:
        if saved:  # by another process
            storage: Any = house.store._storage
            storage.put(
                replace(await storage.get(conversation.owner, conversation.id), revision=conversation.revision + 1)
            )
        else:
            house.busy.add(conversation.id)

    assert isinstance(house.store, ReadingStore)
    house.store.meanwhile = begin
    assert await house.delete() == 0
    assert house.files(ANON) == 2


async def test_files_go_after_the_conversation(house: House, caplog: pytest.LogCaptureFixture) -> None:
    conversation = await house.talk(ANON, SHORT)
    [file, *_] = house.folder.glob(f"{ANON}/[!.]*")
    file.unlink()
    file.mkdir()  # cannot be unlinked
    house.ahead = DAY
    assert await house.delete() == 1
    assert not await house.store.entries(conversation)
    assert house.files(ANON) == 1
    assert "files of a deleted conversation could not be removed" in caplog.text


STUCK = """
CREATE TRIGGER stuck BEFORE UPDATE ON conversations WHEN old.owner = 'guest-stuck' AND new.owner = ''
BEGIN SELECT RAISE (ABORT, 'stuck'); END
"""


async def test_failures_stop_nothing_behind_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some conversations are damaged, and more cannot be deleted than one round handles."""
    at = now()
    async with aclosing(await SqliteStore.open(tmp_path / "history.sqlite", clock=lambda: now() - DAY)) as store:
        for number, owner in enumerate([*["guest-damaged"] * 2, *["guest-stuck"] * 3, *["guest-fine"] * 4]):
            await store.save(Conversation(owner=owner, expires_at=at + timedelta(seconds=number)))
        await run_sql(store, "UPDATE conversations SET record = '{' WHERE owner = 'guest-damaged'")
        await run_sql(store, STUCK)
        expired = ExpiredConversations(store, MediaStore(tmp_path / "media"), lambda _: False)
        rounds = [await expired.delete(at=at + HOUR, limit=2) for _ in range(4)]
        assert sum(rounds) == 6
        assert {conversation.owner for conversation in await store.retention.expiring(at + HOUR)} == {"guest-stuck"}
        assert await expired.delete(at=at + HOUR * 3, limit=2) == 0
        assert caplog.text.count("could not be deleted") == 3, "each failure is logged once"
        assert caplog.text.count("cannot be read") == 2
        await run_sql(store, "DROP TRIGGER stuck")
        assert await expired.delete(at=at + HOUR * 3.5) == 0, "it is not expired yet"
        assert await expired.delete(at=at + HOUR * 5) == 3


async def test_damaged_conversation_stops_no_expiry(tmp_path: Path) -> None:
    async with aclosing(await SqliteStore.open(tmp_path / "history.sqlite")) as store:
        for owner in ("guest-damaged", "guest-fine"):
            await store.save(Conversation(owner=owner))
        await run_sql(store, "UPDATE conversations SET record = '{' WHERE owner = 'guest-damaged'")
        assert await add_missing_expiry(store, PRIVATE) == 1
        assert [conversation.owner for conversation in await store.retention.expiring(now() + DAY)] == ["guest-fine"]


def rows(app: App) -> dict[str, int]:
    """Return the number of conversations of each owner."""
    with closing(sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True)) as base:
        return dict(base.execute("SELECT owner, count(*) FROM conversations WHERE owner <> 'readiness' GROUP BY owner"))


def test_guest_is_deleted_from_a_running_server(start_app: Callable[..., App]) -> None:
    app = start_app("[history]\nguest_hours = 0.0005\nhousekeeping_minutes = 0.01")
    guest, visitor, word = HttpVisitor(app.url, None), HttpVisitor(app.url), marker()
    path = guest.upload("secret.txt", word.encode())
    guest.say(f"!text {word}", path)
    kept = marker()
    visitor.say(f"!text {kept}")
    becomes([owner_in(str(visitor.cookie))], lambda: [*rows(app)])
    app.stop()
    text = b"".join(file.read_bytes() for file in (app.folder / "data").rglob("*") if file.is_file())
    assert word.encode() not in text
    assert kept.encode() in text


FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def faked_clock(folder: Path, **more: str) -> tuple[Path, dict[str, Any]]:
    """Return a file with how far the clock of a process is wrong, and the options with which it starts.

    The process looks into the file once a second. With `FAKETIME_NO_CACHE` it always does, and is slow.
    """
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed")
    clock = folder / "clock"
    clock.write_text("+0")
    faked = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1"}
    return clock, {"prefix": ("env",), "FAKETIME_DONT_FAKE_MONOTONIC": "1", **faked, **more}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("jump", ["+1d", "-1d"])
def test_jump_of_a_process_clock_loses_and_repeats_nothing(
    start_app: Callable[..., App], server: Running, tmp_path: Path, jump: str
) -> None:
    """The clock of a real process jumps while it answers, counts messages, and keeps links and a temporary chat."""
    name = f"clock{jump}"
    clock, faked = faked_clock(tmp_path, FAKETIME_NO_CACHE="1")
    app = start_app("[public]\non = true\nlinks = true\nmessages = 6\n", VLLM_BASE_URL=server.base_url, **faked)
    visitor, stranger = HttpVisitor(app.url), HttpVisitor(app.url)
    visitor.say("!text pear")
    [first] = visitor.ask("GET", "/conversations").json["conversations"]
    link = visitor.ask("POST", f"/conversations/{first['id']}/links", json={"days": 0.5}).json["path"]
    temporary, _answer = begin_temporary(visitor, "!text apple")
    held = visitor.ask("POST", "/conversations", json={"text": f"!tokens 60 hold 20 {name}", "id": "0" * 32}).json
    server.wait_for(lambda journal: any(name in str(line["body"]) and line["sent"] > 3 for line in journal))

    def has_all(*more: str) -> None:
        paths = (f"/conversations/{first['id']}", "/own-data", "/", *more)
        assert {path: visitor.ask("GET", path).status for path in paths} == dict.fromkeys(paths, 200)
        assert stranger.ask("GET", f"/conversations/{first['id']}").status == 404

    def send(text: str) -> int:
        return visitor.ask("POST", "/conversations", json={"text": text}).status

    has_all(f"/conversations/{temporary}", link)
    clock.write_text(jump)
    sent = [send("!text plum") for _ in range(6)]
    assert {*sent} == {200, 429}, f"the limit counts on, and nobody is locked out: {sent}"
    has_all(f"/conversations/{temporary}", link)
    jumped = visitor.ask("GET", "/conversations").json["conversations"][0]["updated_at"]
    by = datetime.fromisoformat(jumped) - now()
    assert abs(by - (DAY if jump == "+1d" else -DAY)) < HOUR, "the clock has jumped"
    server.release(name)
    events = visitor.ask("GET", f"/runs/{held['run']}/events").text
    assert '"finish_reason":"stop"' in events, events[-500:]
    assert sum(name in str(line["body"]) for line in server.journal()) == 1, "the model was asked once"
    chats = {row["id"] for row in visitor.ask("GET", "/conversations").json["conversations"]}
    app.stop()
    app.start()  # while the clock is wrong: it cannot know for how long, so a link of 12 hours can be over
    has_all()
    clock.write_text("+0")
    has_all(link)
    assert send("!text fig") == 200
    app.stop()
    app.start()
    has_all(link)
    assert chats < {row["id"] for row in visitor.ask("GET", "/conversations").json["conversations"]}


OFTEN = """
[server]
grace_seconds = 3600

[public]
on = true
messages = 6
messages_in_all = 100

[history]
guest_hours = 12
housekeeping_minutes = 0.01
"""


async def stored_by(name: str, folder: Path) -> tuple[dict[str, float], int]:
    """Return the ends of the leases of unfinished runs, and the number of guests with a chat."""
    async with aclosing(await STORES[name](folder, now)) as store:
        runs = {run.run_id: run.leased_until for run in await store.runs.unfinished()}
        return runs, len(await store.retention.sizes(owners=GUEST_PREFIX))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("jump", ["+1d", "-1d"])
def test_jump_of_one_of_two_clocks_loses_and_repeats_nothing(
    start_app: Callable[..., App], server: Running, name: str, tmp_path: Path, jump: str
) -> None:
    """Both processes write an answer, look at that of the other, and delete what has expired."""
    clock, faked = faked_clock(tmp_path)
    apps = two_processes(start_app, name, tmp_path, server, OFTEN, **faked)
    runs, watching = dict[str, str](), dict[str, tuple[HttpVisitor, HttpVisitor, str]]()
    for app, other in (apps, apps[::-1]):
        marked = f"{name}{jump}{len(watching)}"
        visitor = HttpVisitor(app.url)
        sent = visitor.ask("POST", "/conversations", json={"text": f"!tokens 60 hold 20 {marked}"}).json
        runs[marked] = sent["run"]
        watching[marked] = visitor, HttpVisitor(other.url, visitor.cookie), f"/conversations/{sent['conversation']}"
        server.wait_for(
            lambda journal, marked=marked: any(marked in str(one["body"]) and one["sent"] > 3 for one in journal)
        )
        HttpVisitor(app.url, None).say("!text pear")
    clock.write_text(jump)

    leases = dict[str, float]()
    for _ in range(4):
        for marked, (_, elsewhere, path) in watching.items():
            assert elsewhere.ask("GET", path).json["state"] == "answering"
            assert elsewhere.ask("GET", f"{path}?format=blocks").json["run"] == runs[marked]
            assert elsewhere.ask("POST", f"{path}/messages", json={"text": "!text second"}).status == 409
        before = leases
        while any(end == before.get(run) for run, end in leases.items()) or not leases:
            leases, _guests = asyncio.run(stored_by(name, tmp_path))
            assert leases.keys() == {*runs.values()}
    for app in apps:
        HttpVisitor(app.url, None).say("!text pear")
    for marked, (visitor, elsewhere, path) in watching.items():
        server.release(marked)
        events = elsewhere.ask("GET", f"/runs/{runs[marked]}/events").text
        assert '"finish_reason":"stop"' in events, events[-500:]
        assert sum(marked in str(one["body"]) for one in server.journal()) == 1, "the model was asked once"
        texts = {
            one.ask("GET", f"{path.replace('conversations', 'export')}?format=markdown").text
            for one in (visitor, elsewhere)
        }
        assert [text.count("word59") for text in texts] == [1]
        sent = [elsewhere.ask("POST", "/conversations", json={"text": "!text plum"}).status for _ in range(7)]
        assert {*sent} == {200, 429}, f"the limit counts on, and nobody is locked out: {sent}"
    becomes(({}, 4), lambda: asyncio.run(stored_by(name, tmp_path)))  # all answers end, and nothing has expired


DAYS_AGO = {"old": 40, "new": 20, f"{GUEST_PREFIX}old": 2, f"{GUEST_PREFIX}new": 0}
"""The days since each owner's last message."""


async def write_old_database(data: Path) -> None:
    """Write a history without expiry: each owner has a conversation of one message."""
    for owner, days in DAYS_AGO.items():
        at = now() - days * DAY
        async with aclosing(await SqliteStore.open(data / "history.sqlite", clock=lambda at=at: at)) as store:
            await started(store, owner=owner)


KEPT_OF_OLD = {
    "private": ("", {}, ["guest-new", "new", "old"]),
    "public": ("[public]\non = true", {}, ["guest-new", "new"]),
    "shared": ("", {"SHARE": "1", "GRADIO_SHARE_SERVER_ADDRESS": "127.0.0.1:9"}, ["guest-new", "new", "old"]),
}


@pytest.mark.parametrize(("config", "env", "kept"), gate_rows(KEPT_OF_OLD, ("public",)))
def test_older_conversations_expire(
    start_app: Callable[..., App], tmp_path: Path, config: str, env: dict[str, str], kept: list[str]
) -> None:
    asyncio.run(write_old_database(tmp_path / "data"))
    app = start_app(config, SWITCHBOARD_DATA=str(tmp_path / "data"), HF_HOME="/nonexistent", **env)

    def owners() -> list[str]:
        with closing(sqlite3.connect(f"file:{tmp_path}/data/history.sqlite?mode=ro", uri=True)) as base:
            owned = base.execute("SELECT owner FROM conversations WHERE owner <> 'readiness' ORDER BY owner")
            return [row[0] for row in owned]

    becomes(kept, owners)
    app.stop()
    assert owners() == kept
    with closing(sqlite3.connect(tmp_path / "data" / "history.sqlite")) as base:
        sizes = base.execute("SELECT id, size, length(record) FROM conversations WHERE owner <> 'readiness'").fetchall()
        for id_, size, conversation in sizes:
            assert [(size - conversation,)] == base.execute(
                "SELECT sum(length(entry)) FROM entries WHERE conversation_id = ?", (id_,)
            ).fetchall()


async def test_clock_that_is_set_right_deletes_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine starts with its clock a year ahead, and the clock is right some minutes later."""
    began, passed, ahead, store = now(), 0.0, timedelta(), MemoryStore()

    class Wrong:
        @staticmethod
        def now(zone: tzinfo) -> datetime:
            return began + timedelta(seconds=passed) + ahead

    monkeypatch.setattr("agent.history.values.datetime", Wrong)
    monkeypatch.setattr("agent.web.chat.expiry.monotonic", lambda: passed)

    def started_again() -> ExpiredConversations:
        monkeypatch.setattr("agent.history.values._steady", SteadyTime(lambda: passed))
        expired = ExpiredConversations(store, cast(MediaStore, None), lambda _: False)
        expired._time = SteadyTime(lambda: passed)  # pyright: ignore[reportPrivateUsage]
        return expired

    await started_again().delete()
    conversation = await store.save(Conversation(owner=ANN, expires_at=began + 30 * DAY))
    passed, ahead = 1800.0, 365 * DAY
    expired = started_again()
    assert await expired.delete() == 0
    passed, ahead = passed + 900, timedelta()
    for _ in range(30 * 6):
        passed += 600
        assert await expired.delete() == 0
        assert await store.list(ANN) == [conversation]


@pytest.mark.slow
def test_package_loads_where_the_clock_of_linux_is_missing() -> None:
    program = "import time; del time.CLOCK_BOOTTIME, time.clock_gettime; import agent"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONSAFEPATH": ""})
