"""Media types found from the first bytes of a file and never from its name, and their labels."""

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
    "video/mp4": "mp4",
    "video/webm": "webm",
    "application/pdf": "pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "message/rfc822": "eml",
    "application/rtf": "rtf",
    "application/x-ipynb+json": "ipynb",
    "text/plain": "txt",
}
"""The media types of files that are stored, with the file name suffix of each."""

_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")
_LABELS = {
    **{"image/jpeg": "JPEG", "image/webp": "WebP", "audio/ogg": "Ogg", "audio/webm": "WebM", "video/webm": "WebM"},
    **{"video/quicktime": "MOV", "video/x-matroska": "MKV"},
}
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


def detect_mime(data: bytes) -> str:
    """Return the media type that the bytes show, or "" if it is unknown."""
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


def is_text_type(media_type: str) -> bool:
    """Return True for the media type of a plain text, such as Markdown, CSV, JSON or source code."""
    return media_type.startswith("text/") or media_type in _TEXT_TYPES


def label(media_type: str) -> str:
    """Return the name that people use for the media type: HEIC, WebM."""
    return _LABELS.get(media_type) or SUFFIXES.get(media_type, media_type).upper()
