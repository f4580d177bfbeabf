"""A program that runs in the sandbox (`agent.files.sandbox`) and decodes its input.

    picture LIMITS          an image converted for a model: a line of JSON with `media_type` and `done`, then the
                            bytes; LIMITS are the fields of `images.ImageLimits`, as JSON
    open                    any image that Pillow reads: its media type, a line break, and the bytes if they are new
    sound FORMAT SECONDS    16 kHz mono samples of 16 bits, for at most SECONDS and a little more; then one byte of
                            flags: `IS_CLIPPED` (1), `IS_SILENT` (2)
    listen                  only the byte of flags, for samples in the form that `sound` writes

To refuse a file, the program exits with status `REFUSED` and writes JSON to its last line: the key of a sentence and
its values. Any other status except 0 means a broken file.
"""

import json
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, cast

from agent.errors import InputError
from agent.files import images
from agent.files.remarks import SENTENCES
from agent.i18n.text import LocalizedText

REFUSED = 3
RATE = 16_000
SPARE_SECONDS = 1.0
"""Seconds decoded beyond the limit, to detect longer audio."""
CLIPPED = 0.01
"""The share of clipped samples that counts as clipped. A tone at full scale has a smaller share at its peaks."""
SILENT = 33
"""The largest inaudible sample: 60 dB below full scale."""
IS_CLIPPED, IS_SILENT = 1, 2
MAX_CHANNELS = 8
RATES = range(4_000, 400_000)
CODECS = ("aac", "alac", "flac", "mp3", "mp3float", "opus", "libopus", "vorbis")
"""The codecs that FFmpeg can use here. It has hundreds, and each could have an exploitable bug."""

_BLOCK = 1 << 16
_NO_LENGTH = (1 << 63) - 1
"""The frames of a sound whose header has no length, such as a FLAC that was written to a pipe. FFmpeg must read it."""


class DecodeRefused(Exception):
    """The file is valid but not accepted. Carries the sentence and its values."""

    def __init__(self, key: str, **values: str | float) -> None:
        super().__init__(key)
        self.sentence = SENTENCES[key], values


def picture(data: bytes, limits: str) -> Iterator[bytes]:
    """Convert an image for a model with these limits."""
    given: dict[str, Any] = json.loads(limits)
    made = images.convert_image(data, images.ImageLimits(types=tuple(given.pop("types")), **given))
    done = [(one.message, dict(one.values)) for one in made.done]
    yield json.dumps({"media_type": made.media_type, "done": done}).encode() + b"\n"
    yield made.data


def open_(data: bytes) -> Iterator[bytes]:
    """Yield the image's media type, and a PNG of it if no provider accepts the image unchanged."""
    media_type, png = images.open_image(data)
    yield f"{media_type}\n".encode()
    yield png


def sound(data: bytes, format_: str, seconds: str) -> Iterator[bytes]:
    """Yield the samples, and stop soon after `seconds`. Only decoding shows how long audio really is."""
    import av

    resampler: Any = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    full = total = peak = 0
    left = int((float(seconds) + SPARE_SECONDS) * RATE * 2)
    for frame in _frames(data, format_, float(seconds)):
        values = frame.to_ndarray()
        full, total = full + _count_full_scale(values), total + values.size
        for out in resampler.resample(frame):
            samples = out.to_ndarray()
            peak = max(peak, _peak(samples))
            left -= samples.nbytes
            yield samples.tobytes()
        if left < 0:
            break
    for out in resampler.resample(None):
        samples = out.to_ndarray()
        peak = max(peak, _peak(samples))
        yield samples.tobytes()
    yield _flags(full, total, peak)


def listen(data: bytes) -> Iterator[bytes]:
    """Yield the byte of flags for samples of 16 bits."""
    import numpy as np

    values = np.frombuffer(data, "<i2").reshape(1, -1)
    yield _flags(_count_full_scale(values), values.size, _peak(values))


def _flags(full: int, total: int, peak: int) -> bytes:
    """Return the byte of flags for clipped and silent audio."""
    return bytes([(full > CLIPPED * total) * IS_CLIPPED | (peak <= SILENT) * IS_SILENT])


def _peak(values: Any) -> int:
    """Return the largest distance of a sample from zero."""
    return max(int(values.max()), -int(values.min())) if values.size else 0


