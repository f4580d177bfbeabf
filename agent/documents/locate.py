"""Finds a cited passage in a text with other white space, hyphens, quotation marks, accents or letter cases."""

from collections.abc import Iterator
from unicodedata import category, normalize

SHORTEST = 24
"""Letters that the beginning of a passage must have to be found by itself, if the rest is elsewhere or differs."""
_LEFT_OUT = "-\u2010\u2011\u2012\u2013\u2014\ufffe'\"\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
"""Hyphens, which can be at the end of a line, and quotation marks, which models write in other ways."""
_ENDS = "…"


def find_passage(text: str, passage: str) -> tuple[int, int] | None:
    """Return the start and the end of the passage in the text, or None.

    If the text has only the beginning of the passage, such as that before the end of a page, its place is returned.
    """
    letters, places = _letters(text)
    wanted, _places = _letters(passage.strip().strip(_ENDS))
    if not wanted:
        return None
    size = len(wanted)
    at = letters.find(wanted)
    if at < 0:
        size = _longest_beginning(letters, wanted)
        at = letters.find(wanted[:size]) if size >= SHORTEST else -1
    return (places[at], places[at + size - 1] + 1) if at >= 0 else None


def _longest_beginning(letters: str, wanted: str) -> int:
    """Return the length of the longest beginning of `wanted` in `letters`. A text with one has all shorter ones."""
    low, high = 0, len(wanted)
    while low < high:
        middle = (low + high + 1) // 2
        if wanted[:middle] in letters:
            low = middle
        else:
            high = middle - 1
    return low


def _letters(text: str) -> tuple[str, list[int]]:
    """Return the characters that count, and the place of each in the text."""
    found = [(letter, at) for at, char in enumerate(text) for letter in _plain(char)]
    return "".join(letter for letter, _at in found), [at for _letter, at in found]


def _plain(char: str) -> Iterator[str]:
    """Yield the character in its simplest form: no accent, no ligature, no capital."""
    for one in normalize("NFKD", char).casefold():
        if not one.isspace() and one not in _LEFT_OUT and category(one) not in ("Mn", "Cc", "Cf"):
            yield one
