"""Reads the text of PDF documents with PDFium. Runs inside the sandbox."""

# pypdfium2's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

from agent.documents.refusals import MAX_PAGES, checked_pages, clean
from agent.media.sentences import refused

SIDE = 1_600
"""Pixels of the longer side of a rendered page: as many as the detector of text lines uses."""
_HYPHENS = ("\ufffe", "\x02")
"""The characters with which PDFium marks a hyphen at the end of a line."""


def read_pdf(data: bytes) -> tuple[str, list[str]]:
    """Return the title and the text of each page. Raises `InputError`."""
    document = open_pdf(data)
    if len(document) > MAX_PAGES:
        raise refused("many_pages", count=len(document), most=MAX_PAGES)
    title = clean(str(document.get_metadata_dict().get("Title") or ""))
    if title.lower() == "untitled":  # several programs write this instead of none
        title = ""
    return title, checked_pages(_pages(document), empty="scanned_document")


def picture_pages(data: bytes, numbers: Sequence[int]) -> list[int]:
    """Return those of these pages, counted from 1, that show a picture, such as a scan. An empty page shows none."""
    import pypdfium2.raw as pdfium

    document = open_pdf(data) if numbers else None
    kinds = [pdfium.FPDF_PAGEOBJ_IMAGE]
    return [one for one in numbers if document and next(document[one - 1].get_objects(filter=kinds), None) is not None]


def render_page(data: bytes, number: int) -> bytes:
    """Return a picture of a page as PNG, whose longer side has `SIDE` pixels. Raises `InputError`."""
    document = open_pdf(data)
    page = document[number]
    longer = max(1.0, *page.get_size())
    out = BytesIO()
    page.render(scale=SIDE / longer).to_pil().convert("RGB").save(out, "PNG")
    return out.getvalue()


def open_pdf(data: bytes) -> Any:
    """Open the document. Raises `InputError` if it needs a password or is damaged."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        locked = error.err_code in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY)
        raise refused("locked_document" if locked else "broken_document", kind="PDF") from error
    if not len(document):
        raise refused("broken_document", kind="PDF")
    return document


def _pages(document: Any) -> Iterator[str]:
    """Yield the text of each page. A page that cannot be loaded raises `PdfiumError`: parts would mislead."""
    for number in range(len(document)):
        page = document[number]
        text_page = page.get_textpage()
        text = text_page.get_text_bounded()
        for hyphen in _HYPHENS:
            text = text.replace(f"{hyphen}\r\n", "").replace(hyphen, "")
        yield text
        text_page.close()
        page.close()
