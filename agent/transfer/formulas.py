"""Finds the formulas and the HTML in a text, for the page and for documents.

Marks the `$...$` that are formulas, because a renderer would also take prices for formulas. For the page, it also
escapes what would be HTML, because models write `List<String>` and mean it. Pure and linear in the length of
the text. Code and links stay unchanged.
"""

import re
from dataclasses import dataclass, replace
from functools import partial

from agent.rendering.code_spans import code_spans
from agent.rendering.formulas import INLINE, is_formula

MARK = "\u2063"
"""An invisible character that no model writes beside a `$`. Removing it restores the model's text."""
LEFT, RIGHT = f"${MARK}", f"{MARK}$"


def as_reference(sign: str) -> str:
    """Return the sign in a form in which nobody writes one, so that the page's script can restore the text."""
    return f"&#x0000{ord(sign):02x};"


def with_references(text: str, signs: re.Pattern[str]) -> str:
    """Return the text with a reference in place of each sign that the pattern finds."""
    return signs.sub(lambda found: as_reference(found[0]), text)


LESS = as_reference("<")
"""A `<` that would begin HTML."""
DELIMITERS = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False), (LEFT, RIGHT, False))
"""The sign before a formula, the sign after it, and True if it stands on lines of its own."""

_FENCE = re.compile(r"[ \t>]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++[ \t>]*+)*+(`{3,}|~{3,})([^\n]*)")
_LIST = re.compile(r"[ \t>]*+(?:[-*+]|\d{1,9}[.)])[ \t]")
_TICKS_OR_ESCAPED = re.compile(r"`+|\\.")
_INDENTED = re.compile(r"(?: {4}|\t)")
_TOKEN = re.compile(
    r"\\(?P<opens>[(\[])|\\.|(?P<ticks>`+)|(?P<dollars>\$+)"
    r"|<[A-Za-z][A-Za-z0-9+.-]++:[^\s<>]*+>|https?://[^\s<>]++"
    r"|</?[A-Za-z][A-Za-z0-9-]*+(?:\s++[A-Za-z_:][\w:.-]*+(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s\"'=<>`]++))?+)*+\s*+/?>"
    r"|\[[^\[\]\n]*+\]\([^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)?+\)",
    re.DOTALL,
)
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_TOKEN_OR_TAG = re.compile(
    r"\\(?P<opens>[(\[])|\\.|(?P<ticks>`+)|(?P<dollars>\$+)"
    r"|<[A-Za-z][A-Za-z0-9+.-]++:[^\s<>]*+>|https?://[^\s<>]++"
    r"|<[\w.!#%&'*+/=?^{|}~-]++@[\w.-]++>"
    r'|<(?:a|button) class="citationchip of-[^<>]*+>\d++</(?:a|button)>'  # of agent.web.ui.citation_chips
    r"|(?P<tag><(?=[A-Za-z/!?]))"
    r"|(?P<link>\[[^\[\]\n`]*+\]\([^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)?+\))",
    re.DOTALL,
)
_TAG_IN_LINK = re.compile(r"(?<!\]\()<(?=[A-Za-z/!?])")


def mark_formulas(text: str) -> str:
    """Put `MARK` inside both dollar signs of each clear formula."""
    return FormulaMarker().mark(text) if text.count("$") > 1 else text


class FormulaMarker:
    """Marks the formulas of a text that grows, as `mark_formulas` does, but reads finished paragraphs only once.

    With `escapes`, it also writes `LESS` for each `<` that would begin HTML. Code, links and formulas stay unchanged.
    """

    def __init__(self, *, escapes: bool = False) -> None:
        self._mark = partial(_mark_paragraph, escapes=escapes)
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
            out += [self._mark("".join(paragraph)), line]
            paragraph.clear()
            if at < len(text):  # the last line can grow
                done, state = (at, len(out)), replace(lines)
        out.append(self._mark("".join(paragraph)))
        self._head, self._marked, self._lines = text[: done[0]], "".join(out[: done[1]]), state
        return "".join(out)


