"""Makes the content of a result of what a tool returned: text, and the files in it."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import BinaryContent
from pydantic_core import to_json

from agent.errors import ToolError
from agent.files.parts import Image, is_pillow
from agent.responses import fix_surrogates

MAX_RESULT = 50_000
"""The most characters of a result that the model gets, unless it is told otherwise."""
MAX_DEPTH = 100

_FILE = TypeAdapter(BinaryContent)


def content_of(value: Any, tool: str) -> Any:
    """Return strings and files unchanged, also in a list, pictures of Pillow as files, and anything else as JSON.

    The files in that JSON follow it, and their names take their place, because the model and the visitor cannot see
    bytes in a text, and the store keeps them only of files. Raises `ToolError` with the name of the `tool` for a value
    without a JSON form.
    """
    if isinstance(value, str):
        return fix_surrogates(value)
    if isinstance(value, BinaryContent):
        return value
    if is_pillow(value):
        return Image.from_pillow(value)
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        if any(isinstance(item, BinaryContent) or is_pillow(item) for item in items):
            return [part for item in items for part in _as_list(content_of(item, tool))]
    if isinstance(value, bytes | bytearray | memoryview):
        raise ToolError(
            f"The tool {tool!r} returned bytes. Image.from_bytes and Audio.from_bytes make a picture or a sound of "
            "them, and .decode() makes a text."
        )
    try:
        _refuse_iterators(cast(object, value))
        text = to_json(value, fallback=_plain)
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(
            f"The tool {tool!r} returned what is neither text nor JSON: {error}. A tool returns text, a picture, a "
            "sound, a file, or values of JSON such as lists and dicts."
        ) from error
    if b'"kind":"binary"' not in text:
        return text.decode()
    files: list[BinaryContent] = []
    named = to_json(_with_names(json.loads(text), files)).decode()
    return [named, *files] if files else text.decode()


def cut_content(content: Any, most: int = MAX_RESULT) -> tuple[Any, str, int]:
    """Return the content with at most `most` characters, a note for the model, and the length of the whole content.

    The note is "" if all of it is there.
    """
    items: list[Any] = _as_list(content)
    length = sum(len(item) for item in items if isinstance(item, str))
    if length <= most:
        return content, "", length
    note = f"The result has {length} characters. Only its beginning is here: ask for less at a time."
    left = max(0, most - len(note) - 10)  # for the brackets and the blank line around the note
    kept: list[Any] = []
    for item in items:
        if isinstance(item, str):
            item, left = item[:left], max(0, left - len(item))
        if item:
            kept.append(item)
    return (kept if isinstance(content, list) else "".join(kept)), note, length


def _refuse_iterators(value: object, depth: int = 0) -> None:
    """Raise `TypeError` for an iterator, also inside lists and dicts, because pydantic would read it to its end."""
    if isinstance(value, Iterator | AsyncIterator):
        kind = type(cast(object, value)).__name__
        raise TypeError(f"{kind!r} yields values one by one; return list(...) of them")
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, Mapping):
        value = [*cast(Mapping[object, object], value).values()]
    for item in cast(Sequence[object], value) if isinstance(value, list | tuple) else ():
        _refuse_iterators(item, depth + 1)


def _plain(value: Any) -> Any:
    """Return what JSON has for a value that pydantic does not know: a file, or the value's own text.

    Raises `TypeError` for an object that has no text but its address.
    """
    if is_pillow(value):
        return Image.from_pillow(value)
    if type(value).__str__ is object.__str__ and repr(value).startswith("<"):
        raise TypeError(f"{type(value).__name__!r} has no text")
    return str(value)


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
