"""The contents of an import: chats as trees of entries, the files that they link to, and what is left out.

Knows the history and the media store, no web page and no other program.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    UploadedFile,
    VideoUrl,
)
from pydantic_core import to_json

from agent.files.store import ROUTE, is_id, new_file_id, type_of_id
from agent.history import ALL_BAD, MOST_MODELS, TIE, Conversation, Entry, Folder, Note, Vote, new_id
from agent.i18n.text import LocalizedText, Plural, ngettext_noop
from agent.messages.repair import text_bytes

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


MAX_TITLE, MAX_SUMMARY = 200, 20_000
"""Characters of the title and of the summary of a chat."""
MAX_BRANCHES, MAX_PENDING, MAX_NAME, MAX_VOTES = 1000, 100, 500, 100
"""The branches whose ends are known, the calls that wait, the characters of a name in a conversation, and its votes."""


def bounded(conversation: Conversation) -> Conversation:
    """Return an imported conversation without what is too long, because a list reads many conversations at once."""
    summary, pending = conversation.summary, conversation.pending
    if len(conversation.branches) > MAX_BRANCHES:
        conversation = replace(conversation, branches=tuple(dict.fromkeys(conversation.branches))[-MAX_BRANCHES:])
    if len(pending) > MAX_PENDING or any(len(one) > MAX_NAME for one in pending):
        conversation = replace(conversation, pending=())
    if summary is not None and (len(summary.text) > MAX_SUMMARY or len(summary.model) > MAX_NAME):
        conversation = replace(conversation, summary=None)
    votes = tuple(islice(filter(_is_vote, conversation.votes), MAX_VOTES))
    conversation = replace(conversation, votes=votes)
    source = conversation.source if len(conversation.source) <= MAX_NAME else ""
    return replace(conversation, title=conversation.title[:MAX_TITLE], source=source)


def _is_vote(vote: Vote) -> bool:
    choices = (*map(str, range(len(vote.models))), TIE, ALL_BAD)
    return (
        1 < len(vote.models) <= MOST_MODELS
        and vote.choice in choices
        and all(len(one) <= MAX_NAME for one in vote.models)
    )


FindFile = Callable[[str], FileSource | None]
"""Returns the file that an export has under an id or name, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConversation:
    """A conversation in the form of the history, without an owner, and with new ids.

    `entries` come parents first. `ids` has the ids that they had in our own export, by the new ones. `files` are the
    attachments that they refer to, by their new ids. `folder` has an id of its own, and can be there already.
    """

    conversation: Conversation
    entries: Sequence[Entry]
    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, FileSource] = field(default_factory=dict[str, FileSource])
    left_out: LeftOut = field(default_factory=LeftOut)
    folder: Folder | None = None

    @property
    def file_bytes(self) -> int:
        """The size of all attachments."""
        return sum(source.size for source in self.files.values())


MAX_MESSAGE_BYTES, MAX_MESSAGE_VALUES = 6_000_000, 100_000
"""The JSON of the longest message, and the most values in one. No other thread can run while it is read or written."""


def check_length(*values: Any) -> None:
    """Raise `ValueError` if these values of a message are longer than a message may be."""
    waiting, count, size = [*values], 0, 0
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, str):
            size += _json_bytes(value)
        elif isinstance(value, dict):
            waiting += [*cast("dict[Any, Any]", value).items()]
        elif isinstance(value, list | tuple):
            waiting += cast("Sequence[Any]", value)
        if count + len(waiting) > 3 * MAX_MESSAGE_VALUES or size > MAX_MESSAGE_BYTES:
            raise ValueError("a message is too long")


def _json_bytes(text: str) -> int:
    """Return the bytes of a text in JSON, or half as much again if it is not ASCII, because that takes longer."""
    if len(text) > MAX_MESSAGE_BYTES:
        return len(text)
    try:
        size = len(to_json(text))
    except ValueError:  # half of an emoji
        size = text_bytes(text)
    return size if text.isascii() else size * 3 // 2


def total(counts: Iterable[LeftOut]) -> LeftOut:
    """Return the sum of what was left out."""
    return sum(counts, LeftOut())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of another program's tree: the id of its parent, and the messages that it becomes, if any."""

    parent: str | None
    messages: Sequence[tuple[ModelMessage, Note]] = ()


def parents_first(parents: Mapping[str, str | None]) -> dict[str, int]:
    """Return the position of each id in an order in which parents come before their children.

    Raises `ValueError` if a parent is missing, or if ids are their own ancestors.
    """
    children: dict[str | None, list[str]] = {}
    for id_, parent in parents.items():
        if parent is not None and parent not in parents:
            raise ValueError("the parent of an entry is missing")
        children.setdefault(parent, []).append(id_)
    order, waiting = dict[str, int](), list(reversed(children.get(None, [])))
    while waiting:
        id_ = waiting.pop()
        order[id_] = len(order)
        waiting += reversed(children.get(id_, []))
    if len(order) != len(parents):
        raise ValueError("entries are their own ancestors")
    return order


