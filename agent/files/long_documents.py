"""The documents of a conversation that are too long for its model: found in its messages, read when they are needed.

A model with tools reads them with `agent.tools.documents`. Any other model gets passages for each new question.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import PurePath

from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    UserContent,
    UserPromptPart,
)

from agent.errors import AgentError, InputError
from agent.files.for_model import MIN_BYTES, document_room, documents_in, is_read_type, question_of, takes_document
from agent.files.kinds import TEXT, UNITS, Document, Unit
from agent.files.parts import document_text, extracted_text_of, text_file_of
from agent.files.passages import best_excerpts
from agent.files.reading import read_document, read_text_file
from agent.files.store import ROUTE, is_id
from agent.models.catalog import ModelSpec
from agent.plain_text import off_loop, plain_text
from agent.system.media_types import SUFFIXES
from agent.system.threads import RANKING

File = BinaryContent | DocumentUrl
LoadFile = Callable[[File], Awaitable[bytes]]
"""Returns the bytes of a file of a message. Raises an `AgentError`."""

EARLIER_SHARE = 4
"""Passages for a later question fill this part of the room for documents: each question adds to the conversation."""


@dataclass(frozen=True, slots=True)
class LongDocument:
    """A document of which the model has only passages. `read` returns its text, or raises an `AgentError`."""

    name: str
    unit: Unit
    count: int
    read: Callable[[], Awaitable[Document]]

    @property
    def described(self) -> str:
        """The name and the numbers of the parts, for a model: "report.pdf (pages 1-41)"."""
        return f"{self.name} ({self.unit}{f's 1-{self.count}' if self.count > 1 else ' 1'})"


async def bytes_of(file: File) -> bytes:
    """Return the bytes of a file that is in the message itself."""
    if isinstance(file, DocumentUrl):
        raise InputError("The file is not in the message.")
    return file.data


async def long_documents(
    messages: Sequence[ModelMessage], spec: ModelSpec, load: LoadFile = bytes_of
) -> list[LongDocument]:
    """Return the documents of which this model has only passages, with names that differ.

    A file with stored text is not read for this. `load` is called when such a document is read.
    """
    found: dict[str, LongDocument] = {}
    for items in await off_loop(messages, _with_files, messages):
        await asyncio.sleep(0)  # there can be many
        for file, document in await _long_in(items, spec, load):
            found.setdefault(_key(file), document)
    return _with_unique_names(found.values())


def _with_files(messages: Sequence[ModelMessage]) -> list[Sequence[UserContent]]:
    """Return the contents of the prompts that have a file."""
    out: list[Sequence[UserContent]] = []
    for message in messages:
        if (text := plain_text(message)) is not None and text_file_of(text) is None:
            continue  # as most messages, and each question looks at all messages before it
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                items = [part.content] if isinstance(part.content, str) else part.content
                if _has_file(items):
                    out.append(items)
    return out


def _has_file(items: Sequence[UserContent]) -> bool:
    return any(isinstance(item, File) or text_file_of(item) for item in items)


async def prompt_with_passages(
    prompt: Sequence[ModelMessage], documents: Sequence[LongDocument], spec: ModelSpec
) -> list[ModelMessage]:
    """Return the prompt with `with_passages` in its last message."""
    out: list[ModelMessage] = list(prompt)
    last = out[-1] if out else None
    if not documents or not isinstance(last, ModelRequest):
        return out
    parts: list[ModelRequestPart] = []
    for part in last.parts:
        if isinstance(part, UserPromptPart):
            items: Sequence[UserContent] = [part.content] if isinstance(part.content, str) else part.content
            if len(more := await with_passages(items, documents, spec)) > len(items):
                part = replace(part, content=more)
        parts.append(part)
    out[-1] = replace(last, parts=parts)
    return out


async def with_passages(
    items: Sequence[UserContent], documents: Sequence[LongDocument], spec: ModelSpec
) -> list[UserContent]:
    """Return the parts of a new message, with the passages of earlier documents that suit its question best.

    A message with a document or a long text file of its own gets none, and a document that cannot be read now has none.
    """
    if not documents or any(_is_document(item) or _is_document_text(item) for item in items):
        return list(items)
    if await _long_in(items, spec, bytes_of):
        return list(items)
    read: list[tuple[str, Document]] = []
    for one in documents:
        try:
            read.append((one.name, await one.read()))
        except AgentError:
            continue
    question = question_of(items)
    room = max(MIN_BYTES, document_room(spec, question) // EARLIER_SHARE)
    # The ranking of a long text takes a second.
    found = await RANKING.run(best_excerpts, [document for _name, document in read], question, room)
    pairs = zip(read, found, strict=True)
    more = [document_text(name, document, excerpt, is_earlier=True) for (name, document), excerpt in pairs if excerpt]
    # Not after a file: a text after a file is the text of that file. Typed text stays first.
    at = 1 if items and isinstance(items[0], str) else 0
    return [*items[:at], *more, *items[at:]]


def without_passages(items: Sequence[UserContent]) -> list[UserContent]:
    """Return the parts of a message without the passages of earlier documents."""
    return [item for item in items if not (extracted_text_of(item) or {}).get("earlier")]


async def _long_in(
    items: Sequence[UserContent], spec: ModelSpec, load: LoadFile
) -> list[tuple[File | str, LongDocument]]:
    """Return the long documents of one message. Files without stored text are read here, as `for_model` does."""
    if not _has_file(items):
        return []
    found: list[tuple[File | str, LongDocument]] = []
    for item, after in zip(items, [*items, None][1:], strict=True):
        if not isinstance(item, File) or takes_document(spec, item.media_type):
            continue
        read = extracted_text_of(after)
        is_stored = read is not None and read["kind"] == "document" and (_is_document(item) or item.media_type == TEXT)
        if read and is_stored and read.get("pages"):
            unit, count = UNITS.get(_type_read(item, read), "section"), int(read["count"])
            found.append((item, LongDocument(read["name"], unit, count, _reader(item, read, load))))
    unread = await documents_in(items, spec)
    for number in (number for number, is_whole in unread.is_whole().items() if not is_whole):
        item = items[number]
        name, document = unread.found[number]
        suffix = SUFFIXES.get(item.media_type, "txt") if isinstance(item, BinaryContent) else "txt"
        if file := text_file_of(item):
            reader = _text_reader(*file)
        elif isinstance(item, BinaryContent):
            reader = _reader(item, {}, load)
        else:  # `documents_in` finds no other parts
            continue
        long = LongDocument(name or f"document.{suffix}", document.unit, len(document.pages), reader)
        found.append((item if isinstance(item, BinaryContent) else str(item), long))
    return found


def _reader(item: File, read: Mapping[str, str], load: LoadFile) -> Callable[[], Awaitable[Document]]:
    async def text() -> Document:
        return await read_again(item, read, load)

    return text


def _text_reader(name: str, text: str) -> Callable[[], Awaitable[Document]]:
    async def read() -> Document:
        return await read_text_file(name, text)

    return read


def _scans_of(read: Mapping[str, str]) -> dict[int, str]:
    """Return what OCR has read of a document, by page, or nothing if an import has something else in its place."""
    try:
        return {int(page): str(text) for page, text in json.loads(read.get("ocr") or "{}").items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


async def read_again(file: File, read: Mapping[str, str], load: LoadFile) -> Document:
    """Return the text of a document, with what OCR has read of it: that is stored with the message, in `read`.

    Raises an `AgentError`. A file of which OCR has read all pages is not loaded.
    """
    media_type = _type_read(file, read)
    scans = _scans_of(read)
    if scans and len(scans) == int(read["count"]):
        pages = tuple(scans[page] for page in sorted(scans))
        return Document(media_type, "", pages, is_ocr=True, scans=tuple(sorted(scans)))
    document = await read_document(await load(file), media_type)
    if not scans:
        return document
    pages = tuple(scans.get(number) or page for number, page in enumerate(document.pages, 1))
    return replace(document, pages=pages, is_ocr=True)


def _type_read(file: File, read: Mapping[str, str]) -> str:
    """Return the type of what was read. HTML is stored as plain text, and its visible text is read."""
    return read.get("media_type") or file.media_type


def _is_document(item: object) -> bool:
    return isinstance(item, File) and is_read_type(item.media_type)


def _is_document_text(item: object) -> bool:
    read = extracted_text_of(item)
    return read is not None and read["kind"] == "document"


def _key(file: File | str) -> str:
    """Return the same text for the same file: its id, if it is stored on the page, or else its digest."""
    if isinstance(file, str):
        return sha256(file.encode("utf-8", "replace")).hexdigest()
    if isinstance(file, DocumentUrl):
        return file.url.removeprefix(ROUTE)
    return file.identifier if is_id(file.identifier) else sha256(file.data).hexdigest()


def _with_unique_names(documents: Iterable[LongDocument]) -> list[LongDocument]:
    out: list[LongDocument] = []
    names: set[str] = set()
    for one in documents:
        name, path, number = one.name, PurePath(one.name), 1
        while name.casefold() in names:
            number += 1
            name = f"{path.stem} ({number}){path.suffix}"
        names.add(name.casefold())
        out.append(replace(one, name=name))
    return out
