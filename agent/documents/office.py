"""Reads Word, PowerPoint and Excel documents. Runs inside the sandbox.

The libraries fetch nothing: pictures and other links to the network stay links.
"""

# The libraries' results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

import mimetypes
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from agent.documents.archive import check_archive
from agent.documents.refusals import checked_pages, clean

SECTION_CHARACTERS = 8_000
"""A section of a Word document without headings ends after about this many characters."""


def read_docx(data: bytes) -> tuple[str, list[str]]:
    """Return the title and the text of each section: it begins with a heading of the first two levels."""
    check_archive(data, "DOCX")
    import docx

    document = docx.Document(BytesIO(data))
    return clean(document.core_properties.title or ""), checked_pages(_sections(_docx_blocks(document)))


def read_pptx(data: bytes) -> tuple[str, list[str]]:
    """Return the title and the text of each slide, with its notes."""
    check_archive(data, "PPTX")
    import pptx

    document: Any = pptx.Presentation(BytesIO(data))
    return clean(document.core_properties.title or ""), checked_pages(map(_slide, document.slides))


def read_xlsx(data: bytes) -> tuple[str, list[str]]:
    """Return the title and each sheet as lines of cells with tabs between them. A formula has its stored result."""
    check_archive(data, "XLSX")
    mimetypes.knownfiles.clear()  # the sandbox cannot read the system's table, which openpyxl loads when imported
    import openpyxl

    book: Any = openpyxl.load_workbook(BytesIO(data), read_only=True, data_only=True, keep_links=False)
    title = clean(book.properties.title or "")
    return title, checked_pages(sheet.title + "\n" + _rows(sheet) for sheet in book.worksheets)


def _docx_blocks(document: Any) -> Iterator[tuple[bool, str]]:
    """Yield each paragraph and table: whether a section begins there, and its text."""
    import docx.table

    for block in document.iter_inner_content():
        if isinstance(block, docx.table.Table):
            yield False, _table(block)
        else:
            style = (block.style.name if block.style is not None else "") or ""
            yield style in ("Title", "Heading 1", "Heading 2"), block.text


def _sections(blocks: Iterable[tuple[bool, str]]) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    for begins, text in blocks:
        if lines and (begins or size > SECTION_CHARACTERS):
            yield "\n\n".join(lines)
            lines, size = [], 0
        if text.strip():
            lines.append(text)
            size += len(text)
    if lines:
        yield "\n\n".join(lines)


def _table(table: Any) -> str:
    """Return the rows of a table. Cells that span columns are repeated by the library, and are listed once."""
    rows: list[str] = []
    for row in table.rows:
        cells: list[Any] = []
        for cell in row.cells:
            if not cells or cell is not cells[-1]:
                cells.append(cell)
        rows.append("\t".join(" ".join(cell.text.split()) for cell in cells))
    return "\n".join(rows)


def _slide(slide: Any) -> str:
    texts = [*_shapes(slide.shapes)]
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        texts.append(slide.notes_slide.notes_text_frame.text)
    return "\n\n".join(text for text in texts if text.strip())


def _shapes(shapes: Any) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):  # a group
            yield from _shapes(shape.shapes)
        elif getattr(shape, "has_table", False):
            rows = ("\t".join(" ".join(cell.text.split()) for cell in row.cells) for row in shape.table.rows)
            yield "\n".join(rows)
        elif shape.has_text_frame:
            yield shape.text_frame.text


def _rows(sheet: Any) -> str:
    rows = ("\t".join("" if value is None else str(value) for value in row) for row in sheet.values)
    return "\n".join(row.rstrip("\t") for row in rows if row.strip())