def entry_id(source: str, message: str, number: int = 0) -> str:
    """Return the id of an entry for a message of a chat elsewhere: the same in each import, a new one without `source`.

    `number` counts the entries that the message becomes.
    """
    if not source:
        return new_id()
    return sha256(f"{source}\n{message}\n{number}".encode("utf-8", "replace")).hexdigest()[:32]


def entries_of(
    nodes: Mapping[str, Node], current: str | None, source: str
) -> tuple[list[Entry], str | None, tuple[str, ...]]:
    """Return the entries of a tree, the end of the branch with the node `current`, and the ends of the others.

    A node begins a branch if its parent is missing, or if it would be its own ancestor. Without `current`, the branch
    with the newest message is the first.
    """
    parents = _without_loops({id_: node.parent if node.parent in nodes else None for id_, node in nodes.items()})
    entries, last = list[Entry](), dict[str, str | None]()
    for id_ in parents_first(parents):
        parent = parents[id_]
        before = None if parent is None else last[parent]
        for number, (message, note) in enumerate(nodes[id_].messages):
            new = entry_id(source, id_, number)
            entries.append(Entry(id=new, parent_id=before, message=message, note=note))
            before = entries[-1].id
        last[id_] = before
    inner = {entry.parent_id for entry in entries}
    ends = [entry.id for entry in entries if entry.id not in inner]
    head = last.get(current) if current is not None else None
    if head is None and ends:
        times = {entry.id: entry.note.at for entry in entries}
        head = max(ends, key=lambda end: times[end])
    return entries, head, tuple(end for end in ends if end != head)


def _without_loops(parents: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the parents of nodes, without one in each loop."""
    kept, done = dict(parents), set[str | None]([None])
    for id_ in parents:
        path, at = dict[str | None, None](), id_
        while at not in done and at is not None:
            path[at] = None
            if (parent := kept[at]) in path and parent is not None:
                kept[parent] = None
                break
            at = parent
        done.update(path)
    return kept


class FileLinks:
    """The links of one conversation. `files` are the files that were found, by their new ids.

    `ids` are new ids that are known. They are final when a file is stored, because they are made from its bytes.
    """

    def __init__(self, find: FindFile, ids: Mapping[str, str] | None = None) -> None:
        self._find = find
        self._ids = dict(ids or {})
        self.files, self.left_out = dict[str, FileSource](), LeftOut()

    def renewed(self, message: ModelMessage) -> ModelMessage:
        """Return the message with new ids of files. The digests of tool results are made anew when it is stored."""
        parts: list[Any] = []
        for part in message.parts:
            content: Any = getattr(part, "content", None)
            if isinstance(part, FilePart):
                kept = self._file(part.content)
                parts.append(part if kept is content else replace(part, content=kept))
            elif content is None or isinstance(content, str):
                parts.append(part)
            else:
                new = self._value(content)
                parts.append(replace(cast(Any, part), content=new) if new != content else part)
        return cast(ModelMessage, replace(cast(Any, message), parts=parts))

    def renewed_entry(self, entry: Entry) -> Entry:
        """Return the entry with new ids of files in its message and note."""
        attachments = tuple(self.new_id(id_) for id_ in entry.note.attachments if is_id(id_))
        return replace(entry, message=self.renewed(entry.message), note=replace(entry.note, attachments=attachments))

    def new_id(self, id_: str) -> str:
        """Return the new id of a file. Without the file it is an id that no file has, and the link is dead."""
        if id_ not in self._ids:
            self._ids[id_] = new_file_id(type_of_id(id_))
            source = self._find(id_)
            if source is None:
                self.left_out[MISSING_FILE] += 1
            else:
                self.files[self._ids[id_]] = source
        return self._ids[id_]

    def _value(self, value: Any) -> Any:
        """Return a value of a prompt or tool result, whose depth was limited when it was parsed."""
        match value:
            case ImageUrl() | AudioUrl() | DocumentUrl():
                return self._link(value)
            case VideoUrl() | UploadedFile():
                self.left_out[UNKNOWN_PART] += 1
                return ""
            case list() | tuple():
                return [self._value(one) for one in cast(Sequence[Any], value)]
            case dict():
                return {name: self._value(one) for name, one in cast(Mapping[str, Any], value).items()}
            case _:
                return value

    def _link(self, link: ImageUrl | AudioUrl | DocumentUrl) -> Any:
        id_ = link.url.removeprefix(ROUTE)
        if not link.url.startswith(ROUTE) or not is_id(id_):
            self.left_out[FOREIGN_LINK] += 1
            return link.url
        return type(link)(ROUTE + self.new_id(id_), media_type=link.media_type, identifier=link.identifier)

    def _file(self, content: BinaryContent) -> BinaryContent:
        if content.data or not is_id(content.identifier):
            return content
        renewed = BinaryContent(b"", media_type=content.media_type, identifier=self.new_id(content.identifier))
        return BinaryContent.narrow_type(renewed)
