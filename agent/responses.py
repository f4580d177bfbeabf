"""The responses of a run, piece by piece, and the one place that decides where a bubble begins.

A bubble is a maximal sequence of responses of one type. A tool call, a tool result, a user's message and an error are
each a bubble of their own, and a new run starts a new bubble. Only `BubbleMarker` decides where a bubble begins.
`pieces_of` splits a finished message into pieces, and `StreamDecoder` does so while the message streams. Both must
agree to the character, which `tests/core/test_laws.py` checks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.citations import READ, SEARCH, fitting, provider_search, with_dropped, with_texts_joined

ResponseType = Literal["output_text", "reasoning", "tool_call", "tool_call_result", "user_message", "error"]
Role = Literal["assistant", "tool", "user"]


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
        """One piece of the answer: text, reasoning, a tool call, a tool's result, a user's message or an error.

        `content` is a delta of text for `output_text` and `reasoning`, a sentence for `error`, a `ToolCallContent` for
        `tool_call`, a `ToolResultContent` for `tool_call_result`, and the whole text for `user_message`.
        `is_type_switched` is True if the response begins a new bubble. `role` is "tool" for results of tools, and
        "user" for a message that steers the run. `isinstance(value, Response)` is True for each kind.
        """

        __slots__ = ()

        def __new__(cls, type: str = "", *_: object, **__: object) -> "Response":
            if cls is Response and type not in _KINDS:
                raise ValueError(f"a response's type is one of {', '.join(_KINDS)}, not {type!r}")
            return object.__new__(_KINDS[type] if cls is Response else cls)

        def __init__(self, *given: object, **named: object) -> None:
            """Never called: `__new__` returns one of the six kinds, which have their own."""

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
class UserMessageResponse(_Base):
    """A message that steers the run, at the place where the model gets it. See `Run.steer`."""

    type: Literal["user_message"]
    content: str
    is_type_switched: bool
    role: Role = "user"


@dataclass(frozen=True, slots=True)
class ErrorResponse(_Base):
    """The sentence that says why the run failed. It is the last response."""

    type: Literal["error"]
    content: str
    is_type_switched: bool
    role: Role = "assistant"


if TYPE_CHECKING:
    Response: TypeAlias = (
        TextResponse | ReasoningResponse | ToolCallResponse | ToolResultResponse | UserMessageResponse | ErrorResponse
    )
    """One piece of the answer. `type` tells which."""

_KINDS: Mapping[str, type] = {
    "output_text": TextResponse,
    "reasoning": ReasoningResponse,
    "tool_call": ToolCallResponse,
    "tool_call_result": ToolResultResponse,
    "user_message": UserMessageResponse,
    "error": ErrorResponse,
}


def make_response(
    kind: ResponseType, content: str | Mapping[str, Any], *, is_type_switched: bool, role: Role = "assistant"
) -> Response:
    """Return the response of this kind. The caller answers for content that fits the kind."""
    return cast("Response", _KINDS[kind](kind, content, is_type_switched, role))


Piece = tuple[ResponseType, str | Mapping[str, Any]]

PART_SEPARATOR = "\n\n"
"""A delta that separates two consecutive parts of one type."""

_LINE_ENDS = "\r\n"
STEERED = "steered"
"""The key in the metadata of a message that steers a run: its value is the id of the message."""
_ROLES: Mapping[ResponseType, Role] = {"tool_call_result": "tool", "user_message": "user"}
_HALF = re.compile("[\ud800-\udfff]")
_FIRST_HALVES = re.compile("[\ud800-\udbff]+$")


class BubbleMarker:
    """Turns the pieces of one run into responses. Its only state is the type of the last piece, `open`."""

    def __init__(self) -> None:
        self.open: ResponseType | None = None

    def __call__(self, piece: Piece) -> Response:
        kind, content = piece
        joins = kind == self.open and kind in ("output_text", "reasoning")
        self.open = kind
        return make_response(kind, content, is_type_switched=not joins, role=_ROLES.get(kind, "assistant"))


def steering_message(text: str, id_: str) -> ModelRequest:
    """Return the message that steers a run with this text."""
    return ModelRequest(parts=[UserPromptPart(text)], metadata={STEERED: id_})


def steering_id(message: ModelMessage) -> str:
    """Return the id of a message that has steered a run, or ""."""
    marks = message.metadata if isinstance(message, ModelRequest) else None
    return str(marks.get(STEERED, "")) if marks else ""


def steered_text(message: ModelMessage) -> str | None:
    """Return the text of a message that has steered a run, or None for any other message."""
    if not isinstance(message, ModelRequest) or not message.metadata or STEERED not in message.metadata:
        return None
    match message.parts:
        case [UserPromptPart(content=str(text))]:
            return text
        case _:
            return None


def pieces_of(message: ModelMessage) -> Iterator[Piece]:
    """Yield the pieces of a finished message as its stream gave them: text and reasoning, then tool calls.

    A request yields only its tool results, or the text with which it has steered the run. Other user prompts yield
    nothing, and neither do parts of white space alone.
    """
    return (piece for piece, _ in pieces_with_texts(message))


def pieces_with_texts(message: ModelMessage) -> Iterator[tuple[Piece, TextPart | None]]:
    """Yield `pieces_of` the message. A piece with the text of a `TextPart` comes with that part, for its citations."""
    if isinstance(message, ModelRequest):
        if (text := steered_text(message)) is not None:
            yield ("user_message", text), None
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                yield ("tool_call_result", result_content(part)), None
        return
    open_kind: ResponseType | None = None
    searches = {part.tool_call_id: part for part in message.parts if isinstance(part, NativeToolCallPart)}
    for part in message.parts:
        if isinstance(part, NativeToolReturnPart) and (call := searches.get(part.tool_call_id)):
            yield from ((piece, None) for piece in search_pieces(call, part))
            open_kind = None
        if isinstance(part, TextPart | ThinkingPart) and not is_blank(part.content):
            kind = _kind(part)
            if kind == open_kind:
                yield (kind, PART_SEPARATOR), None
            yield (kind, part.content), part if isinstance(part, TextPart) else None
            open_kind = kind
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            yield ("tool_call", call_content(part)), None


def search_pieces(call: NativeToolCallPart, result: NativeToolReturnPart) -> Iterator[Piece]:
    """Yield a search of the model's provider as a call and its result. Nothing else that providers run is shown."""
    if call.tool_name != SEARCH:
        return
    name, asked, found = provider_search(call, result)
    made: ToolCallContent = {
        "id": call.tool_call_id,
        "name": name,
        "arguments": {"url" if name == READ else "query": fix_surrogates(asked)},
    }
    yield "tool_call", made
    ended: ToolResultContent = {
        "id": call.tool_call_id,
        "name": name,
        "content": fix_surrogates(found),
        "is_error": found.startswith("The search failed"),
    }
    yield "tool_call_result", ended


