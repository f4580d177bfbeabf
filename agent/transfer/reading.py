"""Finds the conversations in an export of any known format, and reads one at a time. All calls block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from agent.errors import HistoryError, InputError
from agent.history import Entry
from agent.i18n.text import _
from agent.system.media_types import detect_mime
from agent.transfer.archive import ImportFile
from agent.transfer.imported import DAMAGED, FileSource, FindFile, ImportedConversation, LeftOut, bounded
from agent.transfer.imports.chatgpt import is_chatgpt, read_chatgpt
from agent.transfer.imports.claude import is_claude, read_claude
from agent.transfer.imports.open_webui import is_open_webui, read_open_webui
from agent.transfer.json_elements import MAX_ELEMENT_BYTES, NOT_AN_EXPORT, JsonElements, Span
from agent.transfer.portable import FORMAT, VERSION, decode_file, read_conversation, source_of_ours, stored_size

Reader = Callable[[Mapping[str, Any], FindFile, LeftOut], ImportedConversation | None]
READERS: Sequence[tuple[Callable[[Mapping[str, Any]], bool], Reader]] = (
    (is_chatgpt, read_chatgpt),
    (is_claude, read_claude),
    (is_open_webui, read_open_webui),
)
EntryCheck = Callable[[Sequence[Entry]], object]
"""Raises an exception if the page could not show these entries."""
MAX_STORED_BYTES = 4 * MAX_ELEMENT_BYTES
"""The most bytes of messages that are stored of one conversation. Each citation has its own copy of its source."""
_FAILURES = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, HistoryError, InputError)
"""The errors of a damaged conversation: of its parser, its reader and the codec of the stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundConversation:
    """A conversation that can be imported: when it was last changed, the bytes it will take, and how to read it.

    `source` says where it is from, as `Conversation.source` does.
    """

    source: str
    updated_at: datetime
    size: int
    read: Callable[[], ImportedConversation]


@dataclass(slots=True)
class _Group:
    """An object of the export, and the attachments that follow it in our own format."""

    part: JsonElements
    span: Span
    files: dict[str, FileSource] = field(default_factory=dict[str, FileSource])


class ImportReader:
    """Reads an export. `left_out` has what is left out of the conversations that were found so far.

    `check` is called with the entries of each conversation. A conversation that it refuses is left out.
    """

    def __init__(self, file: ImportFile, max_attachment_bytes: int, check: EntryCheck = lambda _: None) -> None:
        self._file, self._max_bytes, self._check = file, max_attachment_bytes, check
        self.left_out = LeftOut()
        self.size = sum(span.end - span.start for _, span in file.elements())
        self.position = 0
        """The bytes that were read so far, of `size`."""

    def find(self) -> Iterator[FoundConversation | None]:
        """Yield each conversation, and None from time to time. Raises `InputError` if it is no export."""
        known = False
        for group in self._groups():
            if group is None:
                yield None
                continue
            found = self._conversation_of(group)
            known = known or found is not None
            yield found
        if not known and not self.left_out:
            raise InputError(NOT_AN_EXPORT)

    def _groups(self) -> Iterator[_Group | None]:
        """Yield the objects with conversations. An attachment belongs to the conversation before it."""
        group: _Group | None = None
        for part, span in self._file.elements():
            self.position += span.end - span.start
            try:
                element = part.parse(span)
            except ValueError:
                self.left_out[DAMAGED] += 1
                continue
            if FORMAT in element:
                _check_version(element[FORMAT])
            elif "file" in element:
                if group is not None:
                    self._add_file(group, element, span)
                yield None
            else:
                element = dict[str, Any]()  # a long one would be in memory twice while the one before it is read
                if group is not None:
                    yield group
                group = _Group(part, span)
        if group is not None:
            yield group

    def _add_file(self, group: _Group, element: Mapping[str, Any], span: Span) -> None:
        id_ = element["file"]
        if not isinstance(id_, str):
            return
        try:
            data = decode_file(element)
        except ValueError:  # it counts as missing
            return
        source = _source(id_, data, partial(_decoded, group.part, span), self._max_bytes)
        group.files[id_] = source

    def _conversation_of(self, group: _Group) -> FoundConversation | None:
        try:
            imported = self._read(group, self.left_out)
            if imported is None:
                return None
            size = stored_size(imported.entries, MAX_STORED_BYTES, imported.conversation.votes) + imported.file_bytes
            self._check(imported.entries)
        except _FAILURES:
            self.left_out[DAMAGED] += 1
            return None
        conversation, read = imported.conversation, partial(self._again, group)
        return FoundConversation(source=conversation.source, updated_at=conversation.updated_at, size=size, read=read)

    def _again(self, group: _Group) -> ImportedConversation:
        conversation = self._read(group, LeftOut())
        assert conversation is not None
        return conversation

    def _read(self, group: _Group, left_out: LeftOut) -> ImportedConversation | None:
        """Return the conversation of an object, or None if it has no messages. What is left out counts only then."""
        found = self._parsed(group, left_out)
        return replace(found, conversation=bounded(found.conversation)) if found else None

    def _parsed(self, group: _Group, left_out: LeftOut) -> ImportedConversation | None:
        element = group.part.parse(group.span)
        if "conversation" in element:
            conversation = read_conversation(element, group.files.get, source_of_ours(element))
            left_out.update(conversation.left_out)
            return conversation
        for is_known, read in READERS:
            if is_known(element):
                counted = LeftOut()
                conversation = read(element, self._file.find, counted)
                left_out.update(counted)
                return conversation
        if {"title", "id", "uuid", "conversation_id"} & element.keys():
            raise ValueError("no messages")
        return None


def _source(name: str, data: bytes, read: Callable[[], bytes], most: int) -> FileSource:
    kind = detect_mime(data) if len(data) <= most else ""
    return FileSource(name=name, media_type=kind, size=len(data), read=read)


def _decoded(part: JsonElements, span: Span) -> bytes:
    return decode_file(part.parse(span))


def _check_version(version: object) -> None:
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise InputError(_("This file was written by a newer version. Update this server to import it."))
