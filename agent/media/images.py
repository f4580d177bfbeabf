"""Pictures as a model takes them: upright, no larger than it looks at, without metadata. Pure; trusts no byte.

`normalised` and `opened` decode, so only the sandbox calls them (`agent.media.sandbox_worker`). The app calls `apart`.
Nothing is decoded before its header was found to be within bounds: the decoder of its own kind alone is opened, which
reads the header, and `_MOST` says how many pixels of that kind fit into 200 MB.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from agent.errors import InputError
from agent.i18n import LocalizedText
from agent.media.mime import ConvertedMedia, detect_mime, label
from agent.media.sentences import refused

KINDS = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/heic", "image/avif")
MAX_RATIO = 100
"""Of the longer to the shorter side."""
MAX_SCANS = 64
"""A progressive JPEG goes over all its pixels once for each scan; cameras and editors make about ten."""

_MOST = {
    "image/png": 24_000_000,
    "image/gif": 24_000_000,
    "image/heic": 25_000_000,
    "image/avif": 20_000_000,
    "image/webp": 12_000_000,
    "image/jpeg": 85_000_000,
}
_MOST_PROGRESSIVE = 25_000_000
"""The decoder of a JPEG reduces it while it reads, but must hold all of a progressive one first."""

_KEPT = {"PNG": "image/png", "JPEG": "image/jpeg", "MPO": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
"""Kinds of picture that providers take, by Pillow's names."""
_PNG_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
_ORDINARY = ("1", "L", "LA", "P", "RGB", "RGBA")  # every model's server can be expected to read these colours
_NEAREST_MODE = {"I": "I;16", "La": "LA", "RGBa": "RGBA", "PA": "RGBA"}

_PLAIN_PNG = 1_500_000
"""Bytes; a picture that would be a longer PNG is a photograph, and sent as JPEG."""
_QUALITIES = (90, 75, 60, 40)
_MAX_PROFILE = 100_000

