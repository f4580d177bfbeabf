"""What people attach: checked, kept under its owner's folder, referred to in histories by id and never by bytes."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    UserContent,
    UserPromptPart,
)

from agent.errors import InputError, NotFound
from agent.history import new_id

TYPES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
}
MAX_PIXELS = 50_000_000
ROUTE = "/media/"

_IMAGES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
_ID = re.compile(r"[0-9a-f]{32}\.(?:png|jpg|webp|gif|wav|mp3)")


def sniff(data: bytes, name: str) -> str:
    """The media type that the bytes themselves show. Raises `InputError`, naming the file, for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2):
        return "audio/mpeg"
    try:
        with Image.open(BytesIO(data)) as image:
            kind = _IMAGES.get(image.format or "")
            pixels = image.width * image.height
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{name} is neither a picture, a sound nor a text that can be read") from error
    if kind is None:
        raise InputError(f"{name} is of a kind of picture that is not taken; PNG, JPEG, WebP and GIF are")
    if pixels > MAX_PIXELS:
        raise InputError(f"{name} has {pixels / 1e6:.0f} megapixels; {MAX_PIXELS / 1e6:.0f} is the most")
    return kind


class MediaStore:
    """Files under `folder/<owner>/<id>`; who does not own a file cannot tell it from a missing one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def add(self, owner: str, data: bytes, media_type: str) -> BinaryContent:
        """Keep the bytes; the content's `identifier` is the id they are known by."""
        id_ = f"{new_id()}.{TYPES[media_type]}"
        path = self._path(owner, id_)
        await asyncio.to_thread(_write, path, data)
        return BinaryContent(data, media_type=media_type, identifier=id_)

    async def read(self, owner: str, id_: str) -> BinaryContent:
        """The content of one file. Raises `NotFound`."""
        path = self._path(owner, id_)
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise NotFound("there is no such attachment") from error
        kind = next(kind for kind, suffix in TYPES.items() if suffix == path.suffix[1:])
        return BinaryContent(data, media_type=kind, identifier=id_)

    def stored(self, message: ModelMessage) -> ModelMessage:
        """The message with references in the place of bytes that this store keeps."""
        if not isinstance(message, ModelRequest):
            return message
        return replace(message, parts=[_each(part, _reference) for part in message.parts])

    async def loaded(self, owner: str, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """The messages with bytes in the place of references; what has been deleted becomes a sentence."""
        return [await self._loaded(owner, message) for message in messages]

    async def _loaded(self, owner: str, message: ModelMessage) -> ModelMessage:
        if not isinstance(message, ModelRequest):
            return message
        found: dict[str, UserContent] = {}
        for part in message.parts:
            if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                for item in part.content:
                    if isinstance(item, ImageUrl | AudioUrl) and item.url.startswith(ROUTE):
                        try:
                            found[item.url] = await self.read(owner, item.url.removeprefix(ROUTE))
                        except NotFound:
                            found[item.url] = "(An attachment that was deleted.)"
        if not found:
            return message

        def load(item: UserContent) -> UserContent:
            return found.get(item.url, item) if isinstance(item, ImageUrl | AudioUrl) else item

        return replace(message, parts=[_each(part, load) for part in message.parts])

    def _path(self, owner: str, id_: str) -> Path:
        if not _ID.fullmatch(id_) or not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", owner):
            raise NotFound("there is no such attachment")
        return self._folder / owner / id_


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("xb") as file:
        file.write(data)


def _each(part: ModelRequestPart, change: Callable[[UserContent], UserContent]) -> ModelRequestPart:
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return part
    return replace(part, content=[change(item) for item in part.content])


def _reference(item: UserContent) -> UserContent:
    if isinstance(item, BinaryContent) and _ID.fullmatch(item.identifier):
        url = ROUTE + item.identifier
        if item.media_type.startswith("audio/"):
            return AudioUrl(url, media_type=item.media_type)
        return ImageUrl(url, media_type=item.media_type)
    return item
