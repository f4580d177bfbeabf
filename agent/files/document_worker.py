"""A program that runs in the sandbox (`agent.files.sandbox`) and reads a document.

    MEDIA_TYPE           the input as JSON: {"title": TEXT, "pages": [TEXT, ...], "scans": [NUMBER, ...],
                         "left_out": [NAME, ...]}
    MEDIA_TYPE NUMBER    a picture of this page of a PDF, counted from 0, as PNG
    MEDIA_TYPE NUMBER SIZE    "1" or "0", and such a picture with the passage marked: the last SIZE bytes of the input

To refuse a document, it exits with status `REFUSED` and writes JSON: the key of a sentence and its values. Any other
status except 0 means that the reader failed, which says nothing of the document.
"""

import json
import sys
from collections.abc import Callable, Collection
from typing import cast

from agent.errors import InputError
from agent.files.drawings import read_pptx
from agent.files.excel import read_xlsx
from agent.files.kinds import DOCX, EML, HTML, LABELS, NOTEBOOK, PDF, PPTX, RTF, XLSX
from agent.files.mail import read_eml, read_html, read_notebook, read_rtf
from agent.files.pdf import FILLED_IN, LINKS, marked_page, picture_pages, read_pdf, render_page
from agent.files.remarks import sentence
from agent.files.word import read_docx
from agent.i18n.text import LocalizedText

REFUSED = 3
READERS: dict[str, Callable[[bytes], tuple[str, list[str], Collection[str]]]] = {
    PDF: read_pdf,
    DOCX: read_docx,
    PPTX: read_pptx,
    XLSX: read_xlsx,
    EML: read_eml,
    RTF: read_rtf,
    NOTEBOOK: read_notebook,
    HTML: read_html,
}
MAX_TITLE = 200


def main(arguments: list[str]) -> int:
    """Read the document on the input and write its text."""
    media_type, *numbers = arguments
    try:
        data = sys.stdin.buffer.read()
        if numbers:
            sys.stdout.buffer.write(_rendered(data, *map(int, numbers)))
            return 0
        title, pages, left_out = READERS[media_type](data)
        empty = [number for number, page in enumerate(pages, 1) if not page or page.startswith((FILLED_IN, LINKS))]
        scans = picture_pages(data, empty) if media_type == PDF else []
    except InputError as error:
        return _refuse(cast(LocalizedText, error.text))  # all of them are made by `refused`
    except ImportError:
        return _refuse(sentence("no_reader"))
    except (MemoryError, RecursionError):
        return _refuse(sentence("slow_document"))
    except Exception:  # a fault of the reader, not of the document
        return _refuse(sentence("unread_by_us", kind=LABELS[media_type]))
    out = {"title": title[:MAX_TITLE], "pages": pages, "scans": scans, "left_out": sorted(left_out)}
    text = json.dumps(out, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


def _rendered(data: bytes, number: int, size: int = -1) -> bytes:
    if size < 0:
        return render_page(data, number)
    at = len(data) - size
    picture, is_marked = marked_page(data[:at], number, data[at:].decode("utf-8", "replace"))
    return (b"1" if is_marked else b"0") + picture


def _refuse(text: LocalizedText) -> int:
    sys.stdout.buffer.write(json.dumps((text.message, dict(text.values))).encode())
    return REFUSED
