"""The faults and promises that only a SQLite file has. What all stores promise is in `tests.support.history_laws`."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import ANY

import pytest

from agent.errors import ConfigError, HistoryError, NotFound
from agent.history import Conversation, now
from agent.history.sql import sqlite
from agent.history.sql.database import LEASE, VERSION
from agent.history.sql.sqlite import SqliteStore
from agent.history.sql.sqlite_wipe import empty_log, shrink, wipe_pages
from agent.history.sql.store import RECENT
from tests.support.history_stores import (
    ALICE,
    chain,
    end_as_lost,
    grown,
    prompt,
    prompts,
    run_sql,
    started,
    titled,
    traced,
)
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


async def test_new_file_of_another_process_is_awaited(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(SqliteStore.open(path, busy_timeout=30))
        await asyncio.wait({opening}, timeout=0.2)
        assert not opening.done()
        other.execute("COMMIT")
    async with aclosing(await opening) as store:
        await started(store)


def _holding(folder: Path, text: str) -> list[str]:
    """Return the names of the files that contain the text."""
    return [path.name for path in folder.iterdir() if text.encode() in path.read_bytes()]


@asynccontextmanager
async def _deleted_while_read(path: Path) -> AsyncGenerator[SqliteStore, None]:
    """Yield a store that deleted the text `hunter2` while another connection read it, from before to this moment."""
    async with aclosing(await SqliteStore.open(path, busy_timeout=0.05)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            conversation = await titled(store, "hunter2")
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
            await store.delete(conversation.id, owner=ALICE)
            assert _holding(path.parent, "hunter2")
        yield store


@pytest.mark.slow
async def test_deleted_text_is_wiped_after_a_long_read(tmp_path: Path) -> None:
    async with _deleted_while_read(tmp_path / "history.db"):
        await until(lambda: not _holding(tmp_path, "hunter2"))


async def test_close_ends_the_wait_for_a_long_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as reader:
        async with _deleted_while_read(tmp_path / "history.db"):
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entries").fetchone()
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_open_wipes_what_a_killed_process_deleted(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        await titled(store, "hunter2")
    with closing(sqlite3.connect(path, isolation_level=None)) as killed:
        killed.execute("PRAGMA secure_delete = ON")
        for table in ("entry_texts", "conversations"):
            killed.execute("PRAGMA foreign_keys = ON")
            killed.execute(f"DELETE FROM {table}")
        assert _holding(tmp_path, "hunter2")
        async with aclosing(await SqliteStore.open(path)):
            assert not _holding(tmp_path, "hunter2")


_ON_FULL_DISK = """
import asyncio, sys
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from agent.errors import HistoryError
from agent.history import now
from tests.support.history_laws import ALICE, started, titled
from agent.history.sql.sqlite import SqliteStore

async def main():
    path = Path(sys.argv[1], "history.db")
    async with aclosing(await SqliteStore.open(path)) as store:
        kept, entries = await started(store, "kept")
        chats = []
        try:
            while True:
                chats.append(await titled(store, "large", *["hunter2 " * 9000] * 10))
        except HistoryError as error:
            print("saving:", error, flush=True)
        with suppress(OSError), open(path.with_name("fill"), "wb", buffering=0) as fill:
            while fill.write(bytes(4096)):
                pass
        assert await store.retention.set_expiry(chats[0], now() + timedelta(hours=1))
        chats[0] = replace(chats[0], expires_at=(await store.get(chats[0].id, owner=ALICE)).expires_at)
        assert await store.retention.erase(chats.pop(0))
        for chat in chats:
            await store.delete(chat.id, owner=ALICE)
        await store.retention.wipe()
        assert await store.list(ALICE) == [kept]
        assert await store.history(kept) == entries
    print("left:", any(b"hunter2" in file.read_bytes() for file in path.parent.iterdir()))
    async with aclosing(await SqliteStore.open(path)) as store:
        await started(store, "room again")
    print("size:", path.stat().st_size < 1_000_000)

