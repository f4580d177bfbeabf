"""A message that was sent, as it was typed and attached: for the composer, when the visitor takes it back."""

import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl

from agent.errors import NotFound
from agent.files.parts import extracted_text_of, is_file_name, text_file_of
from agent.files.store import ROUTE, MediaStore, is_id
from agent.history import Entry
from agent.system.media_types import SUFFIXES
from agent.web.chat.transcript import content_parts


@dataclass(frozen=True, slots=True)
class MessageId:
    """The id of a message, "" if the server gives it one.

    `again`: the page has sent it before and got no answer, for example because the process ended meanwhile. It may be
    stored already.
    """

    value: str = ""
    again: bool = False

    def conversation(self, owner: str) -> str:
        """Return the id of the conversation that this message of the owner begins. Nobody else can guess it."""
        return hashlib.sha256(f"{owner}\n{self.value}".encode()).hexdigest()[:32]

    def for_models(self, count: int) -> tuple[str, ...]:
        """Return the ids of the messages to so many models. All follow from this id, so that each is found again."""
        others = (hashlib.sha256(f"{self.value}\n{number}".encode()).hexdigest()[:32] for number in range(1, count))
        return (self.value, *others)


NO_MESSAGE_ID = MessageId()


STORED = (ImageUrl, AudioUrl, DocumentUrl)
"""The parts of a message that stand for stored files."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file for the composer, of a sent message or from a link, with the name under which it was attached."""

    name: str
    data: bytes
    media_type: str


def has_typed_text(entry: Entry) -> bool:
    """Return True if the message begins with a text that the visitor typed, and not with a file."""
    first = next(iter(content_parts(entry)), None)
    return isinstance(first, str) and text_file_of(first) is None


def typed_text(entry: Entry) -> str:
    """Return what the visitor typed, without the texts of files and without passages of documents."""
    return "\n\n".join(part for part in content_parts(entry) if isinstance(part, str) and text_file_of(part) is None)


def count_files(entry: Entry) -> int:
    """Return how many files the message has."""
    return sum(isinstance(part, STORED) or text_file_of(part) is not None for part in content_parts(entry))


def attached_name(file: ImageUrl | AudioUrl | DocumentUrl, after: object) -> str:
    """Return the name under which the visitor attached a stored file, or "" if it was stored without one.

    `after` is the next part of the message. The text that was extracted from the file knows its name, too.
    """
    if name := (extracted_text_of(after) or {}).get("name"):
        return name
    named = file.url.startswith(ROUTE) and not is_id(file.identifier) and is_file_name(file.identifier)
    return file.identifier if named else ""


async def sent_files(entry: Entry, media: MediaStore, owner: str) -> AsyncGenerator[SentFile]:
    """Yield the files of the message in their order, without those that were deleted.

    A picture or a sound of which only the extracted text was sent is not stored, and so it is not among them.
    """
    parts = content_parts(entry)
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, str):
            if (file := text_file_of(part)) is not None:
                yield SentFile(file[0], file[1].encode(), "text/plain")
        elif isinstance(part, STORED) and part.url.startswith(ROUTE):
            try:
                content = await media.read(owner, part.url.removeprefix(ROUTE))
            except NotFound:
                continue
            name = attached_name(part, after) or f"file.{SUFFIXES.get(content.media_type, 'bin')}"
            yield SentFile(name, content.data, content.media_type)
