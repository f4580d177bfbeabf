"""A look at one message of a long chat decodes as many messages as in a short one."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from pathlib import Path

import pytest

from agent.history import Entry, Record
from agent.history.conformance.samples import chain, prompt
from agent.history.memory import MemoryStore
from agent.media.store import MediaStore
from agent.settings import LocalSettings, Settings
from agent.web.chat.conversations import Conversations
from agent.web.chat.message_id import MessageId
from agent.web.chat.own_data import OwnData
from tests.support.models import FakeLocalModels

FEW, MANY, MOST = 200, 2_000, 150


class CountingStore(MemoryStore):
    """A store that counts the messages that it has decoded."""

    decoded = 0

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        return self._count(await super().history(record, limit=limit))

    async def entries(self, record: Record) -> Sequence[Entry]:
        return self._count([*await super().entries(record)])

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        return self._count([*await super().find(record, ids=ids, after=after)])

    def _count(self, entries: list[Entry]) -> list[Entry]:
        self.decoded += len(entries)
        return entries


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[tuple[Conversations, CountingStore]]:
    store = CountingStore()
    settings = Settings(local=LocalSettings(cache_dir=tmp_path, downloads=False))
    made = Conversations(settings, store, MediaStore(tmp_path), FakeLocalModels(), tools=[])
    yield made, store
    await made.aclose()


async def long_chat(store: MemoryStore, count: int) -> tuple[str, str, str]:
    """Store a chat with a second version of its last message. Return its id, this version and the older one."""
    entries = chain(*(prompt(f"message {number}") for number in range(count)))
    again = Entry(parent_id=entries[-2].id, message=prompt("edited"))
    record = Record(owner="ann", title="message 0", head_id=again.id, branches=(entries[-1].id,))
    await store.save(record, [*entries, again])
    return record.id, again.id, entries[-1].id


async def _files_of_last(page: Conversations, chat: str, last: str) -> None:
    async for _ in page.files_of_last("ann", chat, last):
        pass


Look = Callable[[Conversations, str, str, str], Awaitable[object]]
LOOKS: dict[str, Look] = {
    "view": lambda page, chat, _last, _older: page.views.view("ann", chat),
    "sent again": lambda page, chat, last, _older: page.find_sent("ann", chat, MessageId(last, again=True)),
    "choose": lambda page, chat, _last, older: page.branches.choose("ann", chat, older),
    "undo": lambda page, chat, last, _older: page.undo("ann", chat, last),
    "files": lambda page, chat, last, _older: _files_of_last(page, chat, last),
    "hit of a search": lambda page, chat, _last, older: page.list.find_message("ann", chat, older),
    "own data": lambda page, _chat, _last, _older: OwnData(page, page._store, page.media).summary("ann"),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_look_at_one_message_decodes_no_more_in_a_long_chat(
    page: tuple[Conversations, CountingStore], look: Look
) -> None:
    conversations, store = page
    decoded = list[int]()
    for count in (FEW, MANY):
        chat = await long_chat(store, count)
        store.decoded = 0
        await look(conversations, *chat)
        decoded.append(store.decoded)
    assert decoded[1] <= decoded[0] < MOST