asyncio.run(main())
"""


@pytest.mark.slow
def test_full_disk_refuses_messages_and_lets_chats_be_deleted(tmp_path: Path) -> None:
    within = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=12m none {tmp_path} && exec "$@"', "sh")
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    command = [*within, sys.executable, "-c", _ON_FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    refused, left, size = done.stdout.splitlines()
    assert "the disk is full" in refused
    assert str(tmp_path) not in refused, "a visitor sees the path"
    assert (left, size) == ("left: False", "size: True")


_LEAVE_TEXT = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.history_laws import titled
from agent.history.sql import sqlite
from agent.history.sql.sqlite import SqliteStore

async def main():
    sqlite.WIPE_SECONDS = 600.0
    store = await SqliteStore.open(Path(sys.argv[1]))
    kept = [await titled(store, f"kept {number}", "kept " * 20) for number in range(60)]
    gone = [await titled(store, "hunter2", "hunter2 " * length) for length in (100, 200, 300) * 20]
    for record in gone:
        await store.retention.erase(record)
    large = await titled(store, "hunter2", *["hunter2 " * 90_000] * 8)
    deleting = asyncio.create_task(store.delete(large.id, owner=large.owner))
    while (await store._database.rows("SELECT count(*) FROM entries"))[0][0] > 66:
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_deletion_goes_on_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    command = [sys.executable, "-c", _LEAVE_TEXT, str(path)]
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT, timeout=60)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (61,), "the deletions are not noted"
    async with aclosing(await SqliteStore.open(path)) as store:
        assert len(await store.list(ALICE, limit=100)) == 60
        assert list(await store.retention.sizes()) == [ALICE]
        assert not await store.retention.expiring(now() + timedelta(days=1))
        await until(lambda: not _holding(tmp_path, "hunter2"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (60,)
        assert connection.execute("PRAGMA application_id").fetchone() == (0,)


async def test_long_chat_is_gone_before_its_text_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can read it, and a new chat can have its id. The text is removed soon."""
    remove, may_remove = sqlite._remove_hidden, threading.Event()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sqlite, "ERASE_SECONDS", 0.0)
    monkeypatch.setattr(
        sqlite, "_remove_hidden", lambda base, id_=None: remove(base, id_) if id_ or may_remove.is_set() else True
    )
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        conversation = await titled(store, "hunter2", *["hunter2 " * 1000] * 20)
        assert await store.retention.erase(conversation)
        for number in range(2):
            other = await titled(store, f"other {number}", "hunter3")
            await store.delete(other.id, owner=ALICE)
        assert await store.list(ALICE) == []
        assert await store.entries(conversation) == await store.search(ALICE, "hunter2") == []
        assert not await store.retention.sizes()
        with pytest.raises(NotFound):
            await store.get(conversation.id, owner=ALICE)
        assert (await store._database.rows("SELECT count(*) FROM entries"))[0][0] == 22
        saved = await store.save(
            Conversation(id=conversation.id, owner=ALICE)
        )  # although the text of others is still there
        assert await store.entries(saved) == []
        assert (await store._database.rows("SELECT count(*) FROM entries"))[0][0] == 2
        may_remove.set()
        await until(lambda: not _holding(tmp_path, "hunter"))


@pytest.mark.parametrize("who", ["the one that wiped", "another one"])
def test_pages_in_memory_bring_no_wiped_text_back(tmp_path: Path, who: str) -> None:
    path, dice = tmp_path / "history.db", Random(1)
    connections = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
    with closing(connections[0]) as wiping, closing(connections[1]) as other:
        for connection, pragma in product(
            connections, ("journal_mode = WAL", "secure_delete = ON", "synchronous = OFF")
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        for table in (f"table{number}" for number in range(30)):
            wiping.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, text)")
            wiping.executemany(f"INSERT INTO {table} VALUES (?, 'text')", [(id_,) for id_ in range(40)])
            for id_ in (dice.randrange(40) for _ in range(200)):
                text = ("hunter2 " if id_ % 2 else "kept ") * dice.choice((1, 30, 150))
                wiping.execute(f"UPDATE {table} SET text = ? WHERE id = ?", (text, id_))
            wiping.execute(f"UPDATE {table} SET text = 'none' WHERE id % 2")
        assert empty_log(wiping)
        for connection, number in product(connections, range(30)):
            connection.execute(f"SELECT sum(length(text)) FROM table{number}").fetchone()
        assert _holding(tmp_path, "hunter2")
        assert wipe_pages(1, wiping) == (0, ANY)
        writing = wiping if who == "the one that wiped" else other
        for number in range(30):
            writing.execute(f"UPDATE table{number} SET text = upper(text)")
        assert empty_log(wiping)
        assert not _holding(tmp_path, "hunter2")
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_wipe_copies_no_file_and_shrinks_it(tmp_path: Path) -> None:
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        conversation = await titled(store, "large", *("hunter2 " * 90_000 for _ in range(8)))
        await store.delete(conversation.id, owner=ALICE)
        async with traced(store) as statements:
            await store.retention.wipe()
        assert not [statement for statement in statements if "VACUUM" in statement]
    assert (tmp_path / "history.db").stat().st_size < 400_000


