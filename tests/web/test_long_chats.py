"""A look at one message of a long chat decodes as many messages as in a short one, in every store."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent

from agent.files.store import MediaStore
from agent.history import Conversation, Entry, codec, json_files, now
from agent.i18n.translator import ENGLISH
from agent.settings import LocalSettings, Settings
from agent.transfer.export import FORMATS, Exporter, Format
from agent.web.app import build_conversations
from agent.web.chat.conversations import Conversations
from agent.web.chat.links import ChatLinks, LinkChoices
from agent.web.chat.own_data import OwnData
from agent.web.chat.sent_message import MessageId
from agent.web.chat.stored_entries import VIEW_BYTES
from tests.support.history_laws import chain, prompt
from tests.support.history_stores import STORE_PARAMS, STORES
from tests.support.models import FakeLocalModels

FEW, MANY, MOST = 160, 480, 150


class Page(Conversations):
    """Conversations with their store, and the owner who looks."""

    def __init__(self, folder: Path, store: Any) -> None:
        settings = Settings(local=LocalSettings(cache_dir=folder, downloads=False))
        made = build_conversations(settings, store, MediaStore(folder / "media"), FakeLocalModels())
        super().__init__(**{part.name: getattr(made, part.name) for part in fields(made) if part.init})
        self.owner = self.first = ""
        self.own_data = OwnData(self, store, self.media)
        self.links = ChatLinks(store, settings)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of messages that were decoded at once, by whatever store."""
    counts, load, entries = list[int](), codec._load, codec._ENTRIES  # pyright: ignore[reportPrivateUsage]

    def counting(adapter: Any, texts: Iterable[str]) -> list[Any]:
        found = load(adapter, texts)
        counts.append(len(found) if adapter is entries else 0)
        return found

    monkeypatch.setattr(codec, "_load", counting)
    return counts


@pytest.fixture(params=STORE_PARAMS)
async def page(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Page]:
    store = await STORES[request.param](tmp_path, now)
    made = Page(tmp_path, store)
    yield made
    await made.aclose()
    await store.aclose()


async def long_chat(page: Page, count: int, characters: int = 0) -> tuple[str, str, str]:
    """Store a chat with a second version of its last message. Return its id, this version and the older one."""
    entries = chain(*(prompt(f"message {number}{' ' * characters}") for number in range(count)))
    again = Entry(parent_id=entries[-2].id, message=prompt("edited"))
    conversation = Conversation(owner=page.owner, title="message 0", head_id=again.id, branches=(entries[-1].id,))
    await page.store.save(conversation, [*entries, again])
    page.first = entries[0].id
    return conversation.id, again.id, entries[-1].id


async def _files_of_last(page: Page, chat: str, last: str) -> None:
    async for _ in page.files_of_last(page.owner, chat, last):
        pass


async def _delete_all_with_a_file(page: Page) -> None:
    await page.media.add(page.owner, BinaryContent(b"a", media_type="text/plain"), "elsewhere/")
    await page.own_data.delete_all(page.owner)


Look = Callable[[Page, str, str, str], Awaitable[object]]
LOOKS: dict[str, Look] = {
    "view": lambda page, chat, _last, _older: page.views.view(page.owner, chat),
    "view of earlier ones": lambda page, chat, last, _older: page.views.with_turn(page.owner, chat, last),
    "sent again": lambda page, chat, last, _older: page.find_sent(page.owner, chat, MessageId(last, again=True)),
    "choose": lambda page, chat, _last, older: page.branches.choose(page.owner, chat, older),
    "files": lambda page, chat, last, _older: _files_of_last(page, chat, last),
    "text of an old message": lambda page, chat, _last, _older: page.views.turn(page.owner, chat, page.first),
    "hit of a search": lambda page, chat, _last, older: page.list.find_message(page.owner, chat, older),
    "search": lambda page, _chat, _last, _older: page.list.search(page.owner, "edited"),
    "list": lambda page, _chat, _last, _older: page.list.page(page.owner),
    "rename": lambda page, chat, _last, _older: page.list.change(page.owner, chat, title="new"),
    "link": lambda page, chat, _last, _older: page.links.create(page.owner, chat, LinkChoices(days=1)),
    "own data": lambda page, _chat, _last, _older: page.own_data.summary(page.owner),
    "undo": lambda page, chat, last, _older: page.undo(page.owner, chat, last),
    "delete": lambda page, chat, _last, _older: page.list.delete(page.owner, chat),
    "delete all": lambda page, _chat, _last, _older: page.own_data.delete_all(page.owner),
    "delete all with a file": lambda page, _chat, _last, _older: _delete_all_with_a_file(page),
}


@pytest.mark.slow
async def test_look_at_one_message_decodes_no_more_in_a_long_chat(page: Page, decoded: list[int]) -> None:
    counts = dict[str, list[int]]()
    for name, look in LOOKS.items():
        for count in (FEW, MANY):
            page.owner = f"{count}-{len(counts)}"
            chat = await long_chat(page, count)
            decoded.clear()
            await look(page, *chat)
            counts.setdefault(name, []).append(sum(decoded))
    assert {name: both for name, both in counts.items() if not both[1] <= both[0] < MOST} == {}


async def test_look_reads_few_of_many_long_messages(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, load = list[int](), codec._load  # pyright: ignore[reportPrivateUsage]

    def counting(adapter: Any, texts: Iterable[str]) -> list[Any]:
        given = [*texts]
        sizes.extend(map(len, given))
        return load(adapter, given)

    page.owner = "ann"
    chat, last, older = await long_chat(page, 60, VIEW_BYTES // 20)
    monkeypatch.setattr(codec, "_load", counting)
    read = dict[str, int]()
    for name, look in LOOKS.items():
        if name in ("choose", "undo"):  # they change what the others need
            continue
        sizes.clear()
        await look(page, chat, last, older)
        read[name] = sum(sizes)
    assert read["view"] > VIEW_BYTES
    assert {name: size for name, size in read.items() if size > 2.5 * VIEW_BYTES} == {}


@pytest.mark.parametrize("form", FORMATS)
async def test_export_reads_each_message_a_few_times(
    page: Page, decoded: list[int], form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of messages is read without the others, in a JSON history, too."""
    read_lines = json_files._read_lines  # pyright: ignore[reportPrivateUsage]

    def counting(path: Path, start: int, end: int) -> list[bytes]:
        found = read_lines(path, start, end)
        decoded.append(len(found) // 2)
        return found

    chat, _, _ = await long_chat(page, MANY)
    decoded.clear()
    monkeypatch.setattr(json_files, "_read_lines", counting)
    download = await Exporter(page.store, page.media, page.owner, ENGLISH).one(chat, form)
    async for _ in download.pieces:
        pass
    assert MANY <= sum(decoded) < 4 * MANY
