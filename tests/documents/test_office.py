"""Office documents are read as people see them: the inputs are written by other programs, or edited as XML."""

import re
from datetime import date, datetime, time, timedelta
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import docx
import openpyxl
import pptx
import pytest
import xlsxwriter
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from pptx.chart.data import BubbleChartData, CategoryChartData, XyChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from agent.errors import InputError
from agent.files.drawings import read_pptx
from agent.files.excel import read_xlsx
from agent.files.kinds import DOCX, PPTX, XLSX, document_type
from agent.files.number_formats import counted, number_text
from agent.files.word import read_docx
from tests.support.documents import edited, repacked, slides, strict, word, workbook
from tests.support.known_texts import picture_of_text

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
BY = 'w:id="1" w:author="A" w:date="2026-01-01T00:00:00Z"'
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
FRAME = (Inches(1), Inches(1), Inches(4), Inches(3))
EMPTY = word(("Heading", "x"))


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def p(*inside: str) -> str:
    return f"<w:p>{''.join(inside)}</w:p>"


def shown(body: str, data: bytes = EMPTY, **parts: bytes) -> str:
    """Return the text that is read of a Word document with this XML as its body."""
    made = edited(data, "word/document.xml", lambda xml: re.sub("<w:body>.*</w:body>", f"<w:body>{body}</w:body>", xml))
    pages = read_docx(repacked(made, **parts) if parts else made)[1]
    return "\n\n".join(pages)


BOX = (
    "<w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing><wps:wsp><wps:txbx><w:txbxContent>{0}"
    "</w:txbxContent></wps:txbx></wps:wsp></w:drawing></mc:Choice><mc:Fallback><w:pict><v:shape><v:textbox>"
    "<w:txbxContent>{0}</w:txbxContent></v:textbox></v:shape></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
)
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
ITEM = '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="90"/></w:numPr>'


def item(text: str) -> str:
    return p(f"<w:pPr>{ITEM}</w:pPr>", run(text))


def math(tag: str, *inside: str) -> str:
    """Return a part of an equation, whose own parts have no runs yet."""
    inner = "".join(inside)
    return f"<m:{tag}>{f'<M>{inner}</M>' if tag == 'd' else inner}</m:{tag}>"


