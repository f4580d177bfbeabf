"""The title of a conversation until it gets another one: the first words of its message, or the names of its files."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pydantic_ai.messages import AudioUrl, BinaryContent, DocumentUrl, ImageUrl

from agent.history import Entry, HistoryStore, Record
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


_NUMBERED = re.compile(r"(?P<name>.*\S) \((?P<number>[2-9]|[1-9]\d)\)", re.DOTALL)


def without_number(title: str) -> str:
    """Return the title without the number at its end."""
    found = _NUMBERED.fullmatch(title)
    return found["name"] if found else title


def next_title(title: str, others: Iterable[str]) -> str:
    """Return the title with the number that follows the highest one of `others` with the same name, and 1 for none."""
    name = without_number(title)
    numbers = [_number_of(other) for other in (title, *others) if without_number(other) == name]
    return f"{name} ({max(numbers) + 1})"


class NumberedTitles:
    """The titles of chats that there were before an import. Owns the highest number of each name."""

    def __init__(self, titles: Collection[str]) -> None:
        self._taken, self._highest = frozenset(titles), dict[str, int]()
        for title in titles:
            self._count(title)

    def title_for(self, title: str) -> str:
        """Return the title of an imported chat: with the next number if there was a chat with this one."""
        if title in self._taken:
            name = without_number(title)
            title = f"{name} ({self._highest[name] + 1})"
        self._count(title)
        return title

    def _count(self, title: str) -> None:
        name = without_number(title)
        self._highest[name] = max(_number_of(title), self._highest.get(name, 1))


def _number_of(title: str) -> int:
    found = _NUMBERED.fullmatch(title)
    return int(found["number"]) if found else 1


# The title of a conversation when another message takes the place of its first one: an edit, an undo, another version.
#
# A title that is only the first words of such a message follows. One that somebody or a model wrote stays.


async def rename(store: HistoryStore, record: Record, first: Entry, begins: Sequence[Entry] | None = None) -> str:
    """Let the title of the conversation follow `first`, with which it begins now, and return the title.

    `begins` are all messages with which it has begun. They are read if they are needed and not given.
    """
    words, title = first_words(first), record.title
    if not title or words in ("", title, without_number(title)):
        return title
    earlier = all_first_words(await store.find(record, after=[None]) if begins is None else begins)
    if not earlier & {title, without_number(title)}:
        return title
    return (await store.label(record.id, owner=record.owner, title=words, instead_of=title)).title
