"""Plays a run record as a model: the same chunks at the same times, with tool results from the record.

    Agent("replay:trace.jsonl")            Agent("replay:trace.jsonl?speed=10")            speed=inf: without pauses

Uses no network and runs no tool. Each run plays the record from its beginning, for any prompt.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from agent.errors import InputError, ProviderError
from agent.limits import Limits
from agent.providers import StreamingModel
from agent.result import RecordedEnd
from agent.tools import Tool, ask_user
from agent.tracing.record_format import Chunk, RecordedStep, RunRecord, load_record

PREFIX = "replay:"
_NO_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_UNLIMITED = 10**9
_NO_LIMITS = Limits(
    steps=_UNLIMITED,
    seconds=_UNLIMITED,
    tool_seconds=_UNLIMITED,
    retries=0,
    repeats=_UNLIMITED,
    idle=_UNLIMITED,
    interactive=False,
)


class Replay:
    """A `Connection` to a record, and a `RunSource`: its `tools` answer from the record, and it has no limits.

    `speed` 10 plays it ten times as fast. Raises `InputError` if the record cannot be read.
    """

    limits = _NO_LIMITS

    def __init__(self, path: str | Path, *, speed: float = 1.0) -> None:
        if not speed > 0:
            raise InputError(f"A record is played at a speed above 0, not {speed:g}.")
        self.record = load_record(path)
        spec = self.record.spec
        # A replay costs nothing.
        self.spec = replace(
            spec,
            id=PREFIX + Path(path).stem,
            label=f"{spec.label}, recorded",
            price=None,
            menu=False,
            needs_audio=False,
        )
        self.tools = _tools(self.record, speed)
        self._model = _ReplayModel(self.record, speed)

    @classmethod
    def from_name(cls, name: str) -> "Replay":
        """Parse `replay:path` or `replay:path?speed=10`. Raises `InputError`."""
        path, _, given = name.removeprefix(PREFIX).partition("?speed=")
        try:
            speed = float(given or 1)
        except ValueError as error:
            raise InputError(f"The speed of a record is a number, as in ?speed=10, not {given!r}.") from error
        return cls(path, speed=speed)

    def check(self) -> None:
        """Do nothing: a record can always be played."""

    def model(self) -> Model:
        """Return the player."""
        return self._model

    def slot(self, on_position: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """Enter at once: any number of replays can run."""
        del on_position
        return nullcontext()

    def effort(self, reasoning: Any) -> None:
        """Return None: the effort of the recorded run is fixed."""
        del reasoning

    def settings(self, reasoning: Any) -> ModelSettings:
        """Return no settings: the recorded request is already answered."""
        del reasoning
        return ModelSettings()

    def explain(self, error: Exception) -> ProviderError:
        """Return the error for a record that the library cannot play."""
        return ProviderError(f"The record cannot be played: {error}", kind="malformed")

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""


# --- the tools ------------------------------------------------------------------------------------------------------


class _RecordedTool(Tool):
    """A tool that is not run. It receives the id of its call in place of the arguments."""

    def __post_init__(self) -> None:
        """Check nothing, because a model can have called a tool by any name."""

    def arguments(self, call: ToolCallPart) -> tuple[list[Any], dict[str, Any]]:
        """Return the id that the call had in the record."""
        return [(call.provider_details or {}).get("recorded", call.tool_call_id)], {}


def _tools(record: RunRecord, speed: float) -> Mapping[str, Tool]:
    """Return a tool for each recorded call. A tool that still waited for an answer waits again."""

    async def play(call_id: str) -> ToolReturnPart:
        if (found := record.results.get(call_id)) is None:
            raise InputError("The record has no result of this call.")
        seconds, result = found
        await asyncio.sleep(seconds / speed)
        await _RESULT_ORDER.get().wait(call_id)
        return result

    tools: dict[str, Tool] = {}
    suspended = record.ended is not None and record.ended[0] == "suspended"
    for step in record.steps:
        for call in step.calls:
            name, waits = call.tool_name, suspended and call.tool_call_id not in record.results
            if name == ask_user.name and waits:
                tools[name] = ask_user
            elif name not in tools or waits:
                tools[name] = _RecordedTool(play, name, needs_approval=waits)
    return tools


class _ResultOrder:
    """Delivers the results of one step in their recorded order, even if only a moment was between them."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._came = {id_: asyncio.Event() for id_ in ids}
        self._before = {after: before for before, after in pairwise(ids)}

    async def wait(self, id_: str) -> None:
        """Wait for the previous result, then let the next one come."""
        if (before := self._before.get(id_)) is not None:
            await self._came[before].wait()
        if id_ in self._came:
            self._came[id_].set()


