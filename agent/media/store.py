"""Storage of files that people attach and that models and tools make: one folder per owner, ids in histories."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from mimetypes import guess_extension
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import NotFound
from agent.history import new_id
from agent.media.mime import SUFFIXES
from agent.media.owner_folders import OwnerFolders
from agent.responses import Response
from agent.runtime.shield import run_to_completion

ROUTE = "/media/"
INLINE_TYPES = ("image/", "audio/")
"""The media types that a browser can show in the page. It can only save other types, so that they cannot do harm."""
UNKNOWN = "bin"
LONGEST_NAME = 100
DELETED = "(An attachment that was deleted.)"

_TYPES = {suffix: kind for kind, suffix in SUFFIXES.items()} | {UNKNOWN: "application/octet-stream"}
_STEM = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(rf"{_STEM.pattern}\.(?:{'|'.join(_TYPES)})")
_OWNER = re.compile(r"[0-9A-Za-z_-]{1,64}")
Url = ImageUrl | AudioUrl | DocumentUrl


class MediaStore:
    """Files under `folder/<owner>/<id>`. A visitor cannot tell another owner's file from a missing one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, OwnerFolders(folder)

    async def add(self, owner: str, data: bytes, media_type: str) -> BinaryContent:
        """Store the bytes. The `identifier` of the returned content is the id of the file.

        If the caller is cancelled, nothing is stored.
        """
        id_ = f"{new_id()}.{SUFFIXES.get(media_type, UNKNOWN)}"
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

    async def with_references(self, owner: str, conversation: str, message: ModelMessage) -> ModelMessage:
        """Return the message with references instead of bytes. Bytes that are not stored yet are stored first."""
        if isinstance(message, ModelResponse):
            new_parts = [await self._with_file_reference(owner, conversation, part) for part in message.parts]
            return message if new_parts == list(message.parts) else replace(message, parts=new_parts)
        parts: list[ModelRequestPart] = []
        for part in message.parts:
            items = _items(part)
            new = [await self._reference(owner, conversation, item) for item in items]
            parts.append(_with_items(part, new) if new != items else part)
        return message if parts == list(message.parts) else replace(message, parts=parts)

    async def with_urls(self, owner: str, conversation: str, response: Response) -> Response:
        """Return the response with references instead of the bytes of its files, which are stored first."""
        content: Any = response.content
        if not isinstance(content, Mapping) or "files" not in content:
            return response
        given = cast(Mapping[str, Any], content)
        files = [await self._reference(owner, conversation, item) for item in given["files"]]
        return replace(response, content={**given, "files": files})

    async def with_data(self, owner: str, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return the messages with bytes instead of references. A sentence replaces each deleted file."""
        return [await self._with_data(owner, message) for message in messages]

    async def _with_data(self, owner: str, message: ModelMessage) -> ModelMessage:
        if isinstance(message, ModelResponse):
            new_parts = [await self._with_file_data(owner, part) for part in message.parts]
            return message if new_parts == list(message.parts) else replace(message, parts=new_parts)
        parts: list[ModelRequestPart] = []
        for part in message.parts:
            items = _items(part)
            new = [await self._content(owner, item, part) for item in items]
            parts.append(_with_items(part, new) if new != items else part)
        return message if parts == list(message.parts) else replace(message, parts=parts)

    async def _content(self, owner: str, item: Any, part: ModelRequestPart) -> Any:
        if not isinstance(item, Url) or not item.url.startswith(ROUTE):
            return item
        try:
            found = await self.read(owner, item.url.removeprefix(ROUTE))
        except NotFound:
            return DELETED
        if isinstance(part, UserPromptPart):
            return found
        # Keep the name under which the model knows the file of a tool.
        return BinaryContent(found.data, media_type=item.media_type, identifier=item.identifier)

    async def _with_file_data(self, owner: str, part: ModelResponsePart) -> ModelResponsePart:
        if not isinstance(part, FilePart) or part.content.data or not _ID.fullmatch(part.content.identifier):
            return part
        try:
            found = await self.read(owner, part.content.identifier)
        except NotFound:
            return TextPart(DELETED)
        content = BinaryContent(found.data, media_type=part.content.media_type)
        return replace(part, content=BinaryContent.narrow_type(content))

    async def _reference(self, owner: str, conversation: str, item: Any) -> Any:
        if not isinstance(item, BinaryContent):
            return item
        id_ = await self._store_file(owner, conversation, item)
        known = not id_.endswith(UNKNOWN)
        kind = ImageUrl if known and item.is_image else AudioUrl if known and item.is_audio else DocumentUrl
        return kind(ROUTE + id_, media_type=item.media_type, identifier=item.identifier)

    async def _with_file_reference(self, owner: str, conversation: str, part: ModelResponsePart) -> ModelResponsePart:
        if not isinstance(part, FilePart) or not part.content.data:
            return part
        id_ = await self._store_file(owner, conversation, part.content)
        return replace(part, content=BinaryContent(b"", media_type=part.content.media_type, identifier=id_))

    async def _store_file(self, owner: str, conversation: str, item: BinaryContent) -> str:
        """Return the id of these bytes in this conversation. They are written once."""
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


def ids_in(text: str) -> set[str]:
    """Return what could be the id of a stored file in this text, without its suffix."""
    return set(_STEM.findall(text))


def files_named_in(messages: Iterable[ModelMessage]) -> set[str]:
    """Return the ids of the stored files that these messages refer to."""
    ids: set[str] = set()
    for message in messages:
        if isinstance(message, ModelResponse):
            ids |= {part.content.identifier for part in message.parts if isinstance(part, FilePart)}
            continue
        items = [item for part in message.parts for item in _items(part)]
        ids |= {item.url.removeprefix(ROUTE) for item in items if isinstance(item, Url)}
    return {id_ for id_ in ids if _ID.fullmatch(id_)}


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


def _items(part: ModelRequestPart) -> list[Any]:
    if not isinstance(part, UserPromptPart | ToolReturnPart):
        return []
    content: Any = part.content
    return list(cast(Sequence[Any], content)) if isinstance(content, list | tuple) else [content]


def _with_items(part: Any, items: list[Any]) -> Any:
    return replace(part, content=items if isinstance(part.content, list | tuple) else items[0])