BODIES = {
    "inserted and deleted": (
        p(run("The rent is "), f"<w:del {BY}><w:r><w:delText>700</w:delText></w:r></w:del>")
        + p(f"<w:ins {BY}>{run('812')}</w:ins>", run(" euros")),
        "The rent is\n\n812 euros",
    ),
    "deleted end of a paragraph": (
        p(f"<w:pPr><w:rPr><w:del {BY}/></w:rPr></w:pPr>", run("One ")) + p(run("sentence.")),
        "One sentence.",
    ),
    "moved": (
        p(f"<w:moveFrom {BY}>{run('old place')}</w:moveFrom>", f"<w:moveTo {BY}>{run('new place')}</w:moveTo>"),
        "new place",
    ),
    "content controls": (
        "<w:sdt><w:sdtPr/><w:sdtContent>"
        + p(run("Name: "), "<w:sdt><w:sdtContent>", run("Ann"), "</w:sdtContent></w:sdt>")
        + "</w:sdtContent></w:sdt>",
        "Name: Ann",
    ),
    "field with a result": (
        p(FIELD.format("begin"), "<w:r><w:instrText>IF </w:instrText></w:r>", FIELD.format("begin"))
        .replace("</w:p>", "")
        + "<w:r><w:instrText>NAME</w:instrText></w:r>" + FIELD.format("separate") + run("hidden") + FIELD.format("end")
        + FIELD.format("separate") + run("Dear Ann") + FIELD.format("end") + "</w:p>",
        "Dear Ann",
    ),
    "old check box": (
        p('<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:checkBox><w:checked/></w:checkBox></w:ffData></w:fldChar>'
          "</w:r>", FIELD.format("end"), run(" Pets")),
        "\u2612 Pets",
    ),
    "fraction": (
        p("<m:oMath><m:r><m:t>x=</m:t></m:r><m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r>"
          "</m:den></m:f><m:sSup><m:e><m:r><m:t>y</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup>"
          "<m:rad><m:deg/><m:e><m:r><m:t>z</m:t></m:r></m:e></m:rad></m:oMath>"),
        "x=(a+b)/(2)y^2\u221a(z)",
    ),
    "matrix, sum, accent": (
        p("<m:oMath>", math("d", math("m", math("mr", "<m:e>1</m:e>", "<m:e>0</m:e>"), math("mr", "<m:e>0</m:e>"))),
          math("nary", '<m:naryPr><m:chr m:val="\u2211"/></m:naryPr>', "<m:sub>i=1</m:sub>", "<m:sup>n</m:sup>",
               "<m:e>i</m:e>"),
          math("acc", "<m:e>x</m:e>"), math("limUpp", "<m:e>=</m:e>", "<m:lim>def</m:lim>"),
          math("sSup", "<m:e>x</m:e>", "<m:sup>n+1</m:sup>"), "</m:oMath>")
        .replace("<m:e>", "<m:e><m:r><m:t>").replace("</m:e>", "</m:t></m:r></m:e>")
        .replace("<m:sub>", "<m:sub><m:r><m:t>").replace("</m:sub>", "</m:t></m:r></m:sub>")
        .replace("<m:sup>", "<m:sup><m:r><m:t>").replace("</m:sup>", "</m:t></m:r></m:sup>")
        .replace("<m:lim>", "<m:lim><m:r><m:t>").replace("</m:lim>", "</m:t></m:r></m:lim>"),
        "(1, 0; 0)\u2211_(i=1)^n ix\u0302=^defx^(n+1)",
    ),
    "moved row": (
        f"<w:tbl><w:tr><w:trPr><w:del {BY}/></w:trPr><w:tc>{p(f'<w:moveFrom {BY}>', run('x'), '</w:moveFrom>')}</w:tc>"
        f"</w:tr><w:tr><w:trPr><w:gridBefore w:val='1'/></w:trPr><w:tc>{p(f'<w:moveTo {BY}>', run('y'), '</w:moveTo>')}"
        "</w:tc></w:tr></w:tbl>",
        "\ty",
    ),
    "controls in rows and cells": (
        "<w:tbl><w:sdt><w:sdtContent><w:tr><w:sdt><w:sdtContent><w:tc><w:sdt><w:sdtContent>" + p(run("deep"))
        + "</w:sdtContent></w:sdt></w:tc></w:sdtContent></w:sdt></w:tr></w:sdtContent></w:sdt></w:tbl>",
        "deep",
    ),
    "boxes of a group": (
        p("<w:r><w:drawing><wpg:wgp><wps:wsp><w:txbxContent>", p(run("A")), "</w:txbxContent></wps:wsp><wpg:grpSp>"
          "<w:txbxContent>", p(run("B")), "</w:txbxContent></wpg:grpSp></wpg:wgp></w:drawing></w:r>"),
        "A\n\nB",
    ),
    "WordArt": (p("<w:r><w:pict><v:shape><v:textpath string='Draft'/></v:shape></w:pict></w:r>"), "Draft"),
    "deleted item of a list": (
        item("a") + p(f'<w:pPr>{ITEM}<w:rPr><w:del {BY}/></w:rPr></w:pPr>', f"<w:del {BY}><w:r><w:delText>b</w:delText>"
                      "</w:r></w:del>") + item("c"),
        "Art. I a\n\nArt. II c",
    ),
    "text box, once": (p(run("Before"), BOX.format(p(run("In the box")))), "Before\nIn the box"),
    "table in a table, merged cells": (
        f"<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr>{p(run('Wide'))}</w:tc><w:tc>{p(run('C'))}</w:tc>"
        f"</w:tr><w:tr><w:tc><w:tbl><w:tr><w:tc>{p(run('In'))}</w:tc><w:tc>{p(run('ner'))}</w:tc></w:tr></w:tbl>{p()}"
        f"</w:tc><w:tc>{p(run('B'))}</w:tc></w:tr></w:tbl>",
        "Wide\t\tC\nIn ner\tB",
    ),
    "deleted row": (
        f"<w:tbl><w:tr><w:trPr><w:del {BY}/></w:trPr><w:tc>{p(run('Gone'))}</w:tc></w:tr>"
        f"<w:tr><w:tc>{p(run('Kept'))}</w:tc></w:tr></w:tbl>",
        "Kept",
    ),
    "hidden text, signs, breaks": (
        p(run("no", "<w:vanish/>"), run("yes", '<w:vanish w:val="0"/>'), "<w:r><w:noBreakHyphen/><w:tab/><w:br/></w:r>")
        .replace("</w:p>", '<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r></w:p>'),
        "yes-\n\u2612",
    ),
    "reading of characters": (
        p(f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('tokyo')}</w:rt><w:rubyBase>{run('東京')}</w:rubyBase></w:ruby></w:r>"),
        "東京(tokyo)",
    ),
    "link in a field": (
        p(FIELD.format("begin"), '<w:r><w:instrText> HYPERLINK "https://example.org/pay" </w:instrText></w:r>',
          FIELD.format("separate"), run("here"), FIELD.format("end"), run(" or "),
          '<w:fldSimple w:instr=" HYPERLINK &quot;mailto:a@example.org&quot; ">', run("a@example.org"),
          "</w:fldSimple>"),
        "here (https://example.org/pay) or a@example.org",
    ),
    "raised numbers": (
        p(run("10"), run("6", '<w:vertAlign w:val="superscript"/>'), run(" H"),
          run("2", '<w:vertAlign w:val="subscript"/>'), run("O, the 1"),
          run("st", '<w:vertAlign w:val="superscript"/>')),
        "10\u2076 H2O, the 1st",
    ),
    "struck out": (
        p(run("7", "<w:strike/>"), run("00", "<w:dstrike/>"), run(" 812"), run(" euros", '<w:strike w:val="0"/>')),
        "~~700~~ 812 euros",
    ),
    "font of symbols": (
        p('<w:r><w:sym w:font="Symbol" w:char="F061"/><w:sym w:font="Symbol" w:char="F0A3"/></w:r>'
          '<w:r><w:sym w:font="Wingdings 2" w:char="F0A3"/></w:r>'),
        "\u03b1\u2264\u2610",
    ),
    "picture with a text": (
        p('<w:r><w:drawing><docPr descr="Plan of the flat"/><blip/></w:drawing></w:r>', run("x"),
          '<w:r><w:drawing><docPr descr="image1.png"/><blip/></w:drawing></w:r>'),
        "[Plan of the flat]x",
    ),
    "list numbers": (
        "".join(
            p(f'<w:pPr><w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="90"/></w:numPr></w:pPr>', run(text))
            for level, text in ((0, "a"), (1, "b"), (1, "c"), (0, "d"), (1, "e"))
        ),
        "Art. I a\n\n  I.1) b\n\n  I.2) c\n\nArt. II d\n\n  II.1) e",
    ),
}  # fmt: skip
LEVELS = (
    '<w:abstractNum w:abstractNumId="80"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="upperRoman"/>'
    '<w:lvlText w:val="Art. %1"/></w:lvl><w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="%1.%2)"/></w:lvl></w:abstractNum><w:num w:numId="90"><w:abstractNumId w:val="80"/></w:num>'
)


