"""Reads the text of PDF documents with PDFium. Runs inside the sandbox."""

# pypdfium2's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Collection, Iterator, Sequence
from io import BytesIO
from typing import Any

from agent.files.archive import local, outermost
from agent.files.kinds import LINK, MAX_PAGES, checked_pages, clean, with_address
from agent.files.locate import find_passage
from agent.files.remarks import refused

SIDE = 1_600
"""Pixels of the longer side of a rendered page: as many as the detector of text lines uses."""
MARK = (255, 226, 89)
"""The color of a marked passage."""
MARGIN = 2
"""Pixels of a mark around its text."""
MAX_FIELDS = 5_000
"""Form fields of a document. PDFium looks through all of them for each one."""
MAX_BOXES = 1_000
"""Rectangles of a marked passage. It has one for each line or change of the font."""
FILLED_IN = "[Filled in or noted on this page]"
"""The line before the values of form fields and the notes of a page, which are not in its text."""
LINKS = "[Links on this page]"
"""The line before the addresses of the links of a page whose text does not show them."""
MAX_LINKS, MAX_LOOKED_AT = 200, 500
"""Links of a page that are named, and that are looked at: PDFium goes through the whole text for each one."""
_NO_NOTES = (2, 16, 20)
"""The kinds of annotations that are no notes: links, windows of notes, form fields."""
_HIDDEN = 2 | 32
"""The flags of annotations that nobody sees."""
_HYPHENS = ("\ufffe", "\x02")
"""The characters with which PDFium marks a hyphen at the end of a line."""


