"""Recognises formulas among prices and other text, and turns them into MathML, which browsers draw without a script.

Models and visitors write formulas, so nothing is taken over that could load, link, run or look like another part of the
page: only known elements with known attributes are kept. A formula that is too long or too deep is shown as written.
"""

import re
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser

from math_core import LatexError, LatexToMathML

INLINE = re.compile(r"\$((?:[^$\\\n`]|\\[^\n])++)\$(?:(?![A-Za-z0-9_$])|(?=(?:st|nd|rd|th|s)\b))")
"""What can be a formula between single dollar signs. `is_formula` decides about the text in between."""
_COMMAND = re.compile(r"\\[A-Za-z]|[_^]\{")
_PROSE = re.compile(
    r"[a-z][^\W\d_]{3}|[^\W\d_]{3}[a-z]|[A-Z]{5}"  # in a long word
    r"|[^\W\d_A-Za-z\u0370-\u03ff]"  # letters neither Latin nor Greek
    r"|[\s(](?:is|or|and|to|of|in|if|at|on|as|by|the|for|per|und|bis|et|ou|de)[\s)]"
    r"|^\d[\d.,]*\s+[A-Za-z]{2}"  # an amount and its unit
    r"|(?<![_^])(?<!^)[-+*/=<(:,;&]$"  # an end that needs a continuation
)


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula: its text with what begins and ends it, the LaTeX in between, and whether it has lines of its own."""

    text: str
    latex: str
    is_display: bool


def is_formula(content: str) -> bool:
    """Return True if the text between two dollar signs on a line is a formula, not text between prices or names."""
    if content[0].isspace() or content[-1].isspace():
        return False
    return bool(_COMMAND.search(content)) or not _PROSE.search(content)


MAX_CHARACTERS = 4_000
MAX_DEPTH = 60
"""The most groups inside one another, and the most commands in a row, each of which can be the argument of the last."""
MAX_EXPANSIONS = 20
"""The most uses of commands that a formula defines itself. Each can be as long as the formula."""
MAX_MATHML = 60 * MAX_CHARACTERS
_ELEMENTS = (
    "math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt "
    "mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none"
)
_ATTRIBUTES = (
    "accent accentunder columnspan depth displaystyle fence form height largeop linethickness lspace mathvariant "
    "maxsize minsize movablelimits notation rowspan rspace scriptlevel separator stretchy symmetric voffset width"
)
ELEMENTS, ATTRIBUTES = frozenset(_ELEMENTS.split()), frozenset(_ATTRIBUTES.split())
_CONVERTER = LatexToMathML(
    ignore_unknown_commands=True, allow_unreliable_rendering=True, fancy_error=False, max_expansions=MAX_EXPANSIONS
)
_VALUE = re.compile(r"[A-Za-z0-9 .%+-]{1,40}")
_ALIGNED = re.compile(r"text-align: ?(left|right)")
_COMMANDS = re.compile(r"(?:\\(?:[A-Za-z]++|.)\s*+){60,}", re.DOTALL)  # as many as MAX_DEPTH
_FENCES = "angle|brace|brack|paren|floor|ceil|vert|Vert|group|moustache|corner|bracket"
_GROUP = re.compile(
    r"(?P<opens>\{|\\left(?![a-z])\s?(?:\\[{a-zA-Z]|.)?|\\begin\b)"
    r"|(?P<closes>\}|\\right(?![a-z])\s?(?:\\[}a-zA-Z]|.)?|\\end\b)"
    rf"|(?P<fence>[(\[\u27e6\u27e8\u27ea\u2308\u230a]|\\\{{|\\[lu]l?(?:{_FENCES}))"
    rf"|(?P<unfence>[)\]\u27e7\u27e9\u27eb\u2309\u230b]|\\\}}|\\[ru]r?(?:{_FENCES}))"
    r"|(?P<cell>&|\\\\)",
    re.DOTALL,
)
MAX_OPEN = 10
"""The most parentheses and brackets that nothing closes. Each doubles the time of reading."""


def to_mathml(formula: Formula) -> str:
    """Return the formula as a `<math>` element, or as the text that was written if it cannot be read as a formula."""
    display = "block" if formula.is_display else "inline"
    found = "" if _is_too_large(formula.latex) else _converted(formula)
    if not found:
        return f'<code class="formula {display}">{escape(formula.text)}</code>'
    return f'<math display="{display}" alttext="{escape(formula.latex)}">{found}</math>'


def _converted(formula: Formula) -> str:
    """Return the inside of the `<math>` element, or "" if the formula is none."""
    try:
        written = _CONVERTER.convert_with_local_state(formula.latex, displaystyle=formula.is_display)
    except (LatexError, UnicodeEncodeError):  # the latter for half a character
        return ""
    if len(written) > MAX_MATHML:
        return ""
    cleaner = _Cleaner()
    cleaner.feed(written)
    cleaner.close()
    return cleaner.cleaned


def _is_too_large(latex: str) -> bool:
    """Return True for a formula whose reading could take much time or, as it is read recursively, much of the stack."""
    if len(latex) > MAX_CHARACTERS or _COMMANDS.search(latex):
        return True
    fences, lost = [0], 0
    for found in _GROUP.finditer(latex):
        match found.lastgroup:
            case "opens":
                fences.append(0)
            case "fence":
                fences[-1] += 1
            case "unfence":
                fences[-1] = max(0, fences[-1] - 1)
            case "cell":
                lost, fences[-1] = lost + fences[-1], 0
            case _:
                lost += fences.pop()
                fences = fences or [0]
        if len(fences) > MAX_DEPTH:
            return True
    return lost + sum(fences) > MAX_OPEN


class _Cleaner(HTMLParser):
    """Keeps the known elements and attributes of MathML, and all text.

    A cell of a table has its alignment in a style, which becomes a class, as the policy of the page forbids styles.
    """

    def __init__(self) -> None:
        super().__init__()
        self._out, self._open = list[str](), list[str]()

    @property
    def cleaned(self) -> str:
        """The HTML. Each element in it is closed."""
        return "".join([*self._out, *(f"</{tag}>" for tag in reversed(self._open))])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Write a known element."""
        if tag in ELEMENTS - {"math"}:
            self._out.append(f"<{tag}{self._attributes(attrs)}>")
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Write a known element that has nothing inside."""
        if tag in ELEMENTS - {"math"}:
            self._out.append(f"<{tag}{self._attributes(attrs)}></{tag}>")

    def handle_endtag(self, tag: str) -> None:
        """Close the element, if it is the open one."""
        if self._open and self._open[-1] == tag:
            self._out.append(f"</{self._open.pop()}>")

    def handle_data(self, data: str) -> None:
        """Write a text."""
        self._out.append(escape(data))

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> str:
        kept = {name: value for name, value in attrs if value and name in ATTRIBUTES and _VALUE.fullmatch(value)}
        style = next((value for name, value in attrs if name == "style" and value), "")
        if aligned := _ALIGNED.search(style):
            kept["class"] = f"at-{aligned[1]}"
        return "".join(f' {name}="{value}"' for name, value in kept.items())
