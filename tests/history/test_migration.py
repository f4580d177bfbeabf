"""A large file of the first released schema becomes one of today, in little memory, through any number of kills."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agent.history.sqlite import SqliteStore
from agent.history.sqlite_schema import MIGRATIONS
from agent.settings import ROOT
from tests.support.first_schema import LENGTHS, OWNERS, owner_of, text_of, write_first_schema
from tests.support.history_stores import prompts
from tests.support.waiting import until

pytestmark = [pytest.mark.full, pytest.mark.slow]

MOST_KB = 300_000
MOST_GROWTH_KB = 60_000
"""The most memory beyond that of an empty history. The file has 20 times as much text in one conversation."""

OPEN = """
import asyncio, sys
from agent.history.sqlite import SqliteStore
from tests.support.memory import most_memory

async def main(path):
    await (await SqliteStore.open(path + ".empty")).aclose()
    empty = most_memory()
    await (await SqliteStore.open(path)).aclose()
    print(empty, most_memory())

asyncio.run(main(sys.argv[1]))
"""


KILL_AT_EACH_STATEMENT = """
import asyncio, os, shutil, signal, sqlite3, sys
from contextlib import aclosing, closing
from pathlib import Path
from agent.history.sqlite import SqliteStore
from agent.history.sqlite_schema import MIGRATIONS, _fill_some, _migrate
from tests.support.first_schema import owner_of

first, path = Path(sys.argv[1]), Path(sys.argv[1] + ".used")

def migrate(most):
    count = 0
    def count_statement(_):
        nonlocal count
        count += 1
        if count > most:
            os.kill(os.getpid(), signal.SIGKILL)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.set_trace_callback(count_statement)
        _migrate(path, file)
        while _fill_some(file):
            pass
    os._exit(0)

async def check():
    async with aclosing(await SqliteStore.open(path)) as store:
        for number in range(3):
            (hit,) = await store.search(owner_of(number), f"m{number}x2m")
            assert hit.entry_id == "e2"
            assert len(await store.history(await store.get(f"c{number}", owner=owner_of(number)))) == 4
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []

kills, killed = 0, True
while killed:
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    shutil.copy(first, path)
    child = os.fork()
    if not child:
        migrate(kills)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    asyncio.run(check())
    kills += killed
print(kills)
"""


def test_kill_at_each_statement_leaves_a_file_that_opens(tmp_path: Path) -> None:
    write_first_schema(tmp_path / "first.db", [4, 4, 4])
    command = [sys.executable, "-c", KILL_AT_EACH_STATEMENT, str(tmp_path / "first.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > sum(map(len, MIGRATIONS[1:]))


@pytest.fixture
def path() -> Iterator[Path]:
    """A file of the first schema. It has 300 MB, so it does not stay in pytest's folder."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "history.db")
        write_first_schema(path)
        yield path


def opening(path: Path) -> "subprocess.Popen[str]":
    """Start a process that opens the file and prints its memory in KB, for an empty file and after this one."""
    return subprocess.Popen([sys.executable, "-c", OPEN, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def left(path: Path) -> int:
    """Return the number of conversations that cannot be searched yet."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        if file.execute("PRAGMA user_version").fetchone() == (1,):
            return len(LENGTHS)
        return file.execute("SELECT count(*) FROM conversations WHERE folded_title IS NULL").fetchone()[0]


async def test_first_schema_is_migrated_in_little_memory_through_kills(path: Path) -> None:
    assert left(path) == len(LENGTHS)
    before = len(LENGTHS)
    for share in (1.0, 0.8, 0.5, 0.2):
        process = opening(path)
        await until(lambda share=share: left(path) < share * len(LENGTHS), seconds=120)
        process.kill()
        process.communicate()
        assert 0 < left(path) < before, "the process went on where the one before was killed"
        before = left(path)
    process = opening(path)
    await until(lambda: left(path) < before, seconds=120)
    for _ in range(5):
        another_process_writes(path)
    assert left(path) > 0
    empty, most = map(int, process.communicate(timeout=120)[0].split())
    assert process.returncode == 0
    assert most < MOST_KB
    assert most - empty < MOST_GROWTH_KB
    assert left(path) == 0
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert file.execute("SELECT count(*) FROM entry_texts").fetchone() == (sum(LENGTHS),) == (100_000,)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []
    await everything_is_found(path)


def another_process_writes(path: Path) -> None:
    """Write as another process does, with its patience of 5 seconds."""
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        file.execute("UPDATE conversations SET pinned = pinned WHERE id = 'c0'")
        file.execute("COMMIT")


async def everything_is_found(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        listed = [record for n in range(OWNERS) for record in await store.list(owner_of(n), limit=len(LENGTHS))]
        assert {record.title for record in listed} == {f"Title t{number}t" for number in range(len(LENGTHS))}
        sizes = await store.retention.sizes()
        assert sum(sizes.values()) == await store.retention.size() > sum(LENGTHS) * 200
        for number in (0, 1234, len(LENGTHS) - 2, len(LENGTHS) - 1):
            length, owner = LENGTHS[number], owner_of(number)
            record = await store.get(f"c{number}", owner=owner)
            entries = await store.history(record)
            assert [entry.id for entry in entries] == [f"e{message}" for message in range(length)]
            assert prompts(entries) == [text_of(number, message) for message in range(0, length, 2)]
            for message in (0, length // 2, length - 1):
                (hit,) = await store.search(owner, f"M{number}x{message}m")
                assert (hit.record.id, hit.entry_id) == (record.id, f"e{message}")
            (hit,) = await store.search(owner, f"T{number}T")
            assert (hit.record, hit.entry_id) == (record, None)
