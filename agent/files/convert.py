"""Conversion of images, audio and documents for the model that is asked: once per file, a few at a time, in threads.

A history keeps the files that people gave; this module makes what is sent. The same file for the same model always
gives the same bytes, so that the provider's cache of earlier turns stays valid.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any, TypeGuard

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import InputError
from agent.files import sandbox
from agent.files.for_model import takes_document, with_document_texts
from agent.files.images import ImageLimits
from agent.files.parts import text_file_of
from agent.files.remarks import ConvertedMedia, refused, sentence
from agent.files.sandbox import MAX_HEADER_BYTES, SandboxJob, run_decoder, run_in_thread
from agent.files.sandbox_worker import IS_CLIPPED, IS_SILENT, RATE, too_long
from agent.files.videos import fit_video, read_video
from agent.i18n.text import LocalizedText
from agent.models.catalog import ModelSpec, ProviderSpec, load_catalog
from agent.plain_text import off_loop
from agent.system.media_types import detect_mime, is_text_type, label
from agent.system.request_queue import RequestQueue
from agent.system.threads import Threads

FORMATS = {
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
    "audio/aiff": "aiff",
    "audio/webm": "matroska",
    "audio/mp4": "mp4",
    "audio/aac": "aac",
}
"""The media types that can be decoded, each with FFmpeg's name for the format."""

AS_IS = 5_000_000
"""The largest MP3, in bytes, that is sent unchanged."""

_LONGEST_BLOCK_SECONDS = 30
"""The decoder finishes the block that passes the limit. At the lowest rate, the longest block lasts 17 seconds."""
_SHIFTS = (21, 14, 7, 0)
"""The four bytes of an ID3 tag's length hold seven bits each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundLimits:
    """Audio limits of a model: media types (WAV is always accepted), length in seconds, and size in bytes."""

    types: tuple[str, ...] = ("audio/wav",)
    seconds: int = 600
    max_bytes: int = 20_000_000


def convert_audio(
    data: bytes, limits: SoundLimits, *, on_start: Callable[[SandboxJob], None] = lambda _: None
) -> ConvertedMedia:
    """Return the audio converted to fit these limits, with its length.

    A small MP3 only loses its tags if the model accepts MP3. Silent or clipped audio gets a note and is not refused.
    The same input always gives the same bytes, and converting a result again leaves it unchanged. `on_start` receives
    the decoding job, which can be killed. Raises `InputError` if the data is not convert, or is broken, empty, too long
    or too large.
    """
    found = detect_mime(data)
    if found not in FORMATS:
        raise refused("no_readable_sound")
    samples, heard = _samples(data), b""
    ours = samples is not None
    try:
        if samples is None:
            most = (limits.seconds + _LONGEST_BLOCK_SECONDS) * RATE * 2 + MAX_HEADER_BYTES
            decoded = run_decoder(
                "sound", FORMATS[found], str(limits.seconds), data=data, max_output=most, on_start=on_start
            )
            samples, heard = decoded[:-1], decoded[-1:]
        elif 0 < len(samples) <= (limits.seconds + 1) * RATE * 2:
            heard = run_decoder("listen", data=samples, max_output=MAX_HEADER_BYTES, on_start=on_start)
    except ValueError as error:
        raise refused("broken_sound", kind=label(found)) from error
    seconds = len(samples) / 2 / RATE
    if not samples:
        raise refused("no_sound")
    if seconds > limits.seconds + 0.1:  # the resampler's output can be slightly longer or shorter than its input
        key, most = too_long(limits.seconds)
        raise refused(key, most=most)
    note = _note(heard)
    if found == "audio/mpeg" and found in limits.types and len(data) <= min(AS_IS, limits.max_bytes):
        bare = _without_tags(data)
        done = () if bare == data else (sentence("without_tags"),)
        return ConvertedMedia(data=bare, media_type=found, done=done, note=note, seconds=seconds)
    out = data if ours else _head(len(samples)) + samples
    if len(out) > limits.max_bytes:
        raise refused("sound_bytes", size=len(out) / 1e6, most=limits.max_bytes / 1e6)
    return ConvertedMedia(
        data=out, media_type="audio/wav", done=() if ours else (_became(found),), note=note, seconds=seconds
    )


def _became(found: str) -> LocalizedText:
    if found == "audio/wav":
        return sentence("resampled", rate=RATE // 1000)
    return sentence("became", into="WAV")


def _samples(data: bytes) -> bytes | None:
    """Return the samples if the WAV has exactly the form that this module writes, else None."""
    return data[44:] if len(data) % 2 == 0 and data[:44] == _head(len(data) - 44) else None


def _head(length: int) -> bytes:
    """Return the WAV header for `length` bytes of samples."""
    return b"".join(
        (
            b"RIFF",
            (36 + max(0, length)).to_bytes(4, "little"),
            b"WAVEfmt ",
            (16).to_bytes(4, "little"),
            b"\1\0\1\0",
            RATE.to_bytes(4, "little"),
            (2 * RATE).to_bytes(4, "little"),
            b"\2\0\x10\0data",
            max(0, length).to_bytes(4, "little"),
        )
    )


def _note(heard: bytes) -> LocalizedText | None:
    """Return the note for people, from the flag byte of the decoder. An attack can have taken over the decoder."""
    flags = heard[0] if heard else 0
    if flags & IS_SILENT:
        return sentence("silent")
    return sentence("clipped") if flags & IS_CLIPPED else None


def _without_tags(data: bytes) -> bytes:
    """Remove the ID3 tags from an MP3, because they tell who made it and where."""
    start, end = 0, len(data)
    while data.startswith(b"ID3", start) and end - start > 10:
        length = sum((byte & 0x7F) << shift for byte, shift in zip(data[start + 6 : start + 10], _SHIFTS, strict=True))
        start += 10 + length + (10 if data[start + 5] & 0x10 else 0)
    if data.startswith(b"TAG", max(start, end - 128)) and end - start >= 128:
        end -= 128
    return data[start:end]


UNREADABLE = "[A file was here that cannot be read: it {why}.]"
NO_FILE = "[A file was here ({kind}), which this model cannot read.]"
TOO_MANY = "[A {what} was here; this model takes no more than the later ones.]"

MAX_CONVERSIONS, MAX_CONVERSIONS_PER_VISITOR = 3, 2
"""Files converted at the same time, in total and for one visitor. Each can take 300 MB of memory."""
MAX_CACHED_BYTES = 64_000_000
"""Bytes of converted files kept in memory, so that not every step of every run converts them again."""


def image_limits(spec: ModelSpec) -> ImageLimits:
    """Return the model's limits for images."""
    usual, provider = ImageLimits(), _provider(spec)
    if provider is None or not provider.image_types:
        return usual
    return ImageLimits(
        types=provider.image_types,
        side=min(provider.image_side, provider.max_image_side or provider.image_side),
        max_bytes=min(usual.max_bytes, provider.max_image_bytes or usual.max_bytes),
    )


