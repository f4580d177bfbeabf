"""Copies the chat of a read-only link into the conversations of its reader."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

from agent.errors import NotFound
from agent.files.store import MediaStore
from agent.history import Entry
from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.messages.repair import count_bytes
from agent.transfer.document import DOCUMENT_THREADS, ENTRY_BYTES, LONGEST_TURN, title_of
from agent.transfer.file_links import FileLinks
from agent.transfer.imported import FileSource
from agent.transfer.portable import renewed
from agent.web.chat.importer import Importer
from agent.web.chat.links import SharedChat
from agent.web.chat.questions import is_question
from agent.web.chat.transcript import to_turns, unanswered_tool_calls
from agent.web.chat.visitor import Visitor

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
