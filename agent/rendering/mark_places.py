"""Finds where in a Markdown text the number of a source can stand: in its words, not in code, links or formulas."""

import re
from bisect import bisect_left
from collections.abc import Iterator

from markdown_it import MarkdownIt

from agent.rendering.code_spans import code_spans

_LINE_END = re.compile(r"\r\n?|\n")
_LINE_BEGINNING = re.compile(r"^(?:[ \t>]|(?:[-*+]|\d{1,9}[.)]|#{1,6})(?=[ \t]))+", re.MULTILINE)
_TOKEN = re.compile(
    r"\\(?P<opens>[(\[])"
    r"|\\."
    r"|(?P<ticks>`+)"
    r"|(?P<dollars>\$\$|\$[^$\n]++\$)"
    r"|<[^<>\n]*+>"
    r"|https?://[^\s<>]++"
    r"|!?\[(?:[^\[\]\n]|\[[^\[\]\n]*+\])*+\](?:\([^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)*+\)|\[[^\[\]\n]*+\])"
    r"|&#?\w{1,40};",
    re.DOTALL,
)
_EMPHASIS = "*_~"
_CELL = " \t|"


def _block_reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark").enable("table")
    reader.core.ruler.enableOnly(["normalize", "block"])
    return reader


_BLOCKS = _block_reader()


class MarkPlaces:
    """The places of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = [0, *(found.end() for found in _LINE_END.finditer(text)), len(text)]
        is_cell = False
        self._blocks: list[tuple[int, int, bool]] = []
        """The beginning and end of each block of words, and whether it is the row of a table. Rows are there once."""
        for token in _BLOCKS.parse(text):
            if token.type == "inline" and token.map is not None:
                first, after = token.map
                end = lines[first] + len(text[lines[first] : lines[after]].rstrip())
                if not self._blocks or self._blocks[-1][0] < lines[first]:
                    self._blocks.append((lines[first], end, is_cell))
            is_cell = token.type in ("th_open", "td_open")
        self._ends = [end for _, end, _ in self._blocks]
        self._closed: dict[int, list[tuple[int, int]]] = {}
        """By block: the parts of it in which nothing can stand."""

    def after(self, start: int, end: int) -> int | None:
        """Return the place after the words from `start` to `end`, or the last one before; None if there is none."""
        at = start + len(self._text[start:end].rstrip())
        number = bisect_left(self._ends, at)
        if number == len(self._blocks) or self._blocks[number][0] >= at:  # it is in code, or between blocks
            if number == 0:
                return None
            number, at = number - 1, self._ends[number - 1]
        first, last, is_row = self._blocks[number]
        while is_row and at > first and self._text[at - 1] in _CELL:
            at -= 1
        if number not in self._closed:
            self._closed[number] = [*self._spans(first, last)]
        for begins, ends in self._closed[number]:
            if begins < at < ends:
                at = ends
        while at < last and self._text[at] in _EMPHASIS:
            at += 1
        return at

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a block in which nothing can stand, in their order."""
        text = self._text[first:last]
        ticks = code_spans(text)
        at = 0
        while token := _TOKEN.search(text, at):
            at = token.end()
            if token["opens"] or token["dollars"] == "$$":
                closes = "$$" if token["dollars"] else "\\)" if token["opens"] == "(" else "\\]"
                end = text.find(closes, at)
                at = at if end < 0 else end + 2
            elif token["ticks"]:
                at = ticks.get(token.start(), at)
            yield first + token.start(), first + at
        for line in _LINE_BEGINNING.finditer(text):
            yield first + line.start() - 1, first + line.end()
