"""Finds the formulas in a text, for the page and for documents.

Marks the `$...$` that are formulas, because a renderer would also take prices for formulas. Pure and linear in the
length of the text. Code, links and HTML tags stay unchanged.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

MARK = "\u2063"
"""An invisible character that no model writes beside a `$`. Removing it restores the model's text."""
LEFT, RIGHT = f"${MARK}", f"{MARK}$"
DELIMITERS = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False), (LEFT, RIGHT, False))
"""The sign before a formula, the sign after it, and True if it stands on lines of its own."""
_CLOSES = {left: (right, is_display) for left, right, is_display in DELIMITERS}

_FENCE = re.compile(r"[ \t>]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++[ \t>]*+)*+(`{3,}|~{3,})([^\n]*)")
_LIST = re.compile(r"[ \t>]*+(?:[-*+]|\d{1,9}[.)])[ \t]")
_TICKS = re.compile("`+")
_BLANK = re.compile(r"\n[ \t]*+\n")
_INDENTED = re.compile(r"(?: {4}|\t)")
_TOKEN = re.compile(
    r"\\(?P<opens>[(\[])"
    r"|\\."
    r"|(?P<ticks>`+)"
    r"|(?P<dollars>\$+)"
    r"|</?[A-Za-z][A-Za-z0-9-]*+(?:\s++[A-Za-z_:][\w:.-]*+(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s\"'=<>`]++))?+)*+\s*+/?>"
    r"|<[A-Za-z][A-Za-z0-9+.-]*+:[^\s<>]*+>"
    r"|https?://[^\s<>]++"
    r"|\[[^\[\]\n]*+\]\([^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)?+\)",
    re.DOTALL,
)
_INLINE = re.compile(r"\$((?:[^$\\\n`]|\\[^\n])++)\$(?:(?![A-Za-z0-9_$])|(?=(?:st|nd|rd|th|s)\b))")
_COMMAND = re.compile(r"\\[A-Za-z]|[_^]\{")
_PROSE = re.compile(
    r"[^\W\d_]*[a-z][^\W\d_]{3,}|[^\W\d_]{3,}[a-z]|[A-Z]{5,}"  # long words
    r"|[^\W\d_A-Za-z\u0370-\u03ff]"  # letters neither Latin nor Greek
    r"|[\s(](?:is|or|and|to|of|in|if|at|on|as|by|the|for|per|und|bis|et|ou|de)[\s)]"
    r"|^\d[\d.,]*\s+[A-Za-z]{2}"  # an amount and its unit
    r"|(?<![_^])(?<!^)[-+*/=<(:,;&]$"  # an end that needs a continuation
)


def mark_formulas(text: str) -> str:
    """Put `MARK` inside both dollar signs of each clear formula."""
    return FormulaMarker().mark(text) if text.count("$") > 1 else text


class FormulaMarker:
    """Marks the formulas of a text that grows, as `mark_formulas` does, but reads finished paragraphs only once."""

    def __init__(self) -> None:
        self._head, self._marked, self._lines = "", "", _Lines()
        """The finished paragraphs, the same marked, and the state after them."""

    def mark(self, text: str) -> str:
        """Return the text with its formulas marked."""
        if not text.startswith(self._head):
            self._head, self._marked, self._lines = "", "", _Lines()
        out, paragraph, lines, at = [self._marked], list[str](), replace(self._lines), len(self._head)
        done, state = (at, 1), self._lines
        for line in text[at:].splitlines(keepends=True):
            at += len(line)
            if not lines.is_apart(line):
                paragraph.append(line)
                continue
            out += [_mark_paragraph("".join(paragraph)), line]
            paragraph.clear()
            if at < len(text):  # the last line can grow
                done, state = (at, len(out)), replace(lines)
        out.append(_mark_paragraph("".join(paragraph)))
        self._head, self._marked, self._lines = text[: done[0]], "".join(out[: done[1]]), state
        return "".join(out)


