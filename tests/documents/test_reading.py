"""Documents become text by page, or a reason: read in another process, whatever the bytes are."""

import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from time import monotonic
from typing import Any, Never

import docx
import pypdfium2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

from agent.errors import InputError
from agent.files import document_worker, reading
from agent.files.kinds import DOCX, EML, HTML, PDF, PPTX, RTF, SUFFIXES, XLSX, Document, document_type
from agent.files.reading import READING, read_document, read_in_sandbox
from agent.files.sandbox import SandboxJob, parse_sentence
from agent.models.catalog import ModelSpec
from agent.settings import ROOT
from agent.web.chat.attachments import message_parts, plan_attachments
from bench.attack.documents import BOMBS
from tests.support.documents import (
    compound,
    form,
    locked_archive,
    mail,
    pdf,
    repacked,
    scanned_pdf,
    slides,
    word,
    workbook,
)
from tests.support.gate_rows import gate_rows
from tests.support.known_texts import picture_of_text
from tests.tiers import examples

pytestmark = pytest.mark.slow

PAGES = ["Costs\nThe rent is 812 euros.", "Terms\nThe notice is three months.", "Größe über 5 € “so”"]
LETTER = word(
    ("Costs", "The rent is 812 euros."), ("Terms", "Three months."), table=(("Room", "m²"), ("Hall", "7")), title="Flat"
)
DECK = slides(("Plan", "Build it", "Say hello"), ("End", "Thanks", ""))
BOOK = workbook(Costs=[["Month", "Rent"], ["May", 812], ["June", 812.5]], Empty=[], More=[[None, None, "far"]])
PAGE = b"<title>Flat</title><style>p {}</style><script>x()</script><p>Rent:\n <b>812</b> euros<p>Caf&eacute;"

READ = {
    "pdf": (pdf(PAGES, title="Contract"), PDF, Document(PDF, "Contract", tuple(PAGES))),
    "pdf without rights": (pdf(PAGES, title="May", owner_password="o"), PDF, Document(PDF, "May", tuple(PAGES))),
    "docx": (
        LETTER,
        DOCX,
        Document(DOCX, "Flat", ("Costs\n\nThe rent is 812 euros.", "Terms\n\nThree months.\n\nRoom\tm²\nHall\t7")),
    ),
    "pptx": (DECK, PPTX, Document(PPTX, "", ("Plan\n\nBuild it\n\nNotes:\nSay hello", "End\n\nThanks"))),
    "xlsx": (BOOK, XLSX, Document(XLSX, "", ("Costs\nMonth\tRent\nMay\t812\nJune\t812.5", "Empty", "More\n\t\tfar"))),
    "eml": (
        mail("At noon?\nAnn", markup="<p>Not this", attached="menu.pdf"),
        EML,
        Document(
            EML,
            "Lunch",
            (
                "From: ann@example.org\nTo: bob@example.org\nSubject: Lunch\n\nAt noon?\nAnn",
                "Attached to this message, and not read:\nmenu.pdf",
            ),
        ),
    ),
    "eml with html": (
        mail(markup="<p>At <b>noon</b>?"),
        EML,
        Document(EML, "Lunch", ("From: ann@example.org\nTo: bob@example.org\nSubject: Lunch\n\nAt noon?",)),
    ),
    "html": (PAGE, HTML, Document(HTML, "Flat", ("Rent: 812 euros\nCafé",))),
}


@pytest.mark.parametrize(("data", "media_type", "document"), READ.values(), ids=list(READ))
def test_text_is_read_by_page(data: bytes, media_type: str, document: Document) -> None:
    assert read_in_sandbox(data, media_type) == document


def _bomb(size: int) -> bytes:
    return repacked(LETTER, word__big_bin=bytes(size))


