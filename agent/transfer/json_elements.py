"""Finds the elements of a large JSON array without reading it into memory, and parses one of them at a time."""

import json
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from pydantic_core import from_json

from agent.errors import InputError
from agent.i18n.text import _

MAX_DEPTH = 100
"""The deepest nesting of arrays and objects."""
MAX_ELEMENTS = 100_000
MAX_ELEMENT_BYTES = 32_000_000
RELEASED_BYTES = 8_000_000
"""Bytes of the file after which their memory is freed, between two elements."""
MAX_CONTAINERS = 300_000
"""The most arrays and objects in an element. Each takes much more memory than its text."""
MAX_VALUES = 600_000
"""The most commas outside of texts in an element. No other thread can run while its values are made."""
MAX_ODD_BYTES = 4_000_000
"""The longest element that is read by Python's own parser, which knows numbers such as NaN and takes much longer."""

DAMAGED_FILE = _("The file is damaged or incomplete, so nothing was imported.")
NOT_AN_EXPORT = _(
    "This is not an export that can be imported: a JSON or ZIP file of Switchboard, ChatGPT, Claude or Open WebUI."
)

_QUOTE = ord('"')
_LIST = ord("[")
_PIECE = 1 << 16
"""The most bytes that one search reads. No other thread can run meanwhile."""
# Text without brackets, and whole strings. In an atomic group, because Python up to 3.11.4 ends `(...)*+` too early.
_SKIPPED = re.compile(rb'(?>(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*)', re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_CHATS = re.compile(rb'"(?:conversations|chats)"\s{0,99}:\s{0,99}\Z')
"""The key of the list of chats in an object that only holds them."""
_SPACES = re.compile(rb"\s*+")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ESCAPES = re.compile(rb"(?i)(?:(\\ud[89ab]..(?!\\ud[c-f])|\\ud[c-f]..)|(?:\\ud[89ab]..)?\\.)([^\\]*+)", re.DOTALL)
"""The escape of half an emoji, or any other one, and the text after it."""


@dataclass(frozen=True, slots=True)
class Span:
    """The place of an element in the file."""

    start: int
    end: int
    is_parsable: bool
    """False if it is too large to be parsed."""


class JsonElements:
    """The objects in the top-level array of a JSON file, in the `conversations` of an object, or the top-level object.

    Raises `InputError` if the brackets do not fit, or if they are nested too deeply.
    """

    def __init__(self, file: BinaryIO) -> None:
        try:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file
            raise InputError(NOT_AN_EXPORT) from error
        try:
            self.spans = _find_spans(self._map)
        except BaseException:
            self.close()
            raise

    def parse(self, span: Span) -> Mapping[str, Any]:
        """Return an element, which is empty if it is not an object. Raises `ValueError` if it is not JSON.

        What is no character, such as half of an emoji, becomes U+FFFD, and what is no number becomes null.
        """
        if not span.is_parsable:
            raise ValueError("the element is too large")
        data = self._map[span.start : span.end]
        _release(self._map)
        if _has_too_many_values(data):
            raise ValueError("the element has too many values")
        try:
            value = from_json(data, allow_inf_nan=False)
        except ValueError:
            value = _parse_odd(data)
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

    def close(self) -> None:
        """Release the file."""
        self._map.close()


def _has_too_many_values(data: bytes) -> bool:
    """Return True if an element has more than `MAX_VALUES` commas outside of texts. Works in short steps."""
    if data.count(b",") <= MAX_VALUES:
        return False
    count = at = 0
    for found in _STRING.finditer(data):
        count += data.count(b",", at, found.start())
        if count > MAX_VALUES:
            return True
        at = found.end()
    return count + data.count(b",", at) > MAX_VALUES


def _parse_odd(data: bytes) -> Any:
    """Return an element with what is no character or no number. Raises `ValueError` if it is not JSON otherwise."""
    text: bytes | bytearray = data if data.isascii() else data.decode("utf-8", "replace").encode()
    at = text.find(b"\\")
    if at >= 0:
        whole = bytearray(text[:at])
        for found in _ESCAPES.finditer(text, at):
            whole += b"\\ufffd" + found[2] if found[1] else found[0]
        text = whole
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        if len(text) > MAX_ODD_BYTES:
            raise
        return json.loads(text, parse_constant=lambda _: None)


def _release(text: mmap.mmap) -> None:
    """Free the memory with what was read of the file. What is needed again is read again."""
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        text.madvise(mmap.MADV_DONTNEED)


def _find_spans(text: mmap.mmap) -> list[Span]:
    start = _after(_SPACES, text, 3 if text[:3] == b"\xef\xbb\xbf" else 0)
    first = text[start : start + 1]
    if first not in (b"[", b"{"):
        raise InputError(NOT_AN_EXPORT)
    outside = 1 if first == b"[" else 0
    """The depth around an element."""
    spans = list[Span]()
    depth = containers = element_start = released = 0
    for at in _brackets(text, start):
        if text[at] in b"[{":
            if (depth, outside) == (1, 0) and text[at] == _LIST and _CHATS.search(text[max(0, at - 220) : at]):
                outside = 2
            elif depth == outside:
                element_start, containers = at, 0
            depth += 1
            containers += 1
        elif depth == 0:
            raise InputError(DAMAGED_FILE)
        else:
            depth -= 1
            if outside == 2 and depth == 1:  # what follows the list is none of it
                outside = -1
            if depth == outside:
                size = at + 1 - element_start
                is_parsable = size <= MAX_ELEMENT_BYTES and containers <= MAX_CONTAINERS
                spans.append(Span(element_start, at + 1, is_parsable))
                if at >= released + RELEASED_BYTES:
                    released = at
                    _release(text)
            start = at + 1
        if depth > MAX_DEPTH or len(spans) > MAX_ELEMENTS:
            raise InputError(DAMAGED_FILE)
    if depth or _after(_SPACES, text, start) < len(text):
        raise InputError(DAMAGED_FILE)
    return spans


def _brackets(text: mmap.mmap, at: int) -> Iterator[int]:
    """Yield the position of each bracket outside strings. Raises `InputError` if a string has no end."""
    while (at := _after(_SKIPPED, text, at)) < len(text):
        if text[at] == _QUOTE:  # a string that is longer than a piece, or that begins near its end
            at = _after(_IN_STRING, text, at + 1)
            if text[at : at + 1] != b'"':
                raise InputError(DAMAGED_FILE)
        else:
            yield at
        at += 1


def _after(pattern: re.Pattern[bytes], text: mmap.mmap, start: int) -> int:
    """Return the end of the longest match of a pattern that matches the beginning of each of its matches."""
    while (found := pattern.match(text, start, start + _PIECE)) and found.end() > start:
        start = found.end()
    return start
