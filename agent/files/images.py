"""Image conversion for models: upright, no larger than the model uses, without metadata. Trusts no byte of the input.

`convert_image` and `open_image` decode, so only `agent.files.sandbox_worker` calls them; the app uses
`agent.files.sandbox`. `convert_image` checks the header before it decodes: it opens only the decoder of the detected
type, which reads the header, and `_MAX_PIXELS` gives the number of pixels of that type that fit into 200 MB.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from agent.errors import InputError
from agent.files.remarks import ConvertedMedia, refused, sentence
from agent.i18n.text import LocalizedText
from agent.system.media_types import detect_mime, label

KINDS = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/heic", "image/avif")
MAX_RATIO = 100
"""The largest ratio of the longer to the shorter side."""
MAX_SCANS = 64
"""A progressive JPEG passes over all pixels once per scan; cameras and editors write about ten scans."""

MAX_ITEMS = 1_000
"""The parts of an AVIF: a picture of tiles has fewer than a hundred."""

_MAX_PIXELS = {
    "image/png": 24_000_000,
    "image/gif": 24_000_000,
    "image/heic": 25_000_000,
    "image/avif": 20_000_000,
    "image/webp": 12_000_000,
    "image/jpeg": 85_000_000,
}
_MAX_PROGRESSIVE_PIXELS = 25_000_000
"""The decoder shrinks a JPEG while it reads, but must first hold all of a progressive one in memory."""

_ACCEPTED = {"PNG": "image/png", "JPEG": "image/jpeg", "MPO": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
"""Image formats that providers accept, by Pillow's names."""
_PNG_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
_COMMON_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # colour modes that every model's server is expected to read
_NEAREST_MODE = {"I": "I;16", "La": "LA", "RGBa": "RGBA", "PA": "RGBA"}

_MAX_DRAWING_BYTES = 1_500_000
"""An image with a larger PNG is probably a photograph and is sent as JPEG."""
_QUALITIES = (90, 75, 60, 40)
_MAX_PROFILE = 100_000