Image = Any  # Pillow's, which is imported when the first picture comes
_BARE = LocalizedText("without_metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What a model takes: media types, of which PNG and JPEG always are; the longest side in pixels; bytes."""

    types: tuple[str, ...] = ("image/png", "image/jpeg")
    side: int = 1568
    max_bytes: int = 5_000_000


def convert_image(data: bytes, limits: ImageLimits) -> ConvertedMedia:
    """The picture within these limits. What is within them keeps its bytes, but for metadata; nothing is enlarged.

    Of an animation it is the first picture. Transparency is kept as PNG; where that has too many bytes it becomes a
    JPEG on white, and `done` tells so. The same bytes give the same, and the result, given again, is left as it is.
    Raises `InputError` for what is no picture, is broken, or has more pixels than are read.
    """
    found = detect_mime(data)
    if found not in KINDS:
        raise refused("no_readable_picture")
    try:
        image = _opened(data, found)
        _check(image, data, found)
        return _within(image, data, found, limits)
    except InputError:
        raise
    except Exception as error:  # what libraries make of broken files is of no one kind
        raise refused("broken_picture", kind=label(found)) from error


def open_image(data: bytes) -> tuple[str, bytes]:
    """The media type of a picture and b"", if its bytes may stay as they are; else "image/png" and the picture as PNG.

    Reads all that Pillow reads. Raises `OSError`, `ValueError` and others where it can't be read to its end.
    """
    from PIL import Image as pillow

    with pillow.open(BytesIO(data)) as image:
        image.load()
        if kept := _KEPT.get(image.format or ""):
            return kept, b""
        return "image/png", as_png(image)


def as_png(image: Image) -> bytes:
    """Pillow's picture as PNG, upright. Raises `OSError`, `ValueError` or `SystemError`."""
    from PIL import ImageOps

    upright: Image = ImageOps.exif_transpose(image)
    if upright.mode not in _PNG_MODES:
        upright = upright.convert(_NEAREST_MODE.get(upright.mode, "RGB"))
    out = BytesIO()
    upright.save(out, format="PNG")
    return out.getvalue()


def _opened(data: bytes, found: str) -> Image:
    """The picture with its header read and nothing else, by the decoder of its kind alone."""
    if found == "image/heic":
        import pillow_heif

        return pillow_heif.open_heif(data, convert_hdr_to_8bit=True)  # pyright: ignore[reportUnknownMemberType] - no types
    from PIL import AvifImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    decoders: dict[str, Callable[..., Image]] = {
        "image/png": PngImagePlugin.PngImageFile,
        "image/jpeg": JpegImagePlugin.JpegImageFile,
        "image/webp": WebPImagePlugin.WebPImageFile,
        "image/gif": GifImagePlugin.GifImageFile,
        "image/avif": AvifImagePlugin.AvifImageFile,
    }
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    if found == "image/webp":
        _check_size(_webp_size(data), found)  # its decoder makes room for all of it when it is opened
    return decoders[found](BytesIO(data))


def _check(image: Image, data: bytes, found: str) -> None:
    _check_size(image.size, found, progressive="progressive" in image.info)
    # Two bytes that stand for nothing else, in the data between the scans least of all.
    if found == "image/jpeg" and data.count(b"\xff\xda") > MAX_SCANS:
        raise refused("many_scans", most=MAX_SCANS)


def _check_size(size: tuple[int, int], found: str, *, progressive: bool = False) -> None:
    width, height = size
    most = _MOST_PROGRESSIVE if progressive else _MOST[found]
    if width * height > most:
        key = "many_progressive_pixels" if progressive else "many_pixels"
        raise refused(key, count=width * height / 1e6, most=most // 10**6, kind=label(found))
    if max(width, height) > MAX_RATIO * max(1, min(width, height)):
        raise refused("too_thin", width=width, height=height, most=MAX_RATIO)


def _within(image: Image, data: bytes, found: str, limits: ImageLimits) -> ConvertedMedia:
    longest = max(image.size)
    size = _scaled(image.size, limits.side)
    large, turn, moving = size != image.size, 1, False
    if found == "image/heic":
        image = image.to_pillow()  # its decoder has turned it already
    elif found == "image/avif":
        turn, moving = image.getexif().get(0x0112, 1), image.is_animated
        image.load()  # what is coded in it may be far more than its header says, which the sandbox's memory bounds
    else:
        moving = bool(getattr(image, "is_animated", False))
        if large:
            image.draft(None, size)
        image.load()
        turn = image.getexif().get(0x0112, 1)
    _check_size(image.size, found)  # headers lie
    cleaning = _CLEAN.get(found) if found in limits.types else None  # HEIC and AVIF are never cleaned, but written anew
    if cleaning and not large and turn == 1 and not moving and image.mode in _ORDINARY:
        clean = cleaning(data)
        if clean is not None and len(clean) <= limits.max_bytes:
            return ConvertedMedia(data=clean, media_type=found, done=() if clean == data else (_BARE,))
    profile = image.info.get("icc_profile") or b""
    image = _turned(_scaled_to(_coloured(image), size), turn)
    out, became, on_white = _encoded(image, found, profile, limits)
    done = (
        *((LocalizedText("became", {"kind": label(found), "into": label(became)}),) if became != found else ()),
        *(
            (LocalizedText("scaled", {"before": longest, "after": max(image.size)}),)
            if longest > max(image.size)
            else ()
        ),
        *((LocalizedText("first_picture"),) if moving else ()),
        *((LocalizedText("on_white"),) if on_white else ()),
    )
    return ConvertedMedia(data=out, media_type=became, done=done or (_BARE,))


def _scaled(size: tuple[int, int], side: int) -> tuple[int, int]:
    longest = max(size)
    if longest <= side:
        return size
    width, height = (max(1, round(one * side / longest)) for one in size)
    return width, height


def _coloured(image: Image) -> Image:
    """The picture in 8 bits, grey or red, green and blue, with transparency where any of it is transparent."""
    if image.mode.startswith("I"):  # 16 bits, of which the upper eight are kept
        return image.convert("I").point(_upper_half).convert("L")
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        full = image.convert("RGBA")
        return full if full.getchannel("A").getextrema()[0] < 255 else full.convert("RGB")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGB") if image.mode == "P" else image


def _upper_half(value: Any) -> Any:
    return value * (1 / 256)


def _scaled_to(image: Image, size: tuple[int, int]) -> Image:
    from PIL import Image as pillow

    small = image if size == image.size else image.resize(size, pillow.Resampling.LANCZOS, reducing_gap=3.0)
    return small if small.mode in ("L", "RGB", "RGBA") else small.convert("RGB")


def _turned(image: Image, turn: int) -> Image:
    """The picture as its camera was held. Of what no camera says, nothing is made."""
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(ways[turn]) if turn in ways else image


def _encoded(image: Image, found: str, profile: bytes, limits: ImageLimits) -> tuple[bytes, str, bool]:
    """The bytes, their kind, and whether what was transparent is white now. Raises `InputError` where none are few."""
    drawn = found in ("image/png", "image/gif") or (found == "image/webp" and image.mode == "RGBA")
    # Colours are numbers of a profile; without it those of a wide one would fade.
    spaces = {b"RGB ": ("RGB", "RGBA"), b"GRAY": ("L",)}
    fits = len(profile) <= _MAX_PROFILE and image.mode in spaces.get(profile[16:20], ())
    options: dict[str, Any] = {"icc_profile": profile if fits else None}
    clear = image.mode == "RGBA"
    if drawn or clear:
        png = _saved(image, "PNG", options)
        if len(png) <= (limits.max_bytes if clear else min(limits.max_bytes, _PLAIN_PNG)):
            return png, "image/png", False
    if clear:
        from PIL import Image as pillow

        white = pillow.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    for quality in _QUALITIES:
        jpeg = _saved(image, "JPEG", {**options, "quality": quality})
        if len(jpeg) <= limits.max_bytes:
            return jpeg, "image/jpeg", clear
    raise refused("picture_bytes", most=limits.max_bytes / 1e6)


def _saved(image: Image, format_: str, options: dict[str, Any]) -> bytes:
    out = BytesIO()
    image.info = {}  # or the encoder would write what it finds there
    image.save(out, format_, **options)
    return out.getvalue()


# --- without metadata, and otherwise the same bytes -------------------------------------------------------------------
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_PNG_KEPT = (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"cICP")
_WEBP_KEPT = (b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP")


def _clean_png(data: bytes) -> bytes | None:
    out, at = [data[:8]], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        if end > len(data):
            raise ValueError("a chunk is longer than the file")
        if name in _PNG_KEPT:
            out.append(data[at:end])
        if name == b"IEND":
            return b"".join(out)
        at = end
    raise ValueError("there is no end")


def _clean_jpeg(data: bytes) -> bytes | None:
    """Of the application's segments those of JFIF, Adobe and the colour profile stay, which say what colours mean."""
    out, at = [data[:2]], 2
    while at + 4 <= len(data):
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at] != 0xFF or not 0xC0 <= marker <= 0xFE:
            return None  # some filling between segments; it is written anew
        if marker == 0xD9:
            return b"".join([*out, b"\xff\xd9"])  # what follows is no part of the picture
        if marker == 0xDA:
            following = _MARKER.search(data, end)
            if following is None:
                raise ValueError("there is no end")
            end = following.start()
        body = data[at + 4 : end]
        kept = (
            marker < 0xE0
            or (marker == 0xE0 and body.startswith(b"JFIF\0") and len(body) == 14)
            or (marker == 0xE2 and body.startswith(b"ICC_PROFILE\0"))
            or (marker == 0xEE and body.startswith(b"Adobe"))
        )
        if kept:
            out.append(data[at:end])
        at = end
    if data[at : at + 2] == b"\xff\xd9":
        return b"".join([*out, b"\xff\xd9"])
    raise ValueError("there is no end")


def _clean_webp(data: bytes) -> bytes | None:
    out: list[bytes] = []
    for name, body in _riff(data):
        if name == b"VP8X":
            body = bytes([body[0] & ~0x0C]) + body[1:]  # says that there is EXIF or XMP
        if name in _WEBP_KEPT:
            out.append(name + len(body).to_bytes(4, "little") + body + b"\0" * (len(body) % 2))
    whole = b"WEBP" + b"".join(out)
    return b"RIFF" + len(whole).to_bytes(4, "little") + whole


def _clean_gif(data: bytes) -> bytes | None:
    """As it is where it has no words in it; otherwise it is written anew."""
    return data if b"\x21\xfe" not in data and b"\x21\xff" not in data and data.endswith(b"\x3b") else None


_CLEAN: dict[str, Callable[[bytes], bytes | None]] = {
    "image/png": _clean_png,
    "image/jpeg": _clean_jpeg,
    "image/webp": _clean_webp,
    "image/gif": _clean_gif,
}


def _riff(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a RIFF file. Raises `ValueError` where one is longer than the file."""
    at = 12
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        if end > len(data):
            raise ValueError("a chunk is longer than the file")
        yield data[at : at + 4], data[at + 8 : end]
        at = end + end % 2


def _webp_size(data: bytes) -> tuple[int, int]:
    name, body = data[12:16], data[20:30]
    if len(body) < 10:
        raise ValueError("it is cut off")
    if name == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if name == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
