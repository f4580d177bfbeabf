"""The list of conversations: its pages, its marks, and a deletion that can be undone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRequest,
    TextContent,
    UserContent,
    UserPromptPart,
)

from agent.errors import InputError, NotFound
from agent.files.parts import quoted_file
from agent.files.store import ROUTE
from agent.history import Conversation, ConversationHit, HistoryStore, Note, excerpt_parts, now
from agent.models.catalog import ModelSpec
from agent.tools.function_tools import ask_user
from agent.web.chat import conversation_list
from agent.web.chat.choices import Choices
from agent.web.chat.conversation_list import ConversationList
from agent.web.chat.conversations import Conversations
from agent.web.chat.expiry import UNDO_SECONDS, ExpiredConversations
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.titles import first_words
from agent.web.chat.visitor import Visitor
from tests.support.history_stores import ALICE, MALLORY, STORES, Clock, chain, prompt, started
from tests.support.http_client import marker
from tests.support.media_files import random_png
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of
from tests.support.waiting import until

CALLS = ModelSpec(id="local:calls", name="calls", label="Calls", provider="vllm")
SERVER = Config(rate=500.0, models=("calls",))


@pytest.fixture
async def page(server: Running, tmp_path: Path, store: HistoryStore) -> AsyncIterator[Conversations]:
    made = chats_of(server.base_url, tmp_path, CALLS, store=store, tools=[ask_user])
    yield made
    await made.aclose()


@pytest.fixture
def listed(page: Conversations) -> ConversationList:
    return page.list


async def said(page: Conversations, text: str) -> str:
    """Send a message in a new conversation. Return its id."""
    live = await page.send(Visitor(owner=ALICE), None, {"text": text}, Choices(tools=True))
    assert live is not None
    return live.conversation_id


async def gone(read: Callable[[], Awaitable[Sequence[object]]]) -> None:
    """Wait until `read()` returns nothing."""
    async with asyncio.timeout(30):
        while await read():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ids(listed: ConversationList) -> list[str]:
    return [row.id for row in (await listed.page(ALICE)).rows]


async def test_pages_follow_each_other(store: HistoryStore, listed: ConversationList) -> None:
    conversations = [(await started(store, f"Number {number}"))[0] for number in range(7)]
    await started(store, owner=MALLORY)
    pinned = await listed.change(ALICE, conversations[3].id, pinned=True)
    first = await listed.page(ALICE, limit=4)
    assert [row.id for row in first.pinned] == [pinned.id]
    assert [row.id for row in first.rows] == [conversations[at].id for at in (6, 5, 4, 2)]
    assert first.next_offset == 4
    second = await listed.page(ALICE, offset=4, limit=4)
    assert [row.id for row in second.rows] == [conversations[at].id for at in (1, 0)]
    assert (second.pinned, second.next_offset) == ([], None)


async def test_page_has_a_most(store: HistoryStore, listed: ConversationList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_list, "MOST", 2)
    for number in range(3):
        await started(store, f"Number {number}")
    found = await listed.page(ALICE, limit=9)
    assert (len(found.rows), found.next_offset) == (2, 2)


@pytest.mark.parametrize("hours", [0, 2], ids=["just-now", "two-hours-ago"])
async def test_visitor_goes_on_with_the_chat_viewed_last_for_an_hour(tmp_path: Path, hours: float) -> None:
    clock = Clock()
    clock.go_forward(hours=-hours)
    store = await STORES["memory"](tmp_path, clock)
    (older, _), (newer, _), (others, _) = [await started(store, owner=who) for who in (ALICE, ALICE, MALLORY)]
    clock.go_forward(hours=hours)
    listed = chats_of("", tmp_path, store=store).list
    viewed = {older.id: older.id, newer.id: newer.id, "": newer.id, others.id: newer.id, "gone": newer.id}
    for id_, expected in viewed.items():
        assert await listed.current(ALICE, id_) == (None if hours else expected)
    clock.go_forward(hours=hours)
    await started(store)
    assert await listed.current(ALICE, older.id) == older.id, "a message in any chat keeps the visitor there"
    assert await listed.current("nobody") is None


async def test_search_shows_the_hit(store: HistoryStore, listed: ConversationList) -> None:
    conversation, _ = await started(store, "Whales 🐋 sleep with half of the brain")
    [(row, hit)] = await listed.search(ALICE, "HALF")
    assert row.id == conversation.id
    assert [*excerpt_parts(hit, "HALF")] == ["Whales 🐋 sleep with ", "half", " of the brain"]
    assert await listed.search(MALLORY, "half") == []


@pytest.mark.parametrize(
    ("excerpt", "query", "parts"),
    [
        ("two coloured and two", "COLOURED two", ["", "two", " ", "coloured", " and ", "two", ""]),
        ("a halfway house", "half alfway fw", ["a ", "halfway", " house"]),
        (
            "…the STRASSE, ﬁne Cafe\u0301 ｶﾞ…",
            "straße fi café ガ",
            ["…the ", "STRASSE", ", ", "ﬁ", "ne ", "Cafe\u0301", " ", "ｶﾞ", "…"],
        ),
        ("…dots. and more…", ".", ["…dots", ".", " and more…"]),
        ("東京タワー", "タワー 東京", ["", "東京", "", "タワー", ""]),
        ("nothing here", "zebra", ["nothing here"]),
    ],
    ids=["words", "overlap", "folded", "dots", "no-spaces", "none"],
)
def test_each_word_in_an_excerpt_is_marked(excerpt: str, query: str, parts: list[str]) -> None:
    hit = ConversationHit(conversation=Conversation(owner=ALICE), entry_id=None, excerpt=excerpt)
    assert [*excerpt_parts(hit, query)] == parts


MARKDOWN = {
    "heading": ("## A word\n\nFurther down\n---\nend", "A word Further down end"),
    "emphasis": (
        "**A** *word* _or_ __two__ ~~not~~ ***all***, 2 * 3 * 4 a*b*c my_own_name",
        "A word or two not all, 2 * 3 * 4 a*b*c my_own_name",
    ),
    "emphasis beside Chinese": ("**注意。**请 word", "注意。请 word"),
    "list": ("- A word\n* two\n  + three\n- [x] done\n3. [ ] open - 4", "A word two three done 3. open - 4"),
    "quotation": ("> A word\n> > again > 5", "A word again > 5"),
    "link": (
        'A [word](https://a.b/c_(d) "t") ![pic](x.png) [so][1] <https://a.b> [^1]\n\n[1]: x',
        "A word pic so https://a.b x",
    ),
    "table": ("| word | b |\n|---|:-:|\n| c \\| d | e |\na | b", "word b c | d e a | b"),
    "code": ("`**word**` and\n```c++\na[0] = *b * *c; # no\n```\nend", "**word** and a[0] = *b * *c; # no end"),
    "open fence": ("word\n~~~\n# no\n- no", "word # no - no"),
    "escape": ("A word \\*so\\*", "A word *so*"),
}


@pytest.mark.parametrize(("text", "shown"), MARKDOWN.values(), ids=MARKDOWN)
async def test_excerpt_has_no_signs_of_markdown(
    store: HistoryStore, text: str, shown: str, listed: ConversationList
) -> None:
    await started(store, text)
    [(_, hit)] = await listed.search(ALICE, "word")
    assert hit.excerpt == shown
    assert hit.excerpt[hit.start : hit.end] == "word"


async def test_hit_is_on_the_branch_that_is_shown(store: HistoryStore, listed: ConversationList) -> None:
    conversation, entries = await started(store, "Otters are fast")
    other = chain(prompt("Otters are slow"))
    conversation = await store.save(replace(conversation, head_id=other[0].id, branches=(entries[-1].id,)), other)
    for head, branch, shown in ((other[0].id, entries[-1].id, "slow"), (entries[-1].id, other[0].id, "fast")):
        conversation = await store.save(replace(conversation, head_id=head, branches=(branch,)))
        [(_, hit)] = await listed.search(ALICE, "otters")
        assert shown in hit.excerpt
    [(_, hit)] = await listed.search(ALICE, "slow")
    assert hit.entry_id == other[0].id, "only another branch has the word"


UNSEEN = ("\u200b", "\u200b\u2060 \ufeff", "\u00ad\u202e", "\ufe0f\u034f", "\u3164\u115f", "\u2800", "\U000e0041")


@pytest.mark.parametrize("text", UNSEEN, ids=ascii)
def test_first_words_that_nobody_sees_are_no_title(text: str) -> None:
    assert first_words(chain(prompt(text))[0]) == ""


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Two\n words", "Two words"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("word " * 30, "word " * 11 + "word…"),
        ("A long letter to my landlord about the heating and the water", None),
        (
            "A long letter to my landlord about the heating and the waters",
            "A long letter to my landlord about the heating and the…",
        ),
        ("no " + "x" * 90, "no " + "x" * 56 + "…"),
    ],
    ids=["short", "exact", "one-word", "words", "fits", "cut", "long-word"],
)
def test_first_words_are_cut_between_words(text: str, title: str | None) -> None:
    assert first_words(chain(prompt(text))[0]) == (text if title is None else title)


NOTES, LETTER = quoted_file("notes.txt", "Lorem ipsum"), quoted_file("letter", "Dear landlord")
PHOTO = ImageUrl(f"{ROUTE}{'0' * 64}.png", identifier="holiday.png")
REPORT = DocumentUrl(f"{ROUTE}{'1' * 64}.pdf", identifier="report.pdf")
READ = TextContent("Text of the document", metadata={"read": "Rent", "name": "Report 1.pdf", "kind": "document"})


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        (["Summarise", NOTES, LETTER], "Summarise"),
        (["Mend this:\n```\nx = 1\n```", NOTES], "Mend this: ``` x = 1 ```"),
        ([NOTES], "notes.txt"),
        (["\u200b", quoted_file("empty.txt", ""), LETTER], "empty.txt, letter"),
        ([PHOTO, REPORT, READ, NOTES], "holiday.png, Report 1.pdf, notes.txt"),
        ([ImageUrl(PHOTO.url, identifier=f"{'0' * 64}.png")], ""),
        ([PHOTO, "What is", "this?"], "What is this?"),
    ],
    ids=["words", "code", "file", "unseen-words", "names", "no-name", "words-after"],
)
def test_title_has_the_words_and_not_the_files(parts: list[UserContent], title: str) -> None:
    assert first_words(chain(ModelRequest([UserPromptPart(parts)]))[0]) == title


async def test_title_is_one_line_and_never_empty(store: HistoryStore, listed: ConversationList) -> None:
    conversation, _ = await started(store)
    assert (await listed.change(ALICE, conversation.id, title="  Two\n words ")).title == "Two words"
    assert len((await listed.change(ALICE, conversation.id, title="x" * 500)).title) == 120
    with pytest.raises(InputError):
        await listed.change(ALICE, conversation.id, title=" \n ")
    for title in UNSEEN:
        with pytest.raises(InputError):
            await listed.change(ALICE, conversation.id, title=title)
    for title in ("\u200b0", "\U0001f469\u200d\U0001f680", "\u0915\u094d\u200d\u0937", "\U0001fae8"):
        assert (await listed.change(ALICE, conversation.id, title=title)).title == title
    with pytest.raises(NotFound):
        await listed.change(MALLORY, conversation.id, title="Mine")


@pytest.mark.slow
async def test_marks_follow_the_answer(page: Conversations, listed: ConversationList, server: Running) -> None:
    held = marker()
    conversation = await said(page, f'!tokens 9 hold 5 {held} !tool ask_user {{"question": "Which?"}}')
    assert (await listed.row(ALICE, conversation)).state == "answering"
    server.release(held)
    await until(lambda: not page.live_runs.is_busy(conversation))
    assert (await listed.row(ALICE, conversation)).state == "waiting"
    await page.answer(Visitor(owner=ALICE), conversation, "This one", Choices())
    assert (await listed.row(ALICE, conversation)).state == "answering"
    await until(lambda: not page.live_runs.is_busy(conversation))
    assert (await listed.row(ALICE, conversation)).state == ""


async def test_deletion_stops_the_answer_and_can_be_undone(page: Conversations, listed: ConversationList) -> None:
    conversation = await said(page, "!tokens 9000 @20")
    await listed.delete(ALICE, conversation)
    assert not page.live_runs.is_busy(conversation)
    assert await ids(listed) == []
    for owner, error in ((MALLORY, NotFound), (ALICE, NotFound)):
        with pytest.raises(error):
            await listed.delete(owner, conversation)
    with pytest.raises(NotFound):
        await listed.restore(MALLORY, conversation)
    assert (await listed.restore(ALICE, conversation)).id == conversation
    assert await ids(listed) == [conversation]
    with pytest.raises(NotFound):  # it is no longer deleted
        await listed.restore(ALICE, conversation)


async def test_undo_gives_back_the_expiry(store: HistoryStore, listed: ConversationList) -> None:
    conversation, _ = await started(store)
    until_then = now() + timedelta(days=3)
    await store.retention.set_expiry(conversation, until_then)
    await listed.delete(ALICE, conversation.id)
    await listed.restore(ALICE, conversation.id)
    assert (await store.get(conversation.id, owner=ALICE)).expires_at == until_then


async def test_housekeeping_waits_for_the_undo(
    page: Conversations, store: HistoryStore, listed: ConversationList, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = await started(store)
    house = ExpiredConversations(store, page.media, listed.is_in_use)
    await listed.delete(ALICE, conversation.id)
    assert await house.delete() == 0
    await listed.restore(ALICE, conversation.id)
    assert await ids(listed) == [conversation.id]
    monkeypatch.setattr(conversation_list, "UNDO_SECONDS", 0.05)
    await listed.delete(ALICE, conversation.id)
    await gone(lambda: store.entries(conversation))
    with pytest.raises(NotFound):
        await listed.restore(ALICE, conversation.id)
    assert await store.retention.expiring(now()) == []


async def test_deletion_removes_the_files(
    page: Conversations, store: HistoryStore, listed: ConversationList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_list, "UNDO_SECONDS", 0.05)
    picture = BinaryContent(random_png(), media_type="image/png")
    journal = StoreJournal(store, page.media, Conversation(owner="ann"), Omitted())
    await journal.write(ModelRequest([UserPromptPart(["See", picture])]), Note())
    assert [*await page.media.sizes()] == ["ann"]
    await listed.delete("ann", journal.conversation.id)
    await gone(page.media.sizes)


async def test_restart_ends_the_undo_unless_others_share_store(
    page: Conversations, store: HistoryStore, listed: ConversationList
) -> None:
    conversation, _ = await started(store)
    await listed.delete(ALICE, conversation.id)
    await listed.aclose()
    again = ConversationList(store, page.media, page.running, page.replies)
    if not store.is_shared:
        with pytest.raises(NotFound):
            await again.restore(ALICE, conversation.id)
    else:  # it is a process like any other
        assert (await again.restore(ALICE, conversation.id)).id == conversation.id
        await again.delete(ALICE, conversation.id)
        await again.aclose()
    later = now() + timedelta(seconds=UNDO_SECONDS)  # until then, another process could undo it
    assert await ExpiredConversations(store, page.media, again.is_in_use).delete(at=later) == 1
    assert await store.entries(conversation) == []


async def test_message_saved_meanwhile_does_not_keep_a_deleted_chat(
    store: HistoryStore, listed: ConversationList, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = await started(store)
    hide = store.retention.set_expiry
    saved: list[Conversation] = []

    async def save_first(given: Conversation, at: object) -> bool:
        if not saved:
            saved.append(await store.save(replace(conversation, input_tokens=1)))
        return await hide(given, at)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.retention), "set_expiry", lambda _, conversation, at: save_first(conversation, at))
    await listed.delete(ALICE, conversation.id)
    assert saved
    assert await ids(listed) == []
