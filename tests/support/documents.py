"""Documents for tests, written by the libraries that people's programs use, and harmful ones."""

import io
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Any

import docx
import openpyxl
import pptx
import pypdfium2
from PIL import Image
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas


def pdf(pages: Sequence[str], *, title: str = "", password: str = "", owner_password: str = "") -> bytes:
    """Return a PDF with one text per page. `password` is needed to open it, `owner_password` only to change it."""
    out = io.BytesIO()
    encrypt = StandardEncryption(password, ownerPassword=owner_password or "o") if password or owner_password else None
    canvas: Any = Canvas(out, encrypt=encrypt)
    if title:
        canvas.setTitle(title)
    for page in pages:
        text = canvas.beginText(72, 760)
        text.textLines(page)
        canvas.drawText(text)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def scanned_pdf(*pictures: bytes) -> bytes:
    """Return a PDF whose pages are only these pictures."""
    out = io.BytesIO()
    canvas: Any = Canvas(out)
    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            wide, high = image.size
        canvas.drawImage(ImageReader(io.BytesIO(picture)), 60, 400, 480, 480 * high / wide)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def form(scan: bytes = b"") -> bytes:
    """Return a PDF form that is filled in, with a typed note. Its page has a text, or is a scan."""
    out = io.BytesIO()
    canvas: Any = Canvas(out)
    if scan:
        with Image.open(io.BytesIO(scan)) as image:
            canvas.drawImage(ImageReader(image), 60, 400, 480, 100)
    else:
        canvas.drawString(72, 740, "Surname:")
        fields = canvas.acroForm
        fields.textfield(name="surname", value="Müller", x=200, y=730)
        fields.checkbox(name="pets", checked=True, x=200, y=700)
        fields.checkbox(name="garden", checked=False, x=200, y=670)
        fields.choice(name="city", value="Paris", options=["Rome", "Paris"], x=200, y=640)
        fields.radio(name="size", value="small", selected=False, x=200, y=600)
        fields.radio(name="size", value="large", selected=True, x=240, y=600)
    canvas.textAnnotation("Call Ann", (72, 500, 90, 520))
    canvas.save()
    return out.getvalue()


def joined_pdf(*documents: bytes) -> bytes:
    """Return one PDF with the pages of these."""
    joined: Any = pypdfium2.PdfDocument.new()
    for document in documents:
        joined.import_pages(pypdfium2.PdfDocument(document))
    return _saved(joined)


def word(*sections: tuple[str, str], table: Sequence[Sequence[str]] = (), title: str = "") -> bytes:
    """Return a Word document with a heading and a paragraph for each section, and a table at its end."""
    document: Any = docx.Document()
    document.core_properties.title = title
    for heading, paragraph in sections:
        document.add_heading(heading, 1)
        document.add_paragraph(paragraph)
    if table:
        made = document.add_table(len(table), len(table[0]))
        for row, cells in zip(made.rows, table, strict=True):
            for cell, text in zip(row.cells, cells, strict=True):
                cell.text = text
    return _saved(document)


def slides(*texts: tuple[str, str, str]) -> bytes:
    """Return a presentation with title, body and notes for each slide."""
    deck: Any = pptx.Presentation()
    for title, body, notes in texts:
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
        slide.notes_slide.notes_text_frame.text = notes
    return _saved(deck)


def workbook(**sheets: Sequence[Sequence[object]]) -> bytes:
    """Return an Excel file with these rows in each sheet."""
    book: Any = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return _saved(book)


def mail(text: str = "", *, markup: str = "", subject: str = "Lunch", attached: str = "") -> bytes:
    """Return an e-mail with a text, an HTML text, or both."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@example.org", "bob@example.org", subject
    if text:
        message.set_content(text)
    if markup:
        (message.add_alternative if text else message.set_content)(markup, subtype="html")
    if attached:
        message.add_attachment(b"x", maintype="application", subtype="octet-stream", filename=attached)
    return message.as_bytes()


def repacked(data: bytes, **parts: bytes) -> bytes:
    """Return the Office document with other content in some parts, named with "__" for "/" and "_" for "."."""
    changed = {name.replace("__", "/").replace("_", "."): content for name, content in parts.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in source.namelist():
            made.writestr(name, changed.pop(name, None) or source.read(name))
        for name, content in changed.items():
            made.writestr(name, content)
    return out.getvalue()


def archive_text(data: bytes, part: str) -> str:
    """Return the text of a part of an Office document."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        return source.read(part).decode()


def edited(data: bytes, part: str, edit: Callable[[str], str]) -> bytes:
    """Return the Office document with another text in this part, which must exist."""
    text = archive_text(data, part)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in source.namelist():
            made.writestr(name, edit(text) if name == part else source.read(name))
    return out.getvalue()


def strict(data: bytes) -> bytes:
    """Return the Office document with the namespaces of Strict Open XML."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith((".xml", ".rels")) and "Content_Types" not in name:
                content = re.sub(
                    rb"http://schemas\.openxmlformats\.org/(\w+)/2006/", rb"http://purl.oclc.org/ooxml/\1/", content
                )
            made.writestr(name, content)
    return out.getvalue()


def locked_archive(data: bytes) -> bytes:
    """Return the archive with the mark of a password on each part."""
    out = bytearray(data)
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = out.find(magic)
        while at >= 0:
            out[at + flags] |= 1
            at = out.find(magic, at + 4)
    return bytes(out)


def compound(*, encrypted: bool) -> bytes:
    """Return the beginning of an Office file before 2007, or of a newer one with a password."""
    name = "EncryptedPackage" if encrypted else "WordDocument"
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + struct.pack("<H", 0x3E) * 300 + name.encode("utf-16-le")


def _saved(document: Any) -> bytes:
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()
