"""Versions of a message, and chats that begin like another one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.errors import Conflict, HistoryError, Limited, NotFound
from agent.files.references import reference_of
from agent.files.store import ROUTE, MediaStore
from agent.history import Conversation, Entry, Note, now
from agent.history.memory import MemoryStore
from agent.settings import PublicSettings
from agent.web.chat import branches
from agent.web.chat.answers import STILL_WRITING
from agent.web.chat.branches import COPIES, Branches, hidden_after, versions_in
from agent.web.chat.expiry import FOR_EVER, ExpiredConversations
from agent.web.chat.journal import branch
from agent.web.chat.links import pages_of
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.transcript import MessageVersions, TurnVersions, is_prompt, message_text
from agent.web.chat.visitor import Visitor

ANN, BOB = Visitor(owner="ann"), Visitor(owner="bob")


class House:
    """A store with one conversation, and its branches."""

    def __init__(self, folder: Path, limits: PublicSettings | None = None) -> None:
        self.store, self.busy = MemoryStore(), set[str]()
        self.media = MediaStore(folder)
        quota = StorageQuota(limits, self.store, self.media, folder)
        self.branches = Branches(self.store, self.media, quota, FOR_EVER, self.is_answered)
        self.record = Conversation(owner="ann", title="Numbers")

    async def is_answered(self, conversation: str, _: str) -> bool:
        return conversation in self.busy

    async def turn(self, text: str, after: str | None = None) -> str:
        """Store a message after this entry and its answer. Return the message's id."""
        prompt = Entry(parent_id=after, message=ModelRequest([UserPromptPart(text)]))
        answer = Entry(parent_id=prompt.id, message=ModelResponse([TextPart(f"To {text}")]), note=Note(ended="stop"))
        record = branch(self.record, answer.id)
        self.record = await self.store.save(record, [prompt, answer])
        return prompt.id

    async def shown(self, conversation: str = "", owner: str = "ann") -> list[str]:
        """Return the texts of the visitor's messages on the branch that is shown."""
        self.record = await self.store.get(conversation or self.record.id, owner=owner)
        return [message_text(entry) for entry in await self.store.history(self.record) if is_prompt(entry)]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_chosen_version_shows_what_followed_it_last(house: House) -> None:
    first = await house.turn("one")
    await house.turn("two", after=house.record.head_id)
    edited = await house.turn("other")
    assert await house.shown() == ["other"]
    other = await house.store.save(Conversation(owner="ann"))
    await house.branches.choose("ann", house.record.id, first)
    assert await house.shown() == ["one", "two"]
    assert [one.id for one in await house.store.list("ann")] == [other.id, house.record.id], "the chat moved up"
    await house.branches.choose("ann", house.record.id, edited)
    assert await house.shown() == ["other"]
    versions = versions_in(await house.store.entries(house.record))
    ids = (first, edited)
    assert versions == {id_: TurnVersions(question=MessageVersions(ids, number)) for number, id_ in enumerate(ids, 1)}


async def test_message_that_was_left_last_returns(house: House) -> None:
    """Of several messages that were taken back in one place, redo shows the one that was shown last."""
    await house.turn("one")
    place = house.record.head_id
    ids = [await house.turn(text, after=place) for text in ("two", "three")]
    for id_ in (*ids, *reversed(ids)):
        await house.branches.choose("ann", house.record.id, id_)
        record = await house.store.get(house.record.id, owner="ann")
        undone = await house.store.save(branch(record, place))
        assert await hidden_after(house.store, undone, await house.store.entries(undone)) == id_


async def test_versions_of_question_and_answer_are_counted_apart(house: House) -> None:
    first = await house.turn("one")
    again = await house.turn("one")
    other = await house.turn("two")
    last = await house.turn("one")
    below = await house.turn("below", after=house.record.head_id)
    versions = versions_in(await house.store.entries(house.record))
    questions, answers = (last, other), (first, again, last)
    assert versions == {
        **{
            id_: TurnVersions(MessageVersions(questions, 1), MessageVersions(answers, n))
            for n, id_ in enumerate(answers, 1)
        },
        other: TurnVersions(question=MessageVersions(questions, 2)),
    }
    assert below not in versions


async def test_copy_has_the_turns_up_to_the_answer(house: House) -> None:
    first = await house.turn("one")
    second = await house.turn("two", after=house.record.head_id)
    await house.turn("three", after=house.record.head_id)
    original = house.record
    copied = await house.branches.copy(ANN, original.id, second)
    assert copied != original.id
    assert await house.shown(copied) == ["one", "two"]
    assert house.record.title == "Numbers (2)"
    assert len(await house.store.history(house.record)) == 4
    assert await house.shown(original.id) == ["one", "two", "three"]
    await house.store.delete(original.id, owner="ann")
    assert await house.shown(copied) == ["one", "two"]
    assert first != second


async def test_each_branch_has_a_title_of_its_own(house: House) -> None:
    first = await house.turn("one")
    original = house.record.id
    branches = [await house.branches.copy(ANN, original, first) for _ in range(2)]
    [entry, _] = await house.store.history(await house.store.get(branches[1], owner="ann"))
    branches.append(await house.branches.copy(ANN, branches[1], entry.id))
    titles = [(await house.store.get(id_, owner="ann")).title for id_ in (original, *branches)]
    assert titles == ["Numbers", "Numbers (2)", "Numbers (3)", "Numbers (4)"]