def read_pdf(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, the text of each page, and what is left out. Raises `InputError`."""
    from pypdfium2 import PdfiumError

    document = open_pdf(data)
    if len(document) > MAX_PAGES:
        raise refused("many_pages", count=len(document), most=MAX_PAGES)
    title = clean(str(document.get_metadata_dict().get("Title") or ""))
    if title.lower() == "untitled":  # several programs write this instead of none
        title = ""
    left_out = {"objects"} if document.count_attachments() else set[str]()
    try:
        return title, checked_pages(_pages(document, left_out), empty="scanned_document"), left_out
    except PdfiumError as error:
        raise refused("broken_document", kind="PDF") from error


def picture_pages(data: bytes, numbers: Sequence[int]) -> list[int]:
    """Return those of these pages, counted from 1, that show a picture, such as a scan. An empty page shows none."""
    import pypdfium2.raw as pdfium

    document = open_pdf(data) if numbers else None
    kinds = [pdfium.FPDF_PAGEOBJ_IMAGE]
    return [one for one in numbers if document and next(document[one - 1].get_objects(filter=kinds), None) is not None]


def render_page(data: bytes, number: int) -> bytes:
    """Return a picture of a page as PNG, whose longer side has `SIDE` pixels. Raises `InputError`."""
    return _png(_picture(_page(open_pdf(data), number)))


def marked_page(data: bytes, number: int, passage: str) -> tuple[bytes, bool]:
    """Return a picture of a page as `render_page` does, and True if the passage is on it and marked there."""
    from PIL import Image, ImageChops, ImageDraw

    page = _page(open_pdf(data), number)
    picture = _picture(page)
    if boxes := _boxes(page, passage, picture.size):
        marks = Image.new("RGB", picture.size, "white")
        draw = ImageDraw.Draw(marks)
        for box in boxes:
            draw.rectangle(box, fill=MARK)
        picture = ImageChops.multiply(picture, marks)  # as a marker pen does: the text stays black
    return _png(picture), bool(boxes)


def _page(document: Any, number: int) -> Any:
    if not 0 <= number < len(document):
        raise refused("no_page", number=number + 1, count=len(document))
    return document[number]


def _picture(page: Any) -> Any:
    longer = max(1.0, *page.get_size())
    return page.render(scale=SIDE / longer).to_pil().convert("RGB")


def _png(picture: Any) -> bytes:
    out = BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _boxes(page: Any, passage: str, size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Return the rectangles of the passage on a picture of this size: left, top, right and bottom in pixels."""
    import pypdfium2.raw as pdfium

    text_page = page.get_textpage()
    # One character for each of PDFium's: its texts leave some out.
    text = "".join(chr(pdfium.FPDFText_GetUnicode(text_page, at)) for at in range(text_page.count_chars()))
    if (found := find_passage(text, passage)) is None:
        return []
    start, end = found
    boxes: list[tuple[int, int, int, int]] = []
    for number in range(min(MAX_BOXES, text_page.count_rects(start, end - start))):
        left, bottom, right, top = text_page.get_rect(number)
        corners = [_pixel(page, size, *one) for one in ((left, top), (right, bottom))]  # a page can be turned
        (x1, x2), (y1, y2) = sorted(one[0] for one in corners), sorted(one[1] for one in corners)
        boxes.append((max(0, x1 - MARGIN), max(0, y1 - MARGIN), min(size[0], x2 + MARGIN), min(size[1], y2 + MARGIN)))
    return [box for box in boxes if box[0] < box[2] and box[1] < box[3]]


def _pixel(page: Any, size: tuple[int, int], x: float, y: float) -> tuple[int, int]:
    from ctypes import byref, c_int

    import pypdfium2.raw as pdfium

    across, down = c_int(), c_int()
    pdfium.FPDF_PageToDevice(page, 0, 0, *size, 0, x, y, byref(across), byref(down))
    return across.value, down.value


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
    document.init_forms()
    return document


def _pages(document: Any, left_out: set[str]) -> Iterator[str]:
    """Yield the text of each page. A page that cannot be loaded raises `PdfiumError`: parts would mislead.

    Raises `InputError` for too many form fields.
    """
    values = _values_of_xfa(document)
    form, fields = document.formenv, 0
    for number in range(len(document)):
        document.formenv = None  # with it, loading a page looks up all its fields
        try:
            page = document[number]
            fields += (count := _widgets(page) if form else 0)
            if fields > MAX_FIELDS:
                raise refused("slow_document")
        finally:
            document.formenv = form
        if count:
            page.close()
            page = document[number]
        text_page = page.get_textpage()
        text = text_page.get_text_bounded()
        for hyphen in _HYPHENS:
            text = text.replace(f"{hyphen}\r\n", "").replace(hyphen, "")
        links = _links(document, page, text_page, "".join(text.split()))
        filled = _filled_in(document, page, left_out) + values
        values = []
        more = [f"{head}\n" + "\n".join(lines) for head, lines in ((LINKS, links), (FILLED_IN, filled)) if lines]
        yield "\n\n".join((text, *more))
        text_page.close()
        page.close()


def _values_of_xfa(document: Any) -> list[str]:
    """Return the values of a form of Adobe LiveCycle, of which the pages show only that another program is needed."""
    import pypdfium2.raw as pdfium
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    if document.get_formtype() != pdfium.FORMTYPE_XFA_FULL:
        return []
    lines: list[str] = []
    for at in range(min(pdfium.FPDF_GetXFAPacketCount(document), 100)):
        packet = _packet(document, at)
        if b"datasets" not in packet or b"<!DOCTYPE" in packet or b"<!ENTITY" in packet:
            continue
        try:
            root = etree.fromstring(packet, etree.XMLParser(resolve_entities=False, no_network=True, recover=True))
        except etree.XMLSyntaxError:
            continue
        for one in () if root is None else outermost(root, "data"):
            values = (value for value in one.iter() if not len(value) and (value.text or "").strip())
            lines += [f"{local(value)}: {' '.join(value.text.split())}" for value in values]
    return lines


def _packet(document: Any, at: int) -> bytes:
    from ctypes import byref, c_ulong, create_string_buffer

    import pypdfium2.raw as pdfium

    size = c_ulong()
    pdfium.FPDF_GetXFAPacketContent(document, at, None, 0, byref(size))
    buffer = create_string_buffer(min(size.value, 10_000_000))
    pdfium.FPDF_GetXFAPacketContent(document, at, buffer, len(buffer), byref(size))
    return buffer.raw


def _links(document: Any, page: Any, text_page: Any, shown: str) -> list[str]:
    """Return the texts of links with their addresses, which a page does not show."""
    from ctypes import byref, c_int, create_string_buffer

    import pypdfium2.raw as pdfium

    lines: dict[str, None] = {}
    position, link = c_int(0), pdfium.FPDF_LINK()
    for _number in range(MAX_LOOKED_AT):
        if len(lines) >= MAX_LINKS or not pdfium.FPDFLink_Enumerate(page, byref(position), byref(link)):
            break
        action = pdfium.FPDFLink_GetAction(link)
        if not action or pdfium.FPDFAction_GetType(action) != pdfium.PDFACTION_URI:
            continue
        buffer = create_string_buffer(2_000)
        pdfium.FPDFAction_GetURIPath(document, action, buffer, len(buffer))
        address, box = buffer.value.decode("utf-8", "replace").strip(), pdfium.FS_RECTF()
        plain = address.partition("://")[2] or address.partition(":")[2]
        if not LINK.match(address) or plain.rstrip("/") in shown or not pdfium.FPDFLink_GetAnnotRect(link, byref(box)):
            continue
        text = " ".join(text_page.get_text_bounded(box.left, box.bottom, box.right, box.top).split())
        lines[with_address(text or "Link", address)] = None
    return [*lines]


def _widgets(page: Any) -> int:
    """Return the number of form fields on a page."""
    import pypdfium2.raw as pdfium

    count = 0
    for at in range(pdfium.FPDFPage_GetAnnotCount(page)):
        note = pdfium.FPDFPage_GetAnnot(page, at)
        count += pdfium.FPDFAnnot_GetSubtype(note) == pdfium.FPDF_ANNOT_WIDGET
        pdfium.FPDFPage_CloseAnnot(note)
    return count


def _filled_in(document: Any, page: Any, left_out: set[str]) -> list[str]:
    """Return the values of form fields, the ticks and the notes on a page, one on each line, in the file's order."""
    import pypdfium2.raw as pdfium

    lines: list[str] = []
    for at in range(pdfium.FPDFPage_GetAnnotCount(page)):
        note = pdfium.FPDFPage_GetAnnot(page, at)
        kind = pdfium.FPDFAnnot_GetSubtype(note)
        if not pdfium.FPDFAnnot_GetFlags(note) & _HIDDEN:
            if kind == pdfium.FPDF_ANNOT_FILEATTACHMENT:
                left_out.add("objects")
            if kind == pdfium.FPDF_ANNOT_WIDGET and document.formenv:
                lines.append(_field(document.formenv, note))
            elif kind not in _NO_NOTES and (text := _text(pdfium.FPDFAnnot_GetStringValue, note, b"Contents")):
                lines.append(f"Note: {text}")
        pdfium.FPDFPage_CloseAnnot(note)
    return [line for line in lines if line]


def _field(form: Any, field: Any) -> str:
    """Return the name and the value of a form field, "" if it has none. Its label for screen readers is preferred."""
    import pypdfium2.raw as pdfium

    kind = pdfium.FPDFAnnot_GetFormFieldType(form, field)
    name = _text(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, field)
    name = name or _text(pdfium.FPDFAnnot_GetFormFieldName, form, field)
    value = _text(pdfium.FPDFAnnot_GetFormFieldValue, form, field)
    if kind in (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON):
        is_checked = bool(pdfium.FPDFAnnot_IsChecked(form, field))
        own = _text(pdfium.FPDFAnnot_GetFormFieldExportValue, form, field)
        means = f" {own}" if own and own.lower() not in ("yes", "on", "off", "1", "true") else ""
        return f"{name}: {_TICKED if is_checked else _UNTICKED}{means}"
    if kind in (pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX):
        count = pdfium.FPDFAnnot_GetOptionCount(form, field)
        chosen = [at for at in range(min(count, 1_000)) if pdfium.FPDFAnnot_IsOptionSelected(form, field, at)]
        value = ", ".join(_text(pdfium.FPDFAnnot_GetOptionLabel, form, field, at) for at in chosen) or value
    elif kind != pdfium.FPDF_FORMFIELD_TEXTFIELD:
        return ""
    elif pdfium.FPDFAnnot_GetFormFieldFlags(form, field) & _PASSWORD:
        value = "\u2022" * len(value)
    return f"{name}: {value}" if value else ""


_PASSWORD = 1 << 13
"""The flag of a field that shows dots."""
_TICKED, _UNTICKED = "\u2612", "\u2610"


def _text(read: Any, *of: Any) -> str:
    """Return a text that one of PDFium's functions writes into a buffer, after it has said its size."""
    from ctypes import POINTER, cast, create_string_buffer

    import pypdfium2.raw as pdfium

    size = read(*of, None, 0)
    buffer = create_string_buffer(max(2, size))
    read(*of, cast(buffer, POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", "replace").strip()
