"""Finds a cited passage in a text with other white space, hyphens, quotation marks, accents or letter cases.

Both the preparation of a text and a search take time in proportion to its letters, of which there are at most
`MAX_LETTERS`: one character can stand for 18 of them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from unicodedata import category, normalize

SHORTEST = 24
"""Letters that the beginning of a passage must have to be found by itself, if the rest is elsewhere or differs."""
MAX_LETTERS = 6_000_000
"""Letters of a document that are searched: those of two million Korean syllables, the longest document."""
MAX_WANTED = 4_000
"""Letters of a passage that are searched for. A longer one is found by its beginning."""
_LEFT_OUT = "-\u2010\u2011\u2012\u2013\u2014\ufffe'\"\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
"""Hyphens, which can be at the end of a line, and quotation marks, which models write in other ways."""
_ENDS = "…"
_PIECE = 1_024
"""Characters of a text that are prepared in one step."""
_STEP = 1 << 16
"""Letters that are searched in one step, between which other threads can run."""
_MAX_KNOWN = 1 << 15
"""Characters whose letters are kept."""


class _Letters(dict[int, str]):
    """The letters of each character by its number, as `str.translate` asks for them."""

    def __missing__(self, code: int) -> str:
        letters = "".join(_plain(chr(code)))
        if len(self) < _MAX_KNOWN:
            self[code] = letters
        return letters


_LETTERS = _Letters()


class SearchableText:
    """A text that is prepared for any number of searches. Letters after the first `most` are not found."""

    def __init__(self, text: str, most: int = MAX_LETTERS) -> None:
        self._text = text
        pieces, self._starts = list[str](), [0]
        for at in range(0, len(text), _PIECE):
            if self._starts[-1] >= most:
                break
            pieces.append(text[at : at + _PIECE].translate(_LETTERS))
            self._starts.append(self._starts[-1] + len(pieces[-1]))
        self._letters = "".join(pieces)

    def __len__(self) -> int:
        """Return the number of letters."""
        return len(self._letters)

    def find(self, passage: str) -> tuple[int, int] | None:
        """Return the start and the end of the passage in the text, or None.

        If the text has only the beginning of the passage, such as that before the end of a page, its place is returned.
        """
        wanted = passage.strip().strip(_ENDS)[:MAX_WANTED].translate(_LETTERS)[:MAX_WANTED]
        if not wanted:
            return None
        size = len(wanted)
        first = self._find(wanted[:SHORTEST])  # which no beginning comes before
        at = self._find(wanted, first) if first >= 0 else -1
        if at < 0 <= first and size > SHORTEST:
            size = self._longest_beginning(wanted, first)
            at = self._find(wanted[:size], first)
        return (self._place(at), self._place(at + size - 1) + 1) if at >= 0 else None

    def _find(self, wanted: str, at: int = 0) -> int:
        """Return the first place of these letters from `at` on, or -1."""
        for start in range(at, len(self._letters), _STEP):
            if (found := self._letters.find(wanted, start, start + _STEP + len(wanted) - 1)) >= 0:
                return found
        return -1

    def _longest_beginning(self, wanted: str, first: int) -> int:
        """Return the length of the longest beginning of `wanted` in the text. A text with one has all shorter ones."""
        low, high = SHORTEST, len(wanted) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._find(wanted[:middle], first) >= 0 else (low, middle - 1)
        return low

    def _place(self, letter: int) -> int:
        """Return the place in the text of the character that has this letter."""
        piece = bisect_right(self._starts, letter) - 1
        at, count = piece * _PIECE, self._starts[piece]
        while (count := count + len(_LETTERS[ord(self._text[at])])) <= letter:
            at += 1
        return at


def searchable(texts: Sequence[str]) -> list[SearchableText]:
    """Return these texts, prepared for searches. All have at most `MAX_LETTERS` together, and a little more."""
    out, room = list[SearchableText](), MAX_LETTERS
    for text in texts:
        out.append(SearchableText(text, room))
        room -= len(out[-1])
    return out


def find_passage(text: str, passage: str) -> tuple[int, int] | None:
    """Return where the passage is in a text that is searched only once, as `SearchableText.find` does."""
    return SearchableText(text).find(passage)


def _plain(char: str) -> Iterator[str]:
    """Yield the character in its simplest form: no accent, no ligature, no capital."""
    for one in normalize("NFKD", char).casefold():
        if not one.isspace() and one not in _LEFT_OUT and category(one) not in ("Mn", "Cc", "Cf"):
            yield one
