"""Decides what a model gets of the documents in a message: the file itself, its text, or passages of the text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from hashlib import sha256
from typing import Any, TypeGuard

from pydantic_ai.messages import BinaryContent, TextContent

from agent.errors import InputError
from agent.files.kinds import PDF, SUFFIXES, TEXT, Document
from agent.files.parts import document_text, extracted_text_of, is_file_name, text_file_of
from agent.files.passages import Excerpt, are_whole, excerpts, whole_size
from agent.files.reading import read_document, read_text_file
from agent.files.remarks import refused
from agent.models.catalog import ModelSpec
from agent.system.threads import RANKING

PDF_DIALECTS = ("responses", "messages", "generate")
"""The dialects that accept PDF documents."""
MAX_BYTES = 600_000
"""Bytes of document text in one message, however much the model can read. A long book has more."""
MIN_BYTES = 800
BYTES_PER_TOKEN = 3
"""Slightly fewer than in typical text, so that an estimate is rather too careful."""
RESERVED_TOKENS = 512
"""Tokens that are kept for the system prompt and the marks of pages."""
UNREAD = "[A file was here ({kind}), which this model cannot read: it {why}.]"

MAX_KEPT = 32
"""Messages whose excerpts are kept in memory."""

_kept: dict[bytes, list[Excerpt]] = {}
_READ_TYPES = tuple(SUFFIXES.values())
"""The documents that no model gets as plain text. HTML goes as its source."""


def is_document(item: object) -> bool:
    """Return True for a part of a message that is a document whose text can be read."""
    return isinstance(item, BinaryContent) and is_read_type(item.media_type)


def is_read_type(media_type: str) -> bool:
    """Return True for the type of a document whose text can be read."""
    return media_type in _READ_TYPES


def may_have_text(item: object) -> TypeGuard[BinaryContent]:
    """Return True for a file that can have its text after it: a document, or a text file that is too long."""
    return isinstance(item, BinaryContent) and (is_read_type(item.media_type) or item.media_type == TEXT)


def question_of(items: Iterable[object]) -> str:
    """Return the texts of a message together: they decide which passages of its documents suit it."""
    typed = [item.content if isinstance(item, TextContent) else item for item in items]
    return "\n".join(item for item in typed if isinstance(item, str))


def takes_document(spec: ModelSpec, media_type: str) -> bool:
    """Return True if the model reads such a file itself."""
    return media_type == PDF and spec.dialect in PDF_DIALECTS


def document_room(spec: ModelSpec, text: str = "") -> int:
    """Return the bytes of document text for a message with this typed text: half of what the model can read."""
    typed = len(text.encode("utf-8", "replace"))
    room = (spec.context_tokens // 2 - RESERVED_TOKENS) * BYTES_PER_TOKEN - typed
    return max(MIN_BYTES, min(room, MAX_BYTES))


@dataclass(frozen=True, slots=True)
class DocumentsRead:
    """The documents of a message that its model gets as text, by their places among the parts of the message.

    `found` has those that were read, with their names ("" if there is none), and `failed` the reasons for the others.
    They share `room` bytes. Text files that are sent whole are not among them.
    """

    question: str
    room: int
    found: Mapping[int, tuple[str, Document]]
    failed: Mapping[int, InputError] = field(default_factory=dict[int, InputError])

    def is_whole(self) -> dict[int, bool]:
        """Return for each place in `found` whether the model gets the whole document. It ranks no passages."""
        whole = are_whole([whole_size(document) for _name, document in self.found.values()], self.room)
        return dict(zip(self.found, whole, strict=True))

    async def fitted(self) -> dict[int, Excerpt]:
        """Return for each place in `found` what the model gets."""
        documents = [document for _name, document in self.found.values()]
        return dict(zip(self.found, await fit_documents(documents, self.question, self.room), strict=True))


async def documents_in(items: Sequence[object], spec: ModelSpec, *, texts: bool = True) -> DocumentsRead:
    """Read the documents among the parts of a message that this model cannot take, and text files that are too long.

    A document with its text after it is left out. Without `texts`, a quoted text is never taken for a file.
    """
    after = [*items, None][1:]
    files: dict[int, BinaryContent] = {}
    quoted: dict[int, tuple[str, str]] = {}
    for number, (item, next_) in enumerate(zip(items, after, strict=True)):
        if extracted_text_of(next_) and may_have_text(item):
            continue
        if isinstance(item, BinaryContent) and is_document(item):
            if not takes_document(spec, item.media_type):
                files[number] = item
        elif (texts or isinstance(item, BinaryContent)) and (file := text_file_of(item)):
            quoted[number] = file
    typed = [item for n, item in enumerate(items) if n not in quoted and not extracted_text_of(item)]
    question = question_of(typed)
    room = document_room(spec, question)
    found: dict[int, tuple[str, Document]] = {}
    failed: dict[int, InputError] = {}
    for number, item in files.items():
        try:
            name = item.identifier if is_file_name(item.identifier) else ""
            found[number] = name, await read_document(item.data, item.media_type)
        except InputError as error:
            failed[number] = error
    sizes = {number: whole_size(document) for number, (_name, document) in found.items()}
    sizes |= {number: len(text.encode("utf-8", "replace")) for number, (_name, text) in quoted.items()}
    for number, is_whole in zip(sizes, are_whole(list(sizes.values()), room), strict=True):
        if number in quoted and is_whole:
            room -= sizes[number]
        elif number in quoted:
            name, text = quoted[number]
            try:
                found[number] = name, await read_text_file(name, text)
            except InputError as error:
                failed[number] = error
    return DocumentsRead(question, max(MIN_BYTES, room), found, failed)


async def fit_documents(documents: Sequence[Document], question: str, room: int) -> list[Excerpt]:
    """Return what the model gets of each document together with the question, if all have `room` bytes."""
    # The ranking of a long text takes a second.
    return await RANKING.run(_fitted, tuple(documents), question, room) if documents else []


def _fitted(documents: tuple[Document, ...], question: str, room: int) -> list[Excerpt]:
    """Return `excerpts`. Those of earlier messages, which each request contains again, are kept in memory."""
    digest = sha256(json.dumps([question, room, *map(astuple, documents)]).encode()).digest()
    if (known := _kept.get(digest)) is None:
        known = _kept[digest] = excerpts(documents, question, room)
        while len(_kept) > MAX_KEPT:
            _kept.pop(next(iter(_kept)), None)
    return known


async def with_document_texts(items: Sequence[Any], spec: ModelSpec, *, refuse: bool, texts: bool = True) -> list[Any]:
    """Return the parts of a message with the text of each document that the model cannot take.

    A text file that is too long becomes passages, too; without `texts`, only if it is a file and no quoted text.
    A short text replaces a document that cannot be read. With `refuse`, it raises `InputError` instead.
    """
    out = list(items)
    read = await documents_in(items, spec, texts=texts)
    for number, error in read.failed.items():
        kind = items[number].media_type if isinstance(items[number], BinaryContent) else TEXT
        if refuse:
            raise refused("unread_document", model=spec.label, kind=kind, reason=error.text) from error
        out[number] = UNREAD.format(kind=kind, why=error)
    for number, excerpt in (await read.fitted()).items():
        name, document = read.found[number]
        out[number] = document_text(name, document, excerpt).content
    return out
