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
from agent.files.kinds import DOCX, EML, PDF
from tests.support.documents import word
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


def letter(make: Callable[[int], str]) -> Make:
    """Return what makes a mail with this after its first headers."""
    return lambda count: f"From: a@b.example\nSubject: x\n{make(count)}".encode()


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


TEXT = p("x")
TERM = "<m:e><m:r><m:t>x</m:t></m:r></m:e>"


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


CHART = {
    WORD_RELATIONS: constant(relations(("chart", "chart.xml"))),
    "word/chart.xml": within(
        f"<c:chartSpace {NAMES}><c:chart><c:ser><c:val>",
        each('<c:pt idx="%d"><c:v>12345678</c:v></c:pt>'),
        "</c:val></c:ser></c:chart></c:chartSpace>",
    ),
}
WIDGET = "<</Type/Annot/Subtype/Widget/FT/Tx/T(a%d)/V(x)/Rect[0 0 9 9]>>"


CASES: dict[str, tuple[str, int, Make]] = {
    "DOCX: a long sign of an equation": (DOCX, 3000, body(paragraph(long_sign("d", "sepChr", TERM)))),
    "DOCX: charts": (
        DOCX,
        600,
        body(paragraph(each('<w:r><w:drawing><c:chart r:id="r0"/></w:drawing></w:r>')), **CHART),
    ),
    "EML: quoted semicolons": (EML, 12000, letter(within('Content-Type: text/plain; a="', each(";"), "\n\nText"))),
    "PDF: fields": (PDF, 3200, pdf_of(objects=lambda n: [WIDGET.replace("%d", str(one)) for one in range(n)])),
}
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
@pytest.mark.parametrize(("media_type", "count", "make"), CASES.values(), ids=CASES)
def test_document_takes_linear_time(media_type: str, count: int, make: Make) -> None:
    count *= 3 if in_full_tier() else 1
    seconds(media_type, make(10))
    before = min(seconds(media_type, make(count)) for _ in range(2))
    most, data = 6 * before + SLACK, make(4 * count)
    now = seconds(media_type, data)
    now = now if now <= most else min(now, seconds(media_type, data))
    assert now <= most, f"{4 * count} take {now:.2f} s, {count} take {before:.3f} s"