@dataclass(slots=True)
class _Lines:
    """Reads a text line by line, and knows which lines are code."""

    fence: str = ""
    in_list: bool = False
    after_blank: bool = False
    code: bool = False

    def is_apart(self, line: str) -> bool:
        """Return True if the line ends a paragraph and is no part of one: a line of code, or a blank one."""
        found = _FENCE.match(line)
        if self.fence:
            if found and found[1].startswith(self.fence) and not found[2].strip():
                self.fence = ""
            return True
        blank, indented = not line.strip(), bool(_INDENTED.match(line))
        opens = found is not None and not (found[1][0] == "`" and "`" in found[2])
        self.code = not blank and indented and not self.in_list and (self.after_blank or self.code)
        if opens and found:
            self.fence = found[1]
        if _LIST.match(line):
            self.in_list = True
        elif self.after_blank and not blank and not indented and not line[0].isspace():
            self.in_list = False
        self.after_blank = blank
        return opens or blank or self.code


def is_formula(content: str) -> bool:
    """Return True if the text between two dollar signs on a line is a formula, not text between prices or names."""
    if content[0].isspace() or content[-1].isspace():
        return False
    return bool(_COMMAND.search(content)) or not _PROSE.search(content)


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula: its text with what begins and ends it, the LaTeX in between, and whether it has lines of its own."""

    text: str
    latex: str
    is_display: bool


def replace_formulas(text: str, write: Callable[[Formula], str]) -> str:
    """Return a text, whose formulas are marked, with what `write` makes of each formula. Code blocks have none."""
    out, copied = list[str](), 0
    for first, after in _outside_fences(text):
        for start, end, formula in _formulas(text, first, after):
            out += [text[copied:start], write(formula)]
            copied = end
    return "".join([*out, text[copied:]])


def _outside_fences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each part of the text that is in no fenced block of code."""
    lines, first, at = _Lines(), 0, 0
    for line in text.splitlines(keepends=True):
        was_in_fence = bool(lines.fence)
        lines.is_apart(line)
        if lines.fence and not was_in_fence:
            yield first, at
        at += len(line)
        if was_in_fence:
            first = at
    if not lines.fence:
        yield first, at


def _formulas(text: str, first: int, after: int) -> Iterator[tuple[int, int, Formula]]:
    """Yield the formulas of a part of the text, with their beginnings and ends."""
    at, spans, spanned, unclosed = first, dict[int, int](), first, set[str]()
    while token := _TOKEN.search(text, at, after):
        at = token.end()
        if token["ticks"]:
            if token.start() >= spanned:  # a span of code ends in its paragraph
                begins, blank = token.start(), _BLANK.search(text, at, after)
                spanned = blank.start() if blank else after
                spans = {begins + start: begins + end for start, end in _code_spans(text[begins:spanned]).items()}
            at = spans.get(token.start(), at)
            continue
        opens = token[0] + (MARK if token[0] == "$" and text.startswith(MARK, at) else "")
        closes, is_display = _CLOSES.get(opens, ("", False))
        if not closes or closes in unclosed:
            continue
        at = token.start() + len(opens)
        end = text.find(closes, at, after)
        if end < 0:
            unclosed.add(closes)
        elif latex := text[at:end].strip():
            at = end + len(closes)
            yield token.start(), at, Formula(text[token.start() : at].replace(MARK, ""), latex, is_display)


def _mark_paragraph(text: str) -> str:
    """Return a paragraph with its formulas marked."""
    if text.count("$") < 2:
        return text
    out: list[str] = []
    copied = at = 0
    spans: dict[int, int] | None = None
    while token := _TOKEN.search(text, at):
        at = token.end()
        if token["opens"] or token["dollars"] == "$$":
            closes = "$$" if token["dollars"] else "\\)" if token["opens"] == "(" else "\\]"
            at = text.find(closes, at)
            if at < 0:
                break
            at += 2
        elif token["ticks"]:
            spans = _code_spans(text) if spans is None else spans
            at = spans.get(token.start(), at)
        elif token["dollars"] == "$" and (inline := _INLINE.match(text, token.start())):
            before = text[token.start() - 1 : token.start()]
            if not (before.isascii() and before.isalnum()) and is_formula(inline[1]):
                at = inline.end()
                out += [text[copied : token.start()], LEFT, inline[1], RIGHT]
                copied = at
    return "".join([*out, text[copied:]])


def _code_spans(text: str) -> dict[int, int]:
    """Return the start and end of each code span. It ends at the next run of equally many backticks."""
    spans: dict[int, int] = {}
    begun: dict[int, int] = {}
    at = 0
    while run := _TICKS.search(text, at):
        at = run.end()
        length = at - run.start()
        if length in begun:
            spans[begun[length]] = at
        begun[length] = run.start()
    return spans