def sound_limits(spec: ModelSpec) -> SoundLimits:
    """Return the model's limits for audio."""
    usual, provider = SoundLimits(types=("audio/wav", "audio/mpeg")), _provider(spec)
    if provider is None or not provider.audio_types:
        return usual
    return SoundLimits(
        types=provider.audio_types,
        seconds=min(usual.seconds, provider.max_audio_seconds or usual.seconds),
        max_bytes=min(usual.max_bytes, provider.max_audio_bytes or usual.max_bytes),
    )


def media_limits(spec: ModelSpec) -> Mapping[str, int]:
    """Return the most "picture"s, "sound"s and "video"s, and the most "bytes" of all, in one request. 0: no limit."""
    provider = _provider(spec)
    if provider is None:
        return {"picture": 0, "sound": 0, "video": 0, "bytes": 0}
    return {
        "picture": provider.max_images,
        "sound": provider.max_audios,
        "video": provider.max_videos,
        "bytes": provider.max_media_bytes,
    }


async def convert_file(data: bytes, spec: ModelSpec | None) -> ConvertedMedia:
    """Convert an image or audio for the model. Without `spec`, convert it for `agent.files.transcribe` (audio to WAV).

    Raises `InputError`. Its text continues a sentence that begins with the file's name.
    """
    if detect_mime(data).startswith("image/"):
        limits = image_limits(spec) if spec else ImageLimits()
    else:
        limits = sound_limits(spec) if spec else SoundLimits()
    key = sha256(data).digest(), limits
    if (known := _conversions.get(key)) is not None:
        return replace(known, data=known.data or data)
    async with _queue.slot():
        converted = await run_in_thread(_threads, partial(_convert, data, limits))
    _conversions.put(key, replace(converted, data=b"") if converted.data == data else converted)
    return converted


async def convert_messages(messages: Sequence[ModelMessage], spec: ModelSpec) -> list[ModelMessage]:
    """Convert the images, audio and files in the messages for the model. If there are too many, keep the latest.

    A short text replaces a file that is unreadable or exceeds the count. In the last prompt, such files raise
    `InputError` instead. Messages that need no change are returned as the same objects. The identifiers of files do not
    change.
    """
    left, out = dict(media_limits(spec)), list(messages)
    last, with_files = await off_loop(messages, _last_and_with_files, messages)
    for number, message in with_files:
        parts = [await _part(part, spec, left, last=number == last) for part in reversed(message.parts)][::-1]
        if any(new is not old for new, old in zip(parts, message.parts, strict=True)):
            out[number] = replace(message, parts=parts)
    return out


def _last_and_with_files(messages: Sequence[ModelMessage]) -> tuple[int, list[tuple[int, ModelRequest]]]:
    """Return the number of the last prompt, -1 without one, and the requests with files, the newest first."""
    requests = [(number, one) for number, one in enumerate(messages) if isinstance(one, ModelRequest)][::-1]
    last = next((number for number, one in requests if any(isinstance(part, UserPromptPart) for part in one.parts)), -1)
    return last, [(number, one) for number, one in requests if any([_has_file(part) for part in one.parts])]


