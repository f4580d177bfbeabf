"""Opens an uploaded export of any known format, and reads its conversations, one at a time. All calls block.

An export is a JSON file, or a ZIP file with one and with attachments. Nothing in it is trusted.
"""

import re
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from agent.errors import HistoryError, InputError
from agent.history import Entry
from agent.i18n.text import _
from agent.system.media_types import detect_mime
from agent.transfer.imported import DAMAGED, FileSource, FindFile, ImportedConversation, LeftOut, bounded
from agent.transfer.imports.chatgpt import is_chatgpt, read_chatgpt
from agent.transfer.imports.claude import is_claude, read_claude
from agent.transfer.imports.open_webui import is_open_webui, read_open_webui
from agent.transfer.json_elements import DAMAGED_FILE, MAX_ELEMENT_BYTES, NOT_AN_EXPORT, JsonElements, Span
from agent.transfer.portable import (
    FORMAT,
    VERSION,
    check_turns,
    decode_file,
    read_conversation,
    source_of_ours,
    stored_size,
)

HEAD_BYTES = 4096
"""Bytes that show the type of a file."""
MAX_MEMBERS = 20_000
MAX_DIRECTORY_BYTES = 8_000_000
"""The limits of the list of files in a ZIP file, which is read into memory."""
MAX_EXPANSION = 100
"""The most times that a JSON file can be larger than in the ZIP file. Text of people is about 5 times larger."""
FREE_EXPANSION_BYTES = 4_000_000
"""A JSON file of this size can be in a ZIP file of any size."""
TOO_DENSE = _("The ZIP file unpacks to far more than an export of its size does, so nothing was imported.")
_PIECE = 1 << 16
_CONVERSATIONS = re.compile(r"conversations([-_]?\d+)?\.json", re.IGNORECASE)
_ID_PREFIXES = ("file-", "file_")
"""The beginnings of the ids of ChatGPT's files. A file's name has its id, and then its former name or a number."""
_END = struct.Struct("<4s4H2LH")
"""The record at the end of a ZIP file."""
_END_SEARCHED = _END.size + (1 << 16)
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, struct.error, LookupError)
"""The errors of the zipfile module for a damaged, encrypted or unknown form. Some come from deep inside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    """The largest file, the most bytes of JSON in a ZIP file, and the largest attachment."""

    file_bytes: int
    json_bytes: int
    attachment_bytes: int


class ImportFile:
    """An export that was uploaded. Owns its temporary files until `close`. All calls block.

    Raises `InputError` if the file is not an export, is damaged, or would unpack to more than the limits.
    """

    def __init__(self, file: BinaryIO, folder: Path, limits: ImportLimits) -> None:
        self._limits, self._folder = limits, folder
        self._parts = list[JsonElements]()
        self._unpacked = 0
        self._archive: zipfile.ZipFile | None = None
        self._members = dict[str, zipfile.ZipInfo]()
        try:
            self._size = file.seek(0, 2)
            file.seek(0)
            if file.read(4) == b"PK\x03\x04":
                self._open_archive(file)
            else:
                self._parts.append(JsonElements(file))
        except BaseException:
            self.close()
            raise
        self._names = sorted(self._members)

    def elements(self) -> Iterator[tuple[JsonElements, Span]]:
        """Yield each object of the JSON files and where it is."""
        for part in self._parts:
            for span in part.spans:
                yield part, span

    def find(self, name: str) -> FileSource | None:
        """Return the file with this name, or with a name that begins with it if it is an id. Folders do not count."""
        found = self._name_of(name)
        if found is None:
            return None
        member = self._members[found]
        if member.file_size > self._limits.attachment_bytes:
            return FileSource(name=found, media_type="", size=member.file_size, read=lambda: b"")
        try:
            head = self._read(member, HEAD_BYTES)
        except InputError:
            return None
        read: Callable[[], bytes] = partial(self._read, member)
        return FileSource(name=found, media_type=detect_mime(head), size=member.file_size, read=read)

    def _name_of(self, name: str) -> str | None:
        at = bisect_left(self._names, name) if name else len(self._names)
        found = self._names[at] if at < len(self._names) else ""
        rest = found.removeprefix(name)
        is_named = not rest or (rest != found and name.startswith(_ID_PREFIXES) and rest[0] in "-_.")
        return found if found and is_named else None

    def close(self) -> None:
        """Release the files."""
        for part in self._parts:
            part.close()
        if self._archive is not None:
            self._archive.close()

    def _open_archive(self, file: BinaryIO) -> None:
        _check_directory(file)
        with _damage():
            self._archive = zipfile.ZipFile(file)
            members = [member for member in self._archive.infolist() if not member.is_dir()]
        texts = [member for member in members if member.filename.lower().endswith(".json")]
        named = [member for member in texts if _CONVERSATIONS.fullmatch(_base(member))]
        chosen = named or (texts if len(texts) == 1 else [])
        if not chosen:
            raise InputError(NOT_AN_EXPORT)
        for member in sorted(chosen, key=lambda one: one.filename):
            self._parts.append(self._unpack(member))
        self._members = {_base(member): member for member in members if member not in chosen}

    def _unpack(self, member: zipfile.ZipInfo) -> JsonElements:
        """Write a JSON file of the archive to a temporary file, which no other process can open."""
        assert self._archive is not None
        with TemporaryFile(dir=self._folder) as file:
            with _damage(), self._archive.open(member) as source:
                before = self._unpacked
                most = max(MAX_EXPANSION * min(member.compress_size, self._size), FREE_EXPANSION_BYTES)
                while piece := source.read(_PIECE):
                    self._unpacked += len(piece)
                    if self._unpacked > self._limits.json_bytes:
                        limit = self._limits.json_bytes / 1e6
                        raise InputError(_("The chats in the file have more than {most:.0f} MB.", most=limit))
                    if self._unpacked - before > most:
                        raise InputError(TOO_DENSE)
                    file.write(piece)
            file.flush()
            return JsonElements(file)  # the map outlives the file object

    def _read(self, member: zipfile.ZipInfo, most: int | None = None) -> bytes:
        """Return a file of the archive, or its first `most` bytes. The size in its directory is not trusted."""
        assert self._archive is not None
        with _damage(), self._archive.open(member) as source:
            data = source.read(self._limits.attachment_bytes + 1 if most is None else most)
        if len(data) > self._limits.attachment_bytes:
            raise InputError(DAMAGED_FILE)
        return data


def _check_directory(file: BinaryIO) -> None:
    """Raise `InputError` if the list of files is so long that reading it would take much memory."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_SEARCHED))
    tail = file.read(_END_SEARCHED)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size or b"PK\x06\x07" in tail[:at][-20:]:
        raise InputError(DAMAGED_FILE)
    fields = _END.unpack_from(tail, at)
    if max(fields[3], fields[4]) > MAX_MEMBERS or fields[5] > MAX_DIRECTORY_BYTES:
        raise InputError(DAMAGED_FILE)


@contextmanager
def _damage() -> Generator[None]:
    try:
        yield
    except _ZIP_ERRORS as error:
        raise InputError(DAMAGED_FILE) from error


def _base(member: zipfile.ZipInfo) -> str:
    return member.filename.rpartition("/")[2]


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
            check_turns(imported.entries)
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
