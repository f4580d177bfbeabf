"""Ranks the passages of documents by the words of a question (BM25), and by the vectors of an embedder.

The same question gives the same order. Vectors count with the precision in which they are packed, so that every process
finds the same. numpy, which can be missing, is loaded when the first vector is.
"""

# numpy's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import math
import re
import struct
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from agent.errors import AgentError
from agent.files.kinds import Document
from agent.system.normal_form import compatible
from agent.system.threads import RANKING

PASSAGE = 700
"""Characters of a passage, about. It ends at a line break, if there is one."""
LONGEST_LINE = 1_400
"""Characters after which a line without any break is cut, fewer for short passages."""
ENDS = (". ", "。", " ")
"""The ends of a part of a long line, the best first."""
STEM = 4
"""Letters at the start of a word that count as its stem, so that "rents" and "renting" find "rental"."""
RANK_CONSTANT = 60
"""The usual constant of reciprocal rank fusion. A larger one lets the first places count less."""

# The two classes of characters are apart also within a word: "PDF文件" is the word "pdf" and the word "文件".
_WORDS = re.compile(r"[^\W\u2e80-\U0010ffff]+|(?:(?=[\u2e80-\U0010ffff])\w)+")
_SATURATION, _LENGTH = 1.2, 0.75
"""The usual constants of BM25: k1 and b."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A short part of a page. `document` is the number of its document among those that are ranked together."""

    page: int
    text: str
    document: int = 0


def passages_of(document: Document, number: int = 0, most: int = PASSAGE) -> list[Passage]:
    """Return the passages of a document in their order, of about `most` characters.

    `number` is its number among several documents.
    """
    return [
        Passage(page, piece, number)
        for page, text in enumerate(document.pages, 1)
        for piece in pieces(text, most)
        if piece.strip()
    ]


