"""Pictures and sound as parts of a prompt: from bytes, files, Pillow or a URL. Knows no model and no model's limits.

What comes out is pydantic-ai's `BinaryContent`, as it is everywhere in this package. What it is said to be is what its
bytes show, never what a name or a header claims.
"""

import base64
import binascii
import re
import sys
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import BinaryContent, BinaryImage, ImageUrl, TextContent

from agent.errors import InputError
from agent.media.images import as_png
from agent.media.mime import SUFFIXES, detect_mime
from agent.media.sandbox import open_image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

AUDIO_FORMATS = {suffix: kind for kind, suffix in SUFFIXES.items() if kind.startswith("audio/")}
"""The sounds that are known, by the word that formats are called by."""

_KEPT = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""Kinds of picture whose bytes stay as they are; any other that Pillow reads becomes PNG."""

_NOT_ALWAYS_READ = ("image/heic", "image/avif")
"""Kinds that Pillow reads only with help; they stay as they are."""

_BACKTICKS = re.compile("`+")


class Image:
    """The ways to put a picture into a prompt. Each gives a part for it; this class has no instances."""

    @staticmethod
    def from_bytes(data: bytes) -> BinaryContent:
        """A picture file's bytes; PNG, JPEG, WebP and GIF stay as given. Raises `InputError` if it cannot be read."""
        return _picture(data, "the picture")

    @staticmethod
    def from_path(path: str | PathLike[str]) -> BinaryContent:
        """A picture in a file. Raises `InputError`, naming the file, if it cannot be read."""
        return _picture(_read(path), f"the file {str(path)!r}")

    @staticmethod
    def from_pillow(image: "Picture") -> BinaryContent:
        """Pillow's picture, as PNG, upright; one without a `format` (drawn, pasted, cropped) is as good as any."""
        try:
            return BinaryImage(as_png(image), media_type="image/png")
        except (OSError, ValueError, SystemError) as error:
            raise InputError(f"the picture cannot be read: {error}") from error

    @staticmethod
    def from_url(url: str) -> ImageUrl | BinaryContent:
        """A picture on the web, fetched by us when the run begins; the bytes of a `data:` URL at once.

        Raises `InputError` for what is no such URL.
        """
        if url.startswith("data:"):
            return from_data_url(url)
        if not re.match(r"https?://[^/]", url):
            raise InputError(f"a picture's URL begins with https://, http:// or data:, not {url[:40]!r}")
        return ImageUrl(url)


class Audio:
    """The ways to put a sound into a prompt. Each gives a part for it; this class has no instances."""

    @staticmethod
    def from_bytes(data: bytes, *, format: str | None = None) -> BinaryContent:
        """A sound file's bytes as they are; `format` is a word such as "wav" or "mp3".

        It may be left out. Raises `InputError` where it is unknown, is not what the bytes show, or they show no sound.
        """
        return _sound(data, format, "the sound")

    @staticmethod
    def from_path(path: str | PathLike[str]) -> BinaryContent:
        """A sound in a file. Raises `InputError`, naming the file, if it cannot be read."""
        return _sound(_read(path), None, f"the file {str(path)!r}")


def extracted_text(read: str, name: str, kind: str) -> TextContent:
    """What was read here in the picture ("image") or sound ("audio") of that name, which stands before it.

    The model reads where it comes from; what people see and what `fitting` looks for is in its metadata.
    """
    how = (
        "Text in the picture {}, read by OCR" if kind == "image" else "Speech in the sound {}, written down by Whisper"
    )
    said = f"{how.format(name)}; it may have mistakes:\n{fence(read)}"
    return TextContent(said, metadata={"read": read, "name": name, "kind": kind})


def extracted_text_of(item: object) -> dict[str, str] | None:
    """Of a text that was read here: what was "read", the "name" of the file and its "kind"; None for anything else."""
    metadata = item.metadata if isinstance(item, TextContent) else None
    return cast(dict[str, str], metadata) if isinstance(metadata, dict) and "read" in metadata else None


def fence(text: str) -> str:
    """The text in a fence longer than any in it, which keeps it from being markup."""
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def is_pillow(value: object) -> "TypeGuard[Picture]":
    """Whether it is Pillow's picture. Pillow is not imported for that: who has such a picture has imported it."""
    module: Any = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def from_data_url(url: str) -> BinaryContent:
    """The bytes of a `data:` URL: a picture, a sound, or another file as it says it is. Raises `InputError`."""
    head, comma, data = url.partition(",")
    media_type, *options = head.removeprefix("data:").split(";")
    if not comma:
        raise InputError(f"not a data: URL that holds anything: {url[:40]!r}")
    raw = unquote_to_bytes(data)
    content = from_base64(raw) if "base64" in options else raw
    if media_type.startswith("image/"):
        return _picture(content, "the picture in a data: URL", decode=False)
    if media_type.startswith("audio/"):
        return Audio.from_bytes(content)
    return BinaryContent(content, media_type=media_type or "text/plain")


def from_base64(text: str | bytes) -> bytes:
    """Bytes out of base64, white space in it allowed. Raises `InputError`."""
    try:
        return base64.b64decode(b"".join((text.encode() if isinstance(text, str) else text).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"what should be base64 is not: {error}") from error


def _read(path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"the file {str(path)!r} cannot be read: {error.strerror}") from error


def _picture(data: bytes, what: str, *, decode: bool = True) -> BinaryContent:
    """The picture. `decode` finds out a file that is cut short; what a conversation brings along was seen before."""
    if (shown := detect_mime(data)) in _NOT_ALWAYS_READ or (shown in _KEPT and not decode):
        return BinaryImage(data, media_type=shown)
    try:
        media_type, png = open_image(data)
    except ValueError as error:
        raise InputError(f"{what} is no picture that can be read") from error
    return BinaryImage(png or data, media_type=media_type)


def _sound(data: bytes, format_: str | None, what: str) -> BinaryContent:
    shown = next((word for word, known in AUDIO_FORMATS.items() if known == detect_mime(data)), None)
    if format_ is not None and format_.lower() not in AUDIO_FORMATS:
        raise InputError(f"{what}: no format {format_!r} is known; there are {', '.join(AUDIO_FORMATS)}")
    if shown is None:
        raise InputError(f"{what} is no sound that can be read")
    if format_ is not None and format_.lower() != shown:
        raise InputError(f"{what} is {shown}, not {format_}")
    return BinaryContent(data, media_type=AUDIO_FORMATS[shown])
