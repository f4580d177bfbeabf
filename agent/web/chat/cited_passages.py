"""Shows a cited passage in its document: on a picture of the page of a PDF, or in the text of any other document.

A citation names its document. The file is found by this name in the visitor's conversation, so that copies and imported
conversations, whose files have other ids, work too.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise

from pydantic_ai.messages import BinaryContent, DocumentUrl, ModelMessage, ModelRequest, UserPromptPart

from agent.errors import InputError, NotFound
from agent.files.for_model import may_have_text
from agent.files.kinds import PDF, Document
from agent.files.locate import SearchableText, searchable
from agent.files.long_documents import File, read_again
from agent.files.parts import extracted_text_of
from agent.files.reading import marked_page
from agent.files.remarks import refused
from agent.files.store import ROUTE, MediaStore
from agent.history import Conversation, HistoryStore
from agent.i18n.text import _
from agent.rendering.sources import shown_title
from agent.system.request_queue import RequestQueue, acting_for
from agent.system.threads import Threads
from agent.web.chat.stored_entries import newest_first

AROUND = 1_500
"""Characters of a text before and after the passage."""
MAX_FILES = 3
"""The most files of one name in which a passage is searched for, the newest first."""
MAX_KEPT_LETTERS = 12_000_000
"""Letters of documents that stay prepared for the next search, which take up to 4 bytes each."""

PassagePlace = tuple[int, int, int]
"""The number of a page, counted from 1, and the start and the end of the passage in its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassage:
    """A passage in its document. `page` of the `count` pages, slides, sheets or sections has it, counted from 1.

    `picture` is the page of a PDF as PNG, on which the passage is marked. For other documents it is empty, and `text`
    has the text before the passage, the passage, and the text after it. Without `is_found`, nothing is marked.
    """

    document: str
    page: int
    count: int
    is_found: bool
    picture: bytes = b""
    text: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True, slots=True)
class _Attached:
    file: File
    read: dict[str, str]


class CitedPassages:
    """Finds passages in documents of an owner's conversations. Another owner's conversation is like a missing one."""

    def __init__(self, store: HistoryStore, media: MediaStore) -> None:
        self._store, self._media = store, media
        self._search = _Search()

    async def find(
        self, owner: str, conversation_id: str, document: str, page: int | None, passage: str
    ) -> FoundPassage:
        """Return the passage in the document of this name. `page` is None if it is not known.

        Raises `NotFound` if there is no such conversation or document, and `InputError` with a sentence if the document
        cannot be read, or has no such page.
        """
        conversation = await self._store.get(conversation_id, owner=owner)
        found: FoundPassage | None = None
        with acting_for(owner):
            files = self._attached(conversation, document)
            async for attached in files:
                try:
                    shown = await self._show(owner, attached, page, passage)
                except NotFound:  # the file was deleted
                    continue
                except InputError as error:
                    raise InputError(_("{name} {reason}.", name=document, reason=error.text)) from error
                if not passage.strip():  # only the page was cited
                    return replace(shown, is_found=True)
                if shown.is_found:
                    return shown
                found = found or shown
        if found is None:
            raise NotFound(_("This document is no longer in the chat."))
        return found

    async def _attached(self, conversation: Conversation, document: str) -> AsyncGenerator[_Attached]:
        """Yield up to `MAX_FILES` files of this name, the newest first, each once. Reads no more than is asked for."""
        seen = set[str]()
        async with aclosing(newest_first(self._store, conversation)) as entries:
            async for entry in entries:
                for id_, attached in _files_in(entry.message, document):
                    if id_ not in seen:
                        seen.add(id_)
                        yield attached
                    if len(seen) == MAX_FILES:
                        return

    async def _show(self, owner: str, attached: _Attached, page: int | None, passage: str) -> FoundPassage:
        file, read = attached.file, attached.read
        name = read["name"]
        content = file if isinstance(file, BinaryContent) else await self._media.read(owner, _id_of(file))
        if content.media_type != PDF:
            return await self._in_text(name, await read_again(content, read, _loaded), page, passage)
        if page is None:
            document = await read_again(content, read, _loaded)
            place = await self._search.find(document.pages, None, passage)
            page = place[0] if place else 1
        picture, is_found = await marked_page(content.data, page - 1, passage)
        count = int(read["count"]) if read.get("count", "").isdecimal() else page
        return FoundPassage(document=name, page=page, count=count, is_found=is_found, picture=picture)

    async def _in_text(self, name: str, document: Document, page: int | None, passage: str) -> FoundPassage:
        """Return the passage in the text of its page, or of another one if it is not there."""
        count = len(document.pages)
        if page is not None and not 1 <= page <= count:
            raise refused("no_page", number=page, count=count)
        if place := await self._search.find(document.pages, page, passage):
            number, start, end = place
            text = document.pages[number - 1]
            around = text[max(0, start - AROUND) : start], text[start:end], text[end : end + AROUND]
            return FoundPassage(document=name, page=number, count=count, is_found=True, text=around)
        text = document.pages[(page or 1) - 1][: 2 * AROUND]
        return FoundPassage(document=name, page=page or 1, count=count, is_found=False, text=(text, "", ""))


class _Search:
    """Searches documents in a thread of its own, one at a time. Visitors take turns.

    Owns the thread, and the texts of the last documents as they are prepared for searches.
    """

    def __init__(self) -> None:
        self._queue = RequestQueue(1, slots_per_visitor=1)
        self._thread = Threads("passages", 1)
        self._prepared: OrderedDict[tuple[str, ...], list[SearchableText]] = OrderedDict()

    async def find(self, pages: tuple[str, ...], first: int | None, passage: str) -> PassagePlace | None:
        """Return the place of the passage: on the page `first` if it is there, or else on the first page with it."""
        async with self._queue.slot():
            return await self._thread.run(self._find, pages, first, passage)

    def _find(self, pages: tuple[str, ...], first: int | None, passage: str) -> PassagePlace | None:
        texts = self._prepare(pages)
        for number in [*([first] if first is not None else []), *range(1, len(texts) + 1)]:
            if place := texts[number - 1].find(passage):
                return number, *place
        return None

    def _prepare(self, pages: tuple[str, ...]) -> list[SearchableText]:
        found = self._prepared[pages] = self._prepared.pop(pages, None) or searchable(pages)
        while sum(len(text) for texts in self._prepared.values() for text in texts) > MAX_KEPT_LETTERS:
            self._prepared.popitem(last=False)
        return found


def _files_in(message: ModelMessage, document: str) -> Iterator[tuple[str, _Attached]]:
    """Yield the files of this name in a message, each with its id."""
    for part in message.parts if isinstance(message, ModelRequest) else ():
        if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
            continue
        for item, after in pairwise(part.content):
            read = extracted_text_of(after)
            if not (isinstance(item, DocumentUrl) or may_have_text(item)) or read is None:
                continue
            if read["kind"] == "document" and shown_title(read["name"]) == document:
                yield item.url if isinstance(item, DocumentUrl) else item.identifier, _Attached(item, read)


def _id_of(file: DocumentUrl) -> str:
    return file.url.removeprefix(ROUTE)


async def _loaded(file: File) -> bytes:
    return file.data if isinstance(file, BinaryContent) else b""
