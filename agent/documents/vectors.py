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
from typing import Any

_HEAD = struct.Struct("<II")
_DIGEST = 16
"""Bytes of the digest of a text. Two texts of one chat never have the same by chance."""


class VectorIndex:
    """The vectors of texts from one model. They all have the same length: vectors of another one replace them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._blocks: list[Any] = []
        self._length = 0

    def missing(self, texts: Iterable[str], length: int) -> list[str]:
        """Return the texts that have no vector of this length, each once."""
        if length != self._length:
            return list(dict.fromkeys(texts))
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._rows]

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

    def nearest(self, texts: Sequence[str], query: Sequence[float], most: int) -> list[int]:
        """Return the numbers of the texts that are nearest to the query's vector, the nearest first, at most `most`.

        All texts must have a vector.
        """
        import numpy as np

        if len(self._blocks) > 1:
            self._blocks[:] = [np.concatenate(self._blocks)]
        wanted = np.asarray(query, dtype="<f4")
        scores = (self._blocks[0] @ wanted)[[self._rows[_digest(text)] for text in texts]]
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
    return b"".join((_HEAD.pack(*rows.shape), *map(_digest, texts), units.astype("<f2").tobytes()))


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()[:_DIGEST]
