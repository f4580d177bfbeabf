"""Histories that are kept in memory are those of the store, and they are bounded."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart

from agent.errors import NotFound
from agent.history import Conversation, Entry, HistoryStore
from agent.history.memory import MemoryStore
from agent.web.chat.journal import branch
from agent.web.chat.recent_histories import ENTRY_BYTES, MAX_HISTORY_BYTES, NEWEST, PAGE, READ_BYTES, RecentHistories
from tests.support.views import chats_of

LONG = NEWEST + 1
"""Entries of a history that is kept."""


class CountingStore(MemoryStore):
    """A store that counts the entries that it has returned."""

    read = 0

    async def history(self, conversation: Conversation, **wanted: Any) -> list[Entry]:
        entries = await super().history(conversation, **wanted)
        self.read += len(entries)
        return entries


async def grown(store: HistoryStore, conversation: Conversation, count: int, text: str = "said") -> Conversation:
    """Store a conversation with `count` more entries after its head."""
    entries: list[Entry] = []
    for number in range(count):
        parent = entries[-1].id if entries else conversation.head_id
        entries.append(Entry(parent_id=parent, message=ModelRequest([UserPromptPart(f"{text} {number}")])))
    head = entries[-1].id if entries else conversation.head_id
    return await store.save(branch(conversation, head), entries)


def ids(entries: Sequence[Entry]) -> list[str]:
    return [entry.id for entry in entries]


async def test_kept_history_is_that_of_the_store() -> None:
    store, chance = MemoryStore(), random.Random(7)
    histories, conversation = RecentHistories(store), await grown(store, Conversation(owner="ann"), 3)
    for _ in range(60):
        known: list[str | None] = [None, *ids(await store.entries(conversation))]
        if chance.random() < 0.3:  # a retry, an edit or an undo
            conversation = branch(conversation, chance.choice(known))
        conversation = await grown(store, conversation, chance.choice([0, 1, 2, 2, 2, 5, NEWEST + 1]))
        if chance.random() < 0.7:
            assert (await histories.read(conversation)).entries == await store.history(conversation)


async def test_message_does_not_read_whole_history_again() -> None:
    store = CountingStore()
    histories, conversation = RecentHistories(store), await grown(store, Conversation(owner="ann"), 400)
    await histories.read(conversation)
    store.read = 0
    conversation = await grown(store, conversation, 2)
    assert len((await histories.read(conversation)).entries) == 402
    assert store.read == NEWEST


async def test_kept_history_is_refused_like_a_stored_one() -> None:
    store = MemoryStore()
    histories, conversation = RecentHistories(store), await grown(store, Conversation(owner="ann"), 3)
    await histories.read(conversation)
    with pytest.raises(NotFound):
        await histories.read(Conversation(id=conversation.id, owner="bob", head_id=conversation.head_id, revision=1))
    await store.delete(conversation.id, owner="ann")
    with pytest.raises(NotFound):
        await histories.read(conversation)


async def test_kept_histories_are_bounded() -> None:
    store = MemoryStore()
    histories = RecentHistories(store, max_bytes=3 * LONG * ENTRY_BYTES)
    conversations = [await grown(store, Conversation(owner="ann"), LONG) for _ in range(4)]
    for conversation in conversations:
        await histories.read(conversation)
    assert 0 < histories.size <= 3 * LONG * ENTRY_BYTES
    long = await grown(store, Conversation(owner="ann"), LONG, "long" * 10_000)
    assert len((await histories.read(long)).entries) == LONG
    assert histories.size <= 3 * LONG * ENTRY_BYTES
    unused = RecentHistories(store, kept_seconds=0.0)
    await unused.read(conversations[0])
    await asyncio.sleep(0.001)
    assert unused.size == 0


async def test_short_history_is_read_and_not_kept() -> None:
    store = CountingStore()
    histories, conversation = RecentHistories(store), await grown(store, Conversation(owner="ann"), NEWEST)
    assert (await histories.read(conversation)).entries == await store.history(conversation)
    assert histories.size == 0
    longer = await grown(store, conversation, 1)
    await histories.read(longer)
    assert histories.size > 0
    shorter = branch(longer, conversation.head_id)
    assert (await histories.read(shorter)).entries == await store.history(shorter)
    assert histories.size == 0


@pytest.mark.slow
async def test_reading_costs_no_more_in_longer_histories() -> None:
    """Of a long history the newest messages are read and kept, and the others are counted."""
    store = CountingStore()
    histories = RecentHistories(store)
    for count in (6_000, 10_000):
        conversation = await grown(store, Conversation(owner="ann"), count)
        store.read = 0
        found = await histories.read(conversation)
        assert store.read <= READ_BYTES // ENTRY_BYTES + PAGE
        assert [*found.entries] == (await store.history(conversation))[found.earlier :]
        assert len(found.entries) + found.earlier == count
        longer = await grown(store, conversation, 2)
        store.read = 0
        again = await histories.read(longer)
        assert (store.read, again.earlier, len(again.entries)) == (NEWEST, found.earlier, len(found.entries) + 2)
        assert histories.size <= MAX_HISTORY_BYTES


async def test_erased_messages_are_not_kept(tmp_path: Path) -> None:
    page = chats_of("", tmp_path, store=(store := MemoryStore()))
    conversation = await grown(store, Conversation(owner="ann"), LONG)
    history = await page.runs.histories.read(conversation)
    assert page.runs.histories.size
    await page.erase("ann", conversation.id, history.entries[-1].id)
    assert not page.runs.histories.size
    await page.aclose()