@pytest.mark.parametrize(("body", "text"), BODIES.values(), ids=list(BODIES))
@pytest.mark.parametrize("is_strict", [False, True], ids=["transitional", "strict"])
def test_word_document_is_read_as_it_is_seen(body: str, text: str, is_strict: bool) -> None:
    numbered = edited(EMPTY, "word/numbering.xml", lambda xml: xml.replace("</w:numbering>", f"{LEVELS}</w:numbering>"))
    numbered = edited(numbered, "word/document.xml", lambda xml: xml.replace("<w:body>", "<w:body> "))
    data = strict(numbered) if is_strict else numbered
    assert shown(body, data).strip() == text.strip()


def test_notes_and_comments_follow_their_paragraph() -> None:
    made: Any = docx.Document()
    made.add_heading("Terms", 1)
    first = made.add_paragraph("Rent")
    made.add_comment(first.runs, text="Is this final?", author="Bob")
    made.add_paragraph("Notice")
    data = saved(made)
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    for kind in ("footnote", "endnote"):
        data = edited(data, "word/_rels/document.xml.rels", lambda xml, kind=kind: xml.replace(
            "</Relationships>",
            f'<Relationship Id="n{kind}" Type="{kinds}/{kind}s" Target="{kind}s.xml"/></Relationships>'
        ))  # fmt: skip
        note = f'<w:{kind}s {W}><w:{kind} w:id="2">{p(run("The " + kind))}</w:{kind}></w:{kind}s>'
        data = repacked(data, **{f"word__{kind}s_xml": note.encode()})
    data = edited(data, "word/document.xml", lambda xml: xml.replace(
        "Notice</w:t></w:r>",
        'Notice</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r><w:r><w:endnoteReference w:id="2"/></w:r>',
    ))  # fmt: skip
    assert read_docx(data)[1] == [
        "Terms\n\nRent\n\n[Comment by Bob: Is this final?]\n\n"
        "Notice[^1][^e1]\n\n[^1]: The footnote\n\n[^e1]: The endnote"
    ]


