"""A whole document takes linear time in any of its parts: the time for four times as much is at most six times as long.

A reader may refuse a document, but not after more than that time.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from time import process_time
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from agent.errors import InputError
from agent.files.document_worker import READERS
from agent.files.kinds import DOCX, EML, HTML, PDF, PPTX, XLSX
from tests.support.documents import edited, slides, word, workbook
from tests.support.gate_rows import gate_rows
from tests.tiers import in_full_tier

SLACK = 0.3
"""Seconds for other work of the machine."""
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
NAMES = (
    f'{W} xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
X = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
Make = Callable[[int], bytes]
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
WORD_RELATIONS = "word/_rels/document.xml.rels"
TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"


def with_parts(data: bytes, parts: dict[str, str]) -> bytes:
    """Return an Office document with these parts in place of its own, or beside them."""
    out, left = BytesIO(), dict(parts)
    with ZipFile(BytesIO(data)) as source, ZipFile(out, "w", ZIP_DEFLATED) as made:
        for name in source.namelist():
            made.writestr(name, left.pop(name, None) or source.read(name))
        for name, text in left.items():
            made.writestr(name, text)
    return out.getvalue()


def body(make: Callable[[int], str], **parts: Callable[[int], str]) -> Make:
    """Return what makes a Word document with this body, and with other parts."""

    def made(count: int) -> bytes:
        text = f"<w:document {NAMES}><w:body>{make(count)}</w:body></w:document>"
        more = {name: part(count) for name, part in parts.items()}
        return with_parts(word(("Heading", "x")), {"word/document.xml": text, **more})

    return made


def relations(*named: tuple[str, str]) -> str:
    """Return relationships: their kinds and targets. Their ids are r0, r1 and so on."""
    return RELATIONS.format(
        "".join(
            f'<Relationship Id="r{number}" Type="{TYPE}{kind}" Target="{target}"/>'
            for number, (kind, target) in enumerate(named)
        )
    )


def related(kind: str, target: str, root: str, one: str) -> dict[str, Callable[[int], str]]:
    """Return a part of a Word document with many elements, and the relationship to it."""
    return {
        WORD_RELATIONS: lambda _count: relations((kind, target)),
        f"word/{target}": lambda count: (
            f"<w:{root} {NAMES}>" + "".join(one.format(number, number + 1) for number in range(count)) + f"</w:{root}>"
        ),
    }


def sheet(make: Callable[[int], str], **parts: Callable[[int], str]) -> Make:
    """Return what makes a workbook whose sheet has these rows, and other parts."""

    def made(count: int) -> bytes:
        text = f"<worksheet {X}><sheetData>{make(count)}</sheetData></worksheet>"
        more = {name: part(count) for name, part in parts.items()}
        return with_parts(workbook(One=[["x"]]), {"xl/worksheets/sheet1.xml": text, **more})

    return made


def slide(make: Callable[[int], str]) -> Make:
    """Return what makes a presentation with these shapes on its slide."""

    def made(count: int) -> bytes:
        text = f"<p:sld {NAMES}><p:cSld><p:spTree>{make(count)}</p:spTree></p:cSld></p:sld>"
        return with_parts(slides(("a", "b", "c")), {"ppt/slides/slide1.xml": text})

    return made


def letter(make: Callable[[int], str]) -> Make:
    """Return what makes a mail with this after its first headers."""
    return lambda count: f"From: a@b.example\nSubject: x\n{make(count)}".encode()


def page(make: Callable[[int], str]) -> Make:
    return lambda count: f"<p>x{make(count)}".encode()


def pdf_of(
    content: Callable[[int], str] = lambda _count: "BT /F 12 Tf (x) Tj ET ",
    page_count: Callable[[int], int] = lambda _count: 1,
    objects: Callable[[int], list[str]] = lambda _count: [],
) -> Make:
    """Return what makes a PDF by hand: the operators of its pages, their number, and the annotations on each."""

    def made(count: int) -> bytes:
        stream, others, pages = content(count), objects(count), page_count(count)
        refs = " ".join(f"{10 + number} 0 R" for number in range(len(others)))
        kids = " ".join(f"{10 + len(others) + number} 0 R" for number in range(pages))
        fonts = "/Resources<</Font<</F 4 0 R>>>>"
        each = f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 3 0 R{fonts}/Annots[{refs}]>>"
        numbered = {
            1: f"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[{refs}]>>>>",
            2: f"<</Type/Pages/Kids[{kids}]/Count {pages}>>",
            3: f"<</Length {len(stream)}>>stream\n{stream}\nendstream",
            4: "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
            **{10 + number: one for number, one in enumerate(others)},
            **{10 + len(others) + number: each for number in range(pages)},
        }
        out = "%PDF-1.7\n" + "".join(f"{number} 0 obj {one} endobj\n" for number, one in numbered.items())
        return (out + "trailer <</Root 1 0 R>>\n%%EOF").encode()

    return made


def p(inside: str) -> str:
    return f"<w:p><w:r><w:t>{inside}</w:t></w:r></w:p>"


def nested(begin: str, end: str, inside: str = "") -> Callable[[int], str]:
    return lambda count: begin * count + inside + end * count


TEXT = p("x")
RUN = "<w:r><w:t>x</w:t></w:r>"
DRAWN = "<a:p><a:r><a:t>x</a:t></a:r></a:p>"
TERM = "<m:e><m:r><m:t>x</m:t></m:r></m:e>"
SHOWN = "BT /F 12 Tf (x) Tj ET "


def each(form: str) -> Callable[[int], str]:
    """Return what repeats this text, with the number in place of `%d`."""
    return lambda count: "".join(form.replace("%d", str(number)) for number in range(count))


def within(begin: str, inside: Callable[[int], str], end: str) -> Callable[[int], str]:
    return lambda count: begin + inside(count) + end


def paragraph(inside: Callable[[int], str]) -> Callable[[int], str]:
    return within("<w:p>", inside, f"</w:p>{TEXT}")


def constant(text: str) -> Callable[[int], str]:
    return lambda _count: text


def long_sign(tag: str, sign: str, inside: str) -> Callable[[int], str]:
    """Return an equation with a sign of `count` characters, and as many terms."""
    return lambda count: (
        f'<m:oMath><m:{tag}><m:{tag}Pr><m:{sign} m:val="{"x" * count}"/></m:{tag}Pr>'
        + inside * count
        + f"</m:{tag}></m:oMath>"
    )


LIST = (
    '<w:abstractNum w:abstractNumId="{0}"><w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>'
    '</w:abstractNum><w:num w:numId="{0}"><w:abstractNumId w:val="{0}"/></w:num>'
)
LISTED = '<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="%d"/></w:numPr></w:pPr>' + RUN + "</w:p>"
STYLED = '<w:p><w:pPr><w:pStyle w:val="s%d"/></w:pPr>' + RUN + "</w:p>"
COMMENTS = related(
    "comments", "comments.xml", "comments", '<w:comment w:id="{0}" w:author="a">' + TEXT + "</w:comment>"
)
FOOTNOTES = related("footnotes", "footnotes.xml", "footnotes", '<w:footnote w:id="{0}">' + TEXT + "</w:footnote>")
CHAIN = related(
    "footnotes",
    "footnotes.xml",
    "footnotes",
    '<w:footnote w:id="{0}"><w:p><w:r><w:footnoteReference w:id="{1}"/><w:t>x</w:t></w:r></w:p></w:footnote>',
)
BASES = related("styles", "styles.xml", "styles", '<w:style w:styleId="s{0}"><w:basedOn w:val="s{1}"/></w:style>')
CHART = {
    WORD_RELATIONS: constant(relations(("chart", "chart.xml"))),
    "word/chart.xml": within(
        f"<c:chartSpace {NAMES}><c:chart><c:ser><c:val>",
        each('<c:pt idx="%d"><c:v>12345678</c:v></c:pt>'),
        "</c:val></c:ser></c:chart></c:chartSpace>",
    ),
}
ROW = "<row><c><v>1</v></c></row>"
MULTIPART = "Content-Type: multipart/mixed; boundary=b\n\n"
WIDGET = "<</Type/Annot/Subtype/Widget/FT/Tx/T(a%d)/V(x)/Rect[0 0 9 9]>>"
HEADERS = {WORD_RELATIONS: lambda n: relations(*[("header", f"header{one}.xml") for one in range(n)])}
STYLES = within(
    f"<styleSheet {X}>",
    lambda n: (
        "<numFmts>"
        + each('<numFmt numFmtId="%d" formatCode="0.00"/>')(n)
        + "</numFmts><cellXfs>"
        + each('<xf numFmtId="%d"/>')(n)
        + "</cellXfs>"
    ),
    "</styleSheet>",
)
LONG_FORMAT = within(
    f'<styleSheet {X}><numFmts><numFmt numFmtId="200" formatCode="',
    lambda n: "0;" * n,
    '"/></numFmts><cellXfs><xf numFmtId="200"/></cellXfs></styleSheet>',
)
SHEET = f'<sheet name="%d" sheetId="9%d" xmlns:r="{TYPE.rstrip("/")}" r:id="rId1"/>'


def grown(data: bytes, part: str, before: str, more: Callable[[int], str]) -> Make:
    """Return what makes a document with more before a text in one of its parts."""
    return lambda count: edited(data, part, lambda xml: xml.replace(before, more(count) + before))


CASES: dict[str, tuple[str, int, Make]] = {
    "DOCX: paragraphs": (DOCX, 4000, body(each(TEXT))),
    "DOCX: runs": (DOCX, 8000, body(paragraph(each(RUN)))),
    "DOCX: insertions in insertions": (DOCX, 300, body(paragraph(nested("<w:ins>", "</w:ins>", RUN)))),
    "DOCX: content controls": (DOCX, 5000, body(nested("<w:sdt><w:sdtContent>", "</w:sdtContent></w:sdt>", TEXT))),
    "DOCX: tables in tables": (DOCX, 3000, body(nested("<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>", TEXT))),
    "DOCX: some tables in tables": (
        DOCX,
        10,
        body(nested("<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>", TEXT * 2000)),
    ),
    "DOCX: cells": (DOCX, 5000, body(within("<w:tbl><w:tr>", each(f"<w:tc>{TEXT}</w:tc>"), "</w:tr></w:tbl>"))),
    "DOCX: rows": (DOCX, 5000, body(within("<w:tbl>", each(f"<w:tr><w:tc>{TEXT}</w:tc></w:tr>"), "</w:tbl>"))),
    "DOCX: merged cells": (
        DOCX,
        500,
        body(
            within(
                "<w:tbl>",
                each(f'<w:tr><w:tc><w:tcPr><w:gridSpan w:val="99999"/></w:tcPr>{TEXT}</w:tc></w:tr>'),
                "</w:tbl>",
            )
        ),
    ),
    "DOCX: alternatives": (
        DOCX,
        3000,
        body(nested("<mc:AlternateContent><mc:Choice>", "</mc:Choice></mc:AlternateContent>", TEXT)),
    ),
    "DOCX: many alternatives": (
        DOCX,
        3000,
        body(within("<mc:AlternateContent>", each(f"<mc:Choice>{TEXT}</mc:Choice>"), "</mc:AlternateContent>")),
    ),
    "DOCX: drawings in drawings": (
        DOCX,
        2000,
        body(
            paragraph(nested("<w:r><w:drawing><w:txbxContent><w:p>", "</w:p></w:txbxContent></w:drawing></w:r>", RUN))
        ),
    ),
    "DOCX: drawings": (
        DOCX,
        4000,
        body(paragraph(each(f"<w:r><w:drawing><w:txbxContent>{TEXT}</w:txbxContent></w:drawing></w:r>"))),
    ),
    "DOCX: equations in equations": (
        DOCX,
        2000,
        body(paragraph(within("<m:oMath>", nested("<m:sSup><m:e>", "</m:e></m:sSup>", TERM), "</m:oMath>"))),
    ),
    "DOCX: parts of an equation": (
        DOCX,
        4000,
        body(paragraph(within("<m:oMath><m:d>", each(TERM), "</m:d></m:oMath>"))),
    ),
    "DOCX: a long sign of an equation": (DOCX, 3000, body(paragraph(long_sign("d", "sepChr", TERM)))),
    "DOCX: long accents": (DOCX, 400, body(lambda n: paragraph(long_sign("acc", "chr", ""))(n) * n)),
    "DOCX: comments": (DOCX, 3000, body(paragraph(each('<w:r><w:commentReference w:id="%d"/></w:r>')), **COMMENTS)),
    "DOCX: one note named often": (
        DOCX,
        5000,
        body(paragraph(each('<w:r><w:footnoteReference w:id="0"/></w:r>')), **FOOTNOTES),
    ),
    "DOCX: notes in notes": (
        DOCX,
        2000,
        body(paragraph(constant('<w:r><w:footnoteReference w:id="0"/></w:r>')), **CHAIN),
    ),
    "DOCX: styles": (DOCX, 2000, body(each(STYLED), **BASES)),
    "DOCX: lists": (DOCX, 2000, body(each(LISTED), **related("numbering", "numbering.xml", "numbering", LIST))),
    "DOCX: fields": (
        DOCX,
        4000,
        body(
            paragraph(
                nested(
                    '<w:r><w:fldChar w:fldCharType="begin"/></w:r>', '<w:r><w:fldChar w:fldCharType="end"/></w:r>', RUN
                )
            )
        ),
    ),
    "DOCX: attributes": (DOCX, 4000, body(within("<w:p ", each('w:a%d="x" '), f"/>{TEXT}"))),
    "DOCX: names of namespaces": (
        DOCX,
        1000,
        body(lambda n: each('<w:p xmlns:n%d="urn:%d">')(n) + "</w:p>" * n + TEXT),
    ),
    "DOCX: deleted ends": (DOCX, 3000, body(each(f"<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr>{RUN}</w:p>"))),
    "DOCX: headers": (
        DOCX,
        1000,
        body(
            within(f"{TEXT}<w:sectPr>", each('<w:headerReference w:type="default" r:id="r%d"/>'), "</w:sectPr>"),
            **HEADERS,
        ),
    ),
    "DOCX: charts": (
        DOCX,
        600,
        body(paragraph(each('<w:r><w:drawing><c:chart r:id="r0"/></w:drawing></w:r>')), **CHART),
    ),
    "DOCX: headings": (DOCX, 400, body(each(f'<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr>{RUN}</w:p>'))),
    "XLSX: cells": (XLSX, 5000, sheet(within("<row>", each("<c><v>1</v></c>"), "</row>"))),
    "XLSX: rows": (XLSX, 5000, sheet(each(ROW))),
    "XLSX: far cells": (XLSX, 25, sheet(each('<row><c r="XFD1"><v>1</v></c></row>'))),
    "XLSX: empty far cells": (XLSX, 3000, sheet(within(ROW, each('<row><c r="XFD1"/></row>'), ""))),
    "XLSX: shared strings": (
        XLSX,
        4000,
        sheet(
            within("<row>", each('<c t="s"><v>%d</v></c>'), "</row>"),
            **{"xl/sharedStrings.xml": within(f"<sst {X}>", each("<si><t>x</t></si>"), "</sst>")},
        ),
    ),
    "XLSX: one long string": (
        XLSX,
        300,
        sheet(
            each('<row><c t="s"><v>0</v></c></row>'),
            **{"xl/sharedStrings.xml": within(f"<sst {X}><si><t>", each("x"), "</t></si></sst>")},
        ),
    ),
    "XLSX: runs of a string": (
        XLSX,
        5000,
        sheet(within('<row><c t="inlineStr"><is>', each("<r><t>x</t></r>"), "</is></c></row>")),
    ),
    "XLSX: styles": (
        XLSX,
        4000,
        sheet(within("<row>", each('<c s="%d"><v>1</v></c>'), "</row>"), **{"xl/styles.xml": STYLES}),
    ),
    "XLSX: a long format": (
        XLSX,
        1500,
        sheet(each('<row><c s="0"><v>1</v></c></row>'), **{"xl/styles.xml": LONG_FORMAT}),
    ),
    "XLSX: a shared formula": (
        XLSX,
        300,
        sheet(
            lambda n: '<row><c r="A1"><f si="0">' + "1+" * n + "1</f></c></row>" + '<row><c><f si="0"/></c></row>' * n
        ),
    ),
    "XLSX: merged cells": (
        XLSX,
        4000,
        grown(
            workbook(One=[["x"]]),
            "xl/worksheets/sheet1.xml",
            "</worksheet>",
            within("<mergeCells>", each('<mergeCell ref="A%d:B%d"/>'), "</mergeCells>"),
        ),
    ),
    "XLSX: sheets of one part": (XLSX, 3000, grown(workbook(One=[["x"]]), "xl/workbook.xml", "</sheets>", each(SHEET))),
    "XLSX: escapes": (
        XLSX,
        5000,
        sheet(within('<row><c t="inlineStr"><is><t>', each("_x0041_"), "</t></is></c></row>")),
    ),
    "XLSX: comments": (
        XLSX,
        3000,
        sheet(
            constant(ROW),
            **{
                "xl/worksheets/_rels/sheet1.xml.rels": constant(relations(("comments", "../comments1.xml"))),
                "xl/comments1.xml": within(
                    f"<comments {X}><commentList>",
                    each('<comment ref="A%d"><text><t>x</t></text></comment>'),
                    "</commentList></comments>",
                ),
            },
        ),
    ),
    "PPTX: shapes": (PPTX, 3000, slide(each(f"<p:sp><p:txBody>{DRAWN}</p:txBody></p:sp>"))),
    "PPTX: groups": (
        PPTX,
        3000,
        slide(nested("<p:grpSp>", "</p:grpSp>", f"<p:sp><p:txBody>{DRAWN}</p:txBody></p:sp>")),
    ),
    "PPTX: shapes in shapes": (PPTX, 3000, slide(nested("<p:sp>", "</p:sp>", f"<p:txBody>{DRAWN}</p:txBody>"))),
    "PPTX: runs": (
        PPTX,
        5000,
        slide(within("<p:sp><p:txBody><a:p>", each("<a:r><a:t>x</a:t></a:r>"), "</a:p></p:txBody></p:sp>")),
    ),
    "PPTX: cells": (
        PPTX,
        3000,
        slide(within("<a:tbl><a:tr>", each(f"<a:tc><a:txBody>{DRAWN}</a:txBody></a:tc>"), "</a:tr></a:tbl>")),
    ),
    "EML: headers": (EML, 3000, letter(within("", each("X-%d: y\n"), "\nText"))),
    "EML: a header in lines": (EML, 5000, letter(within("X-A: y\n", each(" y\n"), "\nText"))),
    "EML: a subject in lines": (EML, 5000, letter(within("To: y\n", each(" y\n"), "\nText"))),
    "EML: parameters": (EML, 24000, letter(within("Content-Type: text/plain", each("; a%d=b"), "\n\nText"))),
    "EML: semicolons": (EML, 5000, letter(within("Content-Type: text/plain; ", each(";"), "\n\nText"))),
    "EML: quoted semicolons": (EML, 12000, letter(within('Content-Type: text/plain; a="', each(";"), "\n\nText"))),
    "EML: quotes": (EML, 3000, letter(within("Content-Disposition: inline; filename=", each('"\\";'), "\n\nText"))),
    "EML: parts of a name": (
        EML,
        16000,
        letter(within("Content-Disposition: inline", each("; filename*%d=a"), "\n\nText")),
    ),
    "EML: parts": (EML, 1500, letter(within(MULTIPART, each("--b\nContent-Type: text/plain\n\nText\n"), "--b--\n"))),
    "EML: parts in parts": (
        EML,
        400,
        letter(within("", each("Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n"), "\nText\n")),
    ),
    "EML: mails in mails": (
        EML,
        1000,
        letter(within("", each("Content-Type: message/rfc822\n\nFrom: a@b.example\n"), "\nText")),
    ),
    "EML: attached files": (
        EML,
        1500,
        letter(within(MULTIPART, each("--b\nContent-Disposition: attachment; filename=a\n\nText\n"), "--b--\n")),
    ),
    "EML: encoded words": (EML, 1500, letter(within("To: ", each("=?utf-8?q?a?= "), "\n\nText"))),
    "EML: addresses": (EML, 4000, letter(within("To: ", each("a@b.example, "), "\n\nText"))),
    "EML: comments": (EML, 4000, letter(within("Content-Type: text/plain; charset=", each("("), "\n\nText"))),
    "EML: quoted-printable": (
        EML,
        5000,
        letter(within("Content-Transfer-Encoding: quoted-printable\n\n", each("=C3=A4= \n"), "")),
    ),
    "EML: base64": (EML, 20000, letter(within("Content-Transfer-Encoding: base64\n\n", each("QUFB\n"), ""))),
    "EML: uuencode": (
        EML,
        5000,
        letter(within("Content-Transfer-Encoding: x-uuencode\n\nbegin 644 a\n", each("#0V%T\n"), "end\n")),
    ),
    "EML: groups of RTF": (EML, 5000, letter(within("Content-Type: text/rtf\n\n", nested("{", "}", "x"), ""))),
    "HTML: elements": (HTML, 10000, page(each("<div>x"))),
    "HTML: attributes": (HTML, 4000, page(within("<a ", each("a%d=b "), ">x</a>"))),
    "HTML: links": (HTML, 5000, page(each('<a href="http://x.example">x'))),
    "HTML: lists": (HTML, 5000, page(each("<ol><li>x"))),
    "HTML: hidden": (HTML, 5000, page(each("<div hidden>x"))),
    "HTML: a long tag": (HTML, 20000, page(within("<a ", each('b="'), ""))),
    "HTML: script": (HTML, 10000, page(within("<script>", each("</scrip"), ""))),
    "HTML: declarations": (HTML, 10000, page(within("", each("<!a"), ">"))),
    "PDF: texts": (PDF, 3000, pdf_of(within("BT /F 12 Tf ", each("1 0 0 1 10 10 Tm (x) Tj "), "ET"))),
    "PDF: lines of text": (PDF, 1500, pdf_of(within("BT /F 12 Tf ", each("1 0 0 1 %d 1%d Tm (word) Tj "), "ET"))),
    "PDF: graphic states": (PDF, 5000, pdf_of(nested("q ", "Q ", SHOWN))),
    "PDF: paths": (PDF, 5000, pdf_of(within(SHOWN, each("0 0 m 9 9 l S "), ""))),
    "PDF: pages": (PDF, 300, pdf_of(page_count=lambda n: n)),
    "PDF: notes": (PDF, 1000, pdf_of(objects=lambda n: ["<</Type/Annot/Subtype/Text/Rect[0 0 9 9]/Contents(x)>>"] * n)),
    "PDF: fields": (PDF, 3200, pdf_of(objects=lambda n: [WIDGET.replace("%d", str(one)) for one in range(n)])),
    "PDF: options": (
        PDF,
        400,
        pdf_of(
            objects=lambda n: (
                ["<</Type/Annot/Subtype/Widget/FT/Ch/T(a)/V(x)/Rect[0 0 9 9]/Opt[" + "(x)" * n + "]>>"] * 10
            )
        ),
    ),
    "PDF: arrays in arrays": (PDF, 20000, pdf_of(objects=lambda n: ["[" * n + "]" * n])),
}
GATE = ("DOCX: a long sign of an equation", "DOCX: charts", "EML: quoted semicolons", "PDF: fields")
"""The kinds of documents that took quadratic time."""


def seconds(media_type: str, data: bytes) -> float:
    """Return the seconds of processor time that a reader needs for a document, or to refuse it."""
    gc.disable()  # its time grows with the objects of all tests before
    try:
        began = process_time()
        with suppress(InputError, RecursionError):
            READERS[media_type](data)
        return process_time() - began
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(("media_type", "count", "make"), gate_rows(CASES, GATE))
def test_document_takes_linear_time(media_type: str, count: int, make: Make) -> None:
    count *= 3 if in_full_tier() else 1
    seconds(media_type, make(10))
    before = min(seconds(media_type, make(count)) for _ in range(2))
    most, data = 6 * before + SLACK, make(4 * count)
    now = seconds(media_type, data)
    now = now if now <= most else min(now, seconds(media_type, data))
    assert now <= most, f"{4 * count} take {now:.2f} s, {count} take {before:.3f} s"
