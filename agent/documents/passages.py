"""Cuts a document to what fits: the whole text, or the passages that suit a question best, in the order of the pages.

The ranking is BM25 over short passages. It is a pure function, so the same question always gives the same text.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agent.documents.kinds import Document

PASSAGE = 700
"""Characters of a passage, about. It ends at a line break, if there is one."""
LONGEST_LINE = 1_400
"""Characters after which a line without any break is cut."""
STEM = 4
"""Letters at the start of a word that count as its stem, so that "rents" and "renting" find "rental"."""
MAX_RANGES = 12
"""The most page ranges that are named."""
SKIPPED = "[…]"

_WORDS = re.compile(r"\w+")
_SATURATION, _LENGTH = 1.2, 0.75
"""The usual constants of BM25: k1 and b."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The text of a document that a model gets, with a mark before each page. `pages` are the numbers of its pages."""

    text: str
    pages: tuple[int, ...]
    is_whole: bool

    @property
    def ranges(self) -> str:
        """The numbers of the pages: "3-5, 9"."""
        ranges: list[list[int]] = []
        for page in self.pages:
            if ranges and page == ranges[-1][1] + 1:
                ranges[-1][1] = page
            else:
                ranges.append([page, page])
        texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:MAX_RANGES]]
        return ", ".join(texts) + (" …" if len(ranges) > MAX_RANGES else "")


@dataclass(frozen=True, slots=True)
class _Passage:
    page: int
    text: str


def sections_of_text(text: str, media_type: str = "text/plain", most: int = 4_000) -> Document:
    """Return a long text file as a document of sections, which end at line breaks."""
    return Document(media_type, "", tuple(_pieces(text, most)))


def excerpts(documents: Sequence[Document], question: str, room: int) -> list[Excerpt]:
    """Return what a model gets of each document if all together have `room` bytes, smaller documents first."""
    found: dict[int, Excerpt] = {}
    sizes = {number: len(_whole(document).encode("utf-8", "replace")) for number, document in enumerate(documents)}
    for number in sorted(sizes, key=sizes.__getitem__):
        share = room // (len(documents) - len(found))
        found[number] = excerpt(documents[number], question, share)
        room -= len(found[number].text.encode("utf-8", "replace"))
    return [found[number] for number in range(len(documents))]


def excerpt(document: Document, question: str, max_bytes: int) -> Excerpt:
    """Return the whole document if it has at most `max_bytes` bytes with its marks, or else its best passages.

    If no word of the question occurs in the document, it is read from its beginning.
    """
    whole = _whole(document)
    if len(whole.encode("utf-8", "replace")) <= max_bytes:
        return Excerpt(whole, tuple(range(1, len(document.pages) + 1)), is_whole=True)
    passages = [
        _Passage(number, piece)
        for number, page in enumerate(document.pages, 1)
        for piece in _pieces(page, PASSAGE)
        if piece.strip()
    ]
    chosen = _choose(passages, _order(passages, question), max_bytes)
    return Excerpt(
        _joined(document, passages, chosen), tuple(sorted({passages[at].page for at in chosen})), is_whole=False
    )


def _whole(document: Document) -> str:
    pages = enumerate(document.pages, 1)
    return "\n\n".join(f"{_mark(document, number)}\n{page}".rstrip() for number, page in pages)


def _mark(document: Document, page: int) -> str:
    return f"[{document.unit.capitalize()} {page}]"


def _pieces(text: str, most: int) -> Iterator[str]:
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


def _terms(text: str) -> Iterator[str]:
    """Yield the words and their stems, and pairs of characters for scripts without spaces between words."""
    for word in _WORDS.findall(text.lower()):
        if word[0] >= "\u2e80":
            yield from (word[at : at + 2] for at in range(max(1, len(word) - 1)))
            continue
        yield word
        if len(word) >= STEM:
            yield f"{word[:STEM]}-"


def _order(passages: Sequence[_Passage], question: str) -> list[int]:
    """Return the passages that have words of the question, the best first (BM25)."""
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


def _choose(passages: Sequence[_Passage], ranked: Sequence[int], max_bytes: int) -> set[int]:
    """Return the passages that fit: each of the best with its neighbours, then the document's beginning."""
    around = (at + step for at in ranked for step in (0, 1, -1))
    chosen: set[int] = set()
    for at in _unique([*around, *range(len(passages))], len(passages)):
        # A page mark and a mark of what was skipped can come with each.
        size = len(passages[at].text.encode("utf-8", "replace")) + 40
        if size <= max_bytes:
            chosen.add(at)
            max_bytes -= size
        elif max_bytes < PASSAGE // 2 and chosen:
            break
    return chosen


def _unique(numbers: Iterable[int], below: int) -> Iterator[int]:
    seen: set[int] = set()
    for number in numbers:
        if 0 <= number < below and number not in seen:
            seen.add(number)
            yield number


def _joined(document: Document, passages: Sequence[_Passage], chosen: set[int]) -> str:
    lines: list[str] = []
    page, last = 0, -1
    for at in sorted(chosen):
        passage = passages[at]
        if at != last + 1:
            lines.append(SKIPPED)
        if passage.page != page:
            lines += ["", _mark(document, passage.page)]
        lines.append(passage.text)
        page, last = passage.page, at
    if last != len(passages) - 1:
        lines.append(SKIPPED)
    return "\n".join(lines).strip()
