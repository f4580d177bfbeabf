"""Typed access to parsed JSON of unknown shape, and the parts of messages that all readers make."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from agent.documents.encodings import decode_text
from agent.errors import InputError
from agent.history import Note, Record, now
from agent.media.store import ROUTE, new_file_id
from agent.messages.parts import attached_text
from agent.transfer import EMPTY, MISSING_FILE, UNUSABLE_FILE, FileSource, FindFile, ImportedConversation, LeftOut
from agent.transfer.tree import Node, entries_of

Messages = list[tuple[ModelMessage, Note]]
"""Messages in their order, each with its note."""
PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif")
SOUNDS = ("audio/wav", "audio/mpeg", "audio/ogg", "audio/flac")
MAX_TITLE = 200
MAX_SECONDS = 1e11
"""A larger time is in milliseconds."""
MAX_QUOTED = 200_000
"""The most characters of a text file that becomes part of a message."""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is an object, otherwise an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a list."""
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", one) for one in found if isinstance(one, dict)]


def text(value: Any) -> str:
    """Return the value if it is a string, otherwise ""."""
    return value if isinstance(value, str) else ""


def moment(value: Any) -> datetime | None:
    """Return a time given as seconds since 1970 or in ISO 8601, or None."""
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return datetime.fromtimestamp(value / 1000 if value > MAX_SECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


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
    time = at or now()
    return [(ModelRequest([UserPromptPart(content, timestamp=time)]), Note(ended="cancelled", at=time))]


def answer(
    parts: Sequence[ModelResponsePart | None], model: str, at: datetime | None
) -> list[tuple[ModelMessage, Note]]:
    """Return the model's message with these parts; nothing if there are none."""
    kept = [part for part in parts if part is not None]
    if not kept:
        return []
    time = at or now()
    message = ModelResponse(kept, model_name=model or None, timestamp=time)
    return [(message, Note(model=model, ended="stop", at=time))]


def tool_result(part: ToolReturnPart, at: datetime | None) -> tuple[ModelMessage, Note]:
    """Return the message with the result of a tool."""
    return ModelRequest([part]), Note(ended="stop", at=at or now())


def conversation(
    nodes: Mapping[str, Node],
    current: str | None,
    attachments: Attachments,
    left_out: LeftOut,
    *,
    title: str,
    created: datetime | None,
    updated: datetime | None,
) -> ImportedConversation | None:
    """Return the conversation of a tree, or None and the count if it has no messages. Raises `ValueError`."""
    entries, head, branches = entries_of(nodes, current)
    if not entries:
        left_out[EMPTY] += 1
        return None
    time = created or updated or now()
    record = Record(
        owner="",
        title=title[:MAX_TITLE],
        head_id=head,
        branches=branches,
        created_at=time,
        updated_at=updated or time,
    )
    return ImportedConversation(record=record, entries=entries, files=attachments.files, left_out=left_out)
