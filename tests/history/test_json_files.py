"""The faults that only the files of a JSON history can have. The laws of all stores are tested on it, too."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent.errors import ConfigError, HistoryError, NotFound
from agent.history import Conversation, HistoryStore, now
from agent.history import json_files as files
from agent.history.json_files import JsonStore
from tests.history.retention_laws import link_to
from tests.support.history_stores import ALICE, MALLORY, chain, prompt, prompts, started
from tests.support.history_writer import MESSAGES, events_of, take_turn

ROOT = Path(__file__).parents[2]


def writer(url: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.history_writer", url, *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def found(folder: Path, text: bytes) -> list[Path]:
    return [path for path in files_in(folder) if text in path.read_bytes()]


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.rglob(pattern)
    return path


async def grown(store: HistoryStore, conversation: Conversation, *added: str) -> Conversation:
    entries = chain(*map(prompt, added), after=conversation.head_id)
    return await store.save(replace(conversation, head_id=entries[-1].id), entries)


@pytest.mark.slow
async def test_process_killed_at_any_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        for number in range(99):
            conversation = await take_turn(
                store, Conversation(id=f"old-{number}", owner=ALICE), 0, f"run of old-{number}"
            )
            entries = chain(prompt(f"a secret of {number}."))
            await store.save(Conversation(id=f"gone-{number}", owner=ALICE, head_id=entries[0].id), entries)
    with writer(f"json:{tmp_path}") as process:
        output = await asyncio.to_thread(process.communicate)
    steps, status = map(int, output[0].split())
    assert (process.returncode, status) == (0, 0)
    assert 20 < steps < 99
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        outcomes: dict[str, set[bool]] = {"old": set(), "new": set(), "gone": set()}
        before = await store.list(ALICE, limit=999)
        text = b"".join(path.read_bytes() for path in files_in(tmp_path))
        for number in range(steps + 1):
            conversation = await store.get(f"old-{number}", owner=ALICE)
            events = await store.runs.events(f"run of old-{number}", owner=ALICE)
            assert len(await store.history(conversation)) == MESSAGES * conversation.revision
            assert len(events) == conversation.revision
            outcomes["old"].add(conversation.revision == 2)
            await take_turn(store, conversation, conversation.revision, f"run of old-{number}")
            outcomes["new"].add(await stored_whole(store, f"new-{number}"))
            kept = [one for one in before if one.id == f"gone-{number}"]
            assert [prompts(await store.history(one)) for one in kept] == [[f"a secret of {number}."]] * len(kept)
            assert (f"a secret of {number}.".encode() in text) is bool(kept)
            outcomes["gone"].add(bool(kept))
        assert outcomes == {name: {True, False} for name in outcomes}
    assert not [path for path in files_in(tmp_path) if path.suffix == ".draft"]


async def stored_whole(store: HistoryStore, id_: str) -> bool:
    """Return True if the conversation is stored as a whole, False if nothing is left of it."""
    try:
        conversation = await store.get(id_, owner=ALICE)
    except NotFound:
        with pytest.raises(NotFound):
            await store.runs.events(f"run of {id_}", owner=ALICE)
        await take_turn(store, Conversation(id=id_, owner=ALICE), 0, f"run of {id_}")
        return False
    assert len(await store.history(conversation)) == MESSAGES
    assert len(await store.runs.events(f"run of {id_}", owner=ALICE)) == 1
    return True


async def test_torn_end_of_file_is_ignored_and_cut(tmp_path: Path) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, entries = await started(store, "1")
        await store.runs.append(events_of(conversation, 1))
        for path in (only(tmp_path, "entries.jsonl"), only(tmp_path, "*.events")):
            with path.open("ab") as file:
                file.write(b'{"id": "torn')
        assert await store.history(conversation) == entries
        assert len(await store.runs.events("run", owner=ALICE)) == 1
        conversation = await grown(store, conversation, "2")
        assert prompts(await store.history(conversation)) == ["1", "2"]
        assert not found(tmp_path, b"torn")


async def test_change_of_another_process_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # so that many changes come within one tick of the file system
    writing, reading = [await JsonStore.open(tmp_path) for _ in range(2)]
    conversation, _ = await started(writing)
    soon, past = now() + timedelta(days=1), now() - timedelta(days=1)
    for _ in range(40):
        for end in (
            soon,
            past,
        ):  # one more change between, because the system gives a file's number to the next but one
            assert await writing.retention.set_expiry(conversation, past if end is soon else soon)
            assert await writing.retention.set_expiry(conversation, end)
            assert [one.id for one in await reading.list(ALICE)] == [conversation.id] * (end is soon)
    for store in (writing, reading):
        await store.aclose()


async def test_message_of_a_long_chat_reads_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first message after a start reads what is stored, and each other one as much as in a new chat."""
    read: list[int] = []
    original = files._read_lines  # pyright: ignore[reportPrivateUsage]

    def counting(path: Path, start: int, end: int) -> list[bytes]:
        read.append(end - start)
        return original(path, start, end)

    monkeypatch.setattr(files, "_read_lines", counting)
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, _ = await started(store, *(f"{number} " + "x" * 100 for number in range(500)))
        conversation = await grown(store, conversation, "first")
        read.clear()
        for number in range(5):
            conversation = await grown(store, conversation, f"more {number}")
        assert 0 < sum(read) < 5_000


