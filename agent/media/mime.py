"""What bytes are, by their own first ones and never by a name; what the kinds are called; and what a file became."""

from dataclasses import dataclass

from agent.i18n import LocalizedText
from agent.media.sentences import english

SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/heic": "heic",
    "image/avif": "avif",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
    "audio/webm": "webm",
    "audio/mp4": "m4a",
    "audio/aac": "aac",
    "audio/aiff": "aiff",
    "application/pdf": "pdf",
}
"""The kinds that are known by their bytes, and how the names of such files end."""

_LABELS = {"image/jpeg": "JPEG", "image/webp": "WebP", "audio/ogg": "Ogg", "audio/webm": "WebM"}
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\x1a\x45\xdf\xa3", "audio/webm"),
    (b"ID3", "audio/mpeg"),
    (b"%PDF-", "application/pdf"),
)
_INSIDE = {
    (b"RIFF", b"WAVE"): "audio/wav",
    (b"RF64", b"WAVE"): "audio/wav",
    (b"RIFF", b"WEBP"): "image/webp",
    (b"FORM", b"AIFF"): "audio/aiff",
    (b"FORM", b"AIFC"): "audio/aiff",
}
_HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_AVIF = (b"avif", b"avis")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedMedia:
    """A file as a model takes it; `done` is what was done to it, nothing where its bytes are as they were.

    `note` is what people should know of what is in it: that a sound is silent, say. `seconds` is how long a sound is,
    0 for a picture. Of what is said, `agent.media.sentences` has the words.
    """

    data: bytes
    media_type: str
    done: tuple[LocalizedText, ...] = ()
    note: LocalizedText | None = None
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """What was done, in English: "HEIC to JPEG, 4032 to 1568 px"."""
        return english(*self.done)


def detect_mime(data: bytes) -> str:
    """The media type that the bytes show, "" for one that is not known here."""
    for start, found in _STARTS:
        if data.startswith(start):
            return found
    if data[4:8] == b"ftyp":
        brands = [data[at : at + 4] for at in (8, *range(16, min(int.from_bytes(data[:4], "big"), 128), 4))]
        if any(brand in _AVIF for brand in brands):
            return "image/avif"
        return "image/heic" if any(brand in _HEIC for brand in brands) else "audio/mp4"
    if found := _INSIDE.get((data[:4], data[8:12])):
        return found
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xF6 == 0xF0:
        return "audio/aac"
    return "audio/mpeg" if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 else ""


def label(media_type: str) -> str:
    """What people call that kind: HEIC, WebM."""
    return _LABELS.get(media_type) or SUFFIXES.get(media_type, media_type).upper()
