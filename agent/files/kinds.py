"""The kinds of documents that are read, how their parts are called, and the text of a document. Reads no document."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from agent.files.remarks import refused
from agent.i18n.text import N_, LocalizedText, ngettext

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
EML = "message/rfc822"
RTF = "application/rtf"
NOTEBOOK = "application/x-ipynb+json"
HTML = "text/html"
TEXT = "text/plain"

Unit = Literal["page", "slide", "sheet", "section"]

UNITS: dict[str, Unit] = {
    PDF: "page",
    DOCX: "section",
    PPTX: "slide",
    XLSX: "sheet",
    EML: "section",
    RTF: "section",
    NOTEBOOK: "section",
    HTML: "section",
}
"""The media types that can be read, each with the name of its parts."""
SUFFIXES = {
    **{".pdf": PDF, ".docx": DOCX, ".pptx": PPTX, ".xlsx": XLSX, ".eml": EML, ".mbox": EML, ".rtf": RTF},
    ".ipynb": NOTEBOOK,
    **dict.fromkeys((".docm", ".dotx", ".dotm"), DOCX),
    **dict.fromkeys((".pptm", ".ppsx", ".ppsm", ".potx", ".potm"), PPTX),
    **dict.fromkeys((".xlsm", ".xltx", ".xltm"), XLSX),
}
"""The file name suffixes of documents, which no model gets as plain text. HTML is text."""
_REFUSED = {
    **{".doc": DOCX, ".ppt": PPTX, ".xls": XLSX},
    **{".odt": DOCX, ".ods": XLSX, ".odp": PPTX, ".pages": DOCX, ".numbers": XLSX, ".xlsb": XLSX},
    **{".epub": DOCX, ".msg": DOCX},
}
"""Formats that are old or of other programs. The reader of the nearest one refuses them and says how to save them."""
_PACKED = (b"PK", b"\xd0\xcf")
"""The beginnings of archives, which no text has."""
LABELS = {
    **{PDF: "PDF", DOCX: "DOCX", PPTX: "PPTX", XLSX: "XLSX", EML: "EML", HTML: "HTML"},
    **{RTF: "RTF", NOTEBOOK: "IPYNB"},
}

LEFT_OUT = {
    "pictures": N_("pictures"),
    "charts": N_("charts without stored values"),
    "drawings": N_("drawings"),
    "objects": N_("embedded objects"),
    "deleted": N_("text deleted in tracked changes"),
    "hidden": N_("hidden text"),
}
"""The names of what a reader leaves out of a document."""


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a document by page, slide, sheet or section. `title` is "" if it has none.

    `scans` are the numbers of pages that show only pictures. `is_ocr`: their text is from OCR; it can have mistakes.
    `left_out` are names of `LEFT_OUT`.
    """

    media_type: str
    title: str
    pages: tuple[str, ...]
    is_ocr: bool = False
    scans: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def unit(self) -> Unit:
        """The name of the parts in `pages`."""
        return UNITS.get(self.media_type, "section")


_RAISED = str.maketrans("0123456789+-=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ")
_SCHEME = re.compile(r"^(https?://|mailto:|tel:)", re.IGNORECASE)
LINK = re.compile(r"\s*(https?:|mailto:|tel:)", re.IGNORECASE)
"""The beginning of an address that is written after the text of its link."""


def raised(text: str) -> str:
    """Return superscript text: "10⁶", which "106" would not be. Other signs than those of numbers stay as they are."""
    return text.translate(_RAISED) if re.fullmatch(r"[-+]?[0-9(][-+=()0-9n]{0,20}|n", text.strip()) else text


def with_address(text: str, address: str) -> str:
    """Return the text of a link with its address after it, unless the text is the address already."""
    address = address.strip()
    if not text.strip() or not LINK.match(address) or _SCHEME.sub("", address).rstrip("/") in text:
        return text
    return f"{text} ({address})"


def document_type(name: str, data: bytes) -> str:
    """Return the media type of a document with this file name, or "" if it is none.

    PDF and RTF are known from their bytes: some programs name RTF files ".doc". The others are known from the name,
    because all begin like any ZIP archive or text; the reader refuses a file that is not what its name says.
    """
    if data.startswith(b"%PDF-"):
        return PDF
    if data.startswith(b"{\\rtf"):
        return RTF
    suffix = PurePath(name).suffix.lower()
    return SUFFIXES.get(suffix) or (_REFUSED.get(suffix, "") if data.startswith(_PACKED) else "")


def count_of(unit: str, count: int) -> LocalizedText:
    """Return "12 pages", with the name of these parts."""
    match unit:
        case "page":
            return ngettext("{count} page", "{count} pages", count)
        case "slide":
            return ngettext("{count} slide", "{count} slides", count)
        case "sheet":
            return ngettext("{count} sheet", "{count} sheets", count)
        case _:
            return ngettext("{count} section", "{count} sections", count)


MAX_PAGES = 2_000
"""Pages, slides, sheets or sections of one document."""
MAX_CHARACTERS = 2_000_000
"""Characters of its whole text: a book has about one million."""

_KEPT = "\t\n"


def checked_pages(pages: Iterable[str], *, empty: str = "empty_document") -> list[str]:
    """Return the cleaned texts. Stop and raise `InputError` as soon as they are too many or too long.

    `empty` is the reason for refusing a document without any text.
    """
    out: list[str] = []
    total = 0
    for page in pages:
        out.append(clean(page))
        total += len(out[-1])
        if len(out) > MAX_PAGES:
            raise refused("many_pages", count=len(out), most=MAX_PAGES)
        if total > MAX_CHARACTERS:
            raise refused("long_document", most=MAX_CHARACTERS)
    if not total:
        raise refused(empty, count=len(out))
    return out


def clean(text: str) -> str:
    """Return the text with "\\n" as line break, without control characters and without space at the line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").split("\n")
    kept = ("".join(one for one in line if one.isprintable() or one in _KEPT) for line in lines)
    return "\n".join(line.rstrip() for line in kept).strip()
