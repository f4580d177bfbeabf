"""Finds the elements of a large JSON array without reading it into memory, and parses one of them at a time."""

import json
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from secrets import token_hex
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
"""The most commas outside of texts in an element."""
MAX_TEXT = 8_000_000
"""The most characters of a string with a space, or with other characters than those of ASCII, which is no file. Joining
its pieces holds up others."""
STEP_BYTES = 1 << 16
"""The text that is parsed at once, in about a millisecond. No other thread can run meanwhile."""

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
_COMMA = re.compile(rb"\s*+,")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ITEMS = re.compile(rb'(?>(?>[^",{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+,)*+', re.DOTALL)
"""Text without brackets up to its last comma outside of strings."""
_WHOLE_SIGNS = re.compile(
    rb'(?>[^"\\]++|\\[^u]|\\u(?!d[89ab])....|\\u....(?=.{6})(?:\\ud[c-f]..)?+)*+', re.DOTALL | re.IGNORECASE
)
"""Text of a string that does not end inside an escape, or between both halves of an emoji."""
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
        try:
            value = _Steps(self._map, span).parse()
        finally:
            _release(self._map)
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

    def close(self) -> None:
        """Release the file."""
        self._map.close()


class _Container:
    """An array or object that is being parsed: the values so far, and where the text of the next ones begins."""

    __slots__ = ("at", "ends", "start", "value")

    def __init__(self, start: int, *, is_list: bool) -> None:
        self.start, self.at = start, start + 1
        self.ends = (b"[", b"]") if is_list else (b"{", b"}")
        self.value: list[Any] | dict[str, Any] | None = None
        """None as long as its text is short enough to be parsed with what is around it."""


class _Steps:
    """Parses an element in steps of about `STEP_BYTES`, because no other thread can run during a step."""

    def __init__(self, text: mmap.mmap, span: Span) -> None:
        self._text, self._start, self._end = text, span.start, span.end
        self._open = list[_Container]()
        self._values, self._marker = 0, token_hex(16)
        self._result: Any = None

    def parse(self) -> Any:
        """Return the value."""
        text, end, at = self._text, self._end, self._start
        while at < end:
            begin = at
            if (at := self._after_comma(begin)) > begin:
                continue
            at = _after(_SKIPPED, text, begin, min(end, begin + _PIECE))
            if at == end:
                break
            sign = text[at]
            if sign == _QUOTE:  # of a string that is longer than a piece, or that begins near its end
                at = self._string(at)
            elif sign in b"[{":
                self._open.append(_Container(at, is_list=sign == _LIST))
                at += 1
            elif sign in b"]}":
                at += 1
                self._close(at)
            elif at == begin or at - self._open[-1].at > 4 * STEP_BYTES:
                raise ValueError("a number is too long")
        return self._result

    def _after_comma(self, at: int) -> int:
        """Return the end of the last comma before the next bracket, or `at`. Takes what is before it, if it is long."""
        found = _ITEMS.match(self._text, at, min(self._end, at + _PIECE))
        stop = found.end() if found else at
        if stop > at and stop - self._open[-1].at > STEP_BYTES:
            self._take(self._open[-1], stop - 1)
        return stop

    def _string(self, at: int) -> int:
        """Return the end of a string. Takes one that is long."""
        end = _after(_IN_STRING, self._text, at + 1, self._end) + 1
        if end - at > STEP_BYTES:
            self._take(self._open[-1], at, _long_string(self._text, at + 1, end - 1))
            self._open[-1].at = end
        return end

    def _close(self, end: int) -> None:
        closed = self._open.pop()
        if self._text[end - 1 : end] != closed.ends[1]:
            raise ValueError("the brackets do not fit")
        if not self._open:
            self._take(closed, end - 1)
            self._result = closed.value
        elif closed.value is not None:
            self._take(closed, end - 1)
            self._take(self._open[-1], closed.start, closed.value)
            self._open[-1].at = end
        elif end - self._open[-1].at > STEP_BYTES:
            self._take(self._open[-1], end)

    def _take(self, into: _Container, end: int, *last: Any) -> None:
        """Parse the text up to `end`, and add its values, and `last`, which follows them."""
        text, is_first = self._text[into.at : end], into.value is None
        into.at = end
        if not is_first:
            begun = _COMMA.match(text)
            text = text[begun.end() :] if begun else text
            if bool(begun) is not bool(text.strip() or last):
                raise ValueError("a comma is missing, or follows the last value")
        self._values += _STRING.sub(b"", text).count(b",") + 1
        if self._values > MAX_VALUES:
            raise ValueError("the element has too many values")
        text = into.ends[0] + text + (f'"{self._marker}"'.encode() if last else b"") + into.ends[1]
        self._add(into, _parse_short(text), *last)

    def _add(self, into: _Container, found: Any, *last: Any) -> None:
        """Add the values of an array or object. The marker among them stands for `last`."""
        if isinstance(found, dict):
            fields = cast("dict[str, Any]", found)
            if last:
                fields.update({name: last[0] for name, value in fields.items() if value == self._marker})
            if into.value is None:
                into.value = fields
            else:
                cast("dict[str, Any]", into.value).update(fields)
        else:
            values = cast("list[Any]", found)
            if last:
                values[-1] = last[0]
            if into.value is None:
                into.value = values
            else:
                cast("list[Any]", into.value).extend(values)


def _long_string(text: mmap.mmap, at: int, end: int) -> str:
    """Return the text of a string between these places."""
    pieces, size, is_data = list[str](), 0, True
    while at < end:
        stop = _end_of_piece(text, at, end) if end - at > STEP_BYTES else end
        pieces.append(_parse_short(b'["' + text[at:stop] + b'"]')[0])
        size, is_data = size + len(pieces[-1]), is_data and pieces[-1].isascii() and " " not in pieces[-1]
        if size > MAX_TEXT and not is_data:
            raise ValueError("a text is too long")
        at = stop
    return "".join(pieces)


def _end_of_piece(text: mmap.mmap, at: int, end: int) -> int:
    """Return where a piece of a string ends that begins here, and parts no sign."""
    found = _WHOLE_SIGNS.match(text, at, min(end, at + STEP_BYTES))
    stop = last = found.end() if found else at
    while last - stop < 3 and text[stop] & 0xC0 == 0x80:  # inside of a character
        stop -= 1
    if stop <= at:
        raise ValueError("a string cannot be read")
    return stop


def _parse_short(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError:
        return _parse_odd(data)


def _parse_odd(data: bytes) -> Any:
    """Return a value with what is no character or no number. Raises `ValueError` if it is not JSON otherwise."""
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


def _after(pattern: re.Pattern[bytes], text: mmap.mmap, start: int, end: int | None = None) -> int:
    """Return the end of the longest match of a pattern that matches the beginning of each of its matches."""
    end = len(text) if end is None else end
    while (found := pattern.match(text, start, min(end, start + _PIECE))) and found.end() > start:
        start = found.end()
    return start
