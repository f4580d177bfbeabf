"""Typed access to parsed JSON of unknown shape, and the parts of messages that all readers make."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    Citation,
    CitationSource,
    ContentCitationAnchor,
    DocumentCitationSource,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    WebCitationSource,
)

from agent.citations import is_page
from agent.errors import InputError
from agent.files.encodings import decode_text
from agent.files.parts import attached_text
from agent.files.store import ROUTE, new_file_id
from agent.history import Conversation, Entry, Note, now
from agent.transfer.imported import (
    ARCHIVED,
    EMPTY,
    FOLDER,
    MAX_TITLE,
    MISSING_FILE,
    TAGS,
    UNUSABLE_FILE,
    FileSource,
    FindFile,
    ImportedConversation,
    LeftOut,
    Node,
    entries_of,
)

Messages = list[tuple[ModelMessage, Note]]
"""Messages in their order, each with its note."""
PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif")
SOUNDS = ("audio/wav", "audio/mpeg", "audio/ogg", "audio/flac")
MAX_SOURCE = 200
MAX_SECONDS = 1e11
"""A larger time is in milliseconds, microseconds or nanoseconds."""
MAX_CITATIONS, MAX_ADDRESS, MAX_EXCERPT = 1_000, 2_000, 2_000
"""The most sources that a text cites, and characters of an address and an excerpt: each source is stored as a copy."""
MAX_QUOTED = 200_000
"""The most characters of a text file that becomes part of a message."""
_UNKNOWN = datetime.min.replace(tzinfo=UTC)
"""The time of a message without one, until it gets the time of the message before it."""
_MAX_NUMBER = 2**64
_SENDERS = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant", "developer": "system"}
_ENDS = " \t\n.,;:!?)"
"""Characters before which there is no space."""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is an object, otherwise an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a list, or the one object that stands in place of a list."""
    if isinstance(value, dict):
        return [cast("dict[str, Any]", value)]
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", one) for one in found if isinstance(one, dict)]


