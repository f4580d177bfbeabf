"""Export and import of conversations: values in, values out. Knows the history and the media store, no web page."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.history import Conversation, Entry
from agent.i18n.text import LocalizedText, Plural, ngettext_noop

MISSING_FILE = "missing file"
UNUSABLE_FILE = "unusable file"
FOREIGN_LINK = "foreign link"
UNKNOWN_PART = "unknown part"
INTERNAL_MESSAGE = "internal message"
UNKNOWN_SENDER = "message by nobody known"
FAILED_ANSWER = "failed answer"
ARCHIVED = "archived state"
FOLDER = "folder"
TAGS = "tags"
RATING = "rating"
BUSY_CHAT = "busy chat"
DAMAGED = "damaged chat"
EMPTY = "empty chat"

LEFT_OUT: Mapping[str, Plural] = {
    DAMAGED: ngettext_noop("{count} damaged chat", "{count} damaged chats"),
    EMPTY: ngettext_noop("{count} empty chat", "{count} empty chats"),
    MISSING_FILE: ngettext_noop(
        "{count} attachment that is not in the file", "{count} attachments that are not in the file"
    ),
    UNUSABLE_FILE: ngettext_noop(
        "{count} attachment that is too large or of another type than pictures, sound and text",
        "{count} attachments that are too large or of other types than pictures, sound and text",
    ),
    FOREIGN_LINK: ngettext_noop("{count} link to a file elsewhere", "{count} links to files elsewhere"),
    UNKNOWN_PART: ngettext_noop("{count} part of an unknown kind", "{count} parts of unknown kinds"),
    INTERNAL_MESSAGE: ngettext_noop("{count} hidden message", "{count} hidden messages"),
    UNKNOWN_SENDER: ngettext_noop("{count} message of an unknown sender", "{count} messages of unknown senders"),
    FAILED_ANSWER: ngettext_noop("{count} answer that failed", "{count} answers that failed"),
    ARCHIVED: ngettext_noop("the mark of {count} archived chat", "the marks of {count} archived chats"),
    FOLDER: ngettext_noop("the folder of {count} chat", "the folders of {count} chats"),
    TAGS: ngettext_noop("the tags of {count} chat", "the tags of {count} chats"),
    RATING: ngettext_noop("the rating of {count} answer", "the ratings of {count} answers"),
    BUSY_CHAT: ngettext_noop(
        "the new messages of {count} chat in which an answer is being written",
        "the new messages of {count} chats in which answers are being written",
    ),
}
"""The kinds of things that an import can leave out, each with the words for one and for many."""

LeftOut = Counter[str]
"""The number of things of each kind in `LEFT_OUT` that were left out."""


def left_out_texts(left_out: LeftOut) -> list[LocalizedText]:
    """Return one text for each kind of things that were left out."""
    found = [(words, left_out[kind]) for kind, words in LEFT_OUT.items() if left_out[kind]]
    return [LocalizedText(one, {"count": count}, many) for (one, many), count in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """A file in an export: its media type as its bytes show it ("" if unknown), its size, and how to read it."""

    name: str
    media_type: str
    size: int
    read: Callable[[], bytes]


FindFile = Callable[[str], FileSource | None]
"""Returns the file that an export has under an id or name, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConversation:
    """A conversation in the form of the history, without an owner, and with new ids.

    `entries` come parents first. `ids` has the ids that they had in our own export, by the new ones. `files` are the
    attachments that they refer to, by their new ids.
    """

    record: Conversation
    entries: Sequence[Entry]
    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, FileSource] = field(default_factory=dict[str, FileSource])
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def file_bytes(self) -> int:
        """The size of all attachments."""
        return sum(source.size for source in self.files.values())


def total(counts: Iterable[LeftOut]) -> LeftOut:
    """Return the sum of what was left out."""
    return sum(counts, LeftOut())