def pieces(text: str, most: int) -> Iterator[str]:
    """Yield the text in pieces of about `most` characters that end with a line, or with a long part of one."""
    lines: list[str] = []
    size, longest = 0, min(LONGEST_LINE, 2 * most)
    for whole_line in text.split("\n"):
        for line in _parts(whole_line, longest):
            if lines and size + len(line) > most:
                yield "\n".join(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield "\n".join(lines)


def _parts(line: str, most: int) -> Iterator[str]:
    """Yield the line in parts of at most `most` characters, which end after a sentence or else after a word."""
    at = 0
    while len(line) - at > most:
        ends = (line.rfind(mark, at + most // 2, at + most) + len(mark) for mark in ENDS)
        end = next((one for one in ends if one > at + most // 2), at + most)
        yield line[at:end]
        at = end
    yield line[at:]


class KeywordIndex:
    """The words of passages, for any number of questions. It takes seconds for 10,000 passages, a question takes ms.

    With a `question`, it is for that one, and takes a tenth of the memory: a text can have a million words.
    """

    def __init__(self, passages: Sequence[Passage], question: str | None = None) -> None:
        wanted = None if question is None else {*_terms(question, is_question=True)}
        self._lengths: list[int] = []
        # Pairs of numbers, a passage and how often it has the term: two objects for each pair take ten times as much.
        self._places: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
        for at, passage in enumerate(passages):
            counts = Counter(_terms(passage.text))
            self._lengths.append(counts.total())
            for term in counts if wanted is None else wanted & counts.keys():
                self._places[term].extend((at, counts[term]))

    def ranked(self, question: str) -> list[int]:
        """Return the numbers of the passages that have words of the question, the best first."""
        passages = len(self._lengths)
        usual = sum(self._lengths) / max(1, passages) or 1.0
        scores: defaultdict[int, float] = defaultdict(float)
        # In the order of the question: sums of floats depend on their order, which a set changes in each process.
        for term in dict.fromkeys(_terms(question, is_question=True)):
            places = self._places.get(term)
            if places is None:
                continue
            found = len(places) // 2
            weight = math.log(1 + (passages - found + 0.5) / (found + 0.5)) * (_SATURATION + 1)
            for at, count in zip(places[::2], places[1::2], strict=True):
                norm = _SATURATION * (1 - _LENGTH + _LENGTH * self._lengths[at] / usual)
                scores[at] += weight * count / (count + norm)
        return sorted(scores, key=lambda at: (-scores[at], at))


def indexed(
    documents: Sequence[Document], most: int = PASSAGE, question: str | None = None
) -> tuple[tuple[Passage, ...], KeywordIndex]:
    """Return the passages of these documents, of about `most` characters, and their words, or those of a question."""
    passages = tuple(one for number, document in enumerate(documents) for one in passages_of(document, number, most))
    return passages, KeywordIndex(passages, question)


def fused(*orders: Sequence[int]) -> list[int]:
    """Return all numbers in these orders, by reciprocal rank fusion: first those that are early in several of them."""
    scores: defaultdict[int, float] = defaultdict(float)
    for order in orders:
        for place, at in enumerate(order, 1):
            scores[at] += 1 / (RANK_CONSTANT + place)
    return sorted(scores, key=lambda at: (-scores[at], at))


def _terms(text: str, *, is_question: bool = False) -> Iterator[str]:
    """Yield the words and their stems, and for scripts without spaces between words pairs of characters.

    A passage also has each of these characters by itself, for a question of one. A longer question would find too much.
    """
    for word in _WORDS.findall(compatible(text).casefold()):
        if word[0] < "\u2e80":
            yield word
            if len(word) >= STEM:
                yield f"{word[:STEM]}-"
            continue
        if not is_question or len(word) == 1:
            yield from word
        yield from (word[at : at + 2] for at in range(len(word) - 1))


CANDIDATES = 100
"""Passages of each order that are fused, if there are not more hits. Later ones would change little."""
KEYWORDS_ONLY = "Found by keywords alone: this program has no embeddings of the texts."
KEYWORDS_AND_VECTORS = "Found by keywords, and by vectors of {model}."
VECTORS_FAILED = "Found by keywords alone, because there are no vectors of the texts now: {reason}"
"""The notes of a search. Keywords compare words, vectors compare meanings."""

_HEAD = struct.Struct("<II")
_DIGEST = 16
"""Bytes of the digest of a text. Two texts of one chat never have the same by chance."""


class Vectors(Protocol):
    """Finds texts by their vectors. The methods raise an `AgentError` if there are none now."""

    async def name(self) -> str:
        """Return the name of the model that makes the vectors."""
        ...

    async def nearest(self, texts: Sequence[str], query: str, most: int) -> Sequence[int]:
        """Return the numbers of the texts nearest to the query, the nearest first, at most `most`."""
        ...


async def ranked_both_ways(
    vectors: Vectors | None, passages: Sequence[Passage], keywords: KeywordIndex, query: str, most: int
) -> tuple[Sequence[int], Sequence[int], str]:
    """Return the best passages by keywords and by vectors, at most `most` of each, and the note of the search.

    A failure of the vectors is in the note.
    """
    by_keywords = (await RANKING.run(keywords.ranked, query))[:most]
    if vectors is None:
        return by_keywords, (), KEYWORDS_ONLY
    try:
        nearest = await vectors.nearest([one.text for one in passages], query, most) if passages else ()
        return by_keywords, nearest, KEYWORDS_AND_VECTORS.format(model=await vectors.name())
    except AgentError as error:
        return by_keywords, (), VECTORS_FAILED.format(reason=error)


class VectorIndex:
    """The vectors of texts from one model. They all have the same length: vectors of another one replace them.

    A text is known by its digest.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._blocks: list[Any] = []
        self._length = 0

    @property
    def size(self) -> int:
        """The bytes of all vectors."""
        return sum(block.nbytes for block in self._blocks)

    def missing(self, digests: Iterable[bytes], length: int) -> list[int]:
        """Return the places of the digests that have no vector of this length, each digest once."""
        known = self._rows if length == self._length else {}
        places: dict[bytes, int] = {}
        for at, digest in enumerate(digests):
            if digest not in known:
                places.setdefault(digest, at)
        return list(places.values())

    def add(self, data: bytes) -> None:
        """Add packed vectors. A text that has one keeps it. Raises `ValueError` if they are damaged."""
        import numpy as np

        count, length = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (0, 0)
        if not length or len(data) != _HEAD.size + count * (_DIGEST + 2 * length):
            raise ValueError("packed vectors are damaged")
        if length != self._length:
            self._rows.clear()
            self._blocks.clear()
            self._length = length
        at = _HEAD.size + count * _DIGEST
        digests = [data[start : start + _DIGEST] for start in range(_HEAD.size, at, _DIGEST)]
        before = len(self._rows)
        new = [number for number, digest in enumerate(digests) if digest not in self._rows]
        self._rows.update({digests[number]: before + place for place, number in enumerate(new)})
        self._blocks.append(np.frombuffer(data, dtype="<f2", offset=at).reshape(count, length)[new].astype("<f4"))

    def nearest(self, digests: Sequence[bytes], query: Sequence[float], most: int) -> list[int]:
        """Return the places of the digests that are nearest to the query's vector, the nearest first, at most `most`.

        All must have a vector.
        """
        import numpy as np

        if len(self._blocks) > 1:
            self._blocks[:] = [np.concatenate(self._blocks)]
        wanted = np.asarray(query, dtype="<f4")
        scores = (self._blocks[0] @ wanted)[[self._rows[digest] for digest in digests]]
        return [int(at) for at in np.argsort(-scores, kind="stable")[:most]]


def pack(texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> bytes:
    """Return unit vectors of different texts as bytes, two for each number. The texts are only there as digests.

    Raises `ValueError` if the vectors are not as many, not of one length, or not of numbers.
    """
    import numpy as np

    try:
        rows = np.asarray(vectors, dtype="<f8")
    except TypeError as error:
        raise ValueError("a vector has something that is no number") from error
    if rows.ndim != 2 or rows.shape[0] != len(texts) or not rows.shape[1] or not np.isfinite(rows).all():
        raise ValueError("the vectors are not of one length, or not of numbers")
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return b"".join((_HEAD.pack(*rows.shape), *map(digest_of, texts), units.astype("<f2").tobytes()))


def digest_of(text: str) -> bytes:
    """Return the digest by which the vector of a text is found."""
    return sha256(text.encode("utf-8", "replace")).digest()[:_DIGEST]
