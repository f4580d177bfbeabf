"""Pictures and sounds for tests: real files with recognisable content, and harmful files."""

import io
import random
import struct
import wave
import zlib
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pillow_heif
import soundfile
from PIL import Image

Samples = Any
"""An array of floats."""

RED, BLUE = (220, 20, 20), (20, 20, 220)
GPS = {1: "N", 2: (48.0, 51.0, 30.0), 3: "E", 4: (2.0, 17.0, 40.0)}
SECRET = "Somebody's camera"


def drawn(size: tuple[int, int] = (64, 48), mode: str = "RGB") -> Image.Image:
    """Return a blue picture with a red upper left quarter, which shows how it is turned."""
    image = Image.new("RGB", size, BLUE)
    image.paste(RED, (0, 0, size[0] // 2, size[1] // 2))
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.new("L", size, 128))
    if mode == "I;16":
        wide = np.asarray(image.convert("L")).astype(np.uint16) * 257
        return Image.fromarray(wide)
    return image.convert(mode)


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    """Return a picture as bytes, encoded by Pillow or libheif."""
    out = io.BytesIO()
    if format_ == "HEIF":
        pillow_heif.from_pillow(image).save(out, quality=80, **{"enc_params": {"preset": "ultrafast"}, **options})
    else:
        image.save(out, format_, **options)
    return out.getvalue()


def picture(format_: str, size: tuple[int, int] = (64, 48), mode: str = "RGB", **options: Any) -> bytes:
    """Return the drawn picture in that format."""
    return encoded(drawn(size, mode), format_, **options)


HALF_MB = (400, 400)
"""The size of a random picture of 0.48 MB."""


def random_png(size: tuple[int, int] = (8, 8)) -> bytes:
    """Return a picture that no other test has. Compression hardly makes it smaller."""
    wide, high = size
    return encoded(Image.frombytes("RGB", size, random.randbytes(3 * wide * high)), "PNG")


def exif(turn: int = 1) -> bytes:
    """Return a camera's metadata: where the picture was taken, who owns it, and how the camera was held."""
    found = Image.Exif()
    found[0x0112], found[0x010F] = turn, SECRET
    found.get_ifd(0x8825).update(GPS)
    return found.tobytes()


def red_corner(image: Image.Image) -> str:
    """Return the corner that is red, or "" if none or several are."""
    wide, high = image.size
    small = image.convert("RGB")
    spots = {"upper left": (0.2, 0.2), "upper right": (0.8, 0.2), "lower left": (0.2, 0.8), "lower right": (0.8, 0.8)}
    found: list[str] = []
    for name, (x, y) in spots.items():
        pixel: Any = small.getpixel((int(x * wide), int(y * high)))
        if pixel[0] > 150 and pixel[2] < 100:
            found.append(name)
    return found[0] if len(found) == 1 else ""


# --- harmful files ----------------------------------------------------------------------------------------------------


def png_of(width: int, height: int, depth: int = 1, *more: bytes, rows: int | None = None) -> bytes:
    """Return a black PNG of that size. Its data (of `rows` rows) is complete, and compressed to a thousandth."""
    row = b"\0" * (1 + (width * depth + 7) // 8)
    pack = zlib.compressobj(9)
    body = b"".join([pack.compress(row) for _ in range(height if rows is None else rows)]) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    chunks = [_chunk(b"IHDR", head), *more, _chunk(b"IDAT", body), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def jpeg_of(width: int, height: int) -> bytes:
    """Return a JPEG with that size in its header."""
    data = bytearray(picture("JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def jpeg_of_scans(count: int) -> bytes:
    """Return a progressive JPEG with many scans over a large picture, each of a few bytes."""
    data = encoded(Image.new("RGB", (2000, 2000)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + b"\xff\xd9"


def gif_of(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """Return a GIF with that screen size and a frame of that size."""
    data = bytearray(picture("GIF", mode="P"))
    data[6:10] = struct.pack("<HH", *screen)
    at = data.index(b"\x2c")
    data[at + 5 : at + 9] = struct.pack("<HH", *frame)
    return bytes(data)


def webp_of(width: int, height: int) -> bytes:
    """Return a WebP with that canvas size in its header."""
    inner = picture("WEBP")[12:]
    canvas = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + (width - 1).to_bytes(3, "little")
    whole = b"WEBP" + canvas + (height - 1).to_bytes(3, "little") + inner
    return b"RIFF" + struct.pack("<I", len(whole)) + whole


def box_of(format_: str, claimed: tuple[int, int], real: tuple[int, int] = (64, 64)) -> bytes:
    """Return a HEIC or AVIF of size `real` that claims another size."""
    data = bytearray(encoded(Image.new("RGB", real), format_))
    at = data.index(b"ispe") + 8
    data[at : at + 8] = struct.pack(">II", *claimed)
    return bytes(data)


def ico_of(png: bytes) -> bytes:
    """Return an icon that holds a PNG."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(png), 22) + png


def harmful_pictures() -> dict[str, bytes]:
    """Return files by name that unpack to far more than their size."""
    large = png_of(60_000, 60_000, rows=6_000)
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"a" * 50_000_000, 9))
    profile = _chunk(b"iCCP", b"p\0\0" + zlib.compress(b"a" * 50_000_000, 9))
    return {
        "png": large,
        "png, many texts": png_of(64, 64, 8, *[text] * 8),
        "png, profile": png_of(64, 64, 8, profile),
        "png, thin": png_of(1, 60_000),
        "png, wide": png_of(60_000, 2),
        "jpeg": jpeg_of(65_000, 65_000),
        "jpeg, scans": jpeg_of_scans(3000),
        "gif, screen": gif_of((65_535, 65_535), (64, 48)),
        "gif, frame": gif_of((64, 48), (65_535, 65_535)),
        "webp": webp_of(16_000, 16_000),
        "webp, beyond": webp_of(1 << 24, 200),
        "heic": box_of("HEIF", (60_000, 60_000)),
        "heic, lying": box_of("HEIF", (64, 64), (1500, 1500)),
        "avif": box_of("AVIF", (60_000, 60_000)),
        "avif, lying": box_of("AVIF", (64, 64), (4000, 4000)),
        "icon": ico_of(large),
        "gif, comment": GIF_HEAD + b"\x21\xfe" + b"\x01a" * 2_000_000 + b"\0;",
        "gif, comments": GIF_HEAD + b"\x21\xfe\x01a\0" * 1_000_000 + b";",
        "avif, parts": picture("AVIF").replace(b"mdat", b"mdat" + b"infe" * 60_000),
    }


GIF_HEAD = b"GIF89a\x08\0\x08\0\x80\0\0\0\0\0\xff\xff\xff"
"""The beginning of a GIF of eight by eight pixels in two colours."""


# --- sounds -----------------------------------------------------------------------------------------------------------

FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "wav, 24 bits": ("WAV", "PCM_24"),
    "wav, floats": ("WAV", "FLOAT"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "aiff": ("AIFF", "PCM_16"),
    "webm": ("webm", "libopus"),
    "m4a": ("ipod", "aac"),
    "m4a, lossless": ("ipod", "alac"),
    "aac": ("adts", "aac"),
}
"""The formats that `sound` makes: libsndfile's in capitals, FFmpeg's in small letters."""


def tone(seconds: float = 1.0, *, hertz: float = 1000, rate: int = 48_000, loud: float = 0.4) -> Samples:
    """Return a tone from -1 to 1. A tone louder than 1 is clipped."""
    time = np.arange(int(seconds * rate)) / rate
    return np.clip(loud * np.sin(2 * np.pi * hertz * time), -1, 1).astype(np.float32)


def sound(format_: str, samples: Samples | None = None, *, rate: int = 48_000) -> bytes:
    """Return the samples, or a tone, in one of `FORMATS`. Several rows are channels."""
    samples = tone(rate=rate) if samples is None else samples
    container, codec = FORMATS[format_]
    out = io.BytesIO()
    if container.isupper():
        soundfile.write(out, samples.T, rate, format=container, subtype=codec)
        return out.getvalue()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate, layout="mono")
        given: Any = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "flt", "mono")
        given.sample_rate = rate
        resampler = av.AudioResampler(
            format=stream.format.name, layout="mono", rate=rate, frame_size=stream.codec_context.frame_size or 960
        )
        for frame in [*resampler.resample(given), *resampler.resample(None), None]:
            file.mux(stream.encode(frame))
    return out.getvalue()


def video(colours: list[tuple[int, int, int]], *, size: tuple[int, int] = (320, 180), container: str = "webm") -> bytes:
    """Return a video that shows each colour for a second, with a tone."""
    is_web = container in ("webm", "matroska")
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        shown: Any = file.add_stream("libvpx" if is_web else "mpeg4", rate=5)
        shown.width, shown.height, shown.pix_fmt = *size, "yuv420p"
        heard: Any = file.add_stream("libopus" if is_web else "aac", rate=48_000, layout="mono")
        given: Any = av.AudioFrame.from_ndarray(tone(len(colours)).reshape(1, -1), "flt", "mono")
        given.sample_rate = 48_000
        resampler = av.AudioResampler(
            format=heard.format.name, layout="mono", rate=48_000, frame_size=960 if is_web else 1024
        )
        for colour in colours:
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), colour, np.uint8), "rgb24")
            for _ in range(5):
                file.mux(shown.encode(frame))
        file.mux(shown.encode(None))
        for frame in [*resampler.resample(given), *resampler.resample(None), None]:
            file.mux(heard.encode(frame))
    return out.getvalue()


def ready(samples: Samples | None = None) -> bytes:
    """Return a WAV in the form that every model accepts."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(((tone(0.1, rate=16_000) if samples is None else samples) * 32_767).astype("<i2").tobytes())
    return out.getvalue()


def heard(wav: bytes) -> tuple[float, float]:
    """Return the length of a sound in seconds, and its loudest frequency in hertz."""
    samples, rate = soundfile.read(io.BytesIO(wav), always_2d=True)
    spectrum = np.abs(np.fft.rfft(samples[:, 0]))
    return len(samples) / rate, float(np.fft.rfftfreq(len(samples), 1 / rate)[int(spectrum.argmax())])


def hours_of_opus(hours: float, *, container: str = "ogg", **options: str) -> bytes:
    """Return silence, with three bytes for each 20 ms."""
    out = io.BytesIO()
    with av.open(out, "w", format=container, options=options) as file:
        stream: Any = file.add_stream("libopus", rate=48_000, layout="mono")
        stream.codec_context.open()
        for number in range(int(hours * 3600 * 50)):
            packet: Any = av.Packet(b"\xfc\xff\xfe")
            packet.stream, packet.time_base = stream, Fraction(1, 48_000)
            packet.pts = packet.dts = number * 960
            packet.duration = 960
            file.mux(packet)
    return out.getvalue()


def m4a_of(samples: int) -> bytes:
    """Return an M4A with a table that claims `samples` samples of one size. Each costs its reader a few bytes."""
    data = bytearray(sound("m4a"))
    at = data.index(b"stsz") + 8
    data[at : at + 8] = struct.pack(">II", 1, samples)
    for box in (b"stsc", b"stts"):
        at = data.index(box) + 16
        data[at : at + 4] = struct.pack(">I", samples)
    return bytes(data)


def wav_of(*, rate: int = 16_000, channels: int = 1, claimed: int = 1 << 31) -> bytes:
    """Return a WAV of a few samples with other figures in its header."""
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", claimed, b"WAVE", b"fmt ", 16, 1, channels, rate,
                       rate * channels * 2 % 2**32, channels * 2 % 65536, 16, b"data", claimed)  # fmt: skip
    return head + b"\0\1" * 16_000


def harmful_sounds() -> dict[str, bytes]:
    """Return files by name that unpack to far more than their size, or claim to."""
    return {
        "opus, two hours": hours_of_opus(2),
        "webm, two hours": hours_of_opus(2, container="webm"),
        "flac, two hours": sound("flac", np.zeros(2 * 3600 * 8000, np.float32), rate=8000),
        "m4a, samples": m4a_of(200_000_000),
        "wav, channels": wav_of(channels=20_000),
        "wav, rate": wav_of(rate=4_000_000_000),
    }


PNG, WAV, MP3 = picture("PNG", (8, 8)), ready(), sound("mp3", tone(0.1))
"""Files that every model accepts without conversion. Only some accept the MP3."""
