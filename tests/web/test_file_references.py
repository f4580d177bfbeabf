"""Laws of stored files: exactly those stay that a stored message of their owner names, whatever happens."""

import asyncio
import base64
import os
from collections.abc import Callable
from dataclasses import replace
from glob import glob
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
)
from pydantic_ai.messages import UserPromptPart as Prompt

from agent.errors import HistoryError
from agent.files.places import LocalFolder, Place, open_place
from agent.files.references import files_named_in, reference_of, with_data, with_urls
from agent.files.store import ROUTE, MediaStore, id_of
from agent.history import Conversation, Entry, Note
from agent.history.memory import MemoryStore
from agent.history.sql.sqlite import SqliteStore
from agent.responses import Response
from agent.web.chat.answers import LiveRuns, RunningAnswers
from agent.web.chat.branches import Branches
from agent.web.chat.expiry import FOR_EVER, KEPT_SECONDS, PROBE, OrphanedFiles, delete_conversation
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.transcript import is_prompt
from agent.web.chat.visitor import Visitor
from tests.support.failing_places import Crash, FailingPlace, FailingStore, Fuse
from tests.tiers import examples

OLD_ID = f"{'0' * 32}.png"
"""An id of an older version."""
OLD = BinaryContent(b"an old file", media_type="image/png")
CONTENTS = (OLD, *(BinaryContent(b"file %d" % number, media_type="image/png") for number in range(3)))
OWNERS = ("ann", "bob")


class World:
    """A history and a place of files that outlive processes, with the conversations of two owners.

    `is_exact` is False once a process has crashed: then there can be too many files until the next sweep. If a sweep
    finds no messages, it takes the history for a lost one, and the files of that time stay (`is_lost`).
    """

    def __init__(self, place: Place) -> None:
        self.place, self.store = place, MemoryStore()
        self.conversations: dict[int, Conversation] = {}
        self.is_exact, self.is_lost = True, False
        self.start(Fuse(0))

    def start(self, fuse: Fuse) -> None:
        """Start a process. It ends or fails as its fuse says."""
        self.fuse = fuse
        leaves_half = not isinstance(self.place, LocalFolder)
        self.media = MediaStore(FailingPlace(self.place, fuse, leaves_half=leaves_half))
        self.history = FailingStore(self.store, fuse)

    async def write_old(self) -> None:
        """Store a conversation as older versions did."""
        self.place.write(f"ann/{OLD_ID}", OLD.data)
        entry = Entry(parent_id=None, message=ModelRequest([Prompt([ImageUrl(ROUTE + OLD_ID)])]))
        self.conversations[0] = await self.store.save(Conversation(owner="ann", head_id=entry.id), [entry])

    def conversation(self, number: int) -> Conversation:
        return self.conversations.get(number) or Conversation(id=f"c{number}", owner=OWNERS[number % 2])

    async def write(self, number: int, message: ModelMessage, *, is_refused: bool = False) -> None:
        conversation = self.conversation(number)
        given = replace(conversation, revision=conversation.revision + 7) if is_refused else conversation
        journal = StoreJournal(self.history, self.media, given, Omitted())
        await journal.write(message, Note(ended="stop"))
        self.conversations[number] = journal.conversation

    async def send(self, number: int, files: list[int], is_refused: bool) -> None:
        """Store a message with these files, unless it is refused because another process has written."""
        message = ModelRequest([Prompt(["See", *(CONTENTS[file] for file in files)])])
        if not is_refused:
            return await self.write(number, message)
        with pytest.raises(HistoryError):
            await self.write(number, message, is_refused=True)

    async def answer(self, number: int, files: list[int], is_refused: bool) -> None:
        """Show files that a model makes, and store its message."""
        owner = self.conversation(number).owner
        for file in files:
            shown = Response("tool_call_result", {"files": [CONTENTS[file]]}, is_type_switched=True)
            await with_urls(self.media, owner, shown, reference_of(self.conversation(number).id))
        if is_refused:
            self.is_exact = False  # readers of the event log may have the files
        parts = [FilePart(BinaryContent.narrow_type(CONTENTS[file])) for file in files]
        await self.write(number, ModelResponse(parts)) if not is_refused else None

    async def retry(self, number: int, files: list[int], is_refused: bool) -> None:
        """Store the last message again, with the files that it has."""
        conversation = self.conversations.get(number)
        if conversation is None:
            return
        [*_, last] = await self.history.history(conversation)
        [message] = await with_data(self.media, conversation.owner, [last.message])
        await self.write(number, message)

    async def copy(self, number: int, files: list[int], is_refused: bool) -> None:
        """Store a conversation with the same messages, unless its place is taken."""
        conversation, visitor = self.conversations.get(number), Visitor(owner=OWNERS[number % 2])
        if conversation is None or number + 10 in self.conversations:
            return
        prompts = [entry for entry in await self.history.history(conversation) if is_prompt(entry)]
        if not prompts:
            return
        quota = StorageQuota(None, self.history, self.media, Path())
        answered = RunningAnswers(self.history, LiveRuns(None)).is_busy
        branches = Branches(self.history, self.media, quota, FOR_EVER, answered)
        copied = await branches.copy(visitor, conversation.id, prompts[-1].id)
        self.conversations[number + 10] = await self.history.get(copied, owner=visitor.owner)

    async def delete(self, number: int, files: list[int], is_refused: bool) -> None:
        conversation = self.conversations.get(number)
        if conversation is not None:
            assert (
                await delete_conversation(self.history, self.media, conversation, lambda _: is_refused)
                is not is_refused
            )
            if not is_refused:
                del self.conversations[number]

    async def sweep(self, number: int, files: list[int], is_refused: bool) -> None:
        """Do the housekeeping now, when all files are young, or a day later, when none is."""
        self.is_lost = self.is_lost or {*await self.store.retention.sizes()} <= {PROBE}
        later = time() + KEPT_SECONDS + 60 if is_refused else time()
        removed = await OrphanedFiles(self.history, self.media, clock=lambda: later).remove()
        assert not (removed and (self.is_exact or not is_refused))
        if is_refused:
            await self.check(is_swept=True)

    async def restart(self) -> None:
        """Start a process after a crash, and read what is stored."""
        self.start(Fuse(0))
        self.is_exact = False
        numbers = {conversation.id: number for number, conversation in self.conversations.items()}
        self.conversations = {}
        for conversation in [conversation for owner in OWNERS for conversation in await self.store.list(owner)]:
            number = (
                int(conversation.id[1:])
                if len(conversation.id) < 6
                else numbers.get(conversation.id, 20 + len(self.conversations))
            )
            self.conversations[number] = conversation

    async def check(self, *, is_swept: bool = False) -> None:
        """Check that each named file is there, and that there are no others after a sweep or if nothing has crashed."""
        for owner in OWNERS:
            named = set[str]()
            for conversation in await self.store.list(owner):
                named |= files_named_in([entry.message for entry in await self.store.entries(conversation)])
            stored = {file.name: self.place.read(f"{owner}/{file.name}") for file in self.place.files(owner)}
            expected = {id_of(owner, content): content.data for content in CONTENTS} | {OLD_ID: OLD.data}
            assert {id_: stored.get(id_) for id_ in named} == {id_: expected[id_] for id_ in named}, "a file is missing"
            if self.is_exact or (is_swept and not self.is_lost):
                assert stored.keys() == named, "a file is left"
        if self.is_exact:
            counted = await self.media.sizes()
            await self.media.recount()
            assert await self.media.sizes() == counted, "the running total is wrong"


