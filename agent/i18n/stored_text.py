"""The form in which a stored object keeps a `LocalizedText`, so that a reload can translate it again."""

from typing import Annotated, Any, cast

from pydantic import PlainSerializer, PlainValidator

from agent.i18n import LocalizedText, Value


def _loaded(value: object) -> str:
    """Return the text that `_dumped` wrote. Raises `ValueError` for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise ValueError("not a text")
    form = cast(dict[str, Any], value)
    try:
        values = {name: _loaded_value(one) for name, one in form["values"].items()}
        return LocalizedText(str(form["message"]), values, str(form["plural"]), map(_loaded, form["parts"]))
    except (LookupError, AttributeError, TypeError) as error:
        raise ValueError("the values do not fit the text") from error


def _loaded_value(value: object) -> Value:
    return value if isinstance(value, int | float) else _loaded(value)


def _dumped(text: str) -> object:
    if not isinstance(text, LocalizedText):
        return text
    values = {name: _dumped(one) if isinstance(one, str) else one for name, one in text.values.items()}
    parts = [_dumped(one) for one in text.parts]
    return {"message": text.message, "plural": text.plural, "values": values, "parts": parts}


StoredText = Annotated[str, PlainValidator(_loaded), PlainSerializer(_dumped)]
"""The type of a text in a pydantic model that stores a `LocalizedText` with its sentence and values."""
