"""Sentences of this package by name, so that a page can say them in the language of who reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

Value = Union[str, int, float, "LocalizedText"]


@dataclass(frozen=True, slots=True)
class LocalizedText:
    """One sentence: which, and what stands in it. The English one is said beside it, by whoever made this."""

    key: str
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])


def in_english(sentences: Mapping[str, str], saying: LocalizedText) -> str:
    """The sentence in English; a sentence in a sentence without its full stop."""
    values = {
        name: in_english(sentences, value).rstrip(".") if isinstance(value, LocalizedText) else value
        for name, value in saying.values.items()
    }
    return sentences[saying.key].format(**values)