ACTIONS = st.sampled_from(
    [World.send, World.send, World.answer, World.retry, World.copy, World.delete, World.delete, World.sweep]
)
FILES = st.lists(st.integers(0, len(CONTENTS) - 1), min_size=1, max_size=2)
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 10, 11, 12])
"""Conversations, and copies of them."""
STEP = st.tuples(ACTIONS, NUMBERS, FILES, st.booleans(), st.none() | st.integers(1, 14))


def places(folder: Path) -> dict[str, Callable[[], Place]]:
    return {"file": lambda: LocalFolder(folder), "memory": lambda: open_place("memory:")}


@pytest.mark.parametrize("kind", ["file", "memory"])
@settings(max_examples=examples(150))
@given(steps=st.lists(STEP, min_size=1, max_size=12))
def test_any_history_keeps_named_files_only(
    kind: str, steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def live() -> None:
        world = World(places(tmp_path_factory.mktemp("media"))[kind]())
        await world.write_old()
        for action, number, files, is_refused, crashes_at in steps:
            if crashes_at is not None:
                world.start(Fuse(crashes_at))
            try:
                await action(world, number, files, is_refused)
            except Crash:
                await world.restart()
            world.fuse.calls = 0
            await world.check()
        await world.store.save(Conversation(owner="of another visitor"))  # no history is empty from now on
        await world.sweep(0, [], is_refused=True)
        for number in [*world.conversations]:
            await world.delete(number, [], is_refused=False)
        await world.sweep(0, [], is_refused=True)
        assert world.is_lost or await world.media.sizes() == {}

    asyncio.run(live())


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_file_is_kept_while_another_message_names_it(tmp_path: Path, kind: str) -> None:
    """Some conversations are deleted while others with the same files are stored."""
    world = World(places(tmp_path)[kind]())
    for round_ in range(30):
        new, old = [range(start, start + 6) for start in (100 + 6 * round_, 94 + 6 * round_)]
        await asyncio.gather(
            *(world.send(number, [number % 3, 0], is_refused=False) for number in new),
            *(world.delete(number, [], is_refused=False) for number in old),
            world.sweep(0, [], is_refused=False),
        )
        await world.check()
    for number in [*world.conversations]:
        await world.delete(number, [], is_refused=False)
    await world.check()
    assert await world.media.sizes() == {}


async def test_rows_have_no_bytes_of_files(tmp_path: Path) -> None:
    contents = [BinaryContent(os.urandom(3000), media_type="image/png") for _ in range(3)]
    store = await SqliteStore.open(tmp_path / "history.sqlite")
    journal = StoreJournal(store, MediaStore(tmp_path / "media"), Conversation(owner="ann"), Omitted())
    await journal.write(ModelRequest([Prompt(["See", contents[0]])]), Note())
    await journal.write(ModelResponse([FilePart(BinaryContent.narrow_type(contents[1]))]), Note())
    await journal.write(ModelRequest([ToolReturnPart("draw", ["Drawn:", contents[2]], "call")]), Note(ended="stop"))
    rows = b"".join(Path(path).read_bytes() for path in glob(f"{tmp_path}/history.sqlite*"))  # noqa: ASYNC240
    await store.aclose()
    assert all(id_of("ann", content).encode() in rows for content in contents)
    for content in contents:
        coded = [base64.b64encode(content.data[start : start + 300]) for start in range(3)]
        assert not [piece for piece in (*coded, content.data[:300]) if piece[4:40] in rows]


async def test_copy_keeps_the_files_of_a_deleted_chat(tmp_path: Path) -> None:
    world = World(LocalFolder(tmp_path))
    await world.write_old()
    await world.send(2, [1], is_refused=False)
    for number in (0, 2):
        await world.copy(number, [], is_refused=False)
        await world.delete(number, [], is_refused=False)
        await world.check()
        await world.delete(number + 10, [], is_refused=False)
    await world.check()
