"""Versions of a message, and chats that begin like another one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.errors import Conflict, HistoryError, InputError, Limited, NotFound
from agent.files.references import reference_of
from agent.files.store import ROUTE, MediaStore
from agent.history import ChatSummary, Conversation, Entry, Note, Vote, new_id, now
from agent.history.memory import MemoryStore
from agent.settings import PublicSettings
from agent.system.request_queue import RequestQueue
from agent.web.chat import branches, views
from agent.web.chat.answers import STILL_WRITING
from agent.web.chat.branches import COPIES, Branches, hidden_after, read_tree, versions_in
from agent.web.chat.expiry import FOR_EVER, ExpiredConversations
from agent.web.chat.journal import branch
from agent.web.chat.links import pages_of
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.stored_entries import entries_of_turn
from agent.web.chat.transcript import MessageVersions, TurnVersions, is_prompt, message_text, to_turns
from agent.web.chat.turns import render_turn
from agent.web.chat.views import ChatViews
from agent.web.chat.visitor import Visitor

ANN, BOB = Visitor(owner="ann"), Visitor(owner="bob")


class House:
    """A store with one conversation, and its branches."""

    def __init__(self, folder: Path, limits: PublicSettings | None = None) -> None:
        self.store, self.busy = MemoryStore(), set[str]()
        self.media = MediaStore(folder)
        quota = StorageQuota(limits, self.store, self.media, folder)
        self.branches = Branches(self.store, self.media, quota, FOR_EVER, self.is_answered)
        self.conversation = Conversation(owner="ann", title="Numbers")

    async def is_answered(self, conversation: str, _: str) -> bool:
        return conversation in self.busy

    async def turn(self, text: str, after: str | None = None) -> str:
        """Store a message after this entry and its answer. Return the message's id."""
        prompt = Entry(parent_id=after, message=ModelRequest([UserPromptPart(text)]))
        answer = Entry(parent_id=prompt.id, message=ModelResponse([TextPart(f"To {text}")]), note=Note(ended="stop"))
        conversation = branch(self.conversation, answer.id)
        self.conversation = await self.store.save(conversation, [prompt, answer])
        return prompt.id

    async def turns(self, steps: list[tuple[int, bool]]) -> list[str]:
        """Store a message for each step, after the one at its place or beside that. Return the ids of all messages."""
        sent = [await self.turn("0")]
        for number, (place, beside) in enumerate(steps, 1):
            entries = {entry.id: entry for entry in await self.store.entries(self.conversation)}
            at = entries[sent[place % len(sent)]]
            answer = next(entry.id for entry in entries.values() if entry.parent_id == at.id)
            sent.append(await self.turn(str(number), after=at.parent_id if beside else answer))
        return sent

    async def shown(self, conversation: str = "", owner: str = "ann") -> list[str]:
        """Return the texts of the visitor's messages on the branch that is shown."""
        self.conversation = await self.store.get(conversation or self.conversation.id, owner=owner)
        return [message_text(entry) for entry in await self.store.history(self.conversation) if is_prompt(entry)]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_chosen_version_shows_what_followed_it_last(house: House) -> None:
    first = await house.turn("one")
    await house.turn("two", after=house.conversation.head_id)
    edited = await house.turn("other")
    assert await house.shown() == ["other"]
    other = await house.store.save(Conversation(owner="ann"))
    await house.branches.choose("ann", house.conversation.id, first)
    assert await house.shown() == ["one", "two"]
    assert [one.id for one in await house.store.list("ann")] == [other.id, house.conversation.id], "the chat moved up"
    await house.branches.choose("ann", house.conversation.id, edited)
    assert await house.shown() == ["other"]
    versions = versions_in(await house.store.entries(house.conversation))
    ids = (first, edited)
    assert versions == {id_: TurnVersions(question=MessageVersions(ids, number)) for number, id_ in enumerate(ids, 1)}


async def test_message_that_was_left_last_returns(house: House) -> None:
    """Of several messages that were taken back in one place, redo shows the one that was shown last."""
    await house.turn("one")
    place = house.conversation.head_id
    ids = [await house.turn(text, after=place) for text in ("two", "three")]
    for id_ in (*ids, *reversed(ids)):
        await house.branches.choose("ann", house.conversation.id, id_)
        conversation = await house.store.get(house.conversation.id, owner="ann")
        undone = await house.store.save(branch(conversation, place))
        assert await hidden_after(house.store, undone, await house.store.entries(undone)) == id_


