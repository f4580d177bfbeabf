"""Pictures, sound and documents as parts of a prompt: from bytes, files, Pillow or a URL. Knows no limits of models.

The results are pydantic-ai's `BinaryContent`, as everywhere in this package. Its media type comes from the bytes, never
from a file name or a header.
"""

import base64
import binascii
import json
import re
import sys
from bisect import bisect_left
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeGuard, cast
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import BinaryContent, BinaryImage, ImageUrl, TextContent

from agent.errors import InputError
from agent.files.encodings import decode_text
from agent.files.images import as_png
from agent.files.kinds import LABELS, LEFT_OUT, Document, document_type
from agent.files.passages import Excerpt, ranges_of
from agent.files.sandbox import open_image
from agent.files.videos import read_video
from agent.keyword_arguments import explains_arguments, shown
from agent.system.media_types import SUFFIXES, detect_mime, is_text_type

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

AUDIO_FORMATS = {suffix: kind for kind, suffix in SUFFIXES.items() if kind.startswith("audio/")}
"""The media types of known sounds by format name, such as "wav"."""

_UNCHANGED_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""Picture types that are not converted. Any other type that Pillow reads becomes PNG."""

_NOT_ALWAYS_READ = ("image/heic", "image/avif")
"""Picture types that Pillow reads only with plugins. They are not converted."""

_COUNT = re.compile("[0-9]{1,6}")
_SUFFIX = re.compile(r"\.\w{1,10}$")
_WITHOUT_SUFFIX = re.compile(
    r"(Make|Docker|Container|Vagrant|Jenkins|Proc|Gem|Rake)file|LICEN[CS]E|COPYING|README|CHANGELOG|AUTHORS|CODEOWNERS"
)
"""The well-known names of files that have no suffix. Nobody types them as words before a text."""
_QUOTED_FILE = re.compile(r"(?P<name>[^\n]*):\n(`{3,})\n.*\n\2", re.DOTALL)


class _Ways(type):
    """The type of a class whose methods make parts. It names them to people who try others."""

    def _listed(cls) -> str:
        return " or ".join(f"{cls.__name__}.{name}(...)" for name in vars(cls) if not name.startswith("_"))

    def __call__(cls, *_: object, **__: object) -> Never:
        raise InputError(f"write {cls._listed()}")

    if not TYPE_CHECKING:  # a checker would take any attribute for one

        def __getattr__(cls, name: str) -> Never:
            raise AttributeError(f"{cls.__name__} has no {name!r}: write {cls._listed()}", name=name, obj=cls)


class Image(metaclass=_Ways):
    """Ways to put a picture into a prompt. Each method returns a part. This class has no instances."""

    @staticmethod
    @explains_arguments
    def from_bytes(data: bytes) -> BinaryContent:
        """Return a part for a picture file's bytes. PNG, JPEG, WebP and GIF stay unchanged. Raises `InputError`."""
        return _picture(data, "the picture")

    @staticmethod
    @explains_arguments
    def from_path(path: str | PathLike[str]) -> BinaryContent:
        """Return a part for a picture file. Raises `InputError` with the file's name if it cannot be read."""
        return _picture(_read(path), f"the file {str(path)!r}")

    @staticmethod
    @explains_arguments
    def from_pillow(image: "Picture") -> BinaryContent:
        """Return a part for a Pillow image as upright PNG. It needs no `format`, so it can be drawn or cropped."""
        if not is_pillow(image):
            raise InputError(f"from_pillow takes a Pillow image, not {shown(image)}")
        try:
            return BinaryImage(as_png(image), media_type="image/png")
        except (OSError, ValueError, SystemError) as error:
            raise InputError(f"the picture cannot be read: {error}") from error

    @staticmethod
    @explains_arguments
    def from_url(url: str) -> ImageUrl | BinaryContent:
        """Return a part for a picture on the web, which is fetched when the run begins, or for a `data:` URL.

        Raises `InputError` for any other URL.
        """
        url = str(url)
        if url.startswith("data:"):
            return from_data_url(url)
        if not re.match(r"https?://[^/]", url):
            raise InputError(f"a picture's URL begins with https://, http:// or data:, not {url[:40]!r}")
        return ImageUrl(url)