async def test_second_conversation_with_an_id_has_its_own_entries(tmp_path: Path) -> None:
    """A process that remembers where entries are takes a new conversation of another process for no older one."""
    stores = [await JsonStore.open(tmp_path) for _ in range(2)]
    for number in range(4):
        texts = [f"{number}.{place}" for place in range(4)]
        entries = chain(*map(prompt, texts))
        conversation = await stores[number % 2].save(
            Conversation(id="same", owner=ALICE, head_id=entries[-1].id), entries
        )
        for store in stores:
            assert await store.history(conversation) == entries
            conversation = await grown(store, conversation, "more")
            entries = await store.history(conversation)
        await stores[number % 2].delete("same", owner=ALICE)
    for store in stores:
        await store.aclose()


async def test_list_and_sizes_read_no_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversations = [await grown(store, Conversation(owner=ALICE), "text") for _ in range(5)]
        read: list[Path] = []
        original = files.read_item
        monkeypatch.setattr(files, "read_item", lambda path: read.append(path) or original(path))
        for path in files_in(tmp_path):
            if path.name == "entries.jsonl":
                path.unlink()
        assert await store.list(ALICE) == conversations[::-1]
        size = await store.retention.size()
        await store.label(conversations[2].id, owner=ALICE, pinned=True)
        read.clear()
        assert await store.retention.size() == size - 1  # "false" has become "true"
        assert len(read) == 1


async def test_only_this_user_can_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with aclosing(await JsonStore.open(tmp_path / "new" / "history")) as store:
            conversation, _ = await started(store)
            await store.runs.append(events_of(conversation, 1))
            files = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
            modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "new" / "history", *files)}
    finally:
        os.umask(before)
    assert modes == {0o700, 0o600}, "that of the folder, and of each file in it"
    (tmp_path / "new" / "history").chmod(0o755)
    await (await JsonStore.open(tmp_path / "new" / "history")).aclose()
    assert (tmp_path / "new" / "history").stat().st_mode & 0o777 == 0o700


async def test_missing_indexes_are_made_again(tmp_path: Path) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, _ = await started(store)
        await store.runs.append(events_of(conversation, 1))
        await store.links.put(link := link_to(conversation))
    for index in ("ids", "runs", "links"):
        (path,) = (tmp_path / index).iterdir()
        path.unlink()
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        with pytest.raises(NotFound):
            await store.save(Conversation(id=conversation.id, owner=MALLORY))
        assert [run.run_id for run in await store.runs.unfinished()] == ["run"]
        assert len(await store.runs.events("run", owner=ALICE)) == 1
        assert await store.links.get(link.digest) == link


