"""A conversation in one JSON file: its context, and the suspended run that waits for an answer, if there is one.

The file belongs to its user and is trusted. It is replaced as a whole, so that it is never half written.
"""

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage

from agent.context import Context
from agent.errors import HistoryError, InputError
from agent.history import Note
from agent.result import Journal
from agent.suspension.suspended_run import SCHEMA, Suspension

FORMAT, VERSION = "switchboard conversation", 1

# A list, because an adapter of one dataclass accepts no config, and bytes need this one.
_SUSPENSIONS = TypeAdapter(
    list[Suspension],
    config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", defer_build=True),
)


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation between two runs."""

    context: Context = field(default_factory=Context)
    suspension: Suspension | None = None


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """The file of one conversation."""

    path: Path

    def load(self) -> ConversationState:
        """Read the file. Without a file, return a new conversation. Raises `InputError` for any other file."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ConversationState()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"The conversation {self.path.name!r} cannot be read: {error}") from error
        try:
            found: object = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or cast(dict[str, Any], found).get("format") != FORMAT:
            raise InputError(f"{self.path.name!r} is no conversation that was kept here; it is left as it is.")
        table = cast(dict[str, Any], found)
        if table.get("version") != VERSION:
            raise InputError(f"{self.path.name!r} was kept by another version of this program; it is left as it is.")
        try:
            context = Context.from_json(json.dumps(table.get("context")))
            suspended = [table["suspension"]] if table.get("suspension") else []
            [*suspension] = _SUSPENSIONS.validate_json(json.dumps(suspended))
        except (InputError, ValidationError) as error:
            raise InputError(f"The conversation {self.path.name!r} is damaged; it is left as it is.") from error
        if any(one.schema != SCHEMA for one in suspension):
            raise InputError(f"{self.path.name!r} was kept by another version of this program; it is left as it is.")
        return ConversationState(context, suspension[0] if suspension else None)

    def save(self, state: ConversationState) -> None:
        """Replace the file. Raises `HistoryError` if that fails."""
        waiting = [state.suspension] if state.suspension is not None else []
        [*suspended] = json.loads(_SUSPENSIONS.dump_json(waiting))
        value = {
            "format": FORMAT,
            "version": VERSION,
            "context": json.loads(state.context.to_json()),
            "suspension": suspended[0] if suspended else None,
        }
        folder = self.path.parent
        try:
            with NamedTemporaryFile("w", dir=folder, prefix=".", suffix=".tmp", delete=False, encoding="utf-8") as new:
                try:
                    json.dump(value, new, ensure_ascii=False)
                    new.flush()
                    os.fsync(new.fileno())
                    os.replace(new.name, self.path)
                except BaseException:
                    os.unlink(new.name)
                    raise
        except OSError as error:
            raise HistoryError(f"The conversation cannot be kept in {str(self.path)!r}: {error.strerror}") from error

    def journal(self, context: Context) -> Journal:
        """Return a journal that stores each message of a run when it is finished. A crash loses only the last one."""
        return _Journal(self, context)


class _Journal:
    """Writes the conversation so far to the file."""

    def __init__(self, file: ConversationFile, context: Context) -> None:
        self._file, self._context = file, context

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Store the conversation with this message."""
        del note
        self._context = self._context.extended(message)
        await asyncio.to_thread(self._file.save, ConversationState(self._context))
