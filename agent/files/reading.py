"""Reads documents in the sandbox, a few at a time, and keeps the texts of the last ones. No library is loaded here."""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from time import monotonic
from typing import Any, TypeVar, cast

from agent.errors import InputError
from agent.files import document_worker
from agent.files.kinds import HTML, LABELS, LEFT_OUT, MAX_CHARACTERS, MAX_PAGES, PDF, TEXT, Document
from agent.files.passages import sections_of_text
from agent.files.remarks import refused
from agent.files.sandbox import OUT_OF_LIMITS, SandboxJob, SandboxProgram, parse_sentence, run_in_thread
from agent.system.media_types import detect_mime
from agent.system.request_queue import RequestQueue
from agent.system.threads import TEXTS, Threads

T = TypeVar("T")

READING = SandboxProgram(
    document_worker, memory=700 * 1024 * 1024, seconds=15, timeout_seconds=25, max_output=12_000_000
)
"""A tree of 50 MB of XML takes 500 MB. Two million characters take at most 8 MB."""
PDF_MEMORY = 300 * 1024 * 1024
"""The largest scans need less than 250 MB. A small file can ask for any amount, for example for forms in forms."""
QUICK_SECONDS = 3.0
"""A page of a usual document is rendered in one second."""
MAX_SLOW, FORGET_SECONDS = 200, 60.0
"""Documents whose slow steps are remembered, and for how long after the last one."""
MAX_READ, MAX_READ_PER_VISITOR = 2, 1
"""Documents read at the same time, in total and for one visitor."""
MAX_CACHED_CHARACTERS = 8_000_000
"""Characters of documents kept in memory: a document is read when it is attached, and used when it is sent."""

_read: OrderedDict[tuple[bytes, str], Document] = OrderedDict()
_slow: dict[bytes, tuple[float, float]] = {}
_threads = Threads("document", MAX_READ)
_queue = RequestQueue(MAX_READ, slots_per_visitor=MAX_READ_PER_VISITOR)


async def read_document(data: bytes, media_type: str) -> Document:
    """Return the text of a document. Raises `InputError`; its text continues a sentence that begins with the name.

    Cancelling it ends the process that reads. Plain text, in UTF-8, needs none. The result is kept in memory for a
    while.
    """
    key = sha256(data).digest(), media_type
    if (known := _read.get(key)) is not None:
        _read.move_to_end(key)
        return known
    if media_type == TEXT:
        found = await TEXTS.run(sections_of_text, data.decode("utf-8", "replace"))
    else:
        found = await _read_apart(data, media_type)
    _read[key] = found
    while sum(_size(one) for one in _read.values()) > MAX_CACHED_CHARACTERS:
        _read.popitem(last=False)
    return found


async def read_text_file(name: str, text: str) -> Document:
    """Return a text file that is too long for a model as sections. The tags of an HTML file are left out.

    Raises `InputError` as `read_document` does.
    """
    if len(text) > MAX_CHARACTERS:
        raise refused("long_document", most=MAX_CHARACTERS)
    is_html = name.lower().endswith((".html", ".htm"))
    return await read_document(text.encode("utf-8", "replace"), HTML if is_html else TEXT)


async def _read_apart(data: bytes, media_type: str) -> Document:
    return await _apart(lambda on_start: read_in_sandbox(data, media_type, on_start))


async def _apart(work: Callable[[Callable[[SandboxJob], None]], T]) -> T:
    """Return the result of work in another process, when a place is free. Cancelling it ends the process."""
    async with _queue.slot():
        return await run_in_thread(_threads, work)


def read_in_sandbox(data: bytes, media_type: str, on_start: Callable[[SandboxJob], None] = lambda _: None) -> Document:
    """Return the text of a document, read in another process. Raises `InputError`. Blocks."""
    return _parse(_run(data, media_type, on_start=on_start), media_type, LABELS.get(media_type, media_type))


async def render_page(data: bytes, number: int) -> bytes:
    """Return a picture of a page of a PDF, counted from 0, as PNG. Raises `InputError`.

    Few are rendered at the same time, and one for each visitor.
    """
    return _checked_picture(await _render(data, str(number)))


