"""A flight record: what happened in one run, as JSON Lines. This module knows the format, and reads it.

The first line is the header. Each line after it has `at`, seconds since the run began, and its kind:

    prompt     the messages that the run was given; pictures and sound with their bytes
    step       the model is asked
    retry      a request failed and is made again after so many `seconds`
    chunk      what came from the provider: `text` or `thinking` of the part number `part`, or an `other` part, whole
    stepped    the answer is complete, with its calls, or a failure says why not
    response   what the run said of it
    call       a tool is called
    result     what came of the call
    end        how the run ended

`agent.tracing.recorder` writes it, `agent.tracing.replay` plays it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, ToolCallPart, ToolReturnPart

from agent.errors import InputError, ProviderErrorKind, UnknownModel
from agent.models.catalog import ModelSpec
from agent.responses import BubbleMarker, Response, ResponseType
from agent.result import FinishReason

FORMAT, VERSION = "switchboard flight record", 1

# Built at their first use: most runs write no flight and read none, and an adapter of messages takes 50 ms.
_LATER = ConfigDict(defer_build=True)
_BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", defer_build=True)
SPEC = TypeAdapter(ModelSpec)
MESSAGES = TypeAdapter(list[ModelMessage], config=_BYTES)
RESULTS = TypeAdapter(list[ToolReturnPart], config=_BYTES)
CALLS = TypeAdapter(list[ToolCallPart], config=_LATER)
_PARTS = TypeAdapter(list[ModelResponsePart], config=_BYTES)
_FAILURE = TypeAdapter(tuple[ProviderErrorKind, int | None, str])
_END = TypeAdapter(tuple[FinishReason, str])
_TYPE = TypeAdapter(ResponseType)
_BARE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came from the provider, `at` so many seconds after its step began; `content` is a text, or a whole part."""

    at: float
    part: int
    kind: Literal["text", "thinking", "other"]
    content: str | ModelResponsePart


@dataclass(slots=True)
class RecordedStep:
    """A model request: chunks, the answer without its text, its calls; `seconds` in all. Not `whole`: broken off."""

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    response: ModelResponse | None = None
    calls: list[ToolCallPart] = field(default_factory=list[ToolCallPart])
    failure: tuple[ProviderErrorKind, int | None, str] | None = None
    seconds: float = 0.0
    whole: bool = False


@dataclass(slots=True)
class RunRecord:
    """A record, read. `results` are by the id of their call, each with the seconds that the tool took.

    `responses` is what the run said, one for each bubble. `ended` is how the run ended and the sentence said of it,
    None where its program ended before it.
    """

    spec: ModelSpec
    tools: Sequence[str] = ()
    prompt: Sequence[ModelMessage] = ()
    steps: list[RecordedStep] = field(default_factory=list[RecordedStep])
    results: dict[str, tuple[float, ToolReturnPart]] = field(default_factory=dict[str, tuple[float, ToolReturnPart]])
    responses: list[Response] = field(default_factory=list[Response])
    ended: tuple[FinishReason, str] | None = None


def load_record(path: str | Path) -> RunRecord:
    """Read a record. A last line that was only half written is left out. Raises `InputError` with what is wrong."""
    name = Path(path).name
    try:
        *lines, _half = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"The record {name!r} cannot be read: {error.strerror}.") from error
    try:
        header = json.loads(lines[0]) if lines else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or cast(dict[str, Any], header).get("format") != FORMAT:
        raise InputError(f"{name!r} is no flight record.")
    head = cast(dict[str, Any], header)
    if head.get("version") != VERSION:
        raise InputError(f"{name!r} is a flight record of version {head.get('version')!r}; only {VERSION} is known.")
    number = 1
    try:
        flight = RunRecord(SPEC.validate_python(head["model"]), tuple(str(tool["name"]) for tool in head["tools"]))
        reader = _Reader(flight)
        for line in lines[1:]:
            number += 1
            reader.take(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"The record {name!r} is damaged in line {number}.") from error
    return flight


def record_path(folder: Path, name: str) -> Path:
    """The record called `name` in the folder, for names that visitors type. Raises `UnknownModel`.

    Only a bare name finds anything, and only a plain file of the folder itself: no path, no link that leads elsewhere.
    """
    bare = name.strip().removesuffix(".jsonl")
    path = folder / f"{bare}.jsonl"
    if not _BARE_NAME.fullmatch(bare) or path.is_symlink() or not path.is_file():
        raise UnknownModel(f"There is no record named {bare[:80]!r}.")
    return path


class _Reader:
    """Fills a `Flight`, line by line."""

    def __init__(self, flight: RunRecord) -> None:
        self._flight = flight
        self._step_at = 0.0
        self._called: dict[str, float] = {}
        self._bubble: int | None = None
        self._stamp = BubbleMarker()

    def take(self, line: Mapping[str, Any]) -> None:
        at, flight = float(line["at"]), self._flight
        match line["kind"]:
            case "prompt":
                flight.prompt = MESSAGES.validate_python(line["messages"])
            case "step":
                self._step_at = at
                flight.steps.append(RecordedStep())
            case "retry":
                flight.steps[-1].chunks.clear()  # what had come was never said
            case "chunk":
                flight.steps[-1].chunks.append(_chunk(line, max(0.0, at - self._step_at)))
            case "stepped":
                self._stepped(flight.steps[-1], line, at)
            case "response":
                self._response(line)
            case "call":
                self._called[line["call"]["tool_call_id"]] = at
            case "result":
                [result] = RESULTS.validate_python([line["result"]])
                flight.results[result.tool_call_id] = at - self._called.get(result.tool_call_id, at), result
            case "end":
                flight.ended = _END.validate_python((line["finish_reason"], line["detail"]))
            case other:
                raise ValueError(f"no line is of the kind {other!r}")

    def _stepped(self, step: RecordedStep, line: Mapping[str, Any], at: float) -> None:
        step.seconds = at - self._step_at
        step.whole = bool(line["whole"])
        step.calls = CALLS.validate_python(line["calls"])
        if (failure := line["failure"]) is not None:
            step.failure = _FAILURE.validate_python((failure["kind"], failure["status"], failure["sentence"]))
        if (response := line["response"]) is not None:
            [found] = MESSAGES.validate_python([response])
            step.response = found if isinstance(found, ModelResponse) else None

    def _response(self, line: Mapping[str, Any]) -> None:
        """Deltas of one bubble become one response."""
        said, content = self._flight.responses, line["content"]
        bubble = line.get("bubble")
        if bubble is not None and bubble == self._bubble:
            last = said[-1]
            said[-1] = Response(last.type, f"{last.content}{content}", is_type_switched=True)
        else:
            said.append(self._stamp((_TYPE.validate_python(line["type"]), content)))
        self._bubble = bubble


def _chunk(line: Mapping[str, Any], at: float) -> Chunk:
    part = int(line["part"])
    if isinstance(text := line.get("text"), str):
        return Chunk(at, part, "text", text)
    if isinstance(text := line.get("thinking"), str):
        return Chunk(at, part, "thinking", text)
    [other] = _PARTS.validate_python([line["other"]])
    return Chunk(at, part, "other", other)
