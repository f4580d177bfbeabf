"""Writes a history file of the first released schema with 100,000 messages, by SQL alone.

`python -m tests.support.first_schema FILE` writes one to look at.
"""

import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from agent.history import Entry, Record
from agent.history.codec import dump_entries, dump_record
from agent.history.sqlite_schema import MIGRATIONS
from tests.support.history_stores import prompt

LENGTHS = [25] * 3800 + [4960, 40]
"""The number of messages of each conversation, 100,000 in all."""
OWNERS = 40
LARGE_CHARACTERS = 3_000_000
"""Characters of each message of the last conversation."""
LATER_FIELDS = ("pinned", "omitted", "queued", "generated", "cached_tokens")
"""Fields of records, notes and timings that the first release did not have."""

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_WORDS = "The answer to that question depends on the weather, the harbour and the price of paper. " * 20


def owner_of(conversation: int) -> str:
    """Return the owner of a conversation."""
    return f"visitor:{conversation % OWNERS}"


def text_of(conversation: int, message: int) -> str:
    """Return the text of a message. Its first word is in no other message."""
    if conversation == len(LENGTHS) - 1:
        return f"m{conversation}x{message}m " + "long " * (LARGE_CHARACTERS // 5)
    return f"m{conversation}x{message}m " + _WORDS[: 200 + (conversation * 31 + message * 17) % 1000]


def write_first_schema(path: Path, lengths: Sequence[int] = LENGTHS) -> None:
    """Write the file, with conversations of these lengths."""
    request, response = _templates()
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        for statement in MIGRATIONS[0]:
            file.execute(statement)
        file.execute("PRAGMA user_version = 1")
        file.execute("BEGIN")
        for number, length in enumerate(lengths):
            file.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?)", _conversation(number, length))
            file.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", _entries(number, length, request, response))
        file.execute("COMMIT")


def _conversation(number: int, length: int) -> tuple[Any, ...]:
    record = Record(
        id=f"c{number}",
        owner=owner_of(number),
        title=f"Title t{number}t",
        head_id=f"e{length - 1}",
        revision=length // 2,
        created_at=_AT,
        updated_at=_AT,
    )
    text = json.dumps(_as_first_released(json.loads(dump_record(record))), separators=(",", ":"))
    return record.id, record.owner, number, record.revision, record.head_id, None, text


def _entries(number: int, length: int, request: str, response: str) -> Iterator[tuple[Any, ...]]:
    for message in range(length):
        parent = f"e{message - 1}" if message else None
        text = (response if message % 2 else request).replace('"ID"', f'"e{message}"')
        text = text.replace('"PARENT"', json.dumps(parent)).replace("TEXT", text_of(number, message))
        yield f"c{number}", f"e{message}", parent, text


def _templates() -> tuple[str, str]:
    """Return a request and a response, with ID, PARENT and TEXT in them."""
    answer = ModelResponse([ThinkingPart("Hm. " * 20, signature="s" * 100), TextPart("TEXT")], timestamp=_AT)
    entries = [Entry(id="ID", parent_id="PARENT", message=message) for message in (prompt("TEXT"), answer)]
    found = [_as_first_released(json.loads(text)) for text in dump_entries(entries)]
    request, response = (json.dumps(one, separators=(",", ":")) for one in found)
    return request, response


def _as_first_released(value: Any) -> Any:
    """Return the JSON value without the fields that came later."""
    match value:
        case dict():
            return {key: _as_first_released(one) for key, one in value.items() if key not in LATER_FIELDS}
        case list():
            return [_as_first_released(one) for one in value]
        case _:
            return value


if __name__ == "__main__":
    write_first_schema(Path(sys.argv[1]))
