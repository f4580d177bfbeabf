"""Ranks the passages of documents by the words of a question (BM25). Pure: the same question gives the same order."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent.documents.kinds import Document

PASSAGE = 700
"""Characters of a passage, about. It ends at a line break, if there is one."""
LONGEST_LINE = 1_400
"""Characters after which a line without any break is cut."""
STEM = 4
"""Letters at the start of a word that count as its stem, so that "rents" and "renting" find "rental"."""

_WORDS = re.compile(r"\w+")
_SATURATION, _LENGTH = 1.2, 0.75
"""The usual constants of BM25: k1 and b."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A short part of a page. `document` is the number of its document among those that are ranked together."""

    page: int
    text: str
    document: int = 0


def passages_of(document: Document, number: int = 0) -> list[Passage]:
    """Return the passages of a document in their order. `number` is its number among several documents."""
    return [
        Passage(page, piece, number)
        for page, text in enumerate(document.pages, 1)
        for piece in pieces(text, PASSAGE)
        if piece.strip()
    ]


def pieces(text: str, most: int) -> Iterator[str]:
    """Yield the text in pieces of about `most` characters that end with a line, or with a long part of one."""
    lines: list[str] = []
    size = 0
    for whole_line in text.split("\n"):
        for at in range(0, len(whole_line) or 1, LONGEST_LINE):
            line = whole_line[at : at + LONGEST_LINE]
            if lines and size + len(line) > most:
                yield "\n".join(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield "\n".join(lines)


def ranked(passages: Sequence[Passage], question: str) -> list[int]:
    """Return the numbers of the passages that have words of the question, the best first."""
    wanted = set(_terms(question))
    counts = [Counter(term for term in _terms(passage.text)) for passage in passages]
    lengths = [sum(count.values()) for count in counts]
    usual = sum(lengths) / max(1, len(lengths)) or 1.0
    frequency = {term: sum(term in count for count in counts) for term in wanted}
    weights = {
        term: math.log(1 + (len(passages) - found + 0.5) / (found + 0.5)) for term, found in frequency.items() if found
    }

    def score(at: int) -> float:
        norm = _SATURATION * (1 - _LENGTH + _LENGTH * lengths[at] / usual)
        return sum(
            weight * counts[at][term] * (_SATURATION + 1) / (counts[at][term] + norm)
            for term, weight in weights.items()
            if term in counts[at]
        )

    scores = [score(at) for at in range(len(passages))]
    return sorted((at for at in range(len(passages)) if scores[at] > 0), key=lambda at: (-scores[at], at))


def _terms(text: str) -> Iterator[str]:
    """Yield the words and their stems, and pairs of characters for scripts without spaces between words."""
    for word in _WORDS.findall(text.lower()):
        if word[0] >= "\u2e80":
            yield from (word[at : at + 2] for at in range(max(1, len(word) - 1)))
            continue
        yield word
        if len(word) >= STEM:
            yield f"{word[:STEM]}-"