class Audio(metaclass=_Ways):
    """Ways to put a sound into a prompt. Each method returns a part. This class has no instances."""

    @staticmethod
    @explains_arguments
    def from_bytes(data: bytes, *, format: str | None = None) -> BinaryContent:
        """Return a part for the unchanged bytes of a sound file. `format` is optional, such as "wav" or "mp3".

        Raises `InputError` if the format is unknown or differs from the bytes, or if the bytes are not a sound.
        """
        return _sound(data, format, "the sound")

    @staticmethod
    @explains_arguments
    def from_path(path: str | PathLike[str]) -> BinaryContent:
        """Return a part for a sound file. Raises `InputError` with the file's name if it cannot be read."""
        return _sound(_read(path), None, f"the file {str(path)!r}")


def part_from_path(path: Path) -> BinaryContent | str:
    """Return a part for a picture, sound, video, document or text. Raises `InputError` with the file's name."""
    data, name = _read(path), f"the file {str(path)!r}"
    media_type = detect_mime(data) or ""
    if read_video(data) is not None:
        return _video(data, name)
    if media_type.startswith("image/"):
        return _picture(data, name)
    if media_type.startswith("audio/"):
        return _sound(data, None, name)
    if document := document_type(path.name, data):
        return BinaryContent(data, media_type=document, identifier=path.name)
    if (text := decode_text(data)) is None:
        raise InputError(f"{name} is no picture, sound, document or text in a known encoding; save a text as UTF-8")
    return quoted_file(path.name, text[0])


def extracted_text(read: str, name: str, kind: str) -> TextContent:
    """Return a text part for the text extracted from the file `name`. The file's own part must stand before it.

    `kind` is "image" or "audio". The text tells the model where it comes from. The page and `agent.messages.adapt` use
    its metadata.
    """
    how = (
        "Text in the picture {}, read by OCR" if kind == "image" else "Speech in the sound {}, written down by Whisper"
    )
    text = f"{how.format(name)}; it may have mistakes:\n{fence(read)}"
    return TextContent(text, metadata={"read": read, "name": name, "kind": kind})


def document_text(name: str, document: Document, found: Excerpt, *, is_earlier: bool = False) -> TextContent:
    """Return a text part for what was read of a document. A part with the file itself can stand before it.

    The text tells the model which pages it has. The page and `agent.messages.adapt` use its metadata. `is_earlier`: the
    file is in an earlier message.
    """
    kind, count = LABELS.get(document.media_type, "text"), len(document.pages)
    title = f', titled "{document.title}"' if document.title else ""
    head = f"Text of the document{' ' * bool(name)}{name} ({kind}, {count} {document.unit}{'s' * (count != 1)}{title})"
    if document.is_ocr and len(document.scans) == count:
        head += ", read by OCR; it may have mistakes"
    elif document.is_ocr:
        pages = f"page{'s' * (len(document.scans) != 1)} {ranges_of(document.scans)}"
        head += f", with {pages} read by OCR; it may have mistakes"
    if document.left_out:
        head += f"; not read: {', '.join(LEFT_OUT[name] for name in document.left_out)}"
    if not found.is_whole:
        head += f"; only passages that suit the question, from {document.unit}{'s' * (len(found.pages) != 1)} "
        head += found.ranges
    metadata = {
        "read": found.text,
        "name": name,
        "kind": "document",
        "media_type": document.media_type,
        "unit": document.unit,
        "count": str(count),
        "pages": "" if found.is_whole else found.ranges,
    }
    if is_earlier:
        metadata["earlier"] = "yes"
    elif document.is_ocr:  # OCR takes seconds for each page
        metadata["ocr"] = json.dumps({str(page): document.pages[page - 1] for page in document.scans})
    return TextContent(f"{head}:\n{fence(found.text)}", metadata=metadata)


def extracted_text_of(item: object) -> dict[str, str] | None:
    """Return the metadata of a part made by `extracted_text` or `document_text`: "read", "name", "kind"; else None.

    An imported message can have any metadata: only texts are returned, and a document has a "count" that is a number.
    """
    metadata = item.metadata if isinstance(item, TextContent) else None
    if not isinstance(metadata, dict):
        return None
    texts = {name: value for name, value in cast(dict[object, object], metadata).items() if isinstance(value, str)}
    found = {name: value for name, value in texts.items() if isinstance(name, str)}
    if not found.keys() >= {"read", "name", "kind"}:
        return None
    if found["kind"] == "document" and not _COUNT.fullmatch(found.get("count", "")):
        found["count"] = "0"
    return found