PillowImage = Any  # Pillow's class; Pillow is imported when the first image arrives
_METADATA_REMOVED = sentence("without_metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Image limits of a model: media types (PNG and JPEG always work), longest side in pixels, size in bytes."""

    types: tuple[str, ...] = ("image/png", "image/jpeg")
    side: int = 1568
    max_bytes: int = 5_000_000


def convert_image(data: bytes, limits: ImageLimits) -> ConvertedMedia:
    """Return the image converted to fit these limits. An image that fits only loses its metadata; none is enlarged.

    An animation becomes its first image. A transparent image becomes PNG, or if that is too large a JPEG on white,
    which `done` mentions. The same input gives the same bytes, and converting a result again leaves it unchanged.
    Raises `InputError` if the data is not an image, is broken, or has too many pixels, and `MemoryError`.
    """
    media_type = detect_mime(data)
    if media_type not in KINDS:
        raise refused("no_readable_picture")
    try:
        _check_parts(data, media_type)
        image = _open(data, media_type)
        _check_size(image.size, media_type, progressive="progressive" in image.info)
        return _fit(image, data, media_type, limits)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # libraries raise exceptions of many types for broken files
        raise refused("broken_picture", kind=label(media_type)) from error


def open_image(data: bytes) -> tuple[str, bytes]:
    """Return the media type and b"" if the bytes can stay unchanged, else "image/png" and the image as PNG.

    Reads all formats of Pillow. Raises `OSError`, `ValueError` and others if the image can't be read completely, and
    `InputError` if it has too many parts.
    """
    from PIL import Image as pillow

    _check_parts(data, detect_mime(data))
    with pillow.open(BytesIO(_bare_gif(data))) as image:
        image.load()
        if kept := _ACCEPTED.get(image.format or ""):
            return kept, b""
        return "image/png", as_png(image)


def as_png(image: PillowImage) -> bytes:
    """Return Pillow's image as upright PNG. Raises `OSError`, `ValueError` or `SystemError`."""
    from PIL import ImageOps

    upright: PillowImage = ImageOps.exif_transpose(image)
    if upright.mode not in _PNG_MODES:
        upright = upright.convert(_NEAREST_MODE.get(upright.mode, "RGB"))
    out = BytesIO()
    upright.save(out, format="PNG")
    return out.getvalue()


def _open(data: bytes, media_type: str) -> PillowImage:
    """Open the image with the decoder of its type alone, which reads only the header."""
    if media_type == "image/heic":
        import pillow_heif

        return pillow_heif.open_heif(data, convert_hdr_to_8bit=True)  # pyright: ignore[reportUnknownMemberType] - no types
    from PIL import AvifImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    decoders: dict[str, Callable[..., PillowImage]] = {
        "image/png": PngImagePlugin.PngImageFile,
        "image/jpeg": JpegImagePlugin.JpegImageFile,
        "image/webp": WebPImagePlugin.WebPImageFile,
        "image/gif": GifImagePlugin.GifImageFile,
        "image/avif": AvifImagePlugin.AvifImageFile,
    }
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    if media_type == "image/webp":
        _check_size(_webp_size(data), media_type)  # opening allocates memory for the whole image
    return decoders[media_type](BytesIO(_bare_gif(data)))


def _check_parts(data: bytes, media_type: str) -> None:
    """Raise `InputError` for an image whose parts take too long to read."""
    if media_type == "image/jpeg" and _count_scans(data) > MAX_SCANS:
        raise refused("many_scans", most=MAX_SCANS)
    if media_type == "image/avif" and data.count(b"infe") > MAX_ITEMS:  # the decoder takes quadratic time
        raise refused("slow_document")


def _count_scans(data: bytes) -> int:
    """Return the number of scans of a JPEG. What follows its end, as the film of a motion photo, does not count."""
    count = at = 0
    while (found := _MARKER.search(data, at)) and (kind := data[found.end() - 1]) != 0xD9:
        count += kind == 0xDA
        at = found.end()
        if kind not in (0x01, 0xD8):  # these two have no length
            at += int.from_bytes(data[at : at + 2])
    return count


def _check_size(size: tuple[int, int], media_type: str, *, progressive: bool = False) -> None:
    width, height = size
    most = _MAX_PROGRESSIVE_PIXELS if progressive else _MAX_PIXELS[media_type]
    if width * height > most:
        key = "many_progressive_pixels" if progressive else "many_pixels"
        raise refused(key, count=width * height / 1e6, most=most // 10**6, kind=label(media_type))
    if max(width, height) > MAX_RATIO * max(1, min(width, height)):
        raise refused("too_thin", width=width, height=height, most=MAX_RATIO)


def _fit(image: PillowImage, data: bytes, media_type: str, limits: ImageLimits) -> ConvertedMedia:
    longest = max(image.size)
    size = _scaled_size(image.size, limits.side)
    is_scaled, orientation, is_animation = size != image.size, 1, False
    if media_type == "image/heic":
        image = image.to_pillow()  # its decoder has already rotated it
    elif media_type == "image/avif":
        orientation, is_animation = image.getexif().get(0x0112, 1), image.is_animated
        image.load()  # the image can be far larger than its header says; the sandbox limits its memory
    else:
        is_animation = bool(getattr(image, "is_animated", False))
        if is_scaled:
            image.draft(None, size)
        image.load()
        orientation = image.getexif().get(0x0112, 1)
    _check_size(image.size, media_type)  # headers can lie
    cleaner = _CLEANERS.get(media_type) if media_type in limits.types else None  # HEIC and AVIF are always written anew
    if cleaner and not is_scaled and orientation == 1 and not is_animation and image.mode in _COMMON_MODES:
        clean = cleaner(data)
        if clean is not None and len(clean) <= limits.max_bytes:
            return ConvertedMedia(data=clean, media_type=media_type, done=() if clean == data else (_METADATA_REMOVED,))
    profile = image.info.get("icc_profile") or b""
    image = _rotate(_resize(_to_plain_mode(image), size), orientation)
    out, new_type, on_white = _encode(image, media_type, profile, limits)
    done: list[LocalizedText] = []
    if new_type != media_type:
        done.append(sentence("became", into=label(new_type)))
    if longest > max(image.size):
        done.append(sentence("scaled", before=longest, after=max(image.size)))
    done += [sentence(key) for key, holds in (("first_picture", is_animation), ("on_white", on_white)) if holds]
    return ConvertedMedia(data=out, media_type=new_type, done=tuple(done) or (_METADATA_REMOVED,))


def _scaled_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    longest = max(size)
    if longest <= side:
        return size
    width, height = (max(1, round(one * side / longest)) for one in size)
    return width, height


def _to_plain_mode(image: PillowImage) -> PillowImage:
    """Convert the image to 8-bit grey or RGB, with an alpha channel if any pixel is transparent."""
    if image.mode.startswith("I"):  # keep the upper eight of 16 bits
        return image.convert("I").point(_upper_half).convert("L")
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        full = image.convert("RGBA")
        return full if full.getchannel("A").getextrema()[0] < 255 else full.convert("RGB")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGB") if image.mode == "P" else image


def _upper_half(value: Any) -> Any:
    return value * (1 / 256)


def _resize(image: PillowImage, size: tuple[int, int]) -> PillowImage:
    from PIL import Image as pillow

    small = image if size == image.size else image.resize(size, pillow.Resampling.LANCZOS, reducing_gap=3.0)
    return small if small.mode in ("L", "RGB", "RGBA") else small.convert("RGB")


def _rotate(image: PillowImage, orientation: int) -> PillowImage:
    """Rotate or flip the image by its EXIF orientation. Leave it unchanged if there is none."""
    from PIL.Image import Transpose

    transpositions = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(transpositions[orientation]) if orientation in transpositions else image


def _encode(image: PillowImage, media_type: str, profile: bytes, limits: ImageLimits) -> tuple[bytes, str, bool]:
    """Return the bytes, their type, and whether transparency became white. Raises `InputError` if no encoding fits."""
    is_drawing = media_type in ("image/png", "image/gif") or (media_type == "image/webp" and image.mode == "RGBA")
    # Keep the colour profile: without it, the colours of a wide profile would fade.
    spaces = {b"RGB ": ("RGB", "RGBA"), b"GRAY": ("L",)}
    fits = len(profile) <= _MAX_PROFILE and image.mode in spaces.get(profile[16:20], ())
    options: dict[str, Any] = {"icc_profile": profile if fits else None}
    is_transparent = image.mode == "RGBA"
    if is_drawing or is_transparent:
        png = _save(image, "PNG", options)
        if len(png) <= (limits.max_bytes if is_transparent else min(limits.max_bytes, _MAX_DRAWING_BYTES)):
            return png, "image/png", False
    if is_transparent:
        from PIL import Image as pillow

        white = pillow.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    for quality in _QUALITIES:
        jpeg = _save(image, "JPEG", {**options, "quality": quality})
        if len(jpeg) <= limits.max_bytes:
            return jpeg, "image/jpeg", is_transparent
    raise refused("picture_bytes", most=limits.max_bytes / 1e6)


def _save(image: PillowImage, format_: str, options: dict[str, Any]) -> bytes:
    out = BytesIO()
    image.info = {}  # or the encoder would write the metadata in it
    image.save(out, format_, **options)
    return out.getvalue()


# --- without metadata, and otherwise the same bytes -------------------------------------------------------------------
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_PNG_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"cICP")
_WEBP_CHUNKS = (b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP")


def _clean_png(data: bytes) -> bytes | None:
    out, at = [data[:8]], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        if end > len(data):
            raise ValueError("a chunk is longer than the file")
        if name in _PNG_CHUNKS:
            out.append(data[at:end])
        if name == b"IEND":
            return b"".join(out)
        at = end
    raise ValueError("there is no end")


def _clean_jpeg(data: bytes) -> bytes | None:
    """Keep only the JFIF, Adobe and ICC application segments, which define the colours."""
    out, at = [data[:2]], 2
    while at + 4 <= len(data):
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at] != 0xFF or not 0xC0 <= marker <= 0xFE:
            return None  # padding between segments; the caller encodes the image anew
        if marker == 0xD9:
            return b"".join([*out, b"\xff\xd9"])  # bytes after this marker are no part of the image
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
            body = bytes([body[0] & ~0x0C]) + body[1:]  # the flags for EXIF and XMP
        if name in _WEBP_CHUNKS:
            out.append(name + len(body).to_bytes(4, "little") + body + b"\0" * (len(body) % 2))
    content = b"WEBP" + b"".join(out)
    return b"RIFF" + len(content).to_bytes(4, "little") + content


def _clean_gif(data: bytes) -> bytes | None:
    """Return the GIF unchanged if it has no comment or extension text, else None; then it is encoded anew."""
    return data if b"\x21\xfe" not in data and b"\x21\xff" not in data and data.endswith(b"\x3b") else None


_CLEANERS: dict[str, Callable[[bytes], bytes | None]] = {
    "image/png": _clean_png,
    "image/jpeg": _clean_jpeg,
    "image/webp": _clean_webp,
    "image/gif": _clean_gif,
}


def _bare_gif(data: bytes) -> bytes:
    """Return a GIF with its first two pictures and without its comments, and other data unchanged.

    Pillow reads a comment in quadratic time, and a second picture is all that tells an animation.
    """
    if detect_mime(data) != "image/gif" or len(data) < 13:
        return data
    at = 13 + (6 << (data[10] & 7) if data[10] & 0x80 else 0)
    out, pictures = [data[:at]], 0
    while at < len(data) and data[at] != 0x3B and pictures < 2:
        start, kind = at, data[at : at + 2]
        if kind[:1] == b",":
            flags, pictures = (data[at + 9] if at + 9 < len(data) else 0), pictures + 1
            at += 11 + (6 << (flags & 7) if flags & 0x80 else 0)
        elif kind[:1] == b"!":
            at += 2
        else:
            at += 1
            continue
        while at < len(data) and data[at]:
            at += data[at] + 1
        at += 1
        if kind[:1] == b"," or kind == b"!\xf9":
            out.append(data[start:at])
    return b"".join(out if at > len(data) else [*out, b";"])


def _riff(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the chunks of a RIFF file. Raises `ValueError` if a chunk is longer than the file."""
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
