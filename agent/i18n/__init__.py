"""Sentences by catalogue key, so that a page can show them in the reader's language."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

Value = Union[str, int, float, "LocalizedText"]


@dataclass(frozen=True, slots=True)
class LocalizedText:
    """One sentence: its catalogue key and its values. The code that creates it also supplies the English text."""

    key: str
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])


def in_english(sentences: Mapping[str, str], saying: LocalizedText) -> str:
    """Return the sentence in English. A sentence inside a sentence loses its full stop."""
    values = {
        name: in_english(sentences, value).rstrip(".") if isinstance(value, LocalizedText) else value
        for name, value in saying.values.items()
    }
    return sentences[saying.key].format(**values)
