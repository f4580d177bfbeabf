"""Unit vectors of texts, found by the text: packed as bytes, and compared with the vector of a query.

Vectors count with the precision in which they are packed, so that every process finds the same. numpy, which can be
missing, is loaded when the first vector is.
"""

# numpy's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Protocol

from agent.errors import AgentError
from agent.files.ranking import KeywordIndex, Passage
from agent.system.threads import RANKING

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
