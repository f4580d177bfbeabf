"""Finds out whether a file is a video in MP4 or WebM, and how long it is, from its container. Decodes nothing."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from agent.files.remarks import ConvertedMedia, refused
from agent.models.catalog import ModelSpec, load_catalog
from agent.system.media_types import label

MAX_ELEMENTS = 10_000
"""Elements of a container that are looked at. What we look for stands before the frames, or in few boxes."""
DEPTH = 3
"""Levels of a container in which they are."""

_MP4_ROOMS = (b"moov", b"trak", b"mdia")
_HEADER, _DOCTYPE = 0x1A45DFA3, 0x4282
_SEGMENT, _INFO, _TRACKS, _TRACK = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE
_WEBM_ROOMS = (_HEADER, _SEGMENT, _INFO, _TRACKS, _TRACK)
_SCALE, _DURATION, _TRACK_TYPE, _CLUSTER = 0x2AD7B1, 0x4489, 0x83, 0x1F43B675


@dataclass(frozen=True, slots=True)
class Video:
    """A video in a container. `seconds` is 0 if the container tells no length, as a browser's recording."""

    media_type: str
    seconds: float = 0.0


def read_video(data: bytes) -> Video | None:
    """Return the video, or None if the bytes are no container that has pictures."""
    if data[4:8] == b"ftyp":
        return _mp4(data)
    return _webm(data) if data.startswith(_HEADER.to_bytes(4, "big")) else None


def fit_video(data: bytes, video: Video, spec: ModelSpec) -> ConvertedMedia:
    """Return the video for a model that takes some: unchanged. Raises `InputError` if it is over the model's limits.

    The text of the error continues a sentence that begins with the file's name.
    """
    provider = load_catalog().providers[spec.provider]
    if video.media_type not in provider.video_types:
        raise refused("video_kind", kinds=", ".join(map(label, provider.video_types)))
    if provider.max_video_bytes and len(data) > provider.max_video_bytes:
        raise refused("video_bytes", size=len(data) / 1e6, most=provider.max_video_bytes / 1e6)
    if provider.max_video_seconds and video.seconds > provider.max_video_seconds:
        raise refused("long_minutes", most=provider.max_video_seconds / 60)
    return ConvertedMedia(data=data, media_type=video.media_type, seconds=video.seconds)


def _mp4(data: bytes) -> Video | None:
    seconds, has_pictures = 0.0, False
    for kind, start, end in islice(_boxes(data, 0, len(data)), MAX_ELEMENTS):
        if kind == b"mvhd":
            seconds = seconds or _movie_seconds(data[start : min(end, start + 32)])
        elif kind == b"hdlr":
            has_pictures = has_pictures or data[start + 8 : start + 12] == b"vide"
    if not has_pictures:
        return None
    return Video("video/quicktime" if data[8:12] == b"qt  " else "video/mp4", seconds)


def _boxes(data: bytes, at: int, end: int, depth: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type and the place of each box, and of those in the boxes that describe a movie."""
    while end - at >= 8:
        size, kind, head = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        stop = end if size == 0 else at + size
        if stop < at + head:
            return
        yield kind, at + head, min(stop, end)
        if kind in _MP4_ROOMS and depth < DEPTH:
            yield from _boxes(data, at + head, min(stop, end), depth + 1)
        at = stop


def _movie_seconds(header: bytes) -> float:
    """Return the length in a movie's header. That of a file in fragments is 0."""
    try:
        scale, length = (
            struct.unpack_from(">IQ", header, 20) if header[:1] == b"\1" else struct.unpack_from(">II", header, 12)
        )
    except struct.error:
        return 0.0
    return length / scale if scale else 0.0


def _webm(data: bytes) -> Video | None:
    doctype, scale, length, has_pictures = b"", 1_000_000, 0.0, False
    for kind, start, end in islice(_elements(data, 0, len(data)), MAX_ELEMENTS):
        value = data[start : min(end, start + 16)]
        if kind == _DOCTYPE:
            doctype = value.rstrip(b"\0")
        elif kind == _SCALE:
            scale = int.from_bytes(value, "big")
        elif kind == _DURATION and len(value) in (4, 8):
            (length,) = struct.unpack(">f" if len(value) == 4 else ">d", value)
        elif kind == _TRACK_TYPE:
            has_pictures = has_pictures or value == b"\1"
    if not has_pictures:
        return None
    seconds = length * scale / 1e9
    return Video("video/webm" if doctype == b"webm" else "video/x-matroska", seconds if 0 < seconds < 1e7 else 0.0)


def _elements(data: bytes, at: int, end: int, depth: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield the id and the place of each element before the frames, and of those in the elements that describe it."""
    while at < end:
        kind, start = _number(data, at, 4, keeps_mark=True)
        size, start = _number(data, start, 8)
        if kind < 0 or start > end or (kind == _CLUSTER and size < 0):
            return
        stop = end if size < 0 else min(start + size, end)
        yield kind, start, stop
        if kind in _WEBM_ROOMS and depth < DEPTH:
            yield from _elements(data, start, stop, depth + 1)
        at = stop


def _number(data: bytes, at: int, most: int, *, keeps_mark: bool = False) -> tuple[int, int]:
    """Return a number of Matroska and the place after it. It is -1 if it is unknown, or no number of `most` bytes."""
    first = data[at] if at < len(data) else 0
    length = 9 - first.bit_length()
    if length > most or at + length > len(data):
        return -1, len(data) + 1
    value = int.from_bytes(data[at : at + length], "big")
    if keeps_mark:
        return value, at + length
    value &= (1 << 7 * length) - 1
    return (-1 if value == (1 << 7 * length) - 1 else value), at + length