def fence(text: str) -> str:
    """Return the text in a Markdown fence that is longer than any fence in it, so that it is not read as markup."""
    lengths = range(3, len(text) + 4 if "```" in text else 4)
    fence = "`" * lengths[bisect_left(lengths, 1, key=lambda length: "`" * length not in text)]
    return f"{fence}\n{text}\n{fence}"


def quoted_file(name: str, text: str) -> str:
    """Return the part of a prompt for a text file. `quoted_file_name` reads its name from the first line."""
    return f"{' '.join(name.split())}:\n{fence(text)}"


def attached_text(name: str, text: str) -> str:
    """Return the part for a text file that somebody attached. Without a suffix it would look like typed text."""
    return quoted_file(name if is_file_name(name) else f"{name or 'file'}.txt", text)


def quoted_file_name(text: str) -> str | None:
    """Return the name in a part made by `quoted_file`, or None for any other text."""
    found = _QUOTED_FILE.fullmatch(text)
    return found["name"] if found else None


def text_file_of(item: object) -> tuple[str, str] | None:
    """Return the name and the text of a text file in a prompt, or else None. The name can be "".

    Such a file is a text made by `quoted_file`, or bytes with the media type of a text.
    """
    if isinstance(item, str):
        if item.endswith("```") and (name := quoted_file_name(item)) and is_file_name(name):
            return name, item.split("\n", 2)[2].rpartition("\n")[0]
    elif isinstance(item, BinaryContent) and is_text_type(item.media_type):
        name = item.identifier if is_file_name(item.identifier) else ""
        return name, item.data.decode("utf-8", "replace")
    return None


def is_file_name(name: str) -> bool:
    """Return True if this is the name of a file rather than words before a text that somebody typed."""
    return _SUFFIX.search(name) is not None or _WITHOUT_SUFFIX.fullmatch(name) is not None


def is_pillow(value: object) -> "TypeGuard[Picture]":
    """Return True for a Pillow image. Does not import Pillow: a caller with such an image has imported it."""
    module: Any = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def from_data_url(url: str) -> BinaryContent:
    """Return a part for a `data:` URL: a picture, sound or video, or any file of the declared type.

    Raises `InputError`.
    """
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
    if media_type.startswith("video/"):
        return _video(content, "the video in a data: URL")
    return BinaryContent(content, media_type=media_type or "text/plain")


def from_base64(text: str | bytes) -> bytes:
    """Decode base64, which can contain white space. Raises `InputError`."""
    try:
        return base64.b64decode(b"".join((text.encode() if isinstance(text, str) else text).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"what should be base64 is not: {error}") from error


def _read(path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"the file {str(path)!r} cannot be read: {why}") from error


def _checked(data: bytes) -> bytes:
    if not isinstance(cast(object, data), bytes | bytearray | memoryview):
        raise InputError(f"from_bytes takes the bytes of a file, not {type(data).__name__!r}; from_path takes its path")
    return bytes(data)


def _picture(data: bytes, what: str, *, decode: bool = True) -> BinaryContent:
    """Return the picture part. `decode` detects truncated files; pictures of a conversation were decoded before."""
    data = _checked(data)
    if (shown := detect_mime(data)) in _NOT_ALWAYS_READ or (shown in _UNCHANGED_TYPES and not decode):
        return BinaryImage(data, media_type=shown)
    try:
        media_type, png = open_image(data)
    except ValueError as error:
        raise InputError(f"{what} is no picture that can be read") from error
    except InputError as error:
        raise InputError(f"{what} {error}") from error
    return BinaryImage(png or data, media_type=media_type)


def _video(data: bytes, what: str) -> BinaryContent:
    data = _checked(data)
    if (video := read_video(data)) is None:
        raise InputError(f"{what} is no video in MP4 or WebM")
    return BinaryContent(data, media_type=video.media_type)


def _sound(data: bytes, format_: str | None, what: str) -> BinaryContent:
    data = _checked(data)
    shown = next((word for word, known in AUDIO_FORMATS.items() if known == detect_mime(data)), None)
    if format_ is not None and format_.lower() not in AUDIO_FORMATS:
        raise InputError(f"{what}: no format {format_!r} is known; there are {', '.join(AUDIO_FORMATS)}")
    if shown is None:
        raise InputError(f"{what} is no sound that can be read")
    if format_ is not None and format_.lower() != shown:
        raise InputError(f"{what} is {shown}, not {format_}")
    return BinaryContent(data, media_type=AUDIO_FORMATS[shown])