_RESULT_ORDER: ContextVar[_ResultOrder] = ContextVar("result_order")
"""The order of the current step. The tasks of its calls inherit it."""


# --- the model ------------------------------------------------------------------------------------------------------


class _ReplayModel(StreamingModel):
    """Plays the step that the conversation has reached. Keeps no state of a conversation."""

    def __init__(self, record: RunRecord, speed: float) -> None:
        super().__init__()
        self._record, self._speed = record, speed

    @property
    def model_name(self) -> str:
        """The name in the record."""
        return self._record.spec.name

    @property
    def system(self) -> str:
        """Always "replay"."""
        return "replay"

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream the next step. If there is none, end the run as the recorded one ended."""
        number = _steps_since_the_prompt(messages)
        if number >= len(self._record.steps):
            raise _recorded_end(self._record)
        step = self._record.steps[number]
        ids = {call.tool_call_id for call in step.calls}
        _RESULT_ORDER.set(_ResultOrder([id_ for id_ in self._record.results if id_ in ids]))
        yield _RecordedStream(model_request_parameters, step=step, record=self._record, speed=self._speed)


@dataclass
class _RecordedStream(StreamedResponse):
    """A recorded step, chunk by chunk."""

    step: RecordedStep
    record: RunRecord
    speed: float

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        began = monotonic()
        for chunk in self.step.chunks:
            await asyncio.sleep(max(0.0, began + chunk.at / self.speed - monotonic()))
            for event in self._events(chunk):
                yield event
        await asyncio.sleep(max(0.0, began + self.step.seconds / self.speed - monotonic()))
        for number, call in enumerate(self.step.calls):
            # The call gets another id if the conversation already has this one. The details keep it.
            kept = replace(call, provider_name="replay", provider_details={"recorded": call.tool_call_id})
            yield self._parts_manager.handle_part(vendor_part_id=("call", number), part=kept)
        if (envelope := self.step.response) is not None:
            self._usage = envelope.usage
            self.provider_response_id = envelope.provider_response_id
            self.provider_details = envelope.provider_details
            self.finish_reason = envelope.finish_reason
        if self.step.failure is not None:
            kind, status, sentence = self.step.failure
            raise ProviderError(sentence, kind=kind, status=status)
        if not self.step.whole:
            raise _recorded_end(self.record)

    def _events(self, chunk: Chunk) -> Sequence[ModelResponseStreamEvent]:
        match chunk.content:
            case str(text) if chunk.kind == "thinking":
                return list(self._parts_manager.handle_thinking_delta(vendor_part_id=chunk.part, content=text))
            case str(text):
                return list(self._parts_manager.handle_text_delta(vendor_part_id=chunk.part, content=text))
            case part:
                return [self._parts_manager.handle_part(vendor_part_id=chunk.part, part=part)]

    async def close_stream(self) -> None:
        """Do nothing: no resource is open."""

    @property
    def model_name(self) -> str:
        """The name in the record."""
        return self.record.spec.name

    @property
    def provider_name(self) -> str | None:
        """Not the recorded provider, so that no provider receives another one's data."""
        return "replay"

    @property
    def provider_url(self) -> str | None:
        """Always None."""
        return None

    @property
    def timestamp(self) -> datetime:
        """The time of the original answer."""
        return self.step.response.timestamp if self.step.response is not None else _NO_TIME


def _steps_since_the_prompt(messages: Sequence[ModelMessage]) -> int:
    count = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            count += 1
        elif any(isinstance(part, UserPromptPart) for part in message.parts):
            break
    return count


def _recorded_end(record: RunRecord) -> BaseException:
    """Return the exception that ends the run like the recorded one, if no answer and no provider failure did."""
    match record.ended:
        case None:
            return ProviderError("The record ends here: its program was ended in mid-run.", kind="interrupted")
        case "cancelled", _:
            return asyncio.CancelledError()
        case "limit" as reason, detail:
            return RecordedEnd(reason, detail)
        case "error", detail:
            return ProviderError(detail, kind="interrupted")
        case _:
            return ProviderError("The record ends here.", kind="interrupted")
