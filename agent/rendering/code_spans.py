"""Finds the spans of code in a Markdown text: what stands between runs of equally many backticks."""

import re
import sys

_TICKS = re.compile("`+")


def code_spans(text: str, first: int = 0, after: int = sys.maxsize) -> dict[int, int]:
    """Return the start and end of each code span in this part of the text. A run of backticks is closed by the next one
    of its length."""
    spans, begun = dict[int, int](), dict[int, int]()
    for run in _TICKS.finditer(text, first, after):
        length = run.end() - run.start()
        if length in begun:
            spans[begun[length]] = run.end()
        begun[length] = run.start()
    return spans