async def marked_page(data: bytes, number: int, passage: str) -> tuple[bytes, bool]:
    """Return a picture of a page as `render_page` does, and True if the passage is on the page and marked."""
    text = passage.encode("utf-8", "replace")
    out = await _render(data, str(number), str(len(text)), appended=text)
    return _checked_picture(out[1:]), out[:1] == b"1"


def _checked_picture(picture: bytes) -> bytes:
    if detect_mime(picture) != "image/png":
        raise refused("broken_document", kind="PDF")
    return picture


async def _render(data: bytes, *arguments: str, appended: bytes = b"") -> bytes:
    """Return the output of the worker for a page of a PDF."""
    return await _apart(lambda on_start: _run(data, PDF, *arguments, on_start=on_start, appended=appended))


def _run(
    data: bytes, media_type: str, *more: str, on_start: Callable[[SandboxJob], None], appended: bytes = b""
) -> bytes:
    """Return the output of the worker. Raises `InputError` if it refuses the document or fails.

    All slow steps of a document together have the time of one.
    """
    kind = LABELS.get(media_type, media_type)
    key = sha256(data).digest()
    left = READING.timeout_seconds - _slow_seconds(key)
    if left < 1:
        raise refused("slow_document")
    memory = PDF_MEMORY if media_type == PDF else READING.memory
    job = SandboxJob(replace(READING, memory=memory, timeout_seconds=int(left)), media_type, *more)
    on_start(job)
    began = monotonic()
    try:
        status, out = job.run(data + appended)
    except (TimeoutError, ValueError) as error:
        raise refused("slow_document") from error
    finally:
        _remember(key, monotonic() - began)
    if status == document_worker.REFUSED:
        raise InputError(_sentence(out, kind))
    if status in OUT_OF_LIMITS:
        raise refused("slow_document")
    if status:
        raise refused("unread_by_us", kind=kind)
    return out


def _slow_seconds(key: bytes) -> float:
    """Return the time that the slow steps of a document took lately."""
    seconds, at = _slow.get(key, (0.0, 0.0))
    return seconds if monotonic() - at < FORGET_SECONDS else 0.0


def _remember(key: bytes, seconds: float) -> None:
    if seconds > QUICK_SECONDS:
        seconds += _slow_seconds(key)
        _slow.pop(key, None)
        _slow[key] = seconds, monotonic()
        while len(_slow) > MAX_SLOW:
            _slow.pop(next(iter(_slow)), None)


def _sentence(out: bytes, kind: str) -> Any:
    try:
        return parse_sentence(out)
    except ValueError as error:
        raise refused("broken_document", kind=kind) from error


def _parse(out: bytes, media_type: str, kind: str) -> Document:
    """Check what the worker wrote: a document can have taken it over."""
    try:
        found = json.loads(out)
        title, pages, scans, left_out = (found[name] for name in ("title", "pages", "scans", "left_out"))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise refused("broken_document", kind=kind) from error
    is_valid = isinstance(title, str) and isinstance(pages, list)
    if not is_valid or not all(isinstance(page, str) for page in cast(list[object], pages)):
        raise refused("broken_document", kind=kind)
    texts = tuple(cast(list[str], pages))
    named = tuple(name for name in LEFT_OUT if isinstance(left_out, list) and name in left_out)
    document = Document(media_type, title, texts, scans=_numbers(scans, len(texts)), left_out=named)
    if len(document.pages) > MAX_PAGES or _size(document) > MAX_CHARACTERS + 1_000:
        raise refused("broken_document", kind=kind)
    return document


def _numbers(found: Any, most: int) -> tuple[int, ...]:
    """Return the numbers of pages that are valid."""
    given = cast(list[object], found) if isinstance(found, list) else []
    return tuple(one for one in given if type(one) is int and 1 <= one <= most)


def _size(document: Document) -> int:
    return sum(map(len, document.pages)) + len(document.title)
