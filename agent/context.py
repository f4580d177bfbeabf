"""The state of a conversation, as a value: what a run is given and what it gives back."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage

from agent.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything a run needs to go on from: the session's id and its messages, the system message not among them.

    `version` is that of its JSON: what a session comes to hold besides, such as files, raises it.
    """

    session_id: str = field(default_factory=lambda: uuid4().hex)
    messages: tuple[ModelMessage, ...] = ()
    version: int = 1

    def extended(self, *messages: ModelMessage) -> Self:
        """This context with messages added at the end."""
        return replace(self, messages=(*self.messages, *messages))

    def to_json(self) -> str:
        """The context as JSON; what `from_json` makes of it sends the same, and its JSON is the same bytes."""
        return _adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Context":
        """Read what `to_json` wrote. Raises `InputError`."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            raise InputError(f"not a context: {error.error_count()} fields do not fit") from error


@cache
def _adapter() -> TypeAdapter[Context]:
    """Built at its first use, which takes 50 ms and many runs never come to."""
    return TypeAdapter(Context)
