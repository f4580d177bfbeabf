"""Sentences of this package by name, so that a page can say them in the language of who reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

Value = Union[str, int, float, "Saying"]


@dataclass(frozen=True, slots=True)
class Saying:
    """One sentence: which, and what stands in it. The English one is said beside it, by whoever made this."""

    key: str
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])
