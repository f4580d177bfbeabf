"""The events that a run sends to its observers, in the order in which they happen.

The `type` of an event names its class, as in `case "state_snapshot"`. No run depends on an observer: an observer that
raises gets no more events, and the run continues.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent, ToolCallPart, ToolReturnPart
from pydantic_ai.settings import ModelSettings

from agent.context import Context
from agent.errors import ProviderError
from agent.providers.retry import Wait
from agent.responses import Content, Response, ResponseType
from agent.result import RunPlan, RunResult
from agent.suspension.suspended_run import Pending

log = logging.getLogger(__name__)

ResponseEvent = Literal["text_delta", "reasoning_delta", "tool_call", "tool_call_result", "user_message", "error"]
_RESPONSE_EVENTS: Mapping[ResponseType, ResponseEvent] = {
    "output_text": "text_delta",
    "reasoning": "reasoning_delta",
    "tool_call": "tool_call",
    "tool_call_result": "tool_call_result",
    "user_message": "user_message",
    "error": "error",
}


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins. `context` is the history before it. `prompt` is empty if a suspended run is resumed."""

    type: ClassVar[Literal["run_started"]] = "run_started"
    run_id: str
    plan: RunPlan
    context: Context
    prompt: Sequence[ModelMessage]


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The model is asked with these messages and settings. Retries belong to the same step."""

    type: ClassVar[Literal["step_started"]] = "step_started"
    messages: Sequence[ModelMessage]
    settings: ModelSettings


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """The provider sent this event of pydantic-ai."""

    type: ClassVar[Literal["provider_event"]] = "provider_event"
    event: ModelResponseStreamEvent


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A request failed before its first output and is repeated after the pause."""

    type: ClassVar[Literal["attempt_failed"]] = "attempt_failed"
    failure: ProviderError
    pause: Wait


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The model has answered, or the step failed with `failure` or was cancelled.

    A failed or cancelled step has the partial answer as `response`, or None. A partial answer has the `state`
    "interrupted".
    """

    type: ClassVar[Literal["step_ended"]] = "step_ended"
    response: ModelResponse | None
    failure: ProviderError | None = None


@dataclass(frozen=True, slots=True)
class ResponseEmitted:
    """The run has emitted a response. Text and reasoning come in pieces, and `content` is that of the response."""

    response: Response

    @property
    def type(self) -> ResponseEvent:
        """The kind of the response: "text_delta" for `output_text`, "reasoning_delta", or the response's own type."""
        return _RESPONSE_EVENTS[self.response.type]

    @property
    def content(self) -> Content:
        """The content of the response."""
        return self.response.content


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call begins. Emitted in the task that runs the tool."""

    type: ClassVar[Literal["tool_event"]] = "tool_event"
    completed: ClassVar[Literal[False]] = False
    call: ToolCallPart

    @property
    def tool_name(self) -> str:
        """The name of the tool."""
        return self.call.tool_name

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self.call.tool_call_id


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A tool call has a result or an error. A call that was answered without its tool has no `ToolCallStarted`."""

    type: ClassVar[Literal["tool_event"]] = "tool_event"
    completed: ClassVar[Literal[True]] = True
    result: ToolReturnPart

    @property
    def tool_name(self) -> str:
        """The name of the tool."""
        return self.result.tool_name

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self.result.tool_call_id


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A running tool tells people something. The result of a call has all texts that its tool has yielded.

    An MCP server also tells how far a call is: `progress` of `total`, if it knows that. Then the text is not in the
    result.
    """

    type: ClassVar[Literal["tool_output"]] = "tool_output"
    tool_call_id: str
    tool_name: str
    content: str
    progress: float | None = None
    total: float | None = None


class StateSnapshot:
    """The conversation has grown to this `context`, from which another run can continue.

    The context is made when it is first read, because most observers do not read it and a copy for each message would
    cost a long conversation much. It is that of the event even if the conversation has grown since.
    """

    type: ClassVar[Literal["state_snapshot"]] = "state_snapshot"
    __match_args__ = ("context",)
    __slots__ = ("_make",)

    def __init__(self, context: Context | Callable[[], Context]) -> None:
        self._make = context

    @property
    def context(self) -> Context:
        """The conversation at the time of the event."""
        made = self._make
        if not isinstance(made, Context):
            made = self._make = made()
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateSnapshot) and self.context == other.context

    def __repr__(self) -> str:
        return f"StateSnapshot(context={self.context!r})"


@dataclass(frozen=True, slots=True)
class UserInputRequested:
    """The run is suspended until people have answered. `record` is the text for `Agent.resume`."""

    type: ClassVar[Literal["user_input_requested"]] = "user_input_requested"
    record: str
    pending: Sequence[Pending]


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """The run was cancelled. `reason` is that of `Run.cancel`, and `message` the sentence for people."""

    type: ClassVar[Literal["run_cancelled"]] = "run_cancelled"
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The tool `name` has handed the turn over. From now on its agent, with this plan, goes on with the run."""

    type: ClassVar[Literal["handed_over"]] = "handed_over"
    name: str
    plan: RunPlan


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """An event of a run below: that of an agent that is a tool, or of the model that summarizes the conversation.

    `tool_call_id` is the id of the call in the run above, "" for a summary.
    """

    type: ClassVar[Literal["child_event"]] = "child_event"
    tool_call_id: str
    event: "Event"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run has ended. This is its last event."""

    type: ClassVar[Literal["run_ended"]] = "run_ended"
    result: RunResult


Event = (
    RunStarted
    | StepStarted
    | ProviderEvent
    | AttemptFailed
    | StepEnded
    | ResponseEmitted
    | ToolCallStarted
    | ToolCallEnded
    | ToolOutput
    | StateSnapshot
    | UserInputRequested
    | RunCancelled
    | HandedOver
    | ChildEvent
    | RunEnded
)


class Observer(Protocol):
    """Observes one run. It is called in the run's event loop and must return at once."""

    def on_event(self, event: Event) -> None:
        """Handle the event."""
        ...


class EventQueue:
    """An observer that keeps the events of one run for one reader, in their order."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def on_event(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def next(self) -> Event:
        """Wait for the next event and return it. After `RunEnded` there is none."""
        return await self._events.get()


class Observers:
    """The observers of one run. Falsy if there are none, so that callers can skip creating the event.

    After `RunEnded` there are none: a tool that was left running can still yield and tell its progress.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        """Add an observer. It gets the events from now on."""
        self._observers.append(observer)

    def __call__(self, event: Event) -> None:
        for observer in list(self._observers):
            try:
                observer.on_event(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # for example a CancelledError, which would look like a cancelled run
                log.exception("%s failed and is told nothing more", type(observer).__name__)
                self._observers = [one for one in self._observers if one is not observer]
        if isinstance(event, RunEnded):
            self._observers = []
