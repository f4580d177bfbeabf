"""Read-only links to one chat: the owner's list of them, what their readers see, and the copies that readers take."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from agent.errors import InputError, NotFound
from agent.files.store import MediaStore
from agent.history import NO_LINK, Conversation, Entry, HistoryStore, Link, digest_of, new_token, now
from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.messages.repair import count_bytes
from agent.settings import Settings
from agent.system.request_queue import RequestQueue
from agent.transfer.document import DOCUMENT_THREADS, ENTRY_BYTES, LONGEST_TURN, Branch, title_of
from agent.transfer.imported import FileLinks, FileSource
from agent.transfer.portable import renewed
from agent.transfer.shared import shared_entries
from agent.web.chat.importer import Importer
from agent.web.chat.questions import is_question
from agent.web.chat.stored_entries import VIEW_BYTES
from agent.web.chat.titles import all_first_words, without_number, words_with_files
from agent.web.chat.transcript import has_first_words, is_prompt, to_turns, unanswered_tool_calls
from agent.web.chat.visitor import Visitor

MAX_LINKS = 10
"""The most links to one chat."""
MAX_DAYS = 3650
MAX_BRANCHES = 64
"""The most branches whose files are remembered."""
OFF = _("Links to chats are turned off on this page.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChoices:
    """The choices for a new link. `days` is None for a link that does not expire.

    `later`: its readers also see later messages. `system_prompt` is the one that they see, "" for none.
    """

    days: float | None
    later: bool = False
    with_files: bool = False
    system_prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedChat:
    """The chat of a link: its shown messages as they are stored, and its title.

    The title is empty if it has only first words, or can be about a version of the first message that is not shown.
    """

    link: Link
    title: str
    stored: Branch

    @property
    def began_at(self) -> datetime:
        """The time of the first message."""
        return self.stored.begins[0].note.at

    def entries(self, translator: Translator) -> Iterator[Entry]:
        """Yield the messages as a reader sees them. Only for threads, see `Branch`."""
        return shared_entries(self.stored, translator, with_files=self.link.with_files)


class ChatLinks:
    """Creates, lists, revokes and opens links. All of it is missing where links are off."""

    def __init__(self, store: HistoryStore, settings: Settings) -> None:
        self._store = store
        self.is_on = settings.public is None or settings.public.links
        self.default_days = settings.link_days or None
        self._files = dict[tuple[str, str], Set[str]]()
        """By conversation and last entry: the files of that branch, the branch used last at the end.

        What leads to an entry never changes. A page asks for each of its files, and each time for a whole branch.
        """
        self._reading = RequestQueue(1)

    async def create(self, owner: str, conversation_id: str, choices: LinkChoices) -> tuple[str, Link]:
        """Return the token of a new link, which is stored nowhere, and the link.

        Raises `HistoryError`, `InputError` and `Limited`.
        """
        self._check_on()
        token = new_token()
        conversation = await self._store.get(conversation_id, owner=owner)
        if conversation.head_id is None:
            raise InputError(_("This chat has no messages to share."))
        at = now()
        link = Link(
            digest=digest_of(token),
            conversation_id=conversation_id,
            owner=owner,
            created_at=at,
            expires_at=at + timedelta(days=choices.days) if choices.days else None,
            head_id=None if choices.later else conversation.head_id,
            system_prompt=choices.system_prompt.strip() or None,
            with_files=choices.with_files,
        )
        await self._store.links.put(link, most=MAX_LINKS)
        return token, link

    async def list(self, owner: str, conversation_id: str) -> Sequence[Link]:
        """Return the links to a conversation, the oldest first. Raises `NotFound`."""
        self._check_on()
        return await self._store.links.of(conversation_id, owner=owner)

    async def revoke(self, owner: str, conversation_id: str, digest: str) -> None:
        """Remove a link to this conversation. Raises `NotFound`."""
        if all(link.digest != digest for link in await self._store.links.of(conversation_id, owner=owner)):
            raise NotFound(NO_LINK)
        await self._store.links.remove(digest, owner=owner)

    async def open(self, token: str) -> SharedChat:
        """Return the chat of a link. Raises `NotFound`, with no hint if there ever was one."""
        self._check_on()
        link = await self._store.links.get(digest_of(token))
        conversation = await self._store.get(link.conversation_id, owner=link.owner)
        try:
            stored = await Branch.open(self._store, replace(conversation, head_id=link.head_id or conversation.head_id))
        except NotFound as error:
            raise NotFound(NO_LINK) from error
        begins = await self._store.find(conversation, after=[None], most_bytes=VIEW_BYTES)
        return await DOCUMENT_THREADS.run(_shared_chat, link, conversation, begins, stored)

    async def owner_of_file(self, token: str, id_: str) -> str:
        """Return the owner of a file that the readers of a link see. Raises `NotFound`."""
        self._check_on()
        link = await self._store.links.get(digest_of(token))
        if not link.with_files:
            raise NotFound(NO_LINK)
        conversation = await self._store.get(link.conversation_id, owner=link.owner)
        if id_ not in await self._files_of(replace(conversation, head_id=link.head_id or conversation.head_id)):
            raise NotFound(NO_LINK)
        return link.owner

    async def _files_of(self, conversation: Conversation) -> Set[str]:
        """Return the ids of the files on the branch of a conversation. Readers take turns, with one branch each."""
        branch = (conversation.id, conversation.head_id or "")
        if (known := self._remembered(branch)) is not None:
            return known
        async with self._reading.slot():
            if (known := self._remembered(branch)) is not None:
                return known
            self._files[branch] = files = (await Branch.open(self._store, conversation)).files
        if len(self._files) > MAX_BRANCHES:
            del self._files[next(iter(self._files))]
        return files

    def _remembered(self, branch: tuple[str, str]) -> Set[str] | None:
        if branch in self._files:
            self._files[branch] = self._files.pop(branch)
        return self._files.get(branch)

    def _check_on(self) -> None:
        if not self.is_on:
            raise NotFound(OFF)


def _shared_chat(link: Link, conversation: Conversation, begins: Sequence[Entry], stored: Branch) -> SharedChat:
    """Return the chat of a link, from its first messages and its branch. Raises `NotFound` if the branch is empty."""
    if not stored.begins:
        raise NotFound(NO_LINK)
    # First words can be names of attached files, once also their texts, and can have the number of a branch. Any
    # title can be about another version of the first message.
    words = all_first_words(begins) | {words_with_files(entry) for entry in begins if is_prompt(entry)}
    is_hidden = {conversation.title, without_number(conversation.title)} & words or not has_first_words(
        begins, stored.begins
    )
    return SharedChat(link=link, title="" if is_hidden else conversation.title, stored=stored)


STOPPED = _("Stopped.")
PAGE_BYTES = 4_000_000
"""Bytes of the messages that are in memory and stored at once."""


class ChatCopies:
    """Makes copies. They have only what the link shows, and new ids. Pages of `page_bytes` are stored at once."""

    def __init__(self, media: MediaStore, importer: Importer, page_bytes: int = PAGE_BYTES) -> None:
        self._media, self._importer, self._page_bytes = media, importer, page_bytes
        self.place = importer.place

    async def make(self, chat: SharedChat, visitor: Visitor, translator: Translator) -> str:
        """Return the id of a new copy. Raises `AgentError` with a sentence; then nothing is stored.

        Only some of the messages are in memory at a time. A copy that is cancelled leaves nothing.
        """
        files = await self._files(chat.link.owner, chat.stored.files if chat.link.with_files else ())
        size = chat.stored.size + sum(file.size for file in files.values())
        title = await DOCUMENT_THREADS.run(lambda: title_of(chat.title, chat.entries(translator), translator))
        links = FileLinks(files.get)
        entries = renewed(_with_ending(chat.entries(translator)), links)
        return await self._importer.add(visitor, title, size, pages_of(entries, self._page_bytes), links)

    async def _files(self, owner: str, ids: Iterable[str]) -> dict[str, FileSource]:
        """Return the files with these ids that are stored. A thread can read them."""
        loop, found = asyncio.get_running_loop(), dict[str, FileSource]()

        def read(id_: str) -> bytes:
            try:
                return asyncio.run_coroutine_threadsafe(self._media.read(owner, id_), loop).result().data
            except NotFound as error:  # deleted meanwhile
                raise FileNotFoundError(id_) from error

        for id_ in ids:
            try:
                file = await self._media.find(owner, id_)
            except NotFound:  # deleted
                continue
            found[id_] = FileSource(
                name=id_, media_type=file.media_type, size=file.size, read=lambda id_=id_: read(id_)
            )
        return found


async def pages_of(entries: Iterator[Entry], page_bytes: int = PAGE_BYTES) -> AsyncGenerator[list[Entry]]:
    """Yield the entries in pages of about this many bytes."""
    page, size = list[Entry](), 0
    async with aclosing(
        DOCUMENT_THREADS.steps((entry, ENTRY_BYTES + count_bytes(entry.message)) for entry in entries)
    ) as steps:
        async for batch in steps:
            for entry, bytes_ in batch:
                page.append(entry)
                size += bytes_
                if size >= page_bytes:
                    yield page
                    page, size = list[Entry](), 0
    if page:
        yield page


def _with_ending(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the messages with an end of the last answer. One that is being written cannot go on in a copy.

    One that asks can, unless it asks for permission to call a tool, which a stranger could have prepared.
    """
    newest = deque[Entry](maxlen=LONGEST_TURN)
    for entry in entries:
        if newest:
            yield newest[-1]
        newest.append(entry)
    last, turn = newest[-1], to_turns(newest, replies={})[-1]
    ended = "" if turn.note is None else turn.note.ended
    is_over = any(entry.note.ended for entry in newest if entry.note.run_id == last.note.run_id)
    asks = ended == "suspended" and all(map(is_question, unanswered_tool_calls(turn.bubbles)))
    if not is_over or (ended == "suspended" and not asks):
        last = replace(last, note=replace(last.note, ended="cancelled", detail=STOPPED))
    yield last
