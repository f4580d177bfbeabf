"""Opens an uploaded export: a JSON file, or a ZIP file with one and with attachments. Trusts nothing in it."""

import re
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from agent.errors import InputError
from agent.i18n.text import _
from agent.system.media_types import detect_mime
from agent.transfer.imported import FileSource
from agent.transfer.json_elements import DAMAGED_FILE, NOT_AN_EXPORT, JsonElements, Span

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
