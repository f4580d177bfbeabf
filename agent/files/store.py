"""Storage of files that people attach and that models and tools make. Their ids are made from their bytes."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from mimetypes import guess_extension
from pathlib import Path

from pydantic_ai.messages import BinaryContent

from agent.errors import HistoryError, NotFound
from agent.files.owner_files import OwnerFiles
from agent.files.places import LocalFolder, Place
from agent.history import new_id
from agent.i18n.text import _
from agent.system.media_types import SUFFIXES
from agent.system.threads import FILES, run_to_completion

ROUTE = "/media/"
UNKNOWN = "bin"
LONGEST_NAME = 100

_ID_SUFFIXES = {**SUFFIXES, "video/webm": "webv"}
"""The suffixes of ids, which tell the media type: WebM is a sound or a video."""
_TYPES = {suffix: kind for kind, suffix in _ID_SUFFIXES.items()} | {UNKNOWN: "application/octet-stream"}
_SUFFIX = rf"\.(?:{'|'.join(_TYPES)})"
_OLD_ID = re.compile(rf"[0-9a-f]{{32}}{_SUFFIX}")
"""The ids of older versions were random, or made from the conversation and the bytes."""
_ID = re.compile(rf"(?:[0-9a-f]{{32}}){{1,2}}{_SUFFIX}")
_OWNER = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file that is not read yet. Nobody may keep a copy of it if it is not `is_kept` here."""

    id: str
    size: int
    _name: str
    _place: Place
    is_kept: bool = True

    @property
    def media_type(self) -> str:
        """The media type of the file."""
        return type_of_id(self.id)

    @property
    def path(self) -> Path | None:
        """The path of the file on this machine, or None if it is elsewhere."""
        return self._place.path(self._name)

    async def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` to `end`. Raises `NotFound`."""
        try:
            return await FILES.run(self._place.read, self._name, start, end)
        except OSError as error:
            raise NotFound("there is no such attachment") from error


class MediaStore:
    """The files of each owner in a place. A visitor cannot tell another owner's file from a missing one.

    A file is stored once for each owner, with a reference for each message that names it, and is removed with the last
    reference. References are stored before their messages, and removed after them. `agent.files.references` names them.
    """

    def __init__(self, place: Place | Path) -> None:
        self._place = LocalFolder(place) if isinstance(place, Path) else place
        self._files = OwnerFiles(self._place)

    async def add(self, owner: str, content: BinaryContent, reference: str) -> str:
        """Store the bytes unless they are stored already, add a reference to them, and return their id.

        Call it before the message that names them is stored. Raises `HistoryError` if they cannot be stored.
        """
        id_ = await FILES.run(id_of, owner, content)
        _check(owner, id_)
        try:
            # A thread cannot be cancelled: without waiting for it, the reference would appear after its removal.
            await run_to_completion(FILES.run(self._files.add, owner, id_, content.data, reference))
        except OSError as error:
            raise HistoryError(_("The files of this message could not be stored.")) from error
        return id_

    async def read(self, owner: str, id_: str) -> BinaryContent:
        """Return the content of one file. Raises `NotFound`."""
        data = await StoredFile(id_, 0, _check(owner, id_), self._place).read()
        return BinaryContent(data, media_type=type_of_id(id_), identifier=id_)

    async def find(self, owner: str, id_: str) -> StoredFile:
        """Return one file without reading it. Raises `NotFound`."""
        name = _check(owner, id_)
        try:
            size = await FILES.run(self._place.size, name)
        except OSError as error:
            raise NotFound("there is no such attachment") from error
        if size is None:
            raise NotFound("there is no such attachment")
        return StoredFile(id_, size, name, self._place)

    async def add_references(self, owner: str, references: Mapping[str, Iterable[str]]) -> None:
        """Add these references to files that are stored. Raises `HistoryError` if they cannot be stored."""
        given = {id_: names for id_, names in references.items() if _check(owner, id_)}
        try:
            await run_to_completion(FILES.run(self._files.add_references, owner, given))
        except OSError as error:
            raise HistoryError(_("The files of this message could not be stored.")) from error

    async def remove_references(self, owner: str, references: Mapping[str, Iterable[str]]) -> int:
        """Remove these references to each file, and the files that lose their last one. Return their number.

        Call it after the messages are deleted. Only messages of one conversation name a
        file of an older version that has no references. Raises `OSError` after all were tried.
        """
        given = {id_: names for id_, names in references.items() if _check(owner, id_)}
        old = {id_ for id_ in given if _OLD_ID.fullmatch(id_)}
        return await FILES.run(self._files.remove_references, owner, given, always=old)

    async def forget(self, owner: str, references: Iterable[str]) -> int:
        """Remove these references to any file of an owner, and the files that lose their last one. Return their number.

        Call it after the messages are deleted. Raises `OSError` after all were tried.
        """
        return await FILES.run(self._files.forget, _check(owner), references)

    async def remove_unused(self, owner: str, ids: Collection[str], before: float) -> int:
        """Remove these files, which no stored message names, and return their number. Raises `OSError`.

        A file stays if a message that refers to it was begun since the Unix time `before`.
        """
        given = [id_ for id_ in ids if _check(owner, id_)]
        return await FILES.run(self._files.remove_unused, owner, given, before)

    async def files(self, owner: str) -> Mapping[str, int]:
        """Return the ids and sizes of an owner's files, read from the place. Raises `OSError`."""
        found = await FILES.run(self._place.files, _check(owner))
        return {file.name: file.size for file in found if is_id(file.name)}

    async def sizes(self) -> Mapping[str, int]:
        """Return the size of each owner's files in bytes. It is kept up to date without reading the disk."""
        return await FILES.run(self._files.sizes)

    async def check_writable(self) -> None:
        """Write a file and remove it. Raises `OSError` if that is impossible."""
        await FILES.run(self._write_and_remove)

    def _write_and_remove(self) -> None:
        name = f".writable/{new_id()}"
        self._place.write(name, b"1")
        self._place.remove(name)

    async def recount(self) -> None:
        """Read the sizes from the place again, in case another process has changed the files."""
        await FILES.run(self._files.recount)

    async def stored_before(self, time: float) -> Mapping[str, set[str]]:
        """Return the ids of the files that were stored before this Unix time, by owner."""
        return await FILES.run(self._stored_before, time)

    def _stored_before(self, time: float) -> Mapping[str, set[str]]:
        owners = [owner for owner in self._place.folders() if _OWNER.fullmatch(owner)]
        return {owner: {id_ for id_ in self._files.written_before(owner, time) if is_id(id_)} for owner in owners}


def id_of(owner: str, content: BinaryContent) -> str:
    """Return the id under which these bytes are stored for an owner.

    The owner is part of it, so that an id tells nobody whether another owner has the same file.
    """
    digest = sha256(owner.encode() + b"\0")
    digest.update(content.data)
    return f"{digest.hexdigest()}.{_ID_SUFFIXES.get(content.media_type, UNKNOWN)}"


def new_file_id(media_type: str) -> str:
    """Return an id that no file has. Its suffix stands for the media type."""
    return f"{new_id()}.{_ID_SUFFIXES.get(media_type, UNKNOWN)}"


def type_of_id(id_: str) -> str:
    """Return the media type of the file with this id."""
    return _TYPES[id_.rpartition(".")[2]]


def is_id(text: str) -> bool:
    """Return True if this could be the id of a stored file."""
    return bool(_ID.fullmatch(text))


def ids_in(text: str) -> set[str]:
    """Return what could be ids of stored files in this text."""
    return set(_ID.findall(text))


def display_name(identifier: str, media_type: str) -> str:
    """Return a safe file name for saving in a browser, made from the identifier."""
    name = re.sub(r"[^\w.() -]+", "_", identifier).strip(". ")[-LONGEST_NAME:]
    return name if "." in name else f"{name}{guess_extension(media_type) or f'.{UNKNOWN}'}"


def _check(owner: str, id_: str | None = None) -> str:
    """Return the name of a file, or of the owner's folder. Raises `NotFound` for a name that cannot be theirs."""
    if not _OWNER.fullmatch(owner) or (id_ is not None and not is_id(id_)):
        raise NotFound("there is no such attachment")
    return owner if id_ is None else f"{owner}/{id_}"