async def test_only_the_owner_has_branches(house: House) -> None:
    first = await house.turn("one")
    for attempt in (
        house.branches.choose("bob", house.record.id, first),
        house.branches.copy(BOB, house.record.id, first),
    ):
        with pytest.raises(NotFound):
            await attempt
    for attempt in (house.branches.choose("ann", house.record.id, "x"), house.branches.copy(ANN, house.record.id, "x")):
        with pytest.raises(Conflict):
            await attempt
    assert await house.store.list("bob") == []


async def test_branches_do_not_change_during_an_answer(house: House) -> None:
    first = await house.turn("one")
    house.busy.add(house.record.id)
    for attempt in (
        house.branches.choose("ann", house.record.id, first),
        house.branches.copy(ANN, house.record.id, first),
    ):
        with pytest.raises(Conflict) as refused:
            await attempt
        assert refused.value.text == STILL_WRITING


async def test_copy_needs_room(tmp_path: Path) -> None:
    house = House(tmp_path, PublicSettings(stored_mb_per_visitor=1))
    first = await house.turn("x" * 600_000)
    with pytest.raises(Limited):
        await house.branches.copy(ANN, house.record.id, first)
    assert len(await house.store.list("ann")) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_copy_is_hidden_until_it_is_whole(house: House, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """It is stored page by page, so that a long chat is never in memory as a whole."""
    await house.turn("one")
    second = await house.turn("two", after=house.record.head_id)
    file = await house.media.add("ann", BinaryContent(b"1", media_type="image/png"), f"{house.record.id}/{second}")
    picture = ModelRequest([UserPromptPart([ImageUrl(ROUTE + file)])])
    last = Entry(parent_id=house.record.head_id, message=picture, note=Note(ended="stop"))
    house.record = await house.store.save(replace(house.record, head_id=last.id), [last])
    monkeypatch.setattr(branches, "pages_of", partial(pages_of, page_bytes=1))
    save, pages = house.store.save, list[int]()

    async def watched(record: Conversation, entries: Sequence[Entry] = (), events: None = None) -> Conversation:
        pages.append(len(entries))
        assert [one.id for one in await house.store.list("ann")] == [house.record.id], "a part is shown"
        if fails and len(pages) == 5:
            raise HistoryError("full")
        saved = await save(record, entries, events)
        assert [one.id for one in await house.store.list("ann")] == [house.record.id], "a part is shown"
        return saved

    monkeypatch.setattr(house.store, "save", watched)
    copying = house.branches.copy(ANN, house.record.id, last.id)
    if fails:
        with pytest.raises(HistoryError, match="full"):
            await copying
        assert {*await house.store.retention.sizes()} == {"ann"}
        assert await house.store.retention.expiring(now()) == []
    else:
        copied, original = await copying, house.record
        assert await house.shown(copied) == ["one", "two", ""]
        house.record = original
    assert pages == [1] * 5
    assert not house.branches.is_copying("ann")
    references = {file: [reference_of(house.record.id, one) for one in (second, last.id)]}
    await house.media.remove_references("ann", references)
    assert bool(await house.media.files("ann")) is not fails, "the copy has a reference to the file"


class Killed(BaseException):
    """The end of a process."""


async def test_killed_copy_is_never_seen_and_is_erased(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends before the last of four pages is stored, so that nothing is removed."""
    message = await house.turn("one")
    message = await house.turn("two", after=house.record.head_id)
    monkeypatch.setattr(branches, "pages_of", partial(pages_of, page_bytes=1))
    save, saves = house.store.save, list[Conversation]()

    async def killed(record: Conversation, entries: Sequence[Entry] = (), events: None = None) -> Conversation:
        if len(saves) == 3:
            raise Killed
        saves.append(await save(record, entries, events))
        return saves[-1]

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(house.store, "save", killed)
    monkeypatch.setattr(house.branches, "_remove", nothing)
    with pytest.raises(Killed):
        await house.branches.copy(ANN, house.record.id, message)
    monkeypatch.setattr(house.store, "save", save)
    assert [one.id for one in await house.store.list("ann")] == [house.record.id]
    assert len(await house.store.entries(saves[-1])) == 3
    assert await ExpiredConversations(house.store, house.media, lambda _: False).delete() == 1
    assert await house.store.entries(saves[-1]) == []
    assert [one.id for one in await house.store.list("ann")] == [house.record.id]


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=14), st.integers(0, 30))
def test_every_version_can_be_shown(steps: list[tuple[int, bool]], chosen: int) -> None:
    """Whatever was sent, retried and edited: each message can be shown again, and nothing is lost."""

    async def play() -> None:
        house = House(Path("nowhere"))
        sent = [await house.turn("0")]
        for number, (place, beside) in enumerate(steps, 1):
            entries = {entry.id: entry for entry in await house.store.entries(house.record)}
            at = entries[sent[place % len(sent)]]
            answer = next(entry.id for entry in entries.values() if entry.parent_id == at.id)
            sent.append(await house.turn(str(number), after=at.parent_id if beside else answer))
        wanted = sent[chosen % len(sent)]
        before = await house.store.entries(house.record)
        await house.branches.choose("ann", house.record.id, wanted)
        assert await house.store.entries(house.record) == before
        record = await house.store.get(house.record.id, owner="ann")
        assert wanted in [entry.id for entry in await house.store.history(record)]

    asyncio.run(play())


async def test_few_chats_are_copied_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    first, reading, most, history = await house.turn("one"), 0, 0, house.store.history

    async def slow(*given: Any, **named: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(50):
            await asyncio.sleep(0)
        reading -= 1
        return await history(*given, **named)

    monkeypatch.setattr(house.store, "history", slow)
    copies = await asyncio.gather(*(house.branches.copy(ANN, house.record.id, first) for _ in range(6)))
    assert len({*copies}) == 6
    assert most == COPIES
