"""What a run says, piece by piece, and the one place that decides where a bubble begins.

A bubble is a maximal run of responses of one type; a tool call, a tool result and an error are each a bubble of their
own, and a new run starts a new one. Whether a response begins a bubble is decided by `Stamp` alone; what the pieces of
a model's answer are, by `pieces` (a finished message) and `Live` (the same message while it streams), which must agree
to the character: `tests/test_laws.py` holds them to it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
)

ResponseType = Literal["output_text", "reasoning", "tool_call", "tool_call_result", "error"]
Role = Literal["assistant", "tool"]
Content = str | Mapping[str, Any]
Piece = tuple[ResponseType, Content]

PART_SEPARATOR = "\n\n"
"""Stands between two parts of one type that follow each other, as a delta of its own."""

_HALF = re.compile("[\ud800-\udfff]")
_FIRST_HALVES = re.compile("[\ud800-\udbff]+$")


@dataclass(frozen=True, slots=True)
class Response:
    """One piece of the answer.

    `content` is a delta of text for `output_text` and `reasoning`, a sentence for `error`,
    `{id, name, arguments}` for `tool_call` and `{id, name, content, is_error}` for `tool_call_result`.
    `is_type_switched` is True where a new bubble begins.
    """

    type: ResponseType
    content: Content
    is_type_switched: bool
    role: Role = "assistant"


class BubbleMarker:
    """Turns the pieces of one run into responses; knows the type of the last one and nothing else."""

    def __init__(self) -> None:
        self._open: ResponseType | None = None

    def __call__(self, piece: Piece) -> Response:
        kind, content = piece
        joins = kind == self._open and kind in ("output_text", "reasoning")
        self._open = kind
        role: Role = "tool" if kind == "tool_call_result" else "assistant"
        return Response(type=kind, content=content, is_type_switched=not joins, role=role)


def pieces_of(message: ModelMessage) -> Iterator[Piece]:
    """The pieces of a finished message, as its stream gave them: a response's text and reasoning, then its calls.

    What a user said is not the model's answer and gives nothing.
    """
    if isinstance(message, ModelRequest):
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                yield "tool_call_result", result_content(part)
        return
    open_kind: ResponseType | None = None
    for part in message.parts:
        if isinstance(part, TextPart | ThinkingPart) and part.content:
            kind = _kind(part)
            if kind == open_kind:
                yield kind, PART_SEPARATOR
            yield kind, part.content
            open_kind = kind
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            yield "tool_call", call_content(part)


def fix_surrogates(text: str) -> str:
    """The text with the halves of surrogate pairs joined, and U+FFFD for one that is alone.

    Servers that cut their text between UTF-16 units send such halves; UTF-8 has no form for them, so they can be
    neither stored, nor shown, nor sent to any provider.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _HALF.search(text) else text


def call_content(part: ToolCallPart) -> Mapping[str, Any]:
    """`{id, name, arguments}`; arguments that are not a JSON object are given as they came, under `INVALID_JSON`."""
    return {"id": part.tool_call_id, "name": part.tool_name, "arguments": part.args_as_dict()}


def result_content(part: ToolReturnPart) -> Mapping[str, Any]:
    """`{id, name, content, is_error}`; content is what the model reads of it as text.

    Where there is more than text, `files` are the rest: `BinaryContent`, or URLs of what is kept elsewhere.
    """
    files = {"files": part.files} if part.files else {}
    return {
        "id": part.tool_call_id,
        "name": part.tool_name,
        "content": part.content if isinstance(part.content, str) else part.model_response_str(),
        "is_error": part.outcome != "success",
        **files,
    }


def finalize(response: ModelResponse, *, state: Literal["complete", "interrupted"]) -> ModelResponse:
    """The message to keep of a streamed response.

    Newlines between reasoning and text go (chat templates put them there), half a character at the end of a part goes,
    parts that say nothing go, and of an interrupted response the calls go too: they were never announced, and may be
    half made.
    """
    kept: list[ModelResponsePart] = []
    shown: ResponseType | None = None
    for part in response.parts:
        if isinstance(part, ToolCallPart) and state == "interrupted":
            continue
        if isinstance(part, TextPart | ThinkingPart):
            text = fix_surrogates(_FIRST_HALVES.sub("", part.content))
            if isinstance(part, TextPart) and shown == "reasoning":
                text = text.lstrip("\n")
            part = replace(part, content=text)
            if part.content:
                shown = _kind(part)
            elif not part.provider_details and not (isinstance(part, ThinkingPart) and part.signature):
                continue
        kept.append(part)
    return replace(response, parts=kept, state=state)


class StreamDecoder:
    """The pieces of a response while it streams: feed it pydantic-ai's events, get text and reasoning deltas.

    Tool calls are left to `pieces`, when the response is complete and its calls are known to be whole.
    """

    def __init__(self) -> None:
        self._shown: ResponseType | None = None
        self._shown_index: int | None = None
        self._trim = False
        self._held: dict[int, str] = {}

    def feed(self, event: ModelResponseStreamEvent) -> Sequence[Piece]:
        """The pieces that `event` adds, none for events that add nothing to see."""
        match event:
            case PartStartEvent(part=TextPart() | ThinkingPart() as part):
                kind = _kind(part)
                self._trim = kind == "output_text" and self._shown == "reasoning"
                return self._emit(event.index, kind, part.content)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                return self._emit(event.index, "output_text", text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                return self._emit(event.index, "reasoning", text or "")
            case _:
                return ()

    def _emit(self, index: int, kind: ResponseType, text: str) -> Sequence[Piece]:
        text = self._held.pop(index, "") + text
        if half := _FIRST_HALVES.search(text):  # the rest of the character comes with the next delta, or never
            text, self._held[index] = text[: half.start()], half[0]
        text = fix_surrogates(text)
        if self._trim:
            text = text.lstrip("\n")
        if not text:
            return ()
        self._trim = False
        joins = kind == self._shown and index != self._shown_index
        self._shown, self._shown_index = kind, index
        return ((kind, PART_SEPARATOR), (kind, text)) if joins else ((kind, text),)


def _kind(part: TextPart | ThinkingPart) -> ResponseType:
    return "output_text" if isinstance(part, TextPart) else "reasoning"
