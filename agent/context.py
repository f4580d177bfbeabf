"""The state of a conversation as a value: a run takes one and returns a new one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Self, cast
from uuid import uuid4

import pydantic_core
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse

from agent.errors import InputError
from agent.history.codec import dropped_fields
from agent.i18n.text import _
from agent.keyword_arguments import explains_fields, shown
from agent.messages.compaction import with_summary

_ASK = "pass messages in OpenAI's format in the prompt: agent.ask([*messages, prompt])"

VERSION = 1
"""The version of the JSON format. A new field, such as files, increases it."""


@explains_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The session's id and its messages, without the system message: all that a run needs to continue.

    `version` is the version of the JSON format.
    """

    session_id: str = field(default_factory=lambda: uuid4().hex)
    messages: tuple[ModelMessage, ...] = ()
    version: int = VERSION

    def __post_init__(self) -> None:
        for message in cast(tuple[object, ...], self.messages):
            if not isinstance(message, ModelRequest | ModelResponse):
                raise InputError(
                    "Context(messages=...) takes pydantic-ai's ModelRequest and ModelResponse, not "
                    f"{shown(message)}; {_ASK}"
                )

    def extended(self, *messages: ModelMessage) -> Self:
        """Return this context with messages added at the end."""
        return replace(self, messages=(*self.messages, *messages))

    def without_summary(self) -> Self:
        """Return this context without the summaries that a `Compaction` has made: all of it is sent again."""
        kept = [with_summary(one, None) if isinstance(one, ModelResponse) else one for one in self.messages]
        return replace(self, messages=tuple(kept))

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows of the conversation: its newest messages, with the prompts as quotations."""
        from agent.rendering.notebook import conversation_to_markdown

        return conversation_to_markdown(self.messages)

    def to_json(self) -> str:
        """Return the context as JSON. `from_json` restores it, and serializing that again gives the same bytes."""
        return _adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Context":
        """Parse the output of `to_json`. Raises `InputError`, also if a newer version wrote it, which can mean more.

        The error names each field that this version would drop, with its path.
        """
        if not isinstance(cast(object, text), str | bytes | bytearray):
            raise InputError(f"from_json takes the text of to_json, not a {type(text).__name__}; {_ASK}")
        try:
            plain = pydantic_core.from_json(text)
            if not isinstance(cast(object, plain), dict):
                raise InputError(f"not a context, but a JSON {type(plain).__name__}; {_ASK}")
            _check_version(plain)
            context = _adapter().validate_json(text)
            kept = _adapter().dump_python(context, mode="json", warnings=False)
        except ValidationError as error:
            raise InputError(f"not a context: {error.error_count()} fields do not fit") from error
        except ValueError as error:
            raise InputError(f"not a context: {error}") from error
        if unknown := sorted(dropped_fields(plain, kept)):
            raise _of_another_version(context.version, unknown)
        return context


def _check_version(plain: object) -> None:
    """Raise `InputError` for another version, which can also have other fields."""
    if not isinstance(plain, dict):
        return
    table = cast(dict[str, Any], plain)
    version = table.get("version", VERSION)
    if version != VERSION:
        raise _of_another_version(version, sorted(table.keys() - {one.name for one in fields(Context)}))


def _of_another_version(version: object, unknown: Sequence[str]) -> InputError:
    """Return the error for a version, or for fields, that this version of the program does not know."""
    return InputError(
        _(
            "This context was written by another version of this program (format {version}{unknown}). "
            "Update the program to read it.",
            version=repr(version),
            unknown="".join(f", {name!r}" for name in unknown),
        )
    )


@cache
def _adapter() -> TypeAdapter[Context]:
    """Build the adapter at its first use, because that takes 50 ms and many runs never need it."""
    return TypeAdapter(Context)
