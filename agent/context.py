"""The state of a conversation as a value: a run takes one and returns a new one."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage

from agent.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The session's id and its messages, without the system message: all that a run needs to continue.

    `version` is the version of the JSON format. A new field, such as files, will increase it.
    """

    session_id: str = field(default_factory=lambda: uuid4().hex)
    messages: tuple[ModelMessage, ...] = ()
    version: int = 1

    def extended(self, *messages: ModelMessage) -> Self:
        """Return this context with messages added at the end."""
        return replace(self, messages=(*self.messages, *messages))

    def to_json(self) -> str:
        """Return the context as JSON. `from_json` restores it, and serializing that again gives the same bytes."""
        return _adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Context":
        """Parse the output of `to_json`. Raises `InputError`."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            raise InputError(f"not a context: {error.error_count()} fields do not fit") from error


@cache
def _adapter() -> TypeAdapter[Context]:
    """Build the adapter at its first use, because that takes 50 ms and many runs never need it."""
    return TypeAdapter(Context)
