"""Limits that are looked at before a picture or a document is decoded. Here, because the files' own tests are slow."""

import pytest

from agent.errors import InputError
from agent.files.images import MAX_SCANS, ImageLimits, convert_image
from agent.files.pdf import read_pdf
from tests.support.documents import pdf
from tests.support.media_files import picture

SCAN = b"\xff\xda"


def test_jpeg_has_a_number_of_scans() -> None:
    data = picture("JPEG")
    data, end = data[:-2], data[-2:]
    scan = SCAN + b"\0\2"  # with the length of a header without fields
    convert_image(data + end, ImageLimits())
    with pytest.raises(InputError, match=f"more than {MAX_SCANS} scans"):
        convert_image(data + scan * MAX_SCANS + end, ImageLimits())


def test_pdf_has_a_number_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.files.pdf.MAX_PAGES", 2)
    assert read_pdf(pdf(["One", "Two"]))[1] == ["One", "Two"]
    with pytest.raises(InputError, match="3 pages"):
        read_pdf(pdf(["One", "Two", "Three"]))


def test_film_behind_a_picture_has_no_scans() -> None:
    """Phones put a film behind the end of a picture."""
    convert_image(picture("JPEG") + SCAN * (MAX_SCANS + 1), ImageLimits())