def test_link_in_a_note_has_its_own_address() -> None:
    """The notes are a part of their own, whose links have the same numbers as those of the document."""
    made: Any = docx.Document()
    made.add_paragraph("Notice")
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    link = f'<Relationship Id="n1" Type="{kinds}/hyperlink" Target="https://example.org/{{}}" TargetMode="External"/>'
    data = edited(saved(made), "word/_rels/document.xml.rels", lambda xml: xml.replace(
        "</Relationships>",
        f'<Relationship Id="n" Type="{kinds}/footnotes" Target="footnotes.xml"/>{link.format("text")}</Relationships>',
    ))  # fmt: skip
    named = f'<w:hyperlink xmlns:r="{kinds}" r:id="n1">{run("here")}</w:hyperlink>'
    note = f'<w:footnotes {W}><w:footnote w:id="2">{p(named)}</w:footnote></w:footnotes>'
    packed = BytesIO(data)
    with ZipFile(packed, "a") as archive:
        archive.writestr("word/footnotes.xml", note)
        archive.writestr("word/_rels/footnotes.xml.rels", f"<Relationships>{link.format('note')}</Relationships>")
    data = packed.getvalue()
    data = edited(data, "word/document.xml", lambda xml: xml.replace(
        "Notice</w:t></w:r>", f'Notice</w:t></w:r>{named}<w:r><w:footnoteReference w:id="2"/></w:r>'
    ))  # fmt: skip
    assert read_docx(data)[1] == ["Noticehere (https://example.org/text)[^1]\n\n[^1]: here (https://example.org/note)"]


def test_text_that_a_style_hides_is_left_out() -> None:
    hidden = '<w:style w:type="{0}" w:styleId="{1}"><w:basedOn w:val="{2}"/><w:rPr>{3}</w:rPr></w:style>'
    styles = hidden.format("character", "A", "", "<w:vanish/>") + hidden.format("character", "B", "A", "")
    styles += hidden.format("paragraph", "P", "", "<w:vanish/>")
    data = edited(EMPTY, "word/styles.xml", lambda xml: xml.replace("</w:styles>", f"{styles}</w:styles>"))
    body = p(run("a"), run("no", '<w:rStyle w:val="B"/>'), run("b")) + p(
        '<w:pPr><w:pStyle w:val="P"/></w:pPr>', run("no"), run("c", '<w:vanish w:val="0"/>')
    )
    assert shown(body, data) == "ab\n\nc"


def test_only_headers_that_are_shown_are_read() -> None:
    made: Any = docx.Document()
    [section] = made.sections
    section.header.paragraphs[0].text = "Odd"
    section.first_page_header.paragraphs[0].text = "First"
    section.even_page_header.paragraphs[0].text = "Even"
    made.add_paragraph("Begin")
    assert read_docx(saved(made))[1] == ["Begin", "Header: Odd"]
    section.different_first_page_header_footer = True
    made.settings.odd_and_even_pages_header_footer = True
    edges = read_docx(saved(made))[1][-1].split("\n")
    assert sorted(edges) == ["Header: Even", "Header: First", "Header: Odd"]


def test_level_that_does_not_restart_goes_on() -> None:
    level = '<w:lvl w:ilvl="{}"><w:numFmt w:val="{}"/><w:lvlRestart w:val="0"/><w:lvlText w:val="%{}."/></w:lvl>'
    levels = LEVELS.replace(LEVELS[LEVELS.index("<w:lvl ") : LEVELS.index("</w:abstractNum>")], "".join(
        level.format(at, form, at + 1) for at, form in enumerate(("ordinal", "decimalEnclosedCircle"))
    ))  # fmt: skip
    data = edited(EMPTY, "word/numbering.xml", lambda xml: xml.replace("</w:numbering>", f"{levels}</w:numbering>"))
    places = zip((0, 1, 0, 1), "abcd", strict=True)
    texts = "".join(item(text).replace('w:ilvl w:val="0"', f'w:ilvl w:val="{at}"') for at, text in places)
    assert shown(texts, data) == "1st. a\n\n  \u2460. b\n\n2nd. c\n\n  \u2461. d"


def test_headers_lists_and_headings_of_word() -> None:
    made: Any = docx.Document()
    made.sections[0].header.paragraphs[0].text = "ACME GmbH"
    made.sections[0].footer.paragraphs[0].text = "Confidential"
    made.add_paragraph("Begin")
    for style, text in (("List Number", "one"), ("List Number", "two"), ("List Bullet", "point")):
        made.add_paragraph(text, style=style)
    made.add_heading("Part", 2)
    assert read_docx(saved(made))[1] == [
        "Begin\n\n1. one\n\n2. two\n\n\u2022 point", "Part", "Header: ACME GmbH\nFooter: Confidential",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [(4, "decimal", "4"), (4, "lowerRoman", "iv"), (28, "upperLetter", "BB"), (3, "decimalZero", "03")],
)
def test_numbers_of_lists(number: int, form: str, text: str) -> None:
    assert counted(number, form) == text


