"""Makes the content of a result of what a tool returned: text, and the files in it."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import BinaryContent
from pydantic_core import to_json

from agent.responses import fix_surrogates

_FILE = TypeAdapter(BinaryContent)


def content_of(value: Any) -> Any:
    """Return strings and files unchanged, also in a list; anything else as JSON.

    The files in that JSON follow it, and their names take their place, because the model and the visitor cannot see
    bytes in a text, and the store keeps them only of files.
    """
    if isinstance(value, str):
        return fix_surrogates(value)
    if isinstance(value, BinaryContent):
        return value
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        if any(isinstance(item, BinaryContent) for item in items):
            return [part for item in items for part in _as_list(content_of(item))]
    text = to_json(value, fallback=str)
    if b'"kind":"binary"' not in text:
        return text.decode()
    files: list[BinaryContent] = []
    named = to_json(_with_names(json.loads(text), files)).decode()
    return [named, *files] if files else text.decode()


def _as_list(content: Any) -> list[Any]:
    return cast(list[Any], content) if isinstance(content, list) else [content]


def _with_names(value: Any, files: list[BinaryContent]) -> Any:
    """Return a JSON value with names instead of its files, and append these to `files`."""
    if isinstance(value, list):
        return [_with_names(item, files) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    if fields.get("kind") == "binary":
        with suppress(ValidationError):
            files.append(_FILE.validate_python(fields))
            return f"See file {files[-1].identifier}."
    return {key: _with_names(item, files) for key, item in fields.items()}