async def test_index_without_its_link_is_removed(tmp_path: Path) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, _ = await started(store)
        await store.links.put(link := link_to(conversation))
        (index,) = (tmp_path / "links").iterdir()
        place = index.read_text()
        await store.links.remove(link.digest, owner=ALICE)
        assert not index.exists()
        index.write_text(place)  # as if the process had been killed in between
        with pytest.raises(NotFound):
            await store.links.get(link.digest)
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        assert not index.exists()
        await store.links.put(link)


async def test_folder_without_links_is_opened(tmp_path: Path) -> None:
    """A version before links wrote it."""
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, entries = await started(store)
    (tmp_path / "links").rmdir()
    path = tmp_path / "owners" / files.name_of(ALICE) / files.name_of(conversation.id) / files.RECORD
    state, text, end = path.read_text().split("\n")
    older = {name: value for name, value in json.loads(state).items() if name not in ("links", "born")}
    path.write_text("\n".join((json.dumps(older), text, end)))
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        assert await store.history(conversation) == entries
        assert await store.links.of(conversation.id, owner=ALICE) == []


def _ruin_entries(path: Path) -> None:
    lines = (path / "entries.jsonl").read_bytes().split(b"\n")
    lines[1] = b'{"message": "secret"}'.ljust(len(lines[1]))
    (path / "entries.jsonl").write_bytes(b"\n".join(lines))


def _shorten_entries(path: Path) -> None:
    os.truncate(path / "entries.jsonl", 30)


def _ruin_state(path: Path) -> None:
    (path / "record.jsonl").write_text("secret\n")


def _ruin_conversation(path: Path) -> None:
    state, _, text = (path / "record.jsonl").read_text().partition("\n")
    (path / "record.jsonl").write_text(f"{state}\nsecret{text[6:]}")


@pytest.mark.parametrize("ruin", [_ruin_entries, _shorten_entries, _ruin_state, _ruin_conversation])
async def test_damaged_file_is_named_and_the_rest_is_read(tmp_path: Path, ruin: Callable[[Path], None]) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, _ = await started(store, "1")
        path = only(tmp_path, "record.jsonl").parent
        whole, entries = await started(store, "2")
        ruin(path)
        with pytest.raises(HistoryError, match="damaged") as caught:
            await store.history(await store.get(conversation.id, owner=ALICE))
        assert str(path.parent) not in str(caught.value), "a visitor sees the path"
        assert "secret" not in str(caught.value)
        assert await store.history(whole) == entries
        assert whole in await store.list(ALICE)
        assert [hit.conversation for hit in await store.search(ALICE, "2")] == [whole]
    await (await JsonStore.open(tmp_path)).aclose()
    assert path.exists(), "an opened store removed what it cannot read"


async def test_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(await JsonStore.open(tmp_path)) as store:
        conversation, entries = await started(store, "1")

        def fail(_number: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(HistoryError, match="the disk is full"):
                await grown(store, conversation, "lost")
            with pytest.raises(HistoryError, match="the disk is full"):
                await store.runs.append(events_of(conversation, 1))
        assert await store.get(conversation.id, owner=ALICE) == conversation
        assert await store.history(conversation) == entries
        await store.runs.append(events_of(conversation, 1))
        assert [run.run_id for run in await store.runs.unfinished()] == ["run"]
        assert prompts(await store.history(await grown(store, conversation, "2"))) == ["1", "2"]


async def test_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "history"):
        with pytest.raises(ConfigError, match=r"File exists|Not a directory") as caught:
            await JsonStore.open(path)
        assert str(tmp_path) in str(caught.value)


async def test_clock_that_stands_still_changes_no_order(tmp_path: Path) -> None:
    at = now()
    async with aclosing(await JsonStore.open(tmp_path, clock=lambda: at)) as store:
        conversations = [(await started(store, str(number)))[0] for number in range(3)]
    async with aclosing(await JsonStore.open(tmp_path, clock=lambda: at - timedelta(days=1))) as store:
        conversations.append((await started(store, "set back"))[0])
        assert [conversation.id for conversation in await store.list(ALICE)] == [
            conversation.id for conversation in conversations[::-1]
        ]