def test_what_is_left_out_of_a_word_document_is_named() -> None:
    made: Any = docx.Document()
    made.add_paragraph("Text")
    made.add_picture(BytesIO(picture_of_text("Invoice")))
    assert set(read_docx(saved(made))[2]) == {"pictures"}
    deleted = p(run("kept"), f"<w:del {BY}><w:r><w:delText>700</w:delText></w:r></w:del>", run("no", "<w:vanish/>"))
    data = edited(EMPTY, "word/document.xml", lambda xml: xml.replace("<w:body>", f"<w:body>{deleted}"))
    assert set(read_docx(data)[2]) == {"deleted", "hidden"}


MACROS = {
    ".docm": (DOCX, EMPTY, "application/vnd.ms-word.document.macroEnabled.main+xml"),
    ".dotx": (DOCX, EMPTY, "application/vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml"),
    ".xlsm": (XLSX, workbook(A=[["text"]]), "application/vnd.ms-excel.sheet.macroEnabled.main+xml"),
    ".pptm": (PPTX, slides(("text", "", "")), "application/vnd.ms-powerpoint.presentation.macroEnabled.main+xml"),
    ".ppsx": (PPTX, slides(("text", "", "")), "application/vnd.ms-powerpoint.slideshow.macroEnabled.main+xml"),
}  # fmt: skip
OFFICE = {DOCX: read_docx, XLSX: read_xlsx, PPTX: read_pptx}


@pytest.mark.parametrize("suffix", MACROS)
def test_documents_with_macros_and_templates_are_read(suffix: str) -> None:
    media_type, data, content_type = MACROS[suffix]
    data = edited(data, "[Content_Types].xml", lambda xml: re.sub(
        r'(PartName="/(?:word/document|xl/workbook|ppt/presentation)\.xml" ContentType=)"[^"]*"',
        rf'\1"{content_type}"',
        xml,
    ))  # fmt: skip
    assert document_type(f"a{suffix}", data) == media_type
    assert any(OFFICE[media_type](data)[1])


OTHERS = {
    ".odt": repacked(EMPTY, mimetype=b"application/vnd.oasis.opendocument.text"),
    ".epub": repacked(EMPTY, mimetype=b"application/epub+zip"),
    ".pages": repacked(EMPTY, Index__Document_iwa=b"x"),
    ".xlsb": repacked(workbook(A=[["text"]]), xl__workbook_bin=b"x"),
    ".msg": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "__substg1.0_0037001F".encode("utf-16-le"),
}


@pytest.mark.parametrize("suffix", OTHERS)
def test_format_of_another_program_says_how_to_save_it(suffix: str) -> None:
    media_type = document_type(f"a{suffix}", OTHERS[suffix])
    with pytest.raises(
        InputError, match=r"has a format that is not read here\. Save it as PDF, DOCX, PPTX, XLSX or EML"
    ):
        OFFICE[media_type](OTHERS[suffix])
    assert document_type(f"a{suffix}", b"Words") == "", "a text can have the same ending"


# --- Excel ------------------------------------------------------------------------------------------------------------


def saved(made: Any) -> bytes:
    out = BytesIO()
    made.save(out)
    return out.getvalue()


def cells(*rows: tuple[object, str]) -> bytes:
    """Return a workbook with these values and number formats, one in each row."""
    book: Any = openpyxl.Workbook()
    book.active.title = "A"
    for at, (value, format_) in enumerate(rows, 1):
        book.active.cell(at, 1, value).number_format = format_
    return saved(book)


CELLS = [
    (812, "General", "812"),
    (0.1 + 0.2, "General", "0.3"),
    (1234567890123, "General", "1234567890123"),
    (4111111111111111, "0", "4111111111111111"),
    (0.125, "0.0%", "12.5%"),
    (812.5, "#,##0.00 €", "812.5 €"),
    (812.5, '"$"#,##0.00', "$812.5"),
    (812.5, "[$$-409]#,##0.00", "$812.5"),
    (1234, "00000", "01234"),
    (date(2026, 5, 3), "dd.mm.yyyy", "2026-05-03"),
    (datetime(2026, 6, 1, 14, 5), "yyyy-mm-dd hh:mm", "2026-06-01 14:05"),
    (date(2026, 5, 1), "mmmm", "2026-05-01"),
    (time(9, 30), "h:mm", "09:30"),
    (timedelta(days=1, hours=6), "[h]:mm", "30:00"),
    (timedelta(minutes=90), "[mm]:ss", "90:00"),
    (1, '"Yes";"";"No; never"', "Yes"),
    (0, '"Yes";"";"No; never"', "No; never"),
    (-5, "0;[Red](0)", "-5"),
    (-3, '"Yes";"";"No"', "-3"),
    (0.25, '0%;-0%;"none"', "25%"),
    (40, '0 "days"', "40 days"),
    (5, '"Room "0', "Room 5"),
    (1_500_000, '0.0,,"M"', "1.5M"),
    (812.5, "#,##0.00\\ \\k\\g", "812.5 kg"),
    (5551234567, '"("000")" 000"-"0000', "5551234567"),
    (7, "[Red]0", "7"),
    (True, "General", "TRUE"),
    ("#N/A", "General", "#N/A"),
    ("two\nlines\tand a tab", "General", "two lines and a tab"),
    ("=SUM(A1:A2)", "General", "=SUM(A1:A2)"),
]


