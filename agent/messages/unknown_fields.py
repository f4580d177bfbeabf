"""Finds the fields of a record that reading it has dropped, because a newer version of the program has added them.

Pydantic ignores fields that it does not know. It could forbid them, but then it would read a picture with a new field
as plain data, where a message takes both.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

OLD_NAMES: Mapping[str, str] = {
    "added": "tools_added",
    "request_tokens": "input_tokens",
    "response_tokens": "output_tokens",
    "vendor_details": "provider_details",
    "vendor_id": "provider_response_id",
}
"""The former names of fields that pydantic-ai still reads, and their names today."""
_COUNTS = ("requests", "total_tokens", "unmeasured_requests")
"""Fields of a usage that pydantic-ai has stored at some time, and computes, or leaves out if they are 0."""


def dropped_fields(given: object, kept: object, path: str = "") -> Iterator[str]:
    """Yield the path of each field of the JSON value `given` that `kept`, the record as it was read, does not have.

    A path looks like `messages[0].parts[1].tone`.
    """
    if isinstance(given, dict) and isinstance(kept, dict):
        table, others = cast(dict[str, Any], given), cast(dict[str, Any], kept)
        for name, value in table.items():
            at = f"{path}.{name}" if path else name
            if name in others:
                yield from dropped_fields(value, others[name], at)
            elif OLD_NAMES.get(name) not in others and not (name in _COUNTS and path.endswith("usage")):
                yield at
    elif isinstance(given, list) and isinstance(kept, list):
        values, rest = cast(list[Any], given), cast(list[Any], kept)
        for number, (value, other) in enumerate(zip(values, rest, strict=False)):
            yield from dropped_fields(value, other, f"{path}[{number}]")