@pytest.mark.slow
async def test_script_without_close_still_ends(tmp_path: Path) -> None:
    script = f"""
import asyncio
from agent.history import Conversation
from agent.history.sql.sqlite import SqliteStore

async def main():
    await (await SqliteStore.open({str(tmp_path / "history.db")!r})).save(Conversation(owner="ann"))

asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, stderr=subprocess.DEVNULL, timeout=30)
    assert done.returncode == 0


async def test_only_this_user_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.db"
    before = os.umask(0)
    try:
        async with aclosing(await SqliteStore.open(path)) as store:
            await started(store)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
            assert modes == {f"history.db{end}": 0o600 for end in ("", "-wal", "-shm", "-reserve")}
    finally:
        os.umask(before)
    path.chmod(0o644)
    await (await SqliteStore.open(path)).aclose()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_newer_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    await (await SqliteStore.open(path)).aclose()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(ConfigError, match="newer version") as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)


def ruin(path: Path, how: str) -> None:
    match how:
        case "folder":
            path.mkdir()
        case "text":
            path.write_text("This is not a database. " * 100)
        case "below-a-file":
            path.parent.write_text("")
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("folder", "opened"), ("text", "not a SQLite database"), ("below-a-file", "File exists|Not a directory")],
)
async def test_unusable_file_is_named(tmp_path: Path, how: str, reason: str) -> None:
    path = tmp_path / "data" / "history.db"
    if how != "below-a-file":
        path.parent.mkdir()
    ruin(path, how)
    with pytest.raises(ConfigError, match=reason) as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_read_only_file_is_named() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "history.db")
        await (await SqliteStore.open(path)).aclose()
        os.chmod(path, 0o444)
        root = os.geteuid() == 0
        if root:  # Root ignores file modes, so switch to another user for a moment.
            os.chmod(folder, 0o755)
            os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match=r"cannot be (written|opened)") as caught:
                await SqliteStore.open(path)
        finally:
            if root:
                os.seteuid(0)
        assert str(path) in str(caught.value)


async def test_failing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        conversation, entries = await started(store, "1")
        await run_sql(store, "PRAGMA query_only = ON")
        with pytest.raises(HistoryError, match="cannot be written") as caught:
            await started(store, "2")
        assert str(tmp_path) not in str(caught.value), "a visitor sees the path"
        await run_sql(store, "PRAGMA query_only = OFF")
        assert await store.history(conversation) == entries
        await run_sql(store, 'UPDATE entries SET entry = \'{"message": "secret"}\'')
        with pytest.raises(HistoryError, match="damaged") as caught:
            await store.history(conversation)
        assert str(tmp_path) not in str(caught.value), "a visitor sees the path"
        assert "secret" not in str(caught.value)


async def test_writes_behind_a_locked_file_are_refused_together(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path, busy_timeout=1.0)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            refusals = await asyncio.gather(*(started(store) for _ in range(20)), return_exceptions=True)
            assert time.monotonic() - began < 10, "each write waited for itself"
            assert {type(refusal) for refusal in refusals} == {HistoryError}
            other.execute("ROLLBACK")
        await started(store)


async def test_file_shrinks_while_others_use_it(tmp_path: Path) -> None:
    def free_pages(connection: sqlite3.Connection) -> int:
        return connection.execute("PRAGMA freelist_count").fetchone()[0]

    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        conversation, _ = await started(store, "x" * 4_000_000)
        writer = store._database._writer  # type: ignore[attr-defined]
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM entries").fetchone()
            await store.delete(conversation.id, owner=ALICE)
            before = await writer.run(free_pages)
            await writer.run(shrink)
            assert await writer.run(free_pages) < before
        while await writer.run(free_pages):
            await writer.run(shrink)
        assert path.stat().st_size < 1_000_000


OF_0_1_0 = (ROOT / "tests" / "history" / "history_of_0.1.0.sql").read_text()
"""A history that version 0.1.0 has written."""


async def test_file_of_the_release_before_opens(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(OF_0_1_0)
    async with aclosing(await SqliteStore.open(path)) as store:
        (conversation,) = await store.list("alice")
        assert (conversation.title, conversation.pinned, conversation.head_id, conversation.revision) == (
            "Ships",
            True,
            "e3",
            2,
        )
        assert [entry.id for entry in await store.history(conversation)] == ["e1", "e3"]
        assert [entry.id for entry in await store.entries(conversation)] == ["e1", "e2", "e3"]
        assert [hit.entry_id for hit in await store.search("alice", "harbour")] == ["e1"]
        assert [hit.entry_id for hit in await store.search("alice", "SHIPS")] == ["e2"]
        assert [event.value for event in await store.runs.events("run", owner="alice")] == [{"a": 1}]
        assert [link.digest for link in await store.links.of("chat", owner="alice")] == ["d"]
        assert [one.id for one in await store.retention.expiring(datetime(3000, 1, 1, tzinfo=UTC))] == ["other"]
        await end_as_lost(store)
        conversation = await store.get("chat", owner="alice")
        conversation = await grown(store, conversation, chain(prompt("more"), after="e3"))
        await store.delete("other", owner="guest-bob")
    async with aclosing(await SqliteStore.open(path)) as store:
        assert prompts(await store.history(conversation)) == ["What is a harbour?", "more"]
        assert await store.runs.unfinished() == []
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []


_KILL_AT_EACH_STATEMENT = """
import asyncio, os, shutil, signal, sqlite3, sys
from contextlib import aclosing, closing
from pathlib import Path
from agent.history.sql import sqlite
from agent.history.sql.database import VERSION

