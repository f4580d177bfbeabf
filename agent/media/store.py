"""Storage of files that people attach and that models and tools make: one folder per owner, ids in histories."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from mimetypes import guess_extension
from pathlib import Path
from urllib.parse import quote

from pydantic_ai.messages import BinaryContent

from agent.errors import NotFound
from agent.history import new_id
from agent.media.mime import SUFFIXES
from agent.media.owner_folders import OwnerFolders
from agent.runtime.shield import run_to_completion

ROUTE = "/media/"
INLINE_TYPES = ("image/", "audio/")
"""The media types that a browser can show in the page. It can only save other types, so that they cannot do harm."""
UNKNOWN = "bin"
LONGEST_NAME = 100

_TYPES = {suffix: kind for kind, suffix in SUFFIXES.items()} | {UNKNOWN: "application/octet-stream"}
_STEM = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(rf"{_STEM.pattern}\.(?:{'|'.join(_TYPES)})")
_OWNER = re.compile(r"[0-9A-Za-z_-]{1,64}")


class MediaStore:
    """Files under `folder/<owner>/<id>`. A visitor cannot tell another owner's file from a missing one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, OwnerFolders(folder)

    async def add(self, owner: str, data: bytes, media_type: str, *, id_: str = "") -> BinaryContent:
        """Store the bytes. The `identifier` of the returned content is the id of the file: `id_` or a new one.

        If the caller is cancelled, nothing is stored.
        """
        id_ = id_ or new_file_id(media_type)
        try:
            # A thread cannot be cancelled: without waiting for it, the file would appear after its removal.
            await run_to_completion(asyncio.to_thread(self._files.write, self._path(owner, id_), data))
        except asyncio.CancelledError:
            await run_to_completion(self.remove(owner, [id_]))
            raise
        return BinaryContent(data, media_type=media_type, identifier=id_)

    async def read(self, owner: str, id_: str) -> BinaryContent:
        """Return the content of one file. Raises `NotFound`."""
        path = self._path(owner, id_)
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise NotFound("there is no such attachment") from error
        return BinaryContent(data, media_type=_TYPES[path.suffix[1:]], identifier=id_)

    async def remove(self, owner: str, ids: Iterable[str]) -> None:
        """Delete these files of the owner. Missing files are ignored."""
        await asyncio.to_thread(self._files.remove, [self._path(owner, id_) for id_ in ids])

    async def remove_all(self, owner: str) -> None:
        """Delete all files of the owner."""
        await asyncio.to_thread(self._files.remove_folder, self._path(owner).name)

    async def sizes(self) -> Mapping[str, int]:
        """Return the size of each owner's files in bytes. It is kept up to date without reading the disk."""
        return await asyncio.to_thread(self._files.sizes)

    async def recount(self) -> None:
        """Read the sizes from the disk again, in case another process has changed the files."""
        await asyncio.to_thread(self._files.recount)

    async def owners(self) -> list[str]:
        """Return the owners that have files."""
        return [owner for owner in await asyncio.to_thread(self._files.owners) if _OWNER.fullmatch(owner)]

    async def stored_before(self, owner: str, time: float) -> set[str]:
        """Return the ids of the owner's files that were stored before this Unix time."""
        names = await asyncio.to_thread(self._files.written_before, self._path(owner).name, time)
        return {name for name in names if _ID.fullmatch(name)}

    async def keep(self, owner: str, conversation: str, item: BinaryContent) -> str:
        """Store the bytes of a conversation unless they are stored already, and return their id."""
        for id_ in (item.identifier, media_id(conversation, item)):
            if _ID.fullmatch(id_) and await asyncio.to_thread(self._path(owner, id_).exists):
                return id_
        id_ = media_id(conversation, item)
        await asyncio.to_thread(self._files.write, self._path(owner, id_), item.data)
        return id_

    def _path(self, owner: str, id_: str | None = None) -> Path:
        """Return the path of a file, or of the owner's folder. Raises `NotFound` for a name that cannot be theirs."""
        if not _OWNER.fullmatch(owner) or (id_ is not None and not _ID.fullmatch(id_)):
            raise NotFound("there is no such attachment")
        return self._folder / owner / (id_ or "")


def new_file_id(media_type: str) -> str:
    """Return an id that no file has. Its suffix stands for the media type."""
    return f"{new_id()}.{SUFFIXES.get(media_type, UNKNOWN)}"


def type_of_id(id_: str) -> str:
    """Return the media type of the file with this id."""
    return _TYPES[id_.rpartition(".")[2]]


def ids_in(text: str) -> set[str]:
    """Return what could be the id of a stored file in this text, without its suffix."""
    return set(_STEM.findall(text))


def is_id(text: str) -> bool:
    """Return True if this could be the id of a stored file."""
    return bool(_ID.fullmatch(text))


def media_id(conversation: str, item: BinaryContent) -> str:
    """Return the id of a file that a model or tool made in this conversation; the same for storing and showing."""
    digest = sha256(conversation.encode() + b"\0" + item.data).hexdigest()[:32]
    return f"{digest}.{SUFFIXES.get(item.media_type, UNKNOWN)}"


def display_name(identifier: str, media_type: str) -> str:
    """Return a safe file name for saving in a browser, made from the identifier."""
    name = re.sub(r"[^\w.() -]+", "_", identifier).strip(". ")[-LONGEST_NAME:]
    return name if "." in name else f"{name}{guess_extension(media_type) or f'.{UNKNOWN}'}"


def headers_of(content: BinaryContent, name: str = "") -> dict[str, str]:
    """Return the HTTP headers of a file except its type. `name` is the file name for saving."""
    is_inline = content.media_type.startswith(INLINE_TYPES)
    file_name = quote(display_name(name or content.identifier, content.media_type))
    disposition = "inline" if is_inline else f"attachment; filename*=UTF-8''{file_name}"
    return {"cache-control": "private, max-age=86400", "content-disposition": disposition}
