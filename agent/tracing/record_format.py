"""The format of a run record, the events of one run as JSON Lines, and its reader.

The first line is the header. Each later line has `at`, in seconds since the run began, and its kind:

    prompt     the messages that the run was given; images and audio with their bytes
    step       a request to the model
    retry      a request failed and is repeated after `seconds`
    chunk      output of the provider: `text` or `thinking` of part number `part`, or a complete `other` part
    stepped    the answer is complete, with its calls, or a failure explains why not
    response   output of the run
    call       a tool is called
    result     the result of the call
    end        the end of the run

`agent.tracing.recorder` writes it and `agent.tracing.replay` plays it.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, ToolCallPart, ToolReturnPart

from agent.errors import InputError, ProviderErrorKind, UnknownModel
from agent.models.catalog import ModelSpec
from agent.response_types import make_response
from agent.responses import BubbleMarker, Response, ResponseType
from agent.result import FinishReason

log = logging.getLogger(__name__)

FORMAT, VERSION = "switchboard run record", 1
OLD_FORMAT = "switchboard flight record"
"""The name of the format in older files. This version still reads them."""

# Built at first use: most runs write and read no record, and an adapter for messages takes 50 ms.
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
    """Output of the provider, `at` seconds after its step began. `content` is a text or a complete part."""

    at: float
    part: int
    kind: Literal["text", "thinking", "other"]
    content: str | ModelResponsePart


@dataclass(slots=True)
class RecordedStep:
    """A model request: chunks, the answer without its text, calls, `seconds` in all. Not `whole` if it broke off."""

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    response: ModelResponse | None = None
    calls: list[ToolCallPart] = field(default_factory=list[ToolCallPart])
    failure: tuple[ProviderErrorKind, int | None, str] | None = None
    seconds: float = 0.0
    whole: bool = False


@dataclass(slots=True)
class RunRecord:
    """A record in memory. `results` maps the id of a call to the tool's seconds and its result.

    `responses` has one item for each bubble. `ended` is the finish reason and its sentence, or None if the program
    ended before the run did.
    """

    spec: ModelSpec
    tools: Sequence[str] = ()
    prompt: Sequence[ModelMessage] = ()
    steps: list[RecordedStep] = field(default_factory=list[RecordedStep])
    results: dict[str, tuple[float, ToolReturnPart]] = field(default_factory=dict[str, tuple[float, ToolReturnPart]])
    responses: list[Response] = field(default_factory=list[Response])
    ended: tuple[FinishReason, str] | None = None


def load_record(path: str | Path) -> RunRecord:
    """Read a record. An incomplete last line is ignored. Raises `InputError`, which describes the fault."""
    name = Path(path).name
    try:
        *lines, _half = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"The record {name!r} cannot be read: {error.strerror}.") from error
    try:
        header = json.loads(lines[0]) if lines else None
    except ValueError:
        header = None
    head = cast(dict[str, Any], header) if isinstance(header, dict) else {}
    if head.get("format") not in (FORMAT, OLD_FORMAT):
        raise InputError(f"{name!r} is not a run record.")
    if head["format"] == OLD_FORMAT:
        log.warning("%s: the next version will not read %r; change it to %r in line 1", name, OLD_FORMAT, FORMAT)
    if head.get("version") != VERSION:
        raise InputError(f"{name!r} is a run record of version {head.get('version')!r}; only {VERSION} is known.")
    number = 1
    try:
        record = RunRecord(SPEC.validate_python(head["model"]), tuple(str(tool["name"]) for tool in head["tools"]))
        reader = _Reader(record)
        for line in lines[1:]:
            number += 1
            reader.take(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"The record {name!r} is damaged in line {number}.") from error
    return record


def record_path(folder: Path, name: str) -> Path:
    """Return the path of the record called `name`. Visitors can type the name. Raises `UnknownModel`.

    Accepts only a bare name and a plain file in the folder itself: no path and no link that leads elsewhere.
    """
    bare = name.strip().removesuffix(".jsonl")
    path = folder / f"{bare}.jsonl"
    if not _BARE_NAME.fullmatch(bare) or path.is_symlink() or not path.is_file():
        raise UnknownModel(f"There is no record named {bare[:80]!r}.")
    return path


class _Reader:
    """Fills a `RunRecord`, line by line."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._step_at = 0.0
        self._called: dict[str, float] = {}
        self._bubble: int | None = None
        self._mark = BubbleMarker()

    def take(self, line: Mapping[str, Any]) -> None:
        at, record = float(line["at"]), self._record
        match line["kind"]:
            case "prompt":
                record.prompt = MESSAGES.validate_python(line["messages"])
            case "step":
                self._step_at = at
                record.steps.append(RecordedStep())
            case "retry":
                record.steps[-1].chunks.clear()  # these chunks were never shown
            case "chunk" if "becomes" in line:
                self._relabel(record.steps[-1].chunks, int(line["part"]), line["becomes"])
            case "chunk":
                record.steps[-1].chunks.append(_chunk(line, max(0.0, at - self._step_at)))
            case "stepped":
                self._stepped(record.steps[-1], line, at)
            case "response":
                self._response(line)
            case "call":
                self._called[line["call"]["tool_call_id"]] = at
            case "result":
                [result] = RESULTS.validate_python([line["result"]])
                record.results[result.tool_call_id] = at - self._called.get(result.tool_call_id, at), result
            case "end":
                record.ended = _END.validate_python((line["finish_reason"], line["detail"]))
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

    def _relabel(self, chunks: list[Chunk], part: int, kind: Literal["text", "thinking"]) -> None:
        """Give a part the type that it turned out to have."""
        chunks[:] = [replace(one, kind=kind) if one.part == part else one for one in chunks]

    def _response(self, line: Mapping[str, Any]) -> None:
        """Join the deltas of one bubble into one response."""
        responses, content = self._record.responses, line["content"]
        bubble = line.get("bubble")
        if bubble is not None and bubble == self._bubble:
            last = responses[-1]
            responses[-1] = make_response(last.type, f"{last.content}{content}", is_type_switched=True)
        else:
            responses.append(self._mark((_TYPE.validate_python(line["type"]), content)))
        self._bubble = bubble


def _chunk(line: Mapping[str, Any], at: float) -> Chunk:
    part = int(line["part"])
    if isinstance(text := line.get("text"), str):
        return Chunk(at, part, "text", text)
    if isinstance(text := line.get("thinking"), str):
        return Chunk(at, part, "thinking", text)
    [other] = _PARTS.validate_python([line["other"]])
    return Chunk(at, part, "other", other)