@dataclass(slots=True)
class _Lines:
    """Reads a text line by line, and knows which lines are code."""

    fence: str = ""
    is_quoted: bool = False
    """True if the fence is in a quotation."""
    is_nested: bool = False
    """True if the fence is in a list."""
    in_list: bool = False
    after_blank: bool = True
    code: bool = False

    def is_apart(self, line: str) -> bool:
        """Return True if the line ends a paragraph and is no part of one: a line of code, or a blank one."""
        found = _FENCE.match(line)
        if self.fence and self._leaves_fence(line):
            self.fence = ""
        if self.fence:
            if found and found[1].startswith(self.fence) and not found[2].strip():
                self.fence = ""
            return True
        blank, indented = not line.strip(), bool(_INDENTED.match(line))
        opens = found is not None and not (found[1][0] == "`" and "`" in found[2])
        self.code = not blank and indented and not self.in_list and (self.after_blank or self.code)
        if opens and found:
            self.fence, before = found[1], line[: found.start(1)]
            self.is_quoted = ">" in before
            self.is_nested = not self.is_quoted and bool(before.strip() or (self.in_list and before))
        if _LIST.match(line):
            self.in_list = True
        elif self.after_blank and not blank and not indented and not line[0].isspace():
            self.in_list = False
        self.after_blank = blank
        return opens or blank or self.code

    def _leaves_fence(self, line: str) -> bool:
        """Return True if the line is no longer in the quotation or list of the fence, which so ends without a sign."""
        if self.is_quoted:
            return not line.lstrip().startswith(">")
        return self.is_nested and bool(line.strip()) and not line.startswith(("  ", "\t"))


def _mark_paragraph(text: str, *, escapes: bool = False) -> str:
    """Return a paragraph with its formulas marked, and with its HTML escaped if `escapes`."""
    marks, escapes = text.count("$") > 1, escapes and "<" in text
    if not marks and not escapes:
        return text
    out: list[str] = []
    copied = at = 0
    spans: dict[int, int] | None = None
    line, spans_of_line = 0, None
    unclosed = set[str]()
    tokens = _TOKEN_OR_TAG if escapes else _TOKEN
    while token := tokens.search(text, at):
        at = token.end()
        if token["opens"] or token["dollars"] == "$$":
            closes = "$$" if token["dollars"] else "\\)" if token["opens"] == "(" else "\\]"
            if closes in unclosed:
                continue
            end = text.find(closes, at)
            if end >= 0:
                at = end + 2
            else:  # the rest has no formulas, but can have HTML
                unclosed.add(closes)
                marks = False
        elif token["ticks"]:
            spans = code_spans(text) if spans is None else spans
            at = spans.get(token.start(), at)
            if not escapes:
                continue
            if (begins := text.rfind("\n", line, token.start()) + 1 or line) != line or spans_of_line is None:
                line, spans_of_line = begins, _spans_of_line(text, begins)
            # A line can begin a block, such as an item of a list. Then it is read alone.
            if (token.start(), at) not in spans_of_line:
                out += [text[copied : token.start()], _TAG.sub(LESS, text[token.start() : at])]
                copied = at
        elif escapes and (token["tag"] or token["link"]):
            escaped = LESS if token["tag"] else _TAG_IN_LINK.sub(LESS, token[0])
            out += [text[copied : token.start()], escaped]
            copied = at
        elif marks and token["dollars"] == "$" and (inline := INLINE.match(text, token.start())):
            before = text[token.start() - 1 : token.start()]
            if not (before.isascii() and before.isalnum()) and is_formula(inline[1]):
                at = inline.end()
                out += [text[copied : token.start()], LEFT, inline[1], RIGHT]
                copied = at
    return "".join([*out, text[copied:]])


def _spans_of_line(text: str, first: int) -> set[tuple[int, int]]:
    """Return the spans of code in the line that begins at `first`, if it is read alone."""
    end = text.find("\n", first)
    line = text[first : end if end >= 0 else len(text)]
    spans, found, at = code_spans(line), set[tuple[int, int]](), 0
    while token := _TICKS_OR_ESCAPED.search(line, at):
        at = token.end()
        if token[0][0] == "`" and token.start() in spans:
            at = spans[token.start()]
            found.add((first + token.start(), first + at))
    return found
