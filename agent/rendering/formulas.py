"""Recognises formulas among prices and other text."""

import re
from dataclasses import dataclass

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
