"""The title of a conversation until it gets another one: the first words of its message, or the names of its files."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_ai.messages import AudioUrl, BinaryContent, DocumentUrl, ImageUrl

from agent.history import Entry
from agent.media.store import is_id
from agent.messages.parts import extracted_text_of, is_file_name, quoted_file_name
from agent.transfer.document import beginning
from agent.web.chat.transcript import content_parts, has_visible, message_text


def first_words(entry: Entry) -> str:
    """Return the title of a conversation that begins with this message, until it gets another one.

    These are the words that were typed, without the texts of files. Without words, they are the names of the files.
    """
    parts = content_parts(entry)
    typed = [part for number, part in enumerate(parts) if isinstance(part, str) and _file_name(part, number) is None]
    return _title(typed) or _title([", ".join(dict.fromkeys(filter(None, _names(parts))))])


def all_first_words(entries: Iterable[Entry]) -> set[str]:
    """Return the first words of each message with which the conversation of all these entries has begun."""
    return {first_words(entry) for entry in entries if entry.parent_id is None}


def words_with_files(entry: Entry) -> str:
    """Return the title that `first_words` once gave to this message: with the texts of its files. "" if it has none.

    Such titles are still stored, and must be in no link that leaves the files out.
    """
    has_file = any(
        isinstance(part, str) and _file_name(part, at) is not None for at, part in enumerate(content_parts(entry))
    )
    return _title([message_text(entry)]) if has_file else ""


def _title(texts: Iterable[str]) -> str:
    words = beginning(" ".join(texts))
    return words if has_visible(words) else ""


def _file_name(text: str, number: int) -> str | None:
    """Return the name of a text file, or None. The first text can also be typed: "Mend this:" with code looks alike."""
    name = quoted_file_name(text)
    return None if name is None or (number == 0 and not is_file_name(name)) else name


def _names(parts: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the files. What was read from a file stands after it, and knows its name."""
    for number, (part, after) in enumerate(zip(parts, [*parts, None][1:], strict=True)):
        if isinstance(part, str):
            yield _file_name(part, number) or ""
        elif (read := extracted_text_of(part)) is not None:
            yield "" if "earlier" in read else read.get("name", "")
        elif isinstance(part, ImageUrl | AudioUrl | DocumentUrl | BinaryContent) and extracted_text_of(after) is None:
            yield part.identifier if is_file_name(part.identifier) and not is_id(part.identifier) else ""