def text(value: Any) -> str:
    """Return the value if it is a string, the digits of a number, otherwise ""."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if abs(value) < _MAX_NUMBER else ""
    return value if isinstance(value, str) else ""


def texts(value: Any) -> list[str]:
    """Return the texts that are not empty in a text, in a list, or in an object with a `text` or `content`."""
    if isinstance(value, list):
        return [found for one in cast("list[Any]", value) for found in texts(one)]
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return [found for name in ("text", "content") if (found := text(given.get(name))).strip()][:1]
    return [text(value)] if text(value).strip() else []


def sender(value: Any) -> str:
    """Return "user", "assistant", "system" or "tool", or what else a message calls its sender."""
    name = text(value).strip().lower()
    return _SENDERS.get(name, name)


def moment(value: Any) -> datetime | None:
    """Return a time given as a number since 1970, of seconds or smaller units, or as text, or None."""
    try:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                found = datetime.fromisoformat(value.strip().removesuffix(" UTC"))
                found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
                return min(found, now()) if found.year > 1 else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            value = next((value / unit for unit in (1, 1e3, 1e6, 1e9) if value / unit <= MAX_SECONDS), value)
            return min(datetime.fromtimestamp(value, UTC), now())
    except (ValueError, OverflowError, OSError):
        pass
    return None


def source_of(program: str, element: Mapping[str, Any], *names: str) -> str:
    """Return `Conversation.source` of a chat: its id in the first of these fields, or a digest of it if it has none."""
    id_ = next((found for name in names if (found := text(element.get(name)).strip())), "")
    if not id_ or len(id_) > MAX_SOURCE:
        digest = sha256()
        # Piece by piece, because no other thread can run while `json.dumps` writes a long element.
        for piece in [id_] if id_ else json.JSONEncoder(sort_keys=True).iterencode(element):
            digest.update(piece.encode("utf-8", "replace"))
        id_ = digest.hexdigest()
    return f"{program}:{id_.encode('utf-8', 'replace').decode()}"


def count_labels(element: Mapping[str, Any], left_out: LeftOut, *folders: str) -> None:
    """Count the labels of a chat that no chat has here. `folders` are the fields that can name its folder."""
    labels = {
        ARCHIVED: element.get("archived") is True or element.get("is_archived") is True,
        FOLDER: any(text(element.get(name)) or mapping(element.get(name)) for name in folders),
        TAGS: _are_listed(element.get("tags")) or _are_listed(mapping(element.get("meta")).get("tags")),
    }
    left_out.update(kind for kind, label in labels.items() if label)


def _are_listed(tags: Any) -> bool:
    """Return True for a list with at least one tag, which can be a name or an object."""
    return isinstance(tags, list) and any(cast("list[Any]", tags))


class Attachments:
    """Finds the attachments of one conversation in the export. Counts those that cannot be imported."""

    def __init__(self, find: FindFile, left_out: LeftOut) -> None:
        self._find, self._left_out = find, left_out
        self._ids = dict[str, str]()
        self.files = dict[str, FileSource]()

    def part(self, *names: str) -> UserContent | None:
        """Return the part of a prompt for the first file that the export has under one of these names."""
        source = next((found for name in names if (found := self._find(name)) is not None), None)
        if source is None:
            self._left_out[MISSING_FILE] += 1
            return None
        return self.part_of(source)

    def part_of(self, source: FileSource) -> UserContent | None:
        """Return the part of a prompt for a picture, a sound or a text; None for any other file."""
        if source.media_type in PICTURES:
            return ImageUrl(ROUTE + self._id(source), media_type=source.media_type)
        if source.media_type in SOUNDS:
            return AudioUrl(ROUTE + self._id(source), media_type=source.media_type)
        if not source.media_type and 0 < source.size <= 4 * MAX_QUOTED:
            with suppress(InputError):
                if text := decode_text(source.read()):
                    return quoted(source.name, text[0])
        self._left_out[UNUSABLE_FILE] += 1
        return None

    def _id(self, source: FileSource) -> str:
        if source.name not in self._ids:
            self._ids[source.name] = new_file_id(source.media_type)
            self.files[self._ids[source.name]] = source
        return self._ids[source.name]


def web_source(given: Mapping[str, Any], *excerpts: str) -> WebCitationSource | None:
    """Return the source of a citation in an object with an address and a title, or None if it is no web page."""
    url = text(given.get("url")) or text(given.get("link"))
    if len(url) > MAX_ADDRESS or not is_page(url):
        return None
    kept = [excerpt[:MAX_EXCERPT] for excerpt in (*excerpts, text(given.get("snippet"))) if excerpt.strip()]
    return WebCitationSource(url, title=text(given.get("title"))[:MAX_TITLE] or None, excerpts=kept)


def document_source(title: str, id_: str = "", *excerpts: str) -> DocumentCitationSource | None:
    """Return the source of a citation of a document, or None if nothing is known of it."""
    kept = [excerpt[:MAX_EXCERPT] for excerpt in excerpts if excerpt.strip()]
    if not (title or id_ or kept):
        return None
    return DocumentCitationSource(document_id=id_[:MAX_TITLE] or None, title=title[:MAX_TITLE] or None, excerpts=kept)


Meaning = tuple[str, Sequence[CitationSource | None]]
"""The words that take the place of a mark in a text, and the sources that it cites."""


def cited(
    written: str, marks: re.Pattern[str], read: Callable[[re.Match[str]], Meaning], *more: CitationSource | None
) -> TextPart | None:
    """Return the text without these marks, which become citations; None if nothing is left of it.

    `more` are sources that no place in the text cites.
    """
    pieces, length, at, citations, room = list[str](), 0, 0, list[Citation](), MAX_CITATIONS
    for mark in marks.finditer(written):
        words, given = read(mark)
        before, at = written[at : mark.start()], mark.end()
        if not words and written[at : at + 1] in _ENDS:
            before = before.rstrip(" \t")
        pieces += [before, words]
        length += len(before) + len(words)
        if sources := [source for source in given if source is not None][:room]:
            room -= len(sources)
            line = max(before.rfind("\n") + 1 + length - len(before) - len(words), 0) if "\n" in before else 0
            start = max(line, citations[-1].anchor.end if citations and citations[-1].anchor else 0)
            start = start if start < length else length - 1
            citations.append(
                Citation(sources, anchor=ContentCitationAnchor(start=start, end=length) if length else None)
            )
    pieces.append(written[at:])
    citations += [Citation([source]) for source in more if source is not None][:room]
    content = "".join(pieces)
    return TextPart(content, citations=citations or None) if content.strip() else None


def unmarked(written: str, marks: re.Pattern[str], read: Callable[[re.Match[str]], Meaning]) -> str:
    """Return the text without these marks where nothing can be cited."""
    part = cited(written, marks, read)
    return part.content if part else ""


def made_by_model(part: UserContent | None) -> FilePart | None:
    """Return the part of an answer for a picture or sound that the model made, given its part of a prompt."""
    if not isinstance(part, ImageUrl | AudioUrl):
        return None
    content = BinaryContent(b"", media_type=part.media_type, identifier=part.url.removeprefix(ROUTE))
    return FilePart(BinaryContent.narrow_type(content))


def quoted(name: str, content: str) -> str:
    """Return a text file as the page puts it into a message."""
    return attached_text(name, content[:MAX_QUOTED])


def prompt(parts: Sequence[UserContent | None], at: datetime | None) -> list[tuple[ModelMessage, Note]]:
    """Return the visitor's message with these parts; nothing if there are none.

    Its note ends the turn, in case no answer follows: an answer's note replaces it.
    """
    kept = [part for part in parts if part is not None and not (isinstance(part, str) and not part.strip())]
    if not kept:
        return []
    content = kept[0] if len(kept) == 1 and isinstance(kept[0], str) else kept
    time = at or _UNKNOWN
    return [(ModelRequest([UserPromptPart(content, timestamp=time)]), Note(ended="cancelled", at=time))]


def answer(
    parts: Sequence[ModelResponsePart | None], model: str, at: datetime | None
) -> list[tuple[ModelMessage, Note]]:
    """Return the model's message with these parts; nothing if there are none."""
    kept = [part for part in parts if part is not None]
    if not kept:
        return []
    time = at or _UNKNOWN
    message = ModelResponse(kept, model_name=model or None, timestamp=time)
    return [(message, Note(model=model, ended="stop", at=time))]