old, path = Path(sys.argv[1]), Path(sys.argv[1] + ".used")
connect, passed = sqlite3.connect, 0

def traced(*arguments, **options):
    connection = connect(*arguments, **options)
    connection.set_trace_callback(count)
    return connection

def count(statement):
    global passed
    passed += 1
    if passed > most:
        os.kill(os.getpid(), signal.SIGKILL)

async def open_and_close():
    async with aclosing(await sqlite.SqliteStore.open(path)):
        pass

async def check():
    async with aclosing(await sqlite.SqliteStore.open(path)) as store:
        (record,) = await store.list("alice")
        assert [entry.id for entry in await store.entries(record)] == ["e1", "e2", "e3"]
        assert [hit.entry_id for hit in await store.search("alice", "harbour")] == ["e1"]
        assert [event.value for event in await store.runs.events("run", owner="alice")] == [{"a": 1}]
        assert [link.digest for link in await store.links.of("chat", owner="alice")] == ["d"]
    with closing(connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []

most, killed = 0, True
while killed:
    for used in path.parent.glob(path.name + "*"):
        used.unlink()
    shutil.copy(old, path)
    child = os.fork()
    if not child:
        sqlite.sqlite3.connect = traced
        asyncio.run(open_and_close())
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    asyncio.run(check())
    most += killed
print(most)
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", [6, 7])
def test_kill_at_each_statement_of_a_migration(tmp_path: Path, version: int) -> None:
    """A process that is killed while it opens an older file leaves one that opens, with everything in it."""
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(OF_0_1_0)
        if version == 7:
            file.executescript("ALTER TABLE runs ADD COLUMN replica TEXT; PRAGMA user_version = 7")
    command = [sys.executable, "-c", _KILL_AT_EACH_STATEMENT, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(LEASE) + version


async def test_older_file_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(OF_0_1_0.replace("user_version = 6", "user_version = 5"))
    with pytest.raises(ConfigError, match=r"open it once with version 0\.1\.0") as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM entries").fetchone() == (3,)


async def test_search_finds_each_chat_once_beyond_the_recent_ones(tmp_path: Path) -> None:
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        conversations = [await titled(store, f"chat {number}", f"text {number}x") for number in range(RECENT + 2)]
        await run_sql(store, "UPDATE conversations SET place = 7 WHERE title IN ('chat 0', 'chat 1', 'chat 2')")
        for word, found in (
            ("text", conversations),
            ("chat", conversations),
            ("2x", conversations[2::10]),
            ("0x", conversations[::10]),
        ):
            hits = await store.search(ALICE, word, limit=1000)
            assert len(hits) == len({hit.conversation.id for hit in hits})
            assert {hit.conversation.id for hit in hits} == {conversation.id for conversation in found}
