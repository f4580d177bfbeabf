"""Compares texts of people without differences of form, in time and space in proportion to their length.

`unicodedata.normalize` sorts the marks after a letter in quadratic time, without letting other threads run: 10 s for
80,000 marks. It also makes 18 characters of a single one.
"""

from collections.abc import Iterator
from unicodedata import combining, normalize

_PIECE, _BACK = 512, 64
"""Characters of a piece, and how far before its end it may end, so as not to part a letter from its marks."""
_GROWTH = 4
"""A piece stays as it is if its normal form would have so many times its characters."""


def pieces(text: str) -> Iterator[str]:
    """Yield the text in short pieces. Each has the same normal form as in the whole text, but for many marks."""
    at = 0
    while len(text) - at > _PIECE:
        ends = range(at + _PIECE, at + _PIECE - _BACK, -1)
        end = next((end for end in ends if _is_apart(text[end - 1], text[end])), ends[0])
        yield text[at:end]
        at = end
    yield text[at:]


def compatible(text: str) -> str:
    """Return the text in the normal form NFKC, except for pieces with many marks, or which would grow much."""
    return text if text.isascii() else "".join(map(_compatible, pieces(text)))


def _compatible(piece: str) -> str:
    made = normalize("NFKC", piece)
    return made if len(made) <= _GROWTH * len(piece) + _BACK else piece


def _is_apart(before: str, after: str) -> bool:
    if after.isascii():
        return True
    return not combining(after) and normalize("NFKC", before + after) == normalize("NFKC", before) + normalize(
        "NFKC", after
    )