LAUGHS = b'<!DOCTYPE x [<!ENTITY a "ha">%s]><w:document xmlns:w="x">&f;</w:document>' % b"".join(
    b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 20) for n in range(5)
)
IN_UTF7 = (
    b'<?xml version="1.0" encoding="UTF-7"?>+ADwAIQ-DOCTYPE x [+ADwAIQ-ENTITY a "ha"+AD4-]+AD4-'
    b'<%b xmlns:w="x"><sheetData><row><c t="str" r="&a;"><v>a</v></c></row></sheetData></%b>'
)
"""A part that defines an entity in an encoding in which no reader looks for definitions."""
OUTSIDE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]><w:document xmlns:w="x">&a;</w:document>'

ENTITIES = "defines entities of its own"
REFUSED: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "pdf with a password": (lambda: pdf(PAGES, password="secret"), PDF, "is protected by a password"),
    "pdf, cut": (lambda: pdf(PAGES)[:300], PDF, "is damaged or cut off: it can't be read as PDF"),
    "pdf of pictures": (lambda: scanned_pdf(picture_of_text("Invoice")), PDF, "shows only pictures, such as scans"),
    "pdf of many pages": (lambda: pdf([""] * 2001), PDF, "has 2,001 pages; 2,000 is the most"),
    "docx with a password": (lambda: compound(encrypted=True), DOCX, "is protected by a password"),
    "doc": (lambda: compound(encrypted=False), DOCX, "has a format of Office before 2007"),
    "docx, archive with a password": (lambda: locked_archive(LETTER), DOCX, "is protected by a password"),
    "docx, cut": (lambda: LETTER[: len(LETTER) // 2], DOCX, "is damaged or cut off: it can't be read as DOCX"),
    "docx that is an xlsx": (lambda: BOOK, DOCX, "is no DOCX file, although its name says so"),
    "docx without text": (lambda: word(), DOCX, "has no text"),
    "docx that unpacks to 250 MB": (lambda: _bomb(250_000_000), DOCX, " MB; 200 MB is the most"),
    "docx with 60 MB of XML": (
        lambda: repacked(LETTER, word__document_xml=b"<w>" + b" " * 60_000_000 + b"</w>"),
        DOCX,
        "; 50 MB is the most",
    ),
    "docx, a billion laughs": (lambda: repacked(LETTER, word__document_xml=LAUGHS), DOCX, ENTITIES),
    "docx, an outside entity": (lambda: repacked(LETTER, word__document_xml=OUTSIDE), DOCX, ENTITIES),
    "docx, entities in UTF-7": (
        lambda: repacked(LETTER, word__document_xml=IN_UTF7 % (b"w:document", b"w:document")),
        DOCX,
        ENTITIES,
    ),
    "xlsx, entities of a sheet in UTF-7": (
        lambda: repacked(BOOK, xl__worksheets__sheet1_xml=IN_UTF7 % (b"worksheet", b"worksheet")),
        XLSX,
        ENTITIES,
    ),
    "docx, entities in UTF-16": (
        lambda: repacked(LETTER, word__document_xml=OUTSIDE.decode().encode("utf-16")),
        DOCX,
        ENTITIES,
    ),
    "pptx, an outside entity": (lambda: repacked(DECK, ppt__presentation_xml=OUTSIDE), PPTX, ENTITIES),
    "xlsx, a billion laughs": (lambda: repacked(BOOK, xl__sharedStrings_xml=LAUGHS), XLSX, ENTITIES),
    "html of three million letters": (lambda: b"<p>letters" * 300_000, HTML, "more than 2,000,000 characters of text"),
    "eml that is a picture": (lambda: picture_of_text("Invoice"), EML, "is no EML file, although its name says so"),
    "xlsx that is a text": (lambda: b"Month;Rent", XLSX, "is no XLSX file, although its name says so"),
    "nothing": (lambda: b"", PDF, "is damaged or cut off: it can't be read as PDF"),
}
"""Documents, made when their test runs because some are large, their media type, and why they are refused."""


@pytest.mark.parametrize(("make", "media_type", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_unreadable_document_gives_its_reason(make: Callable[[], bytes], media_type: str, reason: str) -> None:
    data = make()
    began = monotonic()
    with pytest.raises(InputError) as refused:
        read_in_sandbox(data, media_type)
    assert reason in str(refused.value)
    assert monotonic() - began < READING.timeout_seconds


READ_ONCE = {
    name: BOMBS[name]
    for name in (
        *("comments in comments", "texts in one run", "trees of shapes in trees", "one note on many slides"),
        *("levels of a list in a slide", "titles in titles", "points in points", "links on a page"),
    )
}
"""Small documents with parts in parts of their kind, or with one part in many places. Each part is read once."""

SLOW = (
    "runs",
    "runs with text",
    "equations",
    "headers",
    "sheets",
    "columns",
    "rows",
    "series of a chart",
    "notes on a page",
    *READ_ONCE,
)
"""Documents that take seconds, and that the other ones stand for in the gate."""


@pytest.mark.parametrize(("name", "make"), gate_rows(BOMBS, [name for name in BOMBS if name not in SLOW]))
def test_time_of_reading_grows_as_the_document_does(name: str, make: Callable[[], bytes]) -> None:
    data, media_type = make(), HTML if name == "a.html" else SUFFIXES[name[1:]]
    before = children_times()
    with suppress(InputError):
        read_in_sandbox(data, media_type)
    assert children_times() - before < 6, "seconds of the processor"


@pytest.mark.parametrize(("file", "make"), gate_rows(READ_ONCE, ["trees of shapes in trees"]))
def test_document_with_parts_in_parts_is_read(file: str, make: Callable[[], bytes]) -> None:
    assert "a" in "".join(read_in_sandbox(make(), SUFFIXES[file[1:]]).pages)


def test_pdf_takes_bounded_memory() -> None:
    """A small PDF can ask for any amount. The readers of other documents need more, for their trees."""
    code = """
import resource
from contextlib import suppress
from agent.files.reading import read_in_sandbox
from agent.errors import InputError
from bench.attack.documents import BOMBS
for name in ("forms in forms", "a form in itself", "texts without end"):
    with suppress(InputError):
        read_in_sandbox(BOMBS[name][1](), "application/pdf")
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 420_000, "kilobytes, of which 100,000 are the program's"


def children_times() -> float:
    """Return the processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def test_all_slow_steps_of_a_document_have_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READING", replace(READING, timeout_seconds=5))
    slow = b"<div>" * 4_000_000 + b"x"  # takes all the time, however it is read
    asked: list[str] = []
    start = SandboxJob.start

    def counted(job: SandboxJob) -> "subprocess.Popen[bytes]":
        asked.append("one")
        return start(job)

    monkeypatch.setattr(SandboxJob, "start", counted)
    for _step in range(3):
        with pytest.raises(InputError, match="too much time"):
            await read_document(slow, HTML)
    assert asked == ["one"], "the steps after the first one have no time left"
    assert (await read_document(LETTER, DOCX)).title == "Flat", "the place is free for another document"


SMALL = {media_type: data for data, media_type, _document in READ.values()}


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return a document with some bytes changed, and perhaps cut off."""
    media_type = draw(st.sampled_from(sorted(SMALL)))
    data = bytearray(SMALL[media_type])
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=40)):
        data[at] = byte
    return media_type, bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=examples(25))
@given(damaged())
def test_damaged_document_ends_with_text_or_reason(document: tuple[str, bytes]) -> None:
    said = outcome(*document)
    assert said
    assert "{" not in said


def outcome(media_type: str, data: bytes) -> str:
    """Return the text of a document, or the reason why it has none."""
    try:
        return "".join(read_in_sandbox(data, media_type).pages).replace("{", "")
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", ["deep elements", "deep shapes", "deep rows", *gate_rows({"sheets": "sheets"}, ())])
def test_document_of_too_much_is_not_called_damaged(name: str) -> None:
    file, make = BOMBS[name]
    assert outcome(SUFFIXES[file[1:]], make()) == "takes too much time or memory to be read"


async def test_document_is_read_once() -> None:
    data = pdf(["Once"])
    first = await read_document(data, PDF)
    assert await read_document(data, PDF) is first


@pytest.mark.parametrize(
    ("name", "data", "media_type"),
    [
        ("report.PDF", b"%PDF-1.7", PDF),
        ("no suffix", b"%PDF-1.7", PDF),
        ("a.docx", b"PK", DOCX),
        ("a.xls", b"\xd0\xcf", XLSX),
        ("a.eml", b"From: a", EML),
        ("a.mbox", b"From a", EML),
        ("letter.doc", b"{\\rtf1", RTF),
        ("a.xls", b"Month\tRent", ""),
        ("a.zip", b"PK", ""),
        ("a.html", b"<p>", ""),
    ],
)
def test_kind_is_found_from_bytes_and_name(name: str, data: bytes, media_type: str) -> None:
    assert document_type(name, data) == media_type


def test_app_does_not_load_the_readers() -> None:
    names = ("pypdfium2", "pypdfium2_raw", "docx", "pptx", "openpyxl", "lxml")
    code = f"import sys, agent.web.app; print([one for one in {names} if one in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_values_ticks_and_notes_of_a_form_are_read() -> None:
    document = read_in_sandbox(form(), PDF)
    assert document.pages == (
        "Surname:\n\n[Filled in or noted on this page]\nsurname: Müller\npets: \u2612\ngarden: \u2610\n"
        "city: Paris\nsize: \u2610 small\nsize: \u2612 large\nNote: Call Ann",
    )


@pytest.mark.parametrize("turned", [0, 90, 180, 270])
def test_all_text_of_a_turned_page_is_read(turned: int) -> None:
    out = BytesIO()
    canvas: Any = Canvas(out, pagesize=(595, 842))
    canvas.setPageRotation(turned)
    for x, y, text in ((72, 590, "Top"), (500, 50, "Right"), (5, 5, "Low")):
        canvas.drawString(x, y, text)
    canvas.save()
    assert read_in_sandbox(out.getvalue(), PDF).pages == ("Top\nRight\nLow",)


def test_other_fields_and_notes_of_a_form_are_read() -> None:
    out = BytesIO()
    canvas: Any = Canvas(out, encrypt=StandardEncryption("", ownerPassword="o"))
    fields = canvas.acroForm
    fields.textfield(name="lines", value="one\ntwo", fieldFlags="multiline", x=200, y=700)
    fields.textfield(name="pin", value="1234", fieldFlags="password", x=200, y=660)
    fields.textfield(name="x1", tooltip="Your name", value="Ann", x=200, y=620)
    fields.textfield(name="gone", value="hidden", annotationFlags="hidden", x=200, y=580)
    fields.listbox(name="list", value="b", options=["a", "b"], x=200, y=500)
    canvas.highlightAnnotation("Looks good", (10, 10, 50, 50))
    canvas.freeTextAnnotation("Typed here", (100, 100, 200, 120))
    canvas.showPage()
    canvas.save()
    assert read_in_sandbox(out.getvalue(), PDF).pages == (
        "[Filled in or noted on this page]\nlines: one\ntwo\npin: \u2022\u2022\u2022\u2022\nYour name: Ann\n"
        "list: b\nNote: Looks good\nNote: Typed here",
    )


def hand_made(*objects: bytes, annotation: bytes = b"", more: bytes = b"") -> bytes:
    """Return a PDF of one page with the word "Text", an annotation, and these objects from number 6 on."""
    word_ = b"BT /F 12 Tf 72 700 Td (Text) Tj ET"
    parts = [
        b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[]%s>>%s>>" % (more, b"/NeedsRendering true" * bool(more)),
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>/Annots[%s]>>"
        % annotation,
        b"<</Length %d>>stream\n%s\nendstream" % (len(word_), word_),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        *(b"<</Length %d>>stream\n%s\nendstream" % (len(one), one) for one in objects),
    ]
    out, places = b"%PDF-1.7\n", list[int]()
    for number, part in enumerate(parts, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(parts) + 1, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n" % (len(parts) + 1) + table + end


def test_values_of_a_form_for_another_program_are_read() -> None:
    """The page of such a form shows only that Adobe's program is needed."""
    data = (
        '<x:datasets xmlns:x="http://www.xfa.org/schema/xfa-data/1.0/"><x:data><form><Name>Ann Müller</Name>'
        "<Home><City>Paris</City></Home><None/></form></x:data></x:datasets>"
    ).encode()
    made = hand_made(b"<x:xdp>", data, b"<!DOCTYPE y>" + data, more=b"/XFA[(a)6 0 R(datasets)7 0 R(b)8 0 R]")
    assert read_in_sandbox(made, PDF).pages == (
        "Text\n\n[Filled in or noted on this page]\nName: Ann Müller\nCity: Paris",
    )


def test_addresses_of_links_on_a_page_are_read() -> None:
    out = BytesIO()
    canvas: Any = Canvas(out)
    for y, text, address in (
        (700, "here", "https://example.org/pay"),
        (600, "example.org/plan", "https://example.org/plan"),
        (500, "Run", "javascript:x()"),
    ):
        canvas.drawString(72, y, text)
        canvas.linkURL(address, (70, y - 3, 200, y + 12))
    canvas.save()
    assert read_in_sandbox(out.getvalue(), PDF).pages == (
        "here\nexample.org/plan\nRun\n\n[Links on this page]\nhere (https://example.org/pay)",
    )


def test_file_pinned_to_a_page_is_named_as_left_out() -> None:
    pin = b"<</Type/Annot/Subtype/FileAttachment/Rect[9 9 50 50]/FS<</Type/Filespec/F(a.txt)/EF<</F 6 0 R>>>>>>"
    assert read_in_sandbox(hand_made(b"hello", annotation=pin), PDF).left_out == ("objects",)


def test_files_in_a_pdf_are_named_as_left_out() -> None:
    made: Any = pypdfium2.PdfDocument(pdf(["Text"]))
    made.new_attachment("invoice.xml").set_data(b"<x/>")
    out = BytesIO()
    made.save(out)
    assert read_in_sandbox(out.getvalue(), PDF).left_out == ("objects",)


def test_scan_with_a_typed_note_is_still_a_scan() -> None:
    document = read_in_sandbox(form(picture_of_text("Invoice")), PDF)
    assert "Note: Call Ann" in document.pages[0]
    assert document.scans == (1,)


def test_reader_that_fails_says_nothing_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has no known fault, so this test brings one."""

    def fail(_data: bytes) -> Never:
        raise KeyError("r")

    written = BytesIO()
    monkeypatch.setitem(document_worker.READERS, DOCX, fail)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(LETTER)))
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written))
    assert document_worker.main([DOCX]) == document_worker.REFUSED
    assert (
        parse_sentence(written.getvalue())
        == "can't be read here as DOCX. Save it again with another program, or as PDF"
    )


@pytest.mark.parametrize("media_type", [DOCX, XLSX, PPTX])
def test_damaged_part_of_an_archive_is_damage(media_type: str) -> None:
    part = {DOCX: "word__document_xml", XLSX: "xl__workbook_xml", PPTX: "ppt__presentation_xml"}[media_type]
    with pytest.raises(InputError, match="is damaged or cut off"):
        read_in_sandbox(repacked(SMALL[media_type], **{part: b"<w:document xmlns:w='x'><w:bo"}), media_type)


async def test_what_is_left_out_is_named_to_model_and_people(tmp_path: Path) -> None:
    made: Any = docx.Document()
    made.add_paragraph("Text")
    made.add_picture(BytesIO(picture_of_text("Invoice")))
    made.save(tmp_path / "a.docx")
    spec = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=8_192)
    [plan] = await plan_attachments([tmp_path / "a.docx"], spec, max_bytes=10**7)
    assert plan.text == "1 section, read as text. Not read: pictures"
    [_file, text] = await message_parts({"files": [str(tmp_path / "a.docx")]}, spec=spec, owner="ann", max_bytes=10**7)
    assert "(DOCX, 1 section); not read: pictures:" in str(getattr(text, "content", ""))