async def test_versions_of_question_and_answer_are_counted_apart(house: House) -> None:
    first = await house.turn("one")
    again = await house.turn("one")
    other = await house.turn("two")
    last = await house.turn("one")
    below = await house.turn("below", after=house.conversation.head_id)
    versions = versions_in(await house.store.entries(house.conversation))
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
    second = await house.turn("two", after=house.conversation.head_id)
    await house.turn("three", after=house.conversation.head_id)
    original = house.conversation
    copied = await house.branches.copy(ANN, original.id, second)
    assert copied != original.id
    assert await house.shown(copied) == ["one", "two"]
    assert house.conversation.title == "Numbers (2)"
    assert len(await house.store.history(house.conversation)) == 4
    assert await house.shown(original.id) == ["one", "two", "three"]
    await house.store.delete(original.id, owner="ann")
    assert await house.shown(copied) == ["one", "two"]
    assert first != second


async def test_each_branch_has_a_title_of_its_own(house: House) -> None:
    first = await house.turn("one")
    original = house.conversation.id
    branches = [await house.branches.copy(ANN, original, first) for _ in range(2)]
    [entry, _] = await house.store.history(await house.store.get(branches[1], owner="ann"))
    branches.append(await house.branches.copy(ANN, branches[1], entry.id))
    titles = [(await house.store.get(id_, owner="ann")).title for id_ in (original, *branches)]
    assert titles == ["Numbers", "Numbers (2)", "Numbers (3)", "Numbers (4)"]


async def test_only_the_owner_has_branches(house: House) -> None:
    first = await house.turn("one")
    for attempt in (
        house.branches.choose("bob", house.conversation.id, first),
        house.branches.erase("bob", house.conversation.id, first),
        house.branches.copy(BOB, house.conversation.id, first),
    ):
        with pytest.raises(NotFound):
            await attempt
    for attempt in (
        house.branches.choose("ann", house.conversation.id, "x"),
        house.branches.erase("ann", house.conversation.id, "x"),
        house.branches.copy(ANN, house.conversation.id, "x"),
    ):
        with pytest.raises(Conflict):
            await attempt
    assert await house.store.list("bob") == []


async def test_branches_do_not_change_during_an_answer(house: House) -> None:
    first = await house.turn("one")
    house.busy.add(house.conversation.id)
    for attempt in (
        house.branches.choose("ann", house.conversation.id, first),
        house.branches.erase("ann", house.conversation.id, first),
        house.branches.copy(ANN, house.conversation.id, first),
    ):
        with pytest.raises(Conflict) as refused:
            await attempt
        assert refused.value.text == STILL_WRITING


