"""How entries and records become JSON text and come back; every store keeps this form, so that all answer alike.

What cannot come back is refused before anything is written: a stored message that no longer loads would close its
whole conversation. Nothing here knows where the text is kept.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agent.errors import HistoryError, localized_error
from agent.history import Entry, Record
from agent.history.sentences import SENTENCES

# The byte encoding of pydantic-ai's own message adapter. An adapter of one dataclass takes no config, one of a list
# does; without it, bytes in a provider's details could not be written at all.
_ENTRIES = TypeAdapter(list[Entry], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))
_RECORDS = TypeAdapter(list[Record])

T = TypeVar("T")


def dump_entries(entries: Sequence[Entry]) -> list[str]:
    """Return each entry as one JSON object. Raises `HistoryError` where one of them would not load again.

    Text is kept as it is, but for halves of surrogate pairs: UTF-8 has no form for them and no provider takes them,
    so two that belong together are joined and a lone one becomes U+FFFD.
    """
    return [_dump(_ENTRIES, entry, entry.id) for entry in entries]


def load_entries(texts: Iterable[str]) -> list[Entry]:
    """Return the entries of many JSON objects, validated in one call. Raises `HistoryError` where one is damaged."""
    return _load(_ENTRIES, texts)


def dump_record(record: Record) -> str:
    """Return the record as one JSON object. Raises `HistoryError` where it would not load again."""
    return _dump(_RECORDS, record, record.id)


def load_records(texts: Iterable[str]) -> list[Record]:
    """Return the records of many JSON objects, validated in one call. Raises `HistoryError` where one is damaged."""
    return _load(_RECORDS, texts)


def _dump(adapter: TypeAdapter[list[Any]], value: Entry | Record, name: str) -> str:
    try:
        text = _write(adapter, value)
        # The serialiser lets a part of an unknown kind through; only reading the text tells.
        same = adapter.validate_json(f"[{text}]")[0]
    except (ValueError, TypeError, AttributeError) as error:
        raise HistoryError(f"{type(value).__name__} {name!r} cannot be stored: {_first_line(error)}") from error
    if _identity(same) != _identity(value):
        raise HistoryError(f"{type(value).__name__} {name!r} cannot be stored: its ids or owner are not plain text.")
    return text


def _load(adapter: TypeAdapter[list[T]], texts: Iterable[str]) -> list[T]:
    try:
        return adapter.validate_json(f"[{','.join(texts)}]")
    except ValidationError as error:
        raise localized_error(HistoryError, SENTENCES, "history_damaged", error=_first_line(error)) from error


def _write(adapter: TypeAdapter[list[Any]], value: Entry | Record) -> str:
    try:
        return adapter.dump_json([value], warnings=False)[1:-1].decode()
    except ValueError:
        # Half a surrogate pair, most likely. Anything else fails here again.
        (plain,) = adapter.dump_python([value], mode="json", warnings=False)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _identity(value: Entry | Record) -> tuple[object, ...]:
    match value:
        case Entry():
            return value.id, value.parent_id
        case Record():
            return value.id, value.owner, value.head_id, value.branches


def _first_line(error: Exception) -> str:
    """The reason without the value: a validation error would quote what people wrote."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}."
    return str(error).partition("\n")[0]
