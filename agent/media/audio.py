"""Sounds as a model takes them: 16 kHz, mono, WAV, or an MP3 as it is. Pure; trusts no byte.

Another process (`agent.media.sandbox_worker`) decodes a sound within limits of memory and time, and looks at every
sample. In this process that would stop all other threads for a tenth of a second.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agent.i18n import LocalizedText
from agent.media.mime import ConvertedMedia, detect_mime, label
from agent.media.sandbox import SandboxJob, run_decoder
from agent.media.sandbox_worker import IS_CLIPPED, IS_SILENT, RATE, too_long
from agent.media.sentences import refused

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
"""What is read, and what FFmpeg calls it."""

AS_IS = 5_000_000
"""Bytes up to which an MP3 is sent as it is."""

_SHIFTS = (21, 14, 7, 0)
"""The four bytes of a tag's length have seven bits each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundLimits:
    """What a model takes: media types, of which WAV always is one; seconds; bytes."""

    types: tuple[str, ...] = ("audio/wav",)
    seconds: int = 600
    max_bytes: int = 20_000_000


def convert_audio(
    data: bytes, limits: SoundLimits, *, began: Callable[[SandboxJob], None] = lambda _: None
) -> ConvertedMedia:
    """The sound within these limits, and how long it is; a small MP3 as it is, but for its tags, where they are taken.

    That it is silent or clipped is noted, not refused. The same bytes give the same, and the result, given
    again, is left as it is. `began` is given the job that decodes, which may be killed. Raises `InputError` for what is
    no sound, is broken, empty, too long or too large.
    """
    found = detect_mime(data)
    if found not in FORMATS:
        raise refused("no_readable_sound")
    samples, heard = _samples(data), b""
    ours = samples is not None
    try:
        if samples is None:
            decoded = run_decoder("sound", FORMATS[found], str(limits.seconds), data=data, began=began)
            samples, heard = decoded[:-1], decoded[-1:]
        elif 0 < len(samples) <= (limits.seconds + 1) * RATE * 2:
            heard = run_decoder("listen", data=samples, began=began)
    except ValueError as error:
        raise refused("broken_sound", kind=label(found)) from error
    seconds = len(samples) / 2 / RATE
    if not samples:
        raise refused("no_sound")
    if seconds > limits.seconds + 0.1:  # a resampler has a little more or less than there was
        key, most = too_long(limits.seconds)
        raise refused(key, most=most)
    note = _note(heard)
    if found == "audio/mpeg" and found in limits.types and len(data) <= min(AS_IS, limits.max_bytes):
        bare = _without_tags(data)
        done = () if bare == data else (LocalizedText("without_tags"),)
        return ConvertedMedia(data=bare, media_type=found, done=done, note=note, seconds=seconds)
    out = data if ours else _head(len(samples)) + samples
    if len(out) > limits.max_bytes:
        raise refused("sound_bytes", size=len(out) / 1e6, most=limits.max_bytes / 1e6)
    return ConvertedMedia(
        data=out, media_type="audio/wav", done=() if ours else (_became(found),), note=note, seconds=seconds
    )


def _became(found: str) -> LocalizedText:
    if found == "audio/wav":
        return LocalizedText("resampled", {"rate": RATE // 1000})
    return LocalizedText("became", {"kind": label(found), "into": "WAV"})


def _samples(data: bytes) -> bytes | None:
    """The samples of a WAV that is just as this module writes it, None for any other."""
    return data[44:] if len(data) % 2 == 0 and data[:44] == _head(len(data) - 44) else None


def _head(length: int) -> bytes:
    """The header of a WAV with so many bytes of samples."""
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
    """What people should know of the sound, by the byte that the decoder says. It may have been taken over."""
    flags = heard[0] if heard else 0
    if flags & IS_SILENT:
        return LocalizedText("silent")
    return LocalizedText("clipped") if flags & IS_CLIPPED else None


def _without_tags(data: bytes) -> bytes:
    """An MP3 without its ID3 tags, which say who made it, and where."""
    start, end = 0, len(data)
    while data.startswith(b"ID3", start) and end - start > 10:
        length = sum((byte & 0x7F) << shift for byte, shift in zip(data[start + 6 : start + 10], _SHIFTS, strict=True))
        start += 10 + length + (10 if data[start + 5] & 0x10 else 0)
    if data.startswith(b"TAG", max(start, end - 128)) and end - start >= 128:
        end -= 128
    return data[start:end]
