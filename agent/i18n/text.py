"""Text for people that can be shown in the reader's language. The English sentence is the key of the catalogues.

Mark a sentence with `_`, or with `ngettext` if it depends on a number. Both return a `LocalizedText`: a string in
English that remembers its sentence and its values. `agent.i18n.translator` looks it up in a catalogue (`de.po`, ...).
Mark a sentence that is only stored in a table with `N_` or `ngettext_noop`.
"""

import string
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from gettext import NullTranslations
from typing import Any

Value = str | int | float
Plural = tuple[str, str]
"""The singular and the plural of a sentence in English."""
NumberMarks = Mapping[int, str]
"""The signs of a language for the decimal point and the comma of thousands, as `str.translate` takes them."""
_ENGLISH = NullTranslations()
UNGROUPED = {"after", "before", "first", "height", "last", "number", "page", "port", "status", "version", "width"}
"""The fields whose numbers name something, or are sizes in pixels. The digits of all other numbers are grouped."""


class LocalizedText(str):
    """A sentence in English that can be translated later. It compares, prints and concatenates as a plain string.

    `message` is the sentence with fields in braces, `plural` its plural form ("" if it has none; `values["count"]`
    chooses), and `values` are the values of the fields, which can be localized themselves. A joined text has only
    `parts`.
    """

    __slots__ = ("message", "parts", "plural", "values")

    message: str
    plural: str
    values: Mapping[str, Value]
    parts: tuple[str, ...]

    def __new__(
        cls, message: str, values: Mapping[str, Value] | None = None, plural: str = "", parts: Iterable[str] = ()
    ) -> "LocalizedText":
        """Return the text. Raises `KeyError` or `ValueError` if the values do not fit the sentence."""
        kept = tuple(parts)
        text = super().__new__(cls, _rendered(_ENGLISH, message, values or {}, plural, kept))
        text.message, text.plural, text.values, text.parts = message, plural, values or {}, kept
        return text

    def __reduce__(self) -> tuple[type["LocalizedText"], tuple[str, Mapping[str, Value], str, tuple[str, ...]]]:
        """Return how to rebuild the text, so that copies and pickles keep all fields."""
        return LocalizedText, (self.message, self.values, self.plural, self.parts)


def _(message: str, /, **values: Value) -> LocalizedText:
    """Return the sentence with these values."""
    return LocalizedText(message, values)


def ngettext(singular: str, plural: str, count: int, /, **values: Value) -> LocalizedText:
    """Return the sentence in the form for this number, which is the field `count` of both forms."""
    return LocalizedText(singular, {"count": count, **values}, plural)


def N_(message: str, /) -> str:
    """Mark a sentence for translation and return it unchanged."""
    return message


def ngettext_noop(singular: str, plural: str, /) -> Plural:
    """Mark a sentence in its two forms and return them unchanged."""
    return singular, plural


def decimal(value: float, digits: int) -> LocalizedText:
    """Return a number with so many digits after the decimal point. Each language shows it in its own way."""
    return LocalizedText(f"{{value:,.{digits}f}}", {"value": value})


def joined(texts: Iterable[str]) -> str:
    """Return these sentences as one text, with spaces between them."""
    parts = tuple(text for text in texts if text)
    return parts[0] if len(parts) == 1 else LocalizedText("", parts=parts) if parts else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a joined text, or of a plain string."""
    if isinstance(text, LocalizedText):
        return text.parts[0] if text.parts else text
    return text.partition(". ")[0].rstrip(".")


def listed(texts: Sequence[str]) -> str:
    """Return these texts as an enumeration, or "" for none."""
    return reduce(lambda first, then: _("{first}, {then}", first=first, then=then), texts) if texts else ""


def alternatives(texts: Sequence[str]) -> str:
    """Return these texts as a choice."""
    return reduce(lambda first, second: _("{first} or {second}", first=first, second=second), texts)


def render(text: str, catalogue: NullTranslations, marks: NumberMarks | None = None) -> str:
    """Return the text in the catalogue's language, whose `marks` its numbers have. A plain string stays as it is."""
    if not isinstance(text, LocalizedText):
        return text
    return _rendered(catalogue, text.message, text.values, text.plural, text.parts, marks)


def _rendered(
    catalogue: NullTranslations,
    message: str,
    values: Mapping[str, Value],
    plural: str,
    parts: Iterable[str],
    marks: NumberMarks | None = None,
) -> str:
    """Return the text in the catalogue's language. A sentence inside a sentence loses its full stop."""
    if not message:
        return reduce(_after, (render(part, catalogue, marks) for part in parts), "")
    count = values.get("count")
    sentence = (
        catalogue.ngettext(message, plural, count) if plural and isinstance(count, int) else catalogue.gettext(message)
    )
    filled = {
        name: render(value, catalogue, marks).rstrip(".。")
        if isinstance(value, LocalizedText)
        else value
        if isinstance(value, str) or name in UNGROUPED
        else _Quantity(value)
        for name, value in values.items()
    }
    return sentence.format(**filled) if marks is None else _Formatter(marks).vformat(sentence, (), filled)


def _after(text: str, then: str) -> str:
    """Return both texts, with a space between them. A Chinese full stop has the space in itself."""
    return f"{text}{then}" if not text or text.endswith("。") else f"{text} {then}"


class _Quantity:
    """A number whose digits are grouped, as in 1,000."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __format__(self, spec: str) -> str:
        return format(self._value, spec if "," in spec else f",{spec}")

    def __repr__(self) -> str:
        return format(self)


class _Formatter(string.Formatter):
    """Formats a sentence as `str.format` does, with the numbers in another notation."""

    def __init__(self, marks: NumberMarks) -> None:
        self._marks = marks

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Return the field as a text."""
        text = format(value, format_spec)
        return text.translate(self._marks) if isinstance(value, int | float | _Quantity) else text
