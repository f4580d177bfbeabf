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
    room = MAX_SCANS - data.count(SCAN)
    convert_image(data + end + SCAN * room, ImageLimits())
    with pytest.raises(InputError, match=f"more than {MAX_SCANS} scans"):
        convert_image(data + end + SCAN * (room + 1), ImageLimits())


def test_pdf_has_a_number_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.files.pdf.MAX_PAGES", 2)
    assert read_pdf(pdf(["One", "Two"]))[1] == ["One", "Two"]
    with pytest.raises(InputError, match="3 pages"):
        read_pdf(pdf(["One", "Two", "Three"]))
