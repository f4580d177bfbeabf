"""A scanned PDF: its pages are rendered in the sandbox, and their text is read by the real OCR model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import ModelSpec
from agent.errors import InputError
from agent.files.kinds import PDF
from agent.files.parts import extracted_text_of
from agent.files.reading import render_page
from agent.files.transcribe import Transcriber
from agent.models.weights import Status
from agent.settings import load_settings as settings
from agent.system.media_types import detect_mime
from agent.web.chat.attached_documents import with_new_passages
from agent.web.chat.attachments import PUBLIC_LIMITS, message_parts, plan_attachments
from tests.support.documents import joined_pdf, pdf, scanned_pdf
from tests.support.known_texts import INVOICE, picture_of_text

pytestmark = pytest.mark.slow

SMALL = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=8_192)


@pytest.fixture
def here() -> Transcriber:
    """A transcriber with the real model for pictures, which `make setup` installs."""
    return Transcriber(settings().local.cache_dir)


@pytest.fixture
def scan(tmp_path: Path) -> Iterator[Path]:
    """A scan of three pages, of which the second is empty."""
    path = tmp_path / "scan.pdf"
    path.write_bytes(scanned_pdf(picture_of_text(*INVOICE), picture_of_text(), picture_of_text("Paid in May")))
    return path


async def test_page_is_rendered_in_the_sandbox() -> None:
    assert detect_mime(await render_page(pdf(["One", "Two"]), 1)) == "image/png"
    with pytest.raises(InputError, match="is damaged or cut off"):
        await render_page(b"%PDF-1.7", 0)


@pytest.mark.weights
@pytest.mark.timeout(400)
async def test_scanned_pages_are_read_by_ocr(here: Transcriber, scan: Path) -> None:
    [plan] = await plan_attachments([scan], SMALL, max_bytes=10**7, transcriber=here)
    assert plan.outcome == "extracted"
    assert plan.text.startswith("the text of its scanned pages (3) is extracted on this server by PP-OCRv6")
    seen: list[Status | None] = []
    value = {"text": "What is the total?", "files": [str(scan)]}
    parts = await message_parts(value, spec=SMALL, owner="ann", max_bytes=10**7, transcriber=here, report=seen.append)
    read = extracted_text_of(parts[-1])
    assert read is not None
    assert read["read"] == "[Page 1]\n" + "\n".join(INVOICE) + "\n\n[Page 2]\n\n[Page 3]\nPaid in May"
    assert "read by OCR; it may have mistakes" in parts[-1].content  # type: ignore[union-attr]
    assert [getattr(part, "media_type", "") for part in parts[1:2]] == [PDF]
    assert "Extracting the text of scan.pdf, page 3 of 3 …" in [status.text for status in seen if status]
    assert seen[-1] is None


@pytest.mark.full
@pytest.mark.weights
@pytest.mark.timeout(400)
async def test_scan_without_letters_is_refused(here: Transcriber, tmp_path: Path) -> None:
    path = tmp_path / "blank.pdf"
    path.write_bytes(scanned_pdf(picture_of_text()))
    value = {"text": "What is it?", "files": [str(path)]}
    with pytest.raises(InputError, match=r"No text was found in blank\.pdf"):
        await message_parts(value, spec=SMALL, owner="ann", max_bytes=10**7, transcriber=here)


def mixed_pdf(*, scans: int = 1) -> bytes:
    """Return a PDF whose first page has text, whose second page is empty, and whose other pages are scans."""
    return joined_pdf(pdf(["The rent is 812 euros.", ""]), scanned_pdf(*[picture_of_text(*INVOICE)] * scans))


@pytest.mark.full
@pytest.mark.weights
@pytest.mark.timeout(400)
async def test_scans_among_pages_with_text_are_read(here: Transcriber, tmp_path: Path) -> None:
    path = tmp_path / "mixed.pdf"
    path.write_bytes(mixed_pdf())
    [plan] = await plan_attachments([path], SMALL, max_bytes=10**7, transcriber=here)
    assert plan.text.startswith("the text of its scanned pages (1) is extracted on this server by PP-OCRv6")
    value = {"text": "What is the total?", "files": [str(path)]}
    parts = await message_parts(value, spec=SMALL, owner="ann", max_bytes=10**7, transcriber=here)
    read = extracted_text_of(parts[-1])
    assert read is not None
    assert read["read"] == "[Page 1]\nThe rent is 812 euros.\n\n[Page 2]\n\n[Page 3]\n" + "\n".join(INVOICE)
    assert "with page 3 read by OCR; it may have mistakes" in parts[-1].content  # type: ignore[union-attr]
    again = await with_new_passages([*parts], SMALL)
    assert again[-1].content == parts[-1].content, "OCR's text is kept, not read again"  # type: ignore[union-attr]


@pytest.mark.parametrize(("scans", "ocr"), [(1, False), (5, True)], ids=["OCR is off", "too many"])
async def test_unread_scans_among_pages_are_named(here: Transcriber, tmp_path: Path, scans: int, ocr: bool) -> None:
    path = tmp_path / "mixed.pdf"
    path.write_bytes(mixed_pdf(scans=scans))
    transcriber = here if ocr else None
    [plan] = await plan_attachments([path], SMALL, max_bytes=10**7, transcriber=transcriber, limits=PUBLIC_LIMITS)
    pages = "3" if scans == 1 else "3-7"
    assert plan.outcome == "converted"
    assert plan.text == (f"{scans + 2} pages, read as text. Pages that are only pictures, without text: {pages}")
    parts = await message_parts(
        {"text": "What?", "files": [str(path)]},
        spec=SMALL,
        owner="ann",
        max_bytes=10**7,
        transcriber=transcriber,
        limits=PUBLIC_LIMITS,
    )
    assert "812 euros" in parts[-1].content  # type: ignore[union-attr]


async def test_scan_of_many_pages_is_refused(here: Transcriber, tmp_path: Path) -> None:
    path = tmp_path / "book.pdf"
    path.write_bytes(scanned_pdf(*[picture_of_text("Page")] * 5))
    [plan] = await plan_attachments([path], SMALL, max_bytes=10**7, transcriber=here, limits=PUBLIC_LIMITS)
    assert plan.outcome == "refused"
    assert plan.text == ("book.pdf has 5 scanned pages. Text is extracted from at most 4 pages and files of a message.")
