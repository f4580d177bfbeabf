"""Audio conversion for models: to 16 kHz mono WAV, or an MP3 unchanged. Pure functions that trust no byte of the input.

Another process (`agent.media.sandbox_worker`) decodes audio within limits of memory and time, and inspects every
sample. Inspecting the samples in this process would stop all other threads for a tenth of a second.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agent.i18n import LocalizedText
from agent.media.mime import ConvertedMedia, detect_mime, label
from agent.media.sandbox import MAX_HEADER_BYTES, SandboxJob, run_decoder
from agent.media.sandbox_worker import IS_CLIPPED, IS_SILENT, RATE, too_long
from agent.media.sentences import refused, sentence

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
    the decoding job, which can be killed. Raises `InputError` if the data is not audio, or is broken, empty, too long
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
