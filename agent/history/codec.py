"""Converts entries and conversations to JSON text and back. All stores keep this form, so that they answer alike.

Values that would not load again are refused before anything is written: one unreadable message would make its whole
conversation unreadable. Fields that a newer version has added are found. Knows nothing of the storage itself.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.messages import BaseToolCallPart, BinaryContent, FileUrl

from agent.errors import HistoryError
from agent.history.search import fold, searchable_text
from agent.history.values import Conversation, Entry
from agent.i18n.text import _
from agent.system.threads import DECODING

log = logging.getLogger(__name__)

# The byte encoding of pydantic-ai's own message adapter. An adapter of one dataclass takes no config, but an adapter of
# a list does. Without it, bytes in a provider's details could not be written at all.
_ENTRIES = TypeAdapter(list[Entry], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))
_CONVERSATIONS = TypeAdapter(list[Conversation])

STEP_CHARACTERS = 100_000
"""The text that is validated at once, in milliseconds. One message can be longer."""
SHORT_CHARACTERS = 20_000
"""Shorter text is validated without a thread."""
_NEW = timedelta(minutes=1)
"""The age of messages that an import did not bring."""

FEW_ENTRIES = 8
"""Entries that are encoded without a thread: those of one step of an answer."""

S = TypeVar("S", str, bytes)
T = TypeVar("T")
V = TypeVar("V", Entry, Conversation)


def dump_entries(entries: Sequence[Entry]) -> list[str]:
    """Return each entry as one JSON object. Raises `HistoryError` if one of them would not load again.

    Text is kept as it is, except for surrogates, which UTF-8 cannot encode and no provider takes: two that form a pair
    are joined, and a lone one becomes U+FFFD.
    """
    return [_dump(_ENTRIES, entry, entry.id) for entry in entries]


async def dumped(entries: Sequence[Entry]) -> tuple[list[str], list[str]]:
    """Return `dump_entries`, and the text of each entry as a search compares it. A thread makes many of them."""

    def both() -> tuple[list[str], list[str]]:
        return dump_entries(entries), [fold(searchable_text(entry)) for entry in entries]

    is_quick = len(entries) <= FEW_ENTRIES and sum(map(_characters, entries)) <= STEP_CHARACTERS
    return both() if is_quick else await DECODING.run(both)


def _characters(entry: Entry) -> int:
    """Return about how long a message is. A value that is neither text nor file counts as long."""
    items: list[Any] = [str(entry.note.detail)]
    for part in getattr(entry.message, "parts", ()):  # an invalid message is refused later
        content: Any = part.args if isinstance(part, BaseToolCallPart) else getattr(part, "content", None)
        items += content if isinstance(content, list | tuple) else [content or ""]
    found = 0
    for item in items:
        text = item.data if isinstance(item, BinaryContent) else getattr(item, "content", item)
        is_known = isinstance(text, str | bytes)
        found += len(text) if is_known else 0 if isinstance(text, FileUrl) else STEP_CHARACTERS + 1
    return found


def load_entries(texts: Iterable[str]) -> list[Entry]:
    """Return the entries of many JSON objects, validated in one call. Raises `HistoryError` if one is damaged."""
    return _load(_ENTRIES, texts)


async def in_steps(load: Callable[[Sequence[S]], list[T]], texts: Sequence[S]) -> list[T]:
    """Return what `load` makes of all texts, in a thread. Others have their turn after `STEP_CHARACTERS` of them."""
    if sum(map(len, texts)) < SHORT_CHARACTERS:
        return load(texts)
    loaded, begin, size = list[T](), 0, 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if size >= STEP_CHARACTERS or end == len(texts):
            loaded += await DECODING.run(load, texts[begin:end])
            begin, size = end, 0
    return loaded


def dump_conversation(conversation: Conversation) -> str:
    """Return the conversation as one JSON object. Raises `HistoryError` if it would not load again."""
    return _dump(_CONVERSATIONS, conversation, conversation.id)


def reload_conversation(conversation: Conversation) -> tuple[Conversation, str]:
    """Return the conversation as it will load again, and its JSON. Raises `HistoryError` if it would not load."""
    return _reload(_CONVERSATIONS, conversation, conversation.id)


def next_revision(conversation: Conversation, entries: Sequence[Entry], at: datetime) -> tuple[Conversation, str]:
    """Return what the next save stores of a conversation that is saved at this time, as `reload_conversation` does.

    Its `updated_at` is this time if it gets new messages. An imported one keeps the time of its newest message.
    """
    updated_at = at if entries or not conversation.revision else conversation.updated_at
    if conversation.source and updated_at == at:
        newest = max([conversation.updated_at, *(entry.note.at for entry in entries)])
        updated_at = newest if newest < at - _NEW else at
    return reload_conversation(replace(conversation, revision=conversation.revision + 1, updated_at=updated_at))


def place_at(time: datetime) -> int:
    """Return the place of a conversation in the list that got its newest messages then: microseconds since 1970."""
    return max(round(time.timestamp() * 1e6), 0)


def stored_title(title: str) -> str:
    """Return a title as it will load again."""
    return reload_conversation(Conversation(owner="", title=title))[0].title


def load_conversations(texts: Iterable[str]) -> list[Conversation]:
    """Return the conversations of many JSON objects, validated in one call. Raises `HistoryError` if one is damaged."""
    return _load(_CONVERSATIONS, texts)


def load_undamaged(text: str) -> Conversation | None:
    """Return the conversation of one JSON object, or None if it is damaged, which is logged."""
    try:
        return load_conversations([text])[0]
    except HistoryError as error:
        log.warning("a conversation cannot be read: %s", error)
        return None


def _dump(adapter: TypeAdapter[list[V]], value: V, name: str) -> str:
    return _reload(adapter, value, name)[1]


def _reload(adapter: TypeAdapter[list[V]], value: V, name: str) -> tuple[V, str]:
    """Return the value as it will load again, and its JSON."""
    try:
        text = _write(adapter, value)
        # The serialiser accepts parts of an unknown kind; only reading the text back reveals them.
        same = adapter.validate_json(f"[{text}]")[0]
    except (ValueError, TypeError, AttributeError) as error:
        raise HistoryError(f"{type(value).__name__} {name!r} cannot be stored: {_first_line(error)}") from error
    if _identity(same) != _identity(value):
        raise HistoryError(f"{type(value).__name__} {name!r} cannot be stored: its ids or owner are not plain text.")
    return same, text


def _load(adapter: TypeAdapter[list[T]], texts: Iterable[str]) -> list[T]:
    try:
        return adapter.validate_json(f"[{','.join(texts)}]")
    except ValidationError as error:
        raise HistoryError(_("A stored conversation is damaged: {error}", error=_first_line(error))) from error


def _write(adapter: TypeAdapter[list[Any]], value: Entry | Conversation) -> str:
    try:
        return adapter.dump_json([value], warnings=False)[1:-1].decode()
    except ValueError:
        # Probably a lone surrogate. Anything else fails here again.
        (plain,) = adapter.dump_python([value], mode="json", warnings=False)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _identity(value: Entry | Conversation) -> tuple[object, ...]:
    match value:
        case Entry():
            return value.id, value.parent_id
        case Conversation():
            return value.id, value.owner, value.head_id, value.branches


def _first_line(error: Exception) -> str:
    """Return the reason without the value: a validation error would quote text that people wrote."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}."
    return str(error).partition("\n")[0]


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
    """Yield the path of each field of the JSON value `given` that `kept`, the value that was read, does not have.

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