def _has_file(part: ModelRequestPart) -> bool:
    """Return True if a part of a request has a file. Most have none, and each request looks at all messages."""
    is_prompt = isinstance(part, UserPromptPart)
    if not is_prompt and not isinstance(part, ToolReturnPart):
        return False
    content: Any = part.content
    if isinstance(content, str):
        return is_prompt and text_file_of(content) is not None
    items = content if _is_list(content) else (content,)
    return any(isinstance(item, BinaryContent) or (is_prompt and text_file_of(item) is not None) for item in items)


async def _part(part: Any, spec: ModelSpec, left: dict[str, int], *, last: bool) -> Any:
    if not _has_file(part):
        return part
    content: Any = part.content
    items = list(content) if _is_list(content) else [content]
    is_prompt = isinstance(part, UserPromptPart)
    refuse = last and is_prompt
    read = await with_document_texts(items, spec, refuse=refuse, texts=is_prompt)
    new = [await _item(item, spec, left, refuse=refuse) for item in reversed(read)][::-1]
    if all(one is other for one, other in zip(new, items, strict=True)):
        return part
    return replace(part, content=new if _is_list(content) else new[0])


async def _item(item: Any, spec: ModelSpec, left: dict[str, int], *, refuse: bool) -> Any:
    if not isinstance(item, BinaryContent):
        return item
    is_video = item.is_video and spec.video
    if not (item.is_image or item.is_audio or is_video):
        return _document(item, spec, refuse=refuse)
    what = "picture" if item.is_image else "sound" if item.is_audio else "video"
    try:
        converted = _video(item, spec) if is_video else await convert_file(item.data, spec)
    except InputError as error:
        if refuse:
            found = label(detect_mime(item.data)) or "file"
            raise refused(f"wrong_{what}", kind=found, reason=error.text) from error
        return UNREADABLE.format(why=error)
    if not _subtract(what, len(converted.data), left):
        if refuse:
            raise refused(f"so_many_{what}s", model=spec.label)
        return TOO_MANY.format(what=what)
    if converted.data == item.data and converted.media_type == item.media_type:
        return item
    return BinaryContent.narrow_type(
        BinaryContent(
            converted.data,
            media_type=converted.media_type,
            identifier=item.identifier,  # a tool's result names it; by default it would change with the bytes
            vendor_metadata=item.vendor_metadata,
        )
    )


def _video(item: BinaryContent, spec: ModelSpec) -> ConvertedMedia:
    video = read_video(item.data)
    if video is None:
        raise refused("no_video")
    return fit_video(item.data, video, spec)


def _document(item: BinaryContent, spec: ModelSpec, *, refuse: bool) -> BinaryContent | str:
    """Convert any other file: text to a string, a document that the model takes unchanged, others to a note."""
    if takes_document(spec, item.media_type):
        return item
    if is_text_type(item.media_type):
        return item.data.decode(errors="replace")
    if refuse:
        raise refused("unread_kind", model=spec.label, kind=item.media_type)
    return NO_FILE.format(kind=item.media_type)


def _subtract(what: str, size: int, left: dict[str, int]) -> bool:
    """Subtract the item from `left`. Return False if it does not fit; then no earlier item fits either."""
    for name, amount in ((what, 1), ("bytes", size)):
        if left[name] < 0 or (left[name] and left[name] < amount):
            left[name] = -1
            return False
    for name, amount in ((what, 1), ("bytes", size)):
        if left[name]:
            left[name] = left[name] - amount or -1
    return True


def _convert(data: bytes, limits: ImageLimits | SoundLimits, on_start: Callable[[SandboxJob], None]) -> ConvertedMedia:
    if isinstance(limits, ImageLimits):
        return sandbox.convert_image(data, limits, on_start=on_start)
    return convert_audio(data, limits, on_start=on_start)


def _provider(spec: ModelSpec) -> ProviderSpec | None:
    return load_catalog().providers.get(spec.provider)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


class _ConversionCache:
    """Recently converted files, up to `most` bytes. One instance serves the process; it is thread-safe."""

    def __init__(self, most: int) -> None:
        self._max_size, self._size = most, 0
        self._files: OrderedDict[tuple[bytes, ImageLimits | SoundLimits], ConvertedMedia] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[bytes, ImageLimits | SoundLimits]) -> ConvertedMedia | None:
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
            return self._files.get(key)

    def put(self, key: tuple[bytes, ImageLimits | SoundLimits], converted: ConvertedMedia) -> None:
        with self._lock:
            if key not in self._files:
                self._files[key] = converted
                self._size += len(converted.data) + 200
            while self._size > self._max_size:
                self._size -= len(self._files.popitem(last=False)[1].data) + 200


_conversions = _ConversionCache(MAX_CACHED_BYTES)
_queue = RequestQueue(MAX_CONVERSIONS, slots_per_visitor=MAX_CONVERSIONS_PER_VISITOR)
_threads = Threads("conversion", MAX_CONVERSIONS)
