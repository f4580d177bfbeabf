"""A message that was sent, as it was typed and attached: for the composer, when the visitor takes it back."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl

from agent.errors import NotFound
from agent.history import Entry
from agent.media.mime import SUFFIXES
from agent.media.store import ROUTE, MediaStore
from agent.messages.parts import extracted_text_of, is_file_name, text_file_of
from agent.web.chat.transcript import message_content


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of a sent message, with the name under which it was attached, if that was kept."""

    name: str
    data: bytes
    media_type: str


def has_typed_text(entry: Entry) -> bool:
    """Return True if the message begins with a text that the visitor typed, and not with a file."""
    first = next(iter(_parts(entry)), None)
    return isinstance(first, str) and text_file_of(first) is None


def typed_text(entry: Entry) -> str:
    """Return what the visitor typed, without the texts of files and without passages of documents."""
    return "\n\n".join(part for part in _parts(entry) if isinstance(part, str) and text_file_of(part) is None)


async def sent_files(entry: Entry, media: MediaStore, owner: str) -> AsyncGenerator[SentFile]:
    """Yield the files of the message in their order, without those that were deleted.

    A picture or a sound of which only the extracted text was sent is not stored, and so it is not among them.
    """
    parts = _parts(entry)
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, str):
            if (file := text_file_of(part)) is not None:
                yield SentFile(file[0], file[1].encode(), "text/plain")
        elif isinstance(part, ImageUrl | AudioUrl | DocumentUrl) and part.url.startswith(ROUTE):
            try:
                content = await media.read(owner, part.url.removeprefix(ROUTE))
            except NotFound:
                continue
            name = (extracted_text_of(after) or {}).get("name", "") or part.identifier
            suffix = SUFFIXES.get(content.media_type, "bin")
            yield SentFile(name if is_file_name(name) else f"file.{suffix}", content.data, content.media_type)


def _parts(entry: Entry) -> list[Any]:
    content = message_content(entry)
    return [content] if isinstance(content, str) else list(content or ())