def is_blank(text: str) -> bool:
    """Return True if the text is empty or only white space: then it makes no bubble, because nobody could see it."""
    return not text or text.isspace()


def fix_surrogates(text: str) -> str:
    """Return the text with the halves of surrogate pairs joined, and U+FFFD for each single half.

    Servers that cut their text between UTF-16 units send such halves. UTF-8 cannot encode them, so they cannot be
    stored, shown or sent to any provider.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _HALF.search(text) else text


def call_content(part: ToolCallPart) -> ToolCallContent:
    """Return `{id, name, arguments}`. Arguments that are not a JSON object are left as text under `INVALID_JSON`."""
    return {"id": part.tool_call_id, "name": part.tool_name, "arguments": part.args_as_dict()}


def result_content(part: ToolReturnPart) -> ToolResultContent:
    """Return `{id, name, content, is_error}`. `content` is the text that the model reads.

    A call that a person refused has `is_refused`, too. If there is more than text, `files` has the rest:
    `BinaryContent`, or URLs of content stored elsewhere.
    """
    content: ToolResultContent = {
        "id": part.tool_call_id,
        "name": part.tool_name,
        "content": part.content if isinstance(part.content, str) else part.model_response_str(),
        "is_error": part.outcome != "success",
    }
    if part.outcome == "denied":
        content["is_refused"] = True
    if part.files:
        content["files"] = part.files
    return content


def finalize(
    response: ModelResponse, *, state: Literal["complete", "interrupted"], seam: str = "", one_text: bool = False
) -> ModelResponse:
    """Return the message to store for a streamed response.

    Remove newlines between reasoning and text (chat templates add them), half a character at the end of a part, and
    parts that are empty or only white space, unless a provider wants them back. From an interrupted response also
    remove the tool calls, which were never announced and can be incomplete. `seam` is the white space at the end of the
    text that the response continues: it is not repeated. Citations that point nowhere are removed and counted.
    `one_text`: texts that follow one another are one text.
    """
    response = with_texts_joined(response) if one_text else response
    kept: list[ModelResponsePart] = []
    searched = {part.tool_call_id for part in response.parts if isinstance(part, NativeToolReturnPart)}
    has_shown = after_reasoning = False
    dropped = 0
    for part in response.parts:
        if isinstance(part, ToolCallPart) and state == "interrupted":
            continue
        if isinstance(part, NativeToolCallPart) and part.tool_call_id not in searched:
            continue  # the provider would refuse it without its result
        if isinstance(part, TextPart | ThinkingPart):
            fixed = text = fix_surrogates(_FIRST_HALVES.sub("", part.content))
            blank = is_blank(text)
            if isinstance(part, ThinkingPart):
                after_reasoning = after_reasoning or bool(text)
            elif not blank:
                text = text.lstrip(_LINE_ENDS) if after_reasoning else text
                text = text if has_shown else _without_repeated(text, seam)
                after_reasoning = False
            if isinstance(part, TextPart) and part.citations:
                citations = fitting(part, text, len(fixed) - len(text))
                dropped += len(part.citations) - len(citations)
                part = replace(part, citations=citations or None)
            part = replace(part, content=text)
            if blank and not part.provider_details and not (isinstance(part, ThinkingPart) and part.signature):
                continue
            has_shown = has_shown or not blank
        kept.append(part)
    return with_dropped(replace(response, parts=kept, state=state), dropped)


class StreamDecoder:
    """Decodes pydantic-ai's stream events into text and reasoning deltas.

    It skips tool calls, except searches of the model's provider. They are emitted after the response is complete,
    because only then are they known to be whole. `seam` and `one_text` are as in `finalize`.
    """

    def __init__(self, seam: str = "", *, one_text: bool = False) -> None:
        self._seam, self._one_text = seam, one_text
        self._last_text: int | None = None
        """The index of the newest part, if that is a text."""
        self._first_texts: dict[int, int] = {}
        """For each text that goes on with the one before: the index of the first of them."""
        self._shown: ResponseType | None = None
        self._shown_index: int | None = None
        self._after_reasoning = False
        self._halves: dict[int, str] = {}
        self._begun: dict[int, ResponseType] = {}
        self._relabelled: Piece | None = None
        self._searches: dict[str, NativeToolCallPart] = {}
        """The searches of the model's provider, by their ids."""
        self._blank: dict[int, list[str]] = {}
        """The white space that each part begins with. It is held back until more of the part comes, or for ever."""

    def feed(self, event: ModelResponseStreamEvent) -> Sequence[Piece]:
        """Return the pieces that `event` adds; none for events that add nothing visible."""
        if isinstance(event, PartStartEvent):
            if event.index in self._begun:
                self._note_replaced(event)
                return ()
            self._note_start(event)
        match event:
            case PartStartEvent(part=TextPart() | ThinkingPart() as part):
                return self._emit(event.index, _kind(part), part.content)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                return self._emit(event.index, "output_text", text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                return self._emit(event.index, "reasoning", text or "")
            case PartEndEvent(part=NativeToolCallPart() as call):
                self._searches[call.tool_call_id] = call
                return ()
            case PartStartEvent(part=NativeToolReturnPart() as part) if part.tool_call_id in self._searches:
                self._shown = self._shown_index = None
                return [*search_pieces(self._searches[part.tool_call_id], part)]
            case _:
                return ()

    def take_relabelled(self) -> Piece | None:
        """Return the last bubble's new type and its whole text if the latest event has changed its type."""
        taken, self._relabelled = self._relabelled, None
        return taken

    def _note_replaced(self, event: PartStartEvent) -> None:
        if isinstance(event.part, TextPart | ThinkingPart) and self._begun[event.index] != (kind := _kind(event.part)):
            self._begun[event.index] = self._shown = kind
            self._after_reasoning = kind == "reasoning"
            self._relabelled = kind, fix_surrogates(event.part.content)

    def _note_start(self, event: PartStartEvent) -> None:
        is_text = isinstance(event.part, TextPart)
        if self._one_text and is_text and self._last_text is not None and event.index == self._last_text + 1:
            self._first_texts[event.index] = self._first_texts.get(self._last_text, self._last_text)
        self._last_text = event.index if is_text else None

    def _emit(self, index: int, kind: ResponseType, text: str) -> Sequence[Piece]:
        index = self._first_texts.get(index, index)
        text = self._halves.pop(index, "") + text
        if half := _FIRST_HALVES.search(text):  # the rest of the character comes with the next delta, or never
            text, self._halves[index] = text[: half.start()], half[0]
        text = fix_surrogates(text)
        if kind == "reasoning" and text:
            self._after_reasoning = True
        if index not in self._begun:
            text = self._beginning(index, kind, text)
        if not text:
            return ()
        joins = kind == self._shown and index != self._shown_index
        self._shown, self._shown_index = kind, index
        return ((kind, PART_SEPARATOR), (kind, text)) if joins else ((kind, text),)

    def _beginning(self, index: int, kind: ResponseType, text: str) -> str:
        """Return the beginning of a part, trimmed as in `finalize`; "" while there is only white space."""
        if is_blank(text):
            if text:
                self._blank.setdefault(index, []).append(text)
            return ""
        text = "".join([*self._blank.pop(index, ()), text])
        self._begun[index] = kind
        if kind == "output_text":
            text = text.lstrip(_LINE_ENDS) if self._after_reasoning else text
            text = text if self._shown else _without_repeated(text, self._seam)
            self._after_reasoning = False
        return text


def _without_repeated(text: str, seam: str) -> str:
    """Return the text without the beginning that it shares with the seam."""
    while text and seam and text[0] == seam[0]:
        text, seam = text[1:], seam[1:]
    return text


def _kind(part: TextPart | ThinkingPart) -> ResponseType:
    return "output_text" if isinstance(part, TextPart) else "reasoning"