@pytest.mark.parametrize("is_strict", [False, True], ids=["transitional", "strict"])
def test_cells_are_read_as_excel_shows_them(is_strict: bool) -> None:
    data = cells(*((value, format_) for value, format_, _text in CELLS))
    [page] = read_xlsx(strict(data) if is_strict else data)[1]
    assert page.split("\n") == ["A", *(text for _value, _format, text in CELLS)]


@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "x", "-5", "99999999999"])
@pytest.mark.parametrize("code", ["General", "00000", "d.m.yyyy", "[h]:mm", "0%", "$0"])
def test_any_number_has_a_text_in_any_format(value: str, code: str) -> None:
    assert number_text(value, code)


def test_stored_results_count_before_formulas() -> None:
    data = cells(("=1+1", "General"), ('=IF(A1,"","")', "General"), ("=A1*2", "General"))
    sheet = "xl/worksheets/sheet1.xml"
    data = edited(data, sheet, lambda xml: re.sub("<f>1\\+1</f><v ?/?>(</v>)?", "<f>1+1</f><v>2</v>", xml))
    data = edited(data, sheet, lambda xml: xml.replace('r="A2"><f>', 'r="A2" t="str"><f>'))
    assert read_xlsx(data)[1] == ["A\n2\n=A1*2"]


def test_shared_formula_without_result_names_its_first_cell() -> None:
    data = cells(("=B1*2", "General"), ("=B2*2", "General"))
    data = edited(data, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(
        "<f>B1*2</f>", '<f t="shared" ref="A1:A2" si="0">B1*2</f>'
    ).replace("<f>B2*2</f>", '<f t="shared" si="0"/>'))  # fmt: skip
    assert read_xlsx(data)[1] == ["A\n=B1*2\n=B1*2 (as in A1)"]


@pytest.mark.parametrize("claimed", ["A1", "A1:XFD1048576", "B7:B7", ""])
def test_size_that_a_sheet_claims_does_not_count(claimed: str) -> None:
    data = workbook(A=[["a", "b"], [1, 2]])
    dimension = f'<dimension ref="{claimed}"'
    data = edited(data, "xl/worksheets/sheet1.xml", lambda xml: re.sub('<dimension ref="[^"]*"', dimension, xml))
    assert read_xlsx(data)[1] == ["A\na\tb\n1\t2"]


def test_comments_charts_and_hidden_sheets_of_excel() -> None:
    book: Any = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Rent"
    for row in (["Month", "Rent"], ["May", 812], ["June", 900]):
        sheet.append(row)
    sheet["B2"].comment = Comment("Ask Ann\nfirst", "Bob")
    chart = BarChart()
    chart.title = "Rents"
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=3), titles_from_data=True)
    sheet.add_chart(chart, "D1")
    secret = book.create_sheet("Notes")
    secret.append(["x"])
    secret.sheet_state = "hidden"
    title, pages, left_out = read_xlsx(saved(book))
    assert pages == ["Rent\nMonth\tRent\nMay\t812\nJune\t900\nRents\nComment on B2: Ask Ann first", "Notes (hidden)\nx"]
    assert title == ""
    assert set(left_out) == {"charts"}, "the values of the chart are not stored in it"


def test_more_writers_of_excel() -> None:
    """Merged cells, rich texts, arrays, tables, text boxes, a chart on a sheet of its own."""
    out = BytesIO()
    with xlsxwriter.Workbook(out) as book:
        sheet: Any = book.add_worksheet("S")
        sheet.merge_range("A1:C1", "Merged")
        sheet.write_rich_string("A2", "a", book.add_format({"bold": 1}), "b", "c")
        sheet.write_array_formula("A3:A3", "{=SUM(B1:B9*2)}", None, 7)
        sheet.write_comment("A4", "Ask Ann")
        sheet.insert_textbox("F1", "In a box")
        sheet.add_table("H1:I2", {"columns": [{"header": "x"}, {"header": "y"}]})
        chart: Any = book.add_chart({"type": "pie"})
        chart.add_series({"values": "=S!$A$3:$A$3", "name": "Sum"})
        book.add_chartsheet("Chart").set_chart(chart)
        book.add_worksheet("Z").very_hidden()
    assert read_xlsx(out.getvalue())[1] == [
        "S\nMerged\t\t\t\t\t\t\tx\ty\nabc\n7\nIn a box\nComment on A4: Ask Ann",
        "Chart\n\tSum\n\t7",
        "Z (hidden)",
    ]


