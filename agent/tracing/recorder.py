"""Writes the record of a run (see `record_format`) without keys, line by line, so that a crash loses little."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_core import to_json

from agent.errors import InputError
from agent.events import (
    AttemptFailed,
    Event,
    ProviderEvent,
    ResponseEmitted,
    RunCancelled,
    RunEnded,
    RunStarted,
    StateSnapshot,
    StepEnded,
    StepStarted,
    ToolCallEnded,
    ToolCallStarted,
    UserInputRequested,
)
from agent.messages.repair import unanswered_calls
from agent.responses import Response
from agent.result import RunResult
from agent.tracing.record_format import CALLS, FORMAT, MESSAGES, RESULTS, SPEC, VERSION
from agent.tracing.redaction import RecordedPiece, RedactedStream, Redactor


class Recorder:
    """Writes the record of one run to `path`, which it replaces. Only the file's owner can read it.

    Text can be written a little later than its time says: it waits until no key can continue in the next chunk. Raises
    `InputError` if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise InputError(f"No record can be written to {str(path)!r}: {error.strerror}.") from error
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)
        self._bubble = -1
        self._begun = set[int]()
        """The parts of the step whose text has begun."""
        self._begin(Redactor())

    def on_event(self, event: Event) -> None:
        """Write the event to the file."""
        at = monotonic() - self._began
        match event:
            case RunStarted():
                self._write_header(event)
            case StepStarted():
                self._begun.clear()
                self._write_line("step", at)
            case ProviderEvent(event=PartStartEvent() | PartDeltaEvent() as chunk):
                self._write_chunk(chunk, at)
            case ProviderEvent() | StateSnapshot() | UserInputRequested() | RunCancelled():
                pass
            case AttemptFailed(failure=failure, pause=pause):
                self._flush()
                self._begun.clear()
                self._write_line("retry", at, seconds=pause.seconds, why=self._redactor.complaint(str(failure)))
            case StepEnded():
                self._flush()
                self._write_step(event, at)
            case ResponseEmitted(response=response):
                self._write_response(response, at)
            case ToolCallStarted(call=call):
                self._write_line("call", at, call=self._clean(CALLS, call))
            case ToolCallEnded(result=result):
                self._write_line("result", at, result=self._clean(RESULTS, result))
            case RunEnded(result=result):
                self._flush()
                self._write_end(result, at)
                self._file.close()

    def _begin(self, redactor: Redactor) -> None:
        self._began, self._redactor = monotonic(), redactor
        self._chunks, self._pieces = RedactedStream(redactor), RedactedStream(redactor)

    def _write_header(self, event: RunStarted) -> None:
        plan = event.plan
        self._begin(Redactor.of(plan.connection))
        definitions = [tool.definition for tool in plan.tools.values()]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "run": event.run_id,
            "session": event.context.session_id,
            "began": datetime.now(UTC).isoformat(),
            "before": len(event.context.messages),
            "model": json.loads(SPEC.dump_json(plan.connection.spec, exclude={"examples"})),
            "options": json.loads(to_json(plan.options, fallback=str)),
            "limits": json.loads(to_json(plan.limits, fallback=str)),
            "system_message": plan.system_message,
            "tools": [
                {"name": each.name, "description": each.description or "", "parameters": each.parameters_json_schema}
                for each in definitions
            ],
        }
        self._write(self._redactor.value(header))
        self._write_line("prompt", 0.0, messages=[self._clean(MESSAGES, message) for message in event.prompt])
        if not event.prompt:  # a resumed run: the calls that it answers belong to the record
            self._write_line("step", 0.0)
            _, calls = unanswered_calls(event.context.messages)
            self._write_step(StepEnded(ModelResponse(parts=calls, finish_reason="tool_call")), 0.0)

    def _write_chunk(self, event: PartStartEvent | PartDeltaEvent, at: float) -> None:
        match event:
            case PartStartEvent(part=TextPart() | ThinkingPart() as part) if event.index in self._begun:
                self._flush()
                kind = "text" if isinstance(part, TextPart) else "thinking"
                self._write_line("chunk", at, part=event.index, becomes=kind)
                return
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                kind = "text"
            case PartStartEvent(part=ThinkingPart(content=text)):
                kind = "thinking"
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=more)):
                kind, text = "thinking", more or ""
            case PartStartEvent(part=ToolCallPart()) | PartDeltaEvent():
                return  # calls are written complete, at the end of the step
            case PartStartEvent(part=part):
                self._flush()
                [other] = self._clean(MESSAGES, ModelResponse(parts=[part]))["parts"]
                self._write_line("chunk", at, part=event.index, other=other)
                return
        self._begun.add(event.index)
        for piece in self._chunks.feed(RecordedPiece(at, event.index, kind, text)):
            self._write_line("chunk", piece.at, part=piece.part, **{piece.kind: piece.text})

    def _write_step(self, event: StepEnded, at: float) -> None:
        response, failure = event.response, event.failure
        envelope, calls = None, list[Any]()
        if response is not None:
            # The provider's other details concern only that provider.
            bare = replace(response, parts=[], provider_details=_reason(response), provider_url=None, metadata=None)
            envelope = self._clean(MESSAGES, bare)
            calls = [self._clean(CALLS, part) for part in response.parts if isinstance(part, ToolCallPart)]
        error = None
        if failure is not None:
            sentence = self._redactor.complaint(str(failure))
            error = {"kind": failure.kind, "status": failure.status, "sentence": sentence}
        whole = failure is None and response is not None and response.state == "complete"
        self._write_line("stepped", at, whole=whole, response=envelope, calls=calls, failure=error)

    def _write_response(self, response: Response, at: float) -> None:
        content = response.content
        if isinstance(content, str) and response.type != "error":
            if response.is_type_switched:
                self._flush_pieces()
                self._bubble += 1
            for piece in self._pieces.feed(RecordedPiece(at, self._bubble, response.type, content)):
                self._write_piece(piece)
            return
        self._flush_pieces()
        clean = (
            self._redactor.complaint(content)
            if isinstance(content, str)
            else self._redactor.value(_without_file_data(content))
        )
        self._write_line("response", at, type=response.type, content=clean)

    def _write_piece(self, piece: RecordedPiece) -> None:
        self._write_line("response", piece.at, type=piece.kind, content=piece.text, bubble=piece.part)

    def _write_end(self, result: RunResult, at: float) -> None:
        detail = self._redactor.complaint(result.note.detail)
        timings = json.loads(to_json(result.note.timings))
        self._write_line(
            "end", at, finish_reason=result.finish_reason, detail=detail, timings=timings, cost=result.cost
        )

    def _flush(self) -> None:
        for piece in self._chunks.flush():
            self._write_line("chunk", piece.at, part=piece.part, **{piece.kind: piece.text})
        self._flush_pieces()

    def _flush_pieces(self) -> None:
        for piece in self._pieces.flush():
            self._write_piece(piece)

    def _clean(self, adapter: TypeAdapter[Any], value: Any) -> Any:
        """Return one value as redacted JSON. The adapters are for lists, which know how bytes are written."""
        [plain] = json.loads(adapter.dump_json([value]))
        return self._redactor.value(_without_details(plain))

    def _write_line(self, kind: str, at: float, **more: Any) -> None:
        self._write({"at": round(at, 6), "kind": kind, **more})

    def _write(self, value: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(value, ensure_ascii=False) + "\n")
        except UnicodeEncodeError:  # half a surrogate pair; the rest comes with the next chunk
            self._file.write(json.dumps(value) + "\n")


def _reason(response: ModelResponse) -> dict[str, Any] | None:
    """Return the provider's details that explain how the answer ended."""
    kept = ("finish_reason", "refusal_category", "block_reason", "block_reason_message", "refusal")
    return {name: value for name, value in (response.provider_details or {}).items() if name in kept} or None


def _without_details(value: Any) -> Any:
    """Return messages as JSON without data for their provider alone: signatures and ids of its items."""
    if isinstance(value, list):
        return [_without_details(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        drop = ("signature", "provider_details", "provider_name", "id") if "part_kind" in table else ()
        return {name: _without_details(item) for name, item in table.items() if name not in drop}
    return value


def _without_file_data(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a call or result. Files keep only identifier and type; the result has their bytes."""
    if "files" not in content:
        return dict(content)
    files = [{"identifier": one.identifier, "media_type": one.media_type} for one in content["files"]]
    return {**content, "files": files}