async def test_copy_needs_room(tmp_path: Path) -> None:
    house = House(tmp_path, PublicSettings(stored_mb_per_visitor=1))
    first = await house.turn("x" * 600_000)
    with pytest.raises(Limited):
        await house.branches.copy(ANN, house.conversation.id, first)
    assert len(await house.store.list("ann")) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_copy_is_hidden_until_it_is_whole(house: House, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """It is stored page by page, so that a long chat is never in memory as a whole."""
    await house.turn("one")
    second = await house.turn("two", after=house.conversation.head_id)
    file = await house.media.add(
        "ann", BinaryContent(b"1", media_type="image/png"), f"{house.conversation.id}/{second}"
    )
    picture = ModelRequest([UserPromptPart([ImageUrl(ROUTE + file)])])
    last = Entry(parent_id=house.conversation.head_id, message=picture, note=Note(ended="stop"))
    house.conversation = await house.store.save(replace(house.conversation, head_id=last.id), [last])
    monkeypatch.setattr(branches, "pages_of", partial(pages_of, page_bytes=1))
    save, pages = house.store.save, list[int]()

    async def watched(conversation: Conversation, entries: Sequence[Entry] = (), events: None = None) -> Conversation:
        pages.append(len(entries))
        assert [one.id for one in await house.store.list("ann")] == [house.conversation.id], "a part is shown"
        if fails and len(pages) == 5:
            raise HistoryError("full")
        saved = await save(conversation, entries, events)
        assert [one.id for one in await house.store.list("ann")] == [house.conversation.id], "a part is shown"
        return saved

    monkeypatch.setattr(house.store, "save", watched)
    copying = house.branches.copy(ANN, house.conversation.id, last.id)
    if fails:
        with pytest.raises(HistoryError, match="full"):
            await copying
        assert {*await house.store.retention.sizes()} == {"ann"}
        assert await house.store.retention.expiring(now()) == []
    else:
        copied, original = await copying, house.conversation
        assert await house.shown(copied) == ["one", "two", ""]
        house.conversation = original
    assert pages == [1] * 5
    assert not house.branches.is_copying("ann")
    references = {file: [reference_of(house.conversation.id, one) for one in (second, last.id)]}
    await house.media.remove_references("ann", references)
    assert bool(await house.media.files("ann")) is not fails, "the copy has a reference to the file"


class Killed(BaseException):
    """The end of a process."""


async def test_killed_copy_is_never_seen_and_is_erased(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends before the last of four pages is stored, so that nothing is removed."""
    message = await house.turn("one")
    message = await house.turn("two", after=house.conversation.head_id)
    monkeypatch.setattr(branches, "pages_of", partial(pages_of, page_bytes=1))
    save, saves = house.store.save, list[Conversation]()

    async def killed(conversation: Conversation, entries: Sequence[Entry] = (), events: None = None) -> Conversation:
        if len(saves) == 3:
            raise Killed
        saves.append(await save(conversation, entries, events))
        return saves[-1]

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(house.store, "save", killed)
    monkeypatch.setattr(house.branches, "_remove", nothing)
    with pytest.raises(Killed):
        await house.branches.copy(ANN, house.conversation.id, message)
    monkeypatch.setattr(house.store, "save", save)
    assert [one.id for one in await house.store.list("ann")] == [house.conversation.id]
    assert len(await house.store.entries(saves[-1])) == 3
    assert await ExpiredConversations(house.store, house.media, lambda _: False).delete() == 1
    assert await house.store.entries(saves[-1]) == []
    assert [one.id for one in await house.store.list("ann")] == [house.conversation.id]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=14),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
)
def test_erased_message_takes_what_follows_and_no_more(steps: list[tuple[int, bool]], erased: list[int]) -> None:
    """Whatever was sent, retried and edited: the rest stays, a whole branch is shown, and every version can be."""

    async def play() -> None:
        house, place_of = House(Path("nowhere")), dict[str, str | None]()
        sent = await house.turns(steps)
        for one in erased:
            if not (left := [id_ for id_ in sent if id_ not in place_of]):
                break
            before = [entry.id for entry in await house.store.entries(house.conversation)]
            gone = {*await house.store.following(house.conversation, left[one % len(left)])}
            shown = house.conversation.head_id
            await house.branches.erase("ann", house.conversation.id, left[one % len(left)])
            place_of.update(dict.fromkeys(gone))
            house.conversation = conversation = await house.store.get(house.conversation.id, owner="ann")
            assert [one.id for one in await house.store.entries(conversation)] == [
                id_ for id_ in before if id_ not in gone
            ]
            assert conversation.head_id == shown or shown in gone
            assert not gone & {conversation.head_id, *conversation.branches}
            ends = {one.id for one in await house.store.entries(conversation)} - {
                one.parent_id for one in await house.store.entries(conversation)
            }
            assert ends <= {conversation.head_id, *conversation.branches}, "a version is in no list of ends"
            for id_ in (id_ for id_ in sent if id_ not in place_of):
                await house.branches.choose("ann", conversation.id, id_)
            house.conversation = await house.store.get(conversation.id, owner="ann")

    asyncio.run(play())


async def test_erased_version_leaves_the_newest_other(house: House) -> None:
    first = await house.turn("one")
    await house.turn("two", after=house.conversation.head_id)
    edited = await house.turn("secret")
    again = await house.turn("secret")
    await house.branches.erase("ann", house.conversation.id, again)
    assert await house.shown() == ["secret"]
    await house.branches.choose("ann", house.conversation.id, first)
    await house.branches.erase("ann", house.conversation.id, edited)
    assert await house.shown() == ["one", "two"]
    assert "secret" not in str([text async for text in house.store.retention.texts("ann")])
    assert versions_in(await house.store.entries(house.conversation)) == {}
    await house.branches.erase("ann", house.conversation.id, first)
    assert (await house.shown(), house.conversation.head_id, house.conversation.title) == ([], None, "")
    await house.turn("new")
    assert await house.shown() == ["new"]


async def test_title_of_an_erased_message_goes(house: House) -> None:
    house.conversation = replace(house.conversation, title="secret")
    first = await house.turn("secret")
    await house.turn("other")
    await house.branches.erase("ann", house.conversation.id, first)
    assert (await house.store.get(house.conversation.id, owner="ann")).title == "other"


async def test_files_and_summary_go_with_their_message(house: House) -> None:
    first = await house.turn("one")
    kept = await house.media.add("ann", BinaryContent(b"1", media_type="image/png"), f"{house.conversation.id}/{first}")
    pictures, ids = list[str](), list[str]()
    for number, name in enumerate((kept, "")):
        id_ = new_id()
        reference = f"{house.conversation.id}/{id_}"
        pictures.append(name or await house.media.add("ann", BinaryContent(b"2", media_type="image/png"), reference))
        message = ModelRequest([UserPromptPart([str(number), ImageUrl(ROUTE + pictures[-1])])])
        entry = Entry(id=id_, parent_id=house.conversation.head_id, message=message, note=Note(ended="stop"))
        await house.media.add_references("ann", {pictures[-1]: [reference, reference_of(house.conversation.id)]})
        house.conversation = await house.store.save(replace(house.conversation, head_id=id_), [entry])
        ids.append(id_)
    summary = ChatSummary(message=ids[0], text="one")
    house.conversation = await house.store.save(replace(house.conversation, summary=summary))
    await house.branches.erase("ann", house.conversation.id, ids[1])
    assert [*await house.media.files("ann")] == [kept]
    assert (await house.store.get(house.conversation.id, owner="ann")).summary == summary
    await house.branches.erase("ann", house.conversation.id, ids[0])
    assert [*await house.media.files("ann")] == [kept], "another message has it"
    assert (await house.store.get(house.conversation.id, owner="ann")).summary is None


async def test_written_answer_is_a_version_that_says_so(house: House) -> None:
    first = await house.turn("one")
    await house.turn("two", after=house.conversation.head_id)
    await house.branches.write(ANN, house.conversation.id, first, "Mine.")
    conversation = await house.store.get(house.conversation.id, owner="ann")
    prompt, answer = await house.store.history(conversation)
    assert isinstance(answer.message, ModelResponse)
    assert answer.message.parts == [TextPart("Mine.")]
    assert versions_in(await house.store.entries(conversation))[prompt.id].answer == MessageVersions(
        (first, prompt.id), 2
    )
    [turn] = to_turns([prompt, answer])
    assert render_turn(turn).get("caption") == "Written by you. Models read it as their own answer."
    for wrong, kind in ((" ", InputError), ("x" * 200_001, InputError)):
        with pytest.raises(kind):
            await house.branches.write(ANN, conversation.id, prompt.id, wrong)
    with pytest.raises(Conflict):  # it is not shown
        await house.branches.write(ANN, conversation.id, first, "Again.")
    with pytest.raises(NotFound):
        await house.branches.write(BOB, conversation.id, first, "Again.")
    house.busy.add(conversation.id)
    with pytest.raises(Conflict):
        await house.branches.write(ANN, conversation.id, prompt.id, "Again.")


async def test_tree_has_each_version_with_its_place(house: House) -> None:
    await house.turn("one")
    place = house.conversation.head_id
    two = await house.turn("two", after=place)
    await house.turn("three", after=house.conversation.head_id)
    await house.turn("2", after=place)
    other = await house.turn("uno")
    await house.branches.choose("ann", house.conversation.id, two)
    rows, is_cut = await read_tree(house.store, await house.store.get(house.conversation.id, owner="ann"))
    assert [(row.text, row.answer, row.depth, row.turns, row.is_shown) for row in rows] == [
        ("one", "To one", 0, 1, True),
        ("two", "To two", 1, 2, True),
        ("2", "To 2", 1, 1, False),
        ("uno", "To uno", 0, 1, False),
    ]
    assert (rows[-1].message, is_cut) == (other, False)


async def test_tree_reads_a_bounded_part(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        await house.turn(f"{number} {'x' * 1000}", after=house.conversation.head_id)
        await house.turn(f"{number}'", after=house.conversation.head_id)
    monkeypatch.setattr(branches, "TREE_BYTES", 8_000)
    monkeypatch.setattr(branches, "PAGE", 4)
    find, found = house.store.find, list[int]()

    async def counting(*given: Any, **named: Any) -> Any:
        entries = await find(*given, **named)
        found.append(len(entries))
        return entries

    monkeypatch.setattr(house.store, "find", counting)
    slots, took = RequestQueue(1), list[int]()
    rows, is_cut = await read_tree(house.store, house.conversation, lambda: took.append(len(found)) or slots.slot())
    assert is_cut
    assert took == [0, *range(len(found)), len(found)]  # the ids, each page, and the rows
    assert len(rows) == 1
    assert 8 <= sum(found) < 60


async def test_text_is_found_on_the_shown_branch_page_by_page(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "FOUND_MESSAGES", 5)
    monkeypatch.setattr(views, "FOUND_PAGES", 1)
    sent = [await house.turn("Größe  ist")]
    for number in range(6):
        sent.append(await house.turn(f"{number} needle" if number % 2 else "hay", after=house.conversation.head_id))
    await house.turn("needle aside", after=(await house.store.history(house.conversation))[3].id)
    await house.branches.choose("ann", house.conversation.id, sent[-1])
    reader = ChatViews(house.store, cast(Any, None), cast(Any, None), str)
    conversation = await house.store.get(house.conversation.id, owner="ann")

    async def found(query: str) -> tuple[list[tuple[str, bool, int]], int]:
        hits, after, calls = list[tuple[str, bool, int]](), "", 0
        while after is not None:
            some, after = await reader.find("ann", conversation.id, query, after)
            hits += [(hit.message, hit.is_answer, hit.count) for hit in some]
            calls += 1
        return hits, calls

    hits, calls = await found("Needle")
    assert hits == [(sent[number], is_answer, 1) for number in (6, 4, 2) for is_answer in (True, False)]
    assert calls > 2
    assert await found("GRÖSSE ist") == ([(sent[0], True, 1), (sent[0], False, 1)], calls)
    assert (await found("nowhere"))[0] == []
    assert await found("\0") == ([], 1), "a text of signs that are not searched is in each message"
    with pytest.raises(NotFound):
        await reader.find("bob", conversation.id, "needle")
    with pytest.raises(NotFound):
        await reader.find("ann", conversation.id, "needle", "x")


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=14), st.integers(0, 30))
def test_every_version_can_be_shown(steps: list[tuple[int, bool]], chosen: int) -> None:
    """Whatever was sent, retried and edited: each message can be shown again, and nothing is lost."""

    async def play() -> None:
        house = House(Path("nowhere"))
        sent = await house.turns(steps)
        wanted = sent[chosen % len(sent)]
        before = await house.store.entries(house.conversation)
        await house.branches.choose("ann", house.conversation.id, wanted)
        assert await house.store.entries(house.conversation) == before
        conversation = await house.store.get(house.conversation.id, owner="ann")
        assert wanted in [entry.id for entry in await house.store.history(conversation)]

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
    copies = await asyncio.gather(*(house.branches.copy(ANN, house.conversation.id, first) for _ in range(6)))
    assert len({*copies}) == 6
    assert most == COPIES


async def imported_picture(house: House) -> tuple[str, list[str]]:
    """Store two messages with one picture as an import does. Return its id and theirs."""
    picture = await house.media.add(
        "ann", BinaryContent(b"1", media_type="image/png"), reference_of(house.conversation.id)
    )
    ids = list[str]()
    for number in range(2):
        message = ModelRequest([UserPromptPart([f"{number}", ImageUrl(ROUTE + picture)])])
        entry = Entry(parent_id=house.conversation.head_id, message=message, note=Note(ended="stop"))
        house.conversation = await house.store.save(replace(house.conversation, head_id=entry.id), [entry])
        ids.append(entry.id)
    return picture, ids


async def test_imported_message_that_stays_keeps_its_file(house: House) -> None:
    picture, (first, later) = await imported_picture(house)
    await house.branches.erase("ann", house.conversation.id, later)
    assert [*await house.media.files("ann")] == [picture]
    await house.branches.erase("ann", house.conversation.id, first)
    assert [*await house.media.files("ann")] == []


async def test_votes_on_erased_messages_go(house: House) -> None:
    first = await house.turn("one")
    later = await house.turn("two", after=house.conversation.head_id)
    votes = tuple(Vote(message=id_, models=("a", "b"), choice="0") for id_ in (first, later))
    await house.store.save(replace(house.conversation, votes=votes))
    await house.branches.erase("ann", house.conversation.id, later)
    assert (await house.store.get(house.conversation.id, owner="ann")).votes == votes[:1]


async def test_refused_erasure_keeps_the_title(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> None:
        raise Conflict("it has changed")

    first = await house.turn("one")
    monkeypatch.setattr(house.store, "remove", refused)
    with pytest.raises(Conflict):
        await house.branches.erase("ann", house.conversation.id, first)
    assert (await house.store.get(house.conversation.id, owner="ann")).title == "Numbers"


async def test_erasure_reads_bounded_parts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "VIEW_BYTES", 100)
    _, (first, _later) = await imported_picture(house)
    for number in range(20):
        await house.turn(f"{number}" * 50, after=house.conversation.head_id)
    find, read = house.store.find, list[int]()

    async def counted(*given: Any, **more: Any) -> Sequence[Entry]:
        read.append(len(found := await find(*given, **more)))
        return found

    monkeypatch.setattr(house.store, "find", counted)
    await house.branches.erase("ann", house.conversation.id, first)
    assert max(read) <= 4
    assert (await house.shown(), [*await house.media.files("ann")]) == ([], [])


class CountingStore(MemoryStore):
    """A store that notes its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = list[str]()

    async def find(self, *args: Any, **more: Any) -> Any:
        self.reads.append("find")
        return await super().find(*args, **more)

    async def following(self, *args: Any, **more: Any) -> Any:
        self.reads.append("following")
        return await super().following(*args, **more)

    async def history(self, *args: Any, **more: Any) -> Any:
        self.reads.append("history")
        return await super().history(*args, **more)


@pytest.mark.parametrize("beside", ["begins", "follow the first message"])
async def test_many_versions_cost_no_more_reads(house: House, beside: str) -> None:
    house.store = store = CountingStore()
    house.branches = Branches(
        store, house.media, StorageQuota(None, store, house.media, Path()), FOR_EVER, house.is_answered
    )
    first = await house.turn("zero")
    after = None if beside == "begins" else house.conversation.head_id
    versions = [await house.turn("one", after) for _ in range(3)]

    async def reads() -> list[str]:
        """Return the reads of what was taken back, of a text, and of two changes to another version."""
        chat = replace(house.conversation, head_id=after) if after else house.conversation
        entries = await store.entries(chat)
        store.reads.clear()
        await hidden_after(store, chat, entries)
        await entries_of_turn(store, house.conversation, first if after else versions[-1])
        await house.branches.choose("ann", chat.id, versions[0])
        await house.branches.erase("ann", chat.id, versions.pop(0))
        found = [*store.reads]
        await house.shown()  # the turns that are added know the change
        return found

    few = await reads()
    versions += [await house.turn("one", after) for _ in range(20)]
    assert await reads() == few


async def test_versions_of_one_question_share_their_ids(house: House) -> None:
    sent = [await house.turn("one") for _ in range(3)]
    found = versions_in(await house.store.entries(house.conversation))
    assert len({id(one.answer.ids) for id_ in sent if (one := found[id_]).answer}) == 1


async def test_one_visitor_changes_one_branch_at_a_time(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, reading, most = [await house.turn("one") for _ in range(3)], 0, 0
    find = house.store.find

    async def slow(*args: Any, **more: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        try:
            return await find(*args, **more)
        finally:
            reading -= 1

    monkeypatch.setattr(house.store, "find", slow)
    await asyncio.gather(*(house.branches.choose("ann", house.conversation.id, id_) for id_ in sent))
    assert most == 1
