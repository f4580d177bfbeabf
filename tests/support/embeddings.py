"""Real vectors without a model, the same in every process: counts of hashed groups of three characters."""

from collections.abc import Sequence
from zlib import crc32

LENGTH = 512


def hashed_vectors(texts: Sequence[str]) -> list[list[float]]:
    """Return a vector for each text. Texts that share parts of words are near to each other."""
    return [_vector(f"  {text.casefold()} ") for text in texts]


def _vector(text: str) -> list[float]:
    counts = [0.0] * LENGTH
    for at in range(len(text) - 2):
        counts[crc32(text[at : at + 3].encode()) % LENGTH] += 1
    return counts