def test_notes_beside_threads_are_read() -> None:
    book: Any = openpyxl.Workbook()
    book.active["A1"].comment = Comment("[Threaded comment] Old text", "A")
    book.active["B2"].comment = Comment("A note", "A")
    data = saved(book)
    rels = "xl/worksheets/_rels/sheet1.xml.rels"
    kind = "http://schemas.microsoft.com/office/2017/10/relationships/threadedComment"
    data = edited(data, rels, lambda xml: xml.replace(
        "</Relationships>", f'<Relationship Id="t" Type="{kind}" Target="/xl/threads.xml"/></Relationships>'
    ))  # fmt: skip
    threads = b'<ThreadedComments><threadedComment ref="A1"><text>New text</text></threadedComment></ThreadedComments>'
    [page] = read_xlsx(repacked(data, xl__threads_xml=threads))[1]
    assert page.split("\n")[1:] == ["Comment on A1: New text", "Comment on B2: A note"]


def test_links_and_hidden_cells_of_excel_are_named() -> None:
    out = BytesIO()
    with xlsxwriter.Workbook(out) as book:
        sheet: Any = book.add_worksheet("Ann's")
        sheet.write("A1", "Rent")
        sheet.write_url("B1", "https://example.org/pay", string="here")
        sheet.write_url("A2", "https://example.org/")
        for row in (2, 3):
            sheet.write(row, 0, "x")
            sheet.set_row(row, None, None, {"hidden": 1})
        sheet.set_column("B:B", None, None, {"hidden": 1})
        sheet.set_column("F:XFD", None, None, {"hidden": 1})
        sheet.write_rich_string("A5", "10", book.add_format({"font_script": 1}), "6", " m")
        sheet.embed_image("A6", "a.png", {"image_data": BytesIO(picture_of_text("x"))})
    _title, pages, left_out = read_xlsx(out.getvalue())
    assert pages == [
        "Ann's\nRent\there\nhttps://example.org/\nx\nx\n10\u2076 m\nHidden rows: 3-4\nHidden columns: B\n"
        "Link in B1: https://example.org/pay"
    ]
    assert set(left_out) == {"pictures"}


def test_cell_far_from_the_others_is_named() -> None:
    out = BytesIO()
    with xlsxwriter.Workbook(out) as book:
        sheet: Any = book.add_worksheet("A")
        for cell in ("A1", "D1", "XFC1", "XFD1", "XFD1048576"):
            sheet.write(cell, cell.lower())
    assert read_xlsx(out.getvalue())[1] == ["A\na1\t\t\td1\tXFC1: xfc1\txfd1\nXFD1048576: xfd1048576"]


# --- PowerPoint -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_strict", [False, True], ids=["transitional", "strict"])
def test_slides_are_read_with_tables_charts_and_notes(is_strict: bool) -> None:
    deck: Any = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Rents"
    data = CategoryChartData()
    data.categories = ["May", "June"]
    data.add_series("Rent", (812, 900))
    data.add_series("Heating", (80, None))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *FRAME, data)
    points = XyChartData()
    points.add_series("Points").add_data_point(1.5, 2)
    slide.shapes.add_chart(XL_CHART_TYPE.XY_SCATTER, *FRAME, points)
    table = slide.shapes.add_table(1, 2, *FRAME).table
    table.cell(0, 0).text, table.cell(0, 1).text = "a\nb", "c"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(*FRAME).text_frame.text = "In a group"
    slide.shapes.add_picture(BytesIO(picture_of_text("x")), *FRAME)
    slide.notes_slide.notes_text_frame.text = "Say hello"
    made = saved(deck)
    _title, [page], left_out = read_pptx(strict(made) if is_strict else made)
    assert page == (
        "Rents\n\n\tRent\tHeating\nMay\t812\t80\nJune\t900\n\n\tPoints\n1.5\t2\n\n"
        "a b\tc\n\nIn a group\n\nNotes:\nSay hello"
    )
    assert set(left_out) == {"pictures"}


def test_values_of_a_chart_are_read_as_it_shows_them() -> None:
    deck: Any = pptx.Presentation()
    data = CategoryChartData(number_format="0%")
    data.categories = [date(2026, 5, 1), date(2026, 6, 1)]
    data.add_series("Share", (0.5, 0.25))
    chart = deck.slides.add_slide(deck.slide_layouts[6]).shapes.add_chart(XL_CHART_TYPE.LINE, *FRAME, data).chart
    chart.chart_title.text_frame.text = "Rents"
    assert read_pptx(saved(deck))[1] == ["Rents\n\tShare\n2026-05-01\t50%\n2026-06-01\t25%"]


