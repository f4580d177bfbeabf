"""The files of a conversation and the search in their texts, by keywords and by vectors.

Files and keywords come from the messages alone. The same messages give the same files and the same order of hits in
every process, and a conversation that is deleted has none.
"""

import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal, cast

from pydantic_ai.messages import BinaryContent, FilePart, ModelMessage, ModelResponse, ToolReturnPart, UserPromptPart

from agent.errors import AgentError, InputError
from agent.files.for_model import is_read_type
from agent.files.kinds import Document
from agent.files.parts import is_file_name, text_file_of
from agent.files.passages import sections_of_text
from agent.files.ranking import CANDIDATES, KeywordIndex, Passage, Vectors, fused, indexed, ranked_both_ways
from agent.files.reading import read_document
from agent.history import PROGRAM
from agent.system.media_types import SUFFIXES
from agent.system.threads import RANKING


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFile:
    """A file of a conversation.

    `origin` is "user" for a file of a prompt, also if it was fetched from a URL, "tool" for a result of the tool
    `tool`, and "model" for what the model made. `size` is in bytes. `owner` is the owner of the stored conversation.
    """

    name: str
    media_type: str
    size: int
    origin: Literal["user", "tool", "model"]
    tool: str = ""
    owner: str = PROGRAM
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A passage that suits a query: its file, the page, slide, sheet or section (`unit`), and its text.

    `found_by` says what found it. Vectors always find something, however far it is from the query.
    """

    file: str
    unit: str
    page: int
    text: str
    found_by: Literal["keywords", "vectors", "both"] = "keywords"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits of a search, the best first.

    `note` says how they were found. `unread` has the reason for each document that could not be read.
    """

    hits: tuple[SearchHit, ...]
    note: str
    unread: Mapping[str, str]


class ChatIndex:
    """The passages of a chat's documents, and their words: kept in memory until the documents are others."""

    def __init__(self) -> None:
        self._documents: tuple[Document, ...] = ()
        self._indexed = indexed(())

    async def of(self, documents: Sequence[Document]) -> tuple[tuple[Passage, ...], KeywordIndex]:
        """Return the passages of these documents, and their words. New documents take a second for a long text."""
        if self._documents != (given := tuple(documents)):
            found = await RANKING.run(indexed, given)
            self._documents, self._indexed = given, found
            return found
        return self._indexed


def files_in(messages: Iterable[ModelMessage]) -> dict[str, ChatFile]:
    """Return the files in these messages by name, the earliest first. A file that comes again is listed once."""
    found: dict[str, ChatFile] = {}
    seen: set[tuple[str, bytes]] = set()
    for file in (file for message in messages for file in _files_of(message)):
        if (file.name, file.data) in seen:
            continue
        seen.add((file.name, file.data))
        name, path, number = file.name or _unnamed(file, 1), PurePath(file.name), 1
        while name in found:
            number += 1
            name = f"{path.stem} ({number}){path.suffix}" if file.name else _unnamed(file, number)
        found[name] = replace(file, name=name)
    return found


async def search_files(
    files: Iterable[ChatFile], query: str, *, limit: int, index: ChatIndex, vectors: Vectors | None = None
) -> SearchResult:
    """Return the passages of these files that suit the query best, at most `limit`. Raises `InputError`.

    The `index` keeps the words of the files for the next search.
    """
    if not query.strip():
        raise InputError("the query is empty")
    if limit < 1:
        raise InputError(f"limit must be at least 1, not {limit!r}")
    read: list[tuple[str, Document]] = []
    unread: dict[str, str] = {}
    for file in files:
        try:
            if (document := await _document(file)) is not None:
                read.append((file.name, document))
        except AgentError as error:
            unread[file.name] = str(error)
    passages, keywords = await index.of([document for _name, document in read])
    most = max(limit, CANDIDATES)
    by_keywords, by_vectors, note = await ranked_both_ways(vectors, passages, keywords, query, most)
    hits: list[SearchHit] = []
    for at in fused(by_keywords, by_vectors)[:limit]:
        name, document = read[passages[at].document]
        way = "both" if at in by_keywords and at in by_vectors else "keywords" if at in by_keywords else "vectors"
        hits.append(SearchHit(name, document.unit, passages[at].page, passages[at].text, way))
    return SearchResult(tuple(hits), note, unread)


async def _document(file: ChatFile) -> Document | None:
    """Return the text of a file, or None for a picture, a sound and other files without text."""
    if is_read_type(file.media_type):
        return await read_document(file.data, file.media_type)
    if file.media_type.startswith("text/"):
        return sections_of_text(file.data.decode("utf-8", "replace"))
    return None


def _files_of(message: ModelMessage) -> Iterator[ChatFile]:
    if isinstance(message, ModelResponse):
        for part in message.parts:
            if isinstance(part, FilePart):
                yield _file(part.content, "model")
        return
    for part in message.parts:
        if isinstance(part, UserPromptPart):
            for item in [part.content] if isinstance(part.content, str) else part.content:
                if isinstance(item, BinaryContent):
                    yield _file(item, "user")
                elif file := text_file_of(item):
                    name, data = file[0], file[1].encode("utf-8", "replace")
                    yield ChatFile(name=name, media_type=_text_type(name), size=len(data), origin="user", data=data)
        elif isinstance(part, ToolReturnPart):
            content: Any = part.content
            for item in cast(list[Any], content) if isinstance(content, list) else [content]:
                if isinstance(item, BinaryContent):
                    yield _file(item, "tool", part.tool_name)


def _file(content: BinaryContent, origin: Literal["user", "tool", "model"], tool: str = "") -> ChatFile:
    name = PurePath(content.identifier).name if is_file_name(content.identifier) else ""
    size, data = len(content.data), content.data
    return ChatFile(name=name, media_type=content.media_type, size=size, origin=origin, tool=tool, data=data)


def _text_type(name: str) -> str:
    guessed = mimetypes.guess_type(name)[0] or ""
    return guessed if guessed.startswith("text/") else "text/plain"


def _unnamed(file: ChatFile, number: int) -> str:
    """Return a name for a file without one: "image-1.png"."""
    suffix = SUFFIXES.get(file.media_type) or (mimetypes.guess_extension(file.media_type) or ".bin").lstrip(".")
    return f"{file.media_type.partition('/')[0]}-{number}.{suffix}"
