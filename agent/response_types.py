"""The five kinds of responses of a run, as a union tagged by `type`, and the contents of tool calls and results.

A type checker that sees `response.type == "tool_call"` knows that `response.content` is a `ToolCallContent`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict, cast

ResponseType = Literal["output_text", "reasoning", "tool_call", "tool_call_result", "error"]
Role = Literal["assistant", "tool"]


class ToolCallContent(TypedDict):
    """The content of a `tool_call`: the call's id, the tool's name and the arguments as the model wrote them."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolResultContent(TypedDict):
    """The content of a `tool_call_result`: the id of its call, the tool's name, and the text that the model reads.

    `is_error` is True if the call failed or was refused. `is_refused` is there if a person refused it, and
    `files` if the result has more than text: `BinaryContent`, or URLs of content stored elsewhere.
    """

    id: str
    name: str
    content: str
    is_error: bool
    is_refused: NotRequired[bool]
    files: NotRequired[Sequence[Any]]


Content: TypeAlias = str | ToolCallContent | ToolResultContent

if TYPE_CHECKING:

    class _Base:
        """Only a class at run time has the constructor and the base of all responses."""

else:

    class Response:
        """One piece of the answer: text, reasoning, a tool call, a tool's result or an error.

        `content` is a delta of text for `output_text` and `reasoning`, a sentence for `error`, a `ToolCallContent` for
        `tool_call` and a `ToolResultContent` for `tool_call_result`. `is_type_switched` is True if the response begins
        a new bubble. `role` is "tool" for results of tools. `isinstance(value, Response)` is True for each kind.
        """

        __slots__ = ()

        def __new__(cls, type: str = "", *_: object, **__: object) -> "Response":
            if cls is Response and type not in _KINDS:
                raise ValueError(f"a response's type is one of {', '.join(_KINDS)}, not {type!r}")
            return object.__new__(_KINDS[type] if cls is Response else cls)

        def __init__(self, *given: object, **named: object) -> None:
            """Never called: `__new__` returns one of the five kinds, which have their own."""

    _Base = Response


@dataclass(frozen=True, slots=True)
class TextResponse(_Base):
    """A delta of the answer's text."""

    type: Literal["output_text"]
    content: str
    is_type_switched: bool
    role: Role = "assistant"


@dataclass(frozen=True, slots=True)
class ReasoningResponse(_Base):
    """A delta of the model's reasoning."""

    type: Literal["reasoning"]
    content: str
    is_type_switched: bool
    role: Role = "assistant"


@dataclass(frozen=True, slots=True)
class ToolCallResponse(_Base):
    """A whole tool call."""

    type: Literal["tool_call"]
    content: ToolCallContent
    is_type_switched: bool
    role: Role = "assistant"


@dataclass(frozen=True, slots=True)
class ToolResultResponse(_Base):
    """The result of a tool call."""

    type: Literal["tool_call_result"]
    content: ToolResultContent
    is_type_switched: bool
    role: Role = "tool"


@dataclass(frozen=True, slots=True)
class ErrorResponse(_Base):
    """The sentence that says why the run failed. It is the last response."""

    type: Literal["error"]
    content: str
    is_type_switched: bool
    role: Role = "assistant"


if TYPE_CHECKING:
    Response: TypeAlias = TextResponse | ReasoningResponse | ToolCallResponse | ToolResultResponse | ErrorResponse
    """One piece of the answer. `type` tells which."""

_KINDS: Mapping[str, type] = {
    "output_text": TextResponse,
    "reasoning": ReasoningResponse,
    "tool_call": ToolCallResponse,
    "tool_call_result": ToolResultResponse,
    "error": ErrorResponse,
}


def make_response(
    kind: ResponseType, content: str | Mapping[str, Any], *, is_type_switched: bool, role: Role = "assistant"
) -> Response:
    """Return the response of this kind. The caller answers for content that fits the kind."""
    return cast("Response", _KINDS[kind](kind, content, is_type_switched, role))