def tool_result(part: ToolReturnPart, at: datetime | None) -> tuple[ModelMessage, Note]:
    """Return the message with the result of a tool."""
    time = at or _UNKNOWN
    return ModelRequest([replace(part, timestamp=time)]), Note(ended="stop", at=time)


def conversation(
    nodes: Mapping[str, Node],
    current: str | None,
    attachments: Attachments,
    left_out: LeftOut,
    *,
    source: str,
    title: str,
    created: datetime | None,
    updated: datetime | None,
    pinned: bool = False,
) -> ImportedConversation | None:
    """Return the conversation of a tree, or None and the count if it has no messages."""
    entries, head, branches = entries_of(nodes, current, source)
    if not entries:
        left_out[EMPTY] += 1
        return None
    times = [entry.note.at for entry in entries if entry.note.at != _UNKNOWN]
    first = created or min([*times, updated or now()])
    conversation = Conversation(
        owner="",
        title=title,
        pinned=pinned,
        head_id=head,
        branches=branches,
        created_at=first,
        updated_at=updated or max([*times, first]),
        source=source,
        imported_at=now(),
    )
    entries = [*_timed(entries, first)]
    return ImportedConversation(conversation=conversation, entries=entries, files=attachments.files, left_out=left_out)


def _timed(entries: Sequence[Entry], first: datetime) -> Iterator[Entry]:
    """Yield the entries, in which a message without a time has that of the message before it."""
    times = dict[str | None, datetime]()
    for entry in entries:
        at = times[entry.id] = times.get(entry.parent_id, first) if entry.note.at == _UNKNOWN else entry.note.at
        yield (
            entry
            if entry.note.at == at
            else replace(entry, message=_with_time(entry.message, at), note=replace(entry.note, at=at))
        )


def _with_time(message: ModelMessage, at: datetime) -> ModelMessage:
    if isinstance(message, ModelResponse):
        return replace(message, timestamp=at)
    kinds = UserPromptPart | ToolReturnPart
    return replace(
        message, parts=[replace(part, timestamp=at) if isinstance(part, kinds) else part for part in message.parts]
    )