def _count_full_scale(values: Any) -> int:
    """Count the samples at full scale with both neighbours at full scale: the top of a clipped wave."""
    import numpy as np

    most = 0.9999 * (1 if values.dtype.kind == "f" else np.iinfo(values.dtype).max)
    full = (values >= most) | (values <= -most)
    return int((full[:, 2:] & full[:, 1:-1] & full[:, :-2]).sum())


def _frames(data: bytes, format_: str, seconds: float) -> Iterator[Any]:
    import ctypes.util

    ctypes.util.find_library = _find_library  # soundfile calls it
    import soundfile  # pyright: ignore[reportMissingTypeStubs]

    if format_ in ("wav", "mp3", "flac", "ogg", "aiff"):
        try:
            file: Any = soundfile.SoundFile(BytesIO(data))
        except soundfile.LibsndfileError:
            pass  # FFmpeg must decode this codec
        else:
            if file.frames < _NO_LENGTH:
                return _from_sndfile(file, seconds)
    return _from_ffmpeg(data, format_, seconds)


def _find_library(name: str) -> str | None:
    """Return the file name of a library of the system. Python's function starts programs, which is refused here."""
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            paths = cache.read().decode("ascii", "replace").split("\0")
    except OSError:
        return None
    names = (path.rpartition("/")[2] for path in paths)
    return next((one for one in names if one.startswith(f"lib{name}.so")), None)


def _from_sndfile(file: Any, seconds: float) -> Iterator[Any]:
    import av

    if file.channels > MAX_CHANNELS or file.samplerate not in RATES:
        raise DecodeRefused("odd_sound", channels=file.channels, rate=file.samplerate)
    _check_claimed_length(file.frames / file.samplerate, seconds)
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        frame: Any = av.AudioFrame.from_ndarray(block.mean(axis=1, dtype="float32").reshape(1, -1), "flt", "mono")
        frame.sample_rate = file.samplerate
        yield frame


def _from_ffmpeg(data: bytes, format_: str, seconds: float) -> Iterator[Any]:
    import av
    from av.stream import Disposition

    # Name the format, so that FFmpeg does not detect a playlist and open other files.
    container: Any = av.open(BytesIO(data), format=format_, metadata_errors="ignore")
    with container:
        if any(not stream.disposition & Disposition.attached_pic for stream in container.streams.video):
            raise DecodeRefused("video")
        if not container.streams.audio:
            raise DecodeRefused("no_sound")
        stream = container.streams.audio[0]
        codec: Any = stream.codec_context
        if codec.name not in CODECS:
            raise DecodeRefused("unknown_codec", codec=codec.name)
        if codec.channels > MAX_CHANNELS or codec.sample_rate not in RATES:
            raise DecodeRefused("odd_sound", channels=codec.channels, rate=codec.sample_rate)
        _check_claimed_length((container.duration or 0) / av.time_base, seconds)
        codec.thread_count = 1
        yield from container.decode(stream)


def _check_claimed_length(length: float, seconds: float) -> None:
    """Refuse a file if its header claims too much, which saves decoding. A small claim is not trusted."""
    if length > seconds + SPARE_SECONDS:
        key, most = too_long(seconds)
        raise DecodeRefused(key, most=most)


def too_long(seconds: float) -> tuple[str, float]:
    """Return the sentence key and the number in it, for audio longer than `seconds`."""
    return ("long_minutes", seconds / 60) if seconds >= 60 else ("long_seconds", seconds)


def main(arguments: list[str]) -> int:
    """Decode the input to the output."""
    job, *args = arguments
    out = sys.stdout.buffer
    jobs: dict[str, Callable[..., Iterator[bytes]]] = {
        "picture": picture,
        "open": open_,
        "sound": sound,
        "listen": listen,
    }
    try:
        for piece in jobs[job](sys.stdin.buffer.read(), *args):
            out.write(piece)
    except MemoryError:
        out.write(b"\n" + json.dumps(DecodeRefused("slow_document").sentence).encode())
        return REFUSED
    except InputError as error:
        text = cast(LocalizedText, error.text)  # all of them are made by `refused`
        out.write(b"\n" + json.dumps((text.message, dict(text.values))).encode())
        return REFUSED
    except ImportError:  # a decoder is in an extra
        out.write(b"\n" + json.dumps(DecodeRefused("no_decoder").sentence).encode())
        return REFUSED
    except DecodeRefused as refused:
        out.write(b"\n" + json.dumps(refused.sentence).encode())
        return REFUSED
    return 0
