"""Decides what a model gets of the documents in a message: the file itself, its text, or passages of the text."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from hashlib import sha256
from typing import Any, TypeGuard

from pydantic_ai.messages import BinaryContent, TextContent

from agent.documents.kinds import PDF, SUFFIXES, TEXT, Document
from agent.documents.passages import Excerpt, excerpts
from agent.documents.reading import read_document
from agent.errors import InputError
from agent.media.sentences import refused
from agent.messages.parts import document_text, has_suffix
from agent.models.catalog import ModelSpec

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


async def fit_documents(documents: Sequence[Document], question: str, spec: ModelSpec) -> list[Excerpt]:
    """Return what the model gets of each document together with the question."""
    room = document_room(spec, question)
    # The ranking of a long text takes a second.
    return await asyncio.to_thread(_fitted, tuple(documents), question, room)


def _fitted(documents: tuple[Document, ...], question: str, room: int) -> list[Excerpt]:
    """Return `excerpts`. Those of earlier messages, which each request contains again, are kept in memory."""
    digest = sha256(json.dumps([question, room, *map(astuple, documents)]).encode()).digest()
    if (known := _kept.get(digest)) is None:
        known = _kept[digest] = excerpts(documents, question, room)
        while len(_kept) > MAX_KEPT:
            _kept.pop(next(iter(_kept)), None)
    return known


async def with_document_texts(items: Sequence[Any], spec: ModelSpec, *, refuse: bool) -> list[Any]:
    """Return the parts of a message with the text of each document that the model cannot take.

    A short text replaces a document that cannot be read. With `refuse`, it raises `InputError` instead.
    """
    out = list(items)
    read: dict[int, Document] = {}
    for number, item in enumerate(items):
        if not isinstance(item, BinaryContent) or not is_document(item) or takes_document(spec, item.media_type):
            continue
        try:
            read[number] = await read_document(item.data, item.media_type)
        except InputError as error:
            if refuse:
                raise refused("unread_document", model=spec.label, kind=item.media_type, reason=error.text) from error
            out[number] = UNREAD.format(kind=item.media_type, why=error)
    fitted = await fit_documents(list(read.values()), question_of(items), spec) if read else []
    for (number, document), found in zip(read.items(), fitted, strict=True):
        name = items[number].identifier
        out[number] = document_text(name if has_suffix(name) else "", document, found).content
    return out