def test_series_with_other_categories_have_a_table_of_their_own() -> None:
    deck: Any = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    points, bubbles, levels = XyChartData(), BubbleChartData(), CategoryChartData()
    for name, more in (("A", 0), ("B", 4)):
        series = points.add_series(name)
        for x in (1, 2):
            series.add_data_point(x + more, 10 * (x + more))
    bubbles.add_series("C").add_data_point(1, 2, 30)
    for name, inner in (("North", "ab"), ("South", "c")):
        category = levels.add_category(name)
        for one in inner:
            category.add_sub_category(one)
    levels.add_series("D", (1, 2, 3))
    for kind, data in (("XY_SCATTER", points), ("BUBBLE", bubbles), ("BAR_CLUSTERED", levels)):
        slide.shapes.add_chart(XL_CHART_TYPE[kind], *FRAME, data)
    assert read_pptx(saved(deck))[1][0].split("\n\n") == [
        "A\n1\t10\n2\t20\n\tB\n5\t50\n6\t60",
        "\tC\n1\t2\t30",
        "\tD\nNorth a\t1\nb\t2\nSouth c\t3",
    ]


def test_hidden_slides_nested_groups_and_equations() -> None:
    deck: Any = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Secret"
    slide._element.set("show", "0")
    table = slide.shapes.add_table(2, 2, *FRAME).table
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(0, 0).text, table.cell(1, 1).text = "Wide", "2"
    slide.shapes.add_group_shape().shapes.add_group_shape().shapes.add_textbox(*FRAME).text_frame.text = "deep"
    equation = '<m:oMath xmlns:m="m"><m:f><m:num><m:t>a</m:t></m:num><m:den><m:t>b</m:t></m:den></m:f></m:oMath>'
    data = edited(
        saved(deck),
        "ppt/slides/slide1.xml",
        lambda xml: xml.replace("<a:t>deep</a:t></a:r>", f"<a:t>deep </a:t></a:r>{equation}"),
    )
    assert read_pptx(data)[1] == ["(hidden slide)\n\nSecret\n\nWide\n\t2\n\ndeep (a)/(b)"]


def test_text_of_slides_is_read_as_it_is_shown() -> None:
    """Links, raised and struck out text, numbers of lists, texts of pictures, and texts of the layout, once."""
    deck: Any = pptx.Presentation()
    slides_ = [deck.slides.add_slide(deck.slide_layouts[6]) for _slide in range(2)]
    frame = slides_[0].shapes.add_textbox(*FRAME).text_frame
    for text, name, value in (("10", "", ""), ("6", "baseline", "30000"), (" a", "strike", "sngStrike")):
        run_ = frame.paragraphs[0].add_run()
        run_.text = text
        if name:
            run_.font._element.set(name, value)
    link = frame.paragraphs[0].add_run()
    link.text, link.hyperlink.address = " here", "https://example.org/pay"
    numbers = slides_[0].shapes.add_textbox(*FRAME).text_frame
    for at, (text, form, level) in enumerate(
        (("a", "arabicPeriod", 0), ("b", "alphaLcParenR", 1), ("c", "alphaLcParenR", 1), ("d", "arabicPeriod", 0))
    ):
        line = numbers.paragraphs[0] if at == 0 else numbers.add_paragraph()
        line.text, line.level = text, level
        line._p.get_or_add_pPr().append(line._p.makeelement(f"{{{A}}}buAutoNum", {"type": form}))
    picture = slides_[0].shapes.add_picture(BytesIO(picture_of_text("x")), *FRAME)
    picture._element.nvPicPr.cNvPr.set("descr", "Plan of the flat")
    hidden = slides_[0].shapes.add_textbox(*FRAME)
    hidden.text_frame.text = "no"
    hidden._element.nvSpPr.cNvPr.set("hidden", "1")
    for text, place in (("ACME", deck.slide_layouts[6]), ("Confidential", deck.slide_master)):
        shape = slides_[0].shapes.add_textbox(*FRAME)
        shape.text_frame.text = text
        place.shapes._spTree.append(shape._element)
    slides_[1].shapes.add_textbox(*FRAME).text_frame.text = "Second"
    _title, pages, left_out = read_pptx(saved(deck))
    assert pages == [
        "10\u2076~~ a~~ here (https://example.org/pay)\n\n1. a\na) b\nb) c\n2. d\n\n[Plan of the flat]\n\n"
        "Behind this slide:\nACME\nConfidential",
        "Second",
    ]
    assert set(left_out) == {"pictures", "hidden"}
