"""What a run tells those who watch it: events in the order in which they happen. It knows no watcher.

Nothing depends on an observer: one that fails is told nothing more, and the run goes on.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent, ToolCallPart, ToolReturnPart
from pydantic_ai.settings import ModelSettings

from agent.context import Context
from agent.errors import ProviderError
from agent.responses import Response
from agent.result import RunPlan, RunResult
from agent.runtime.retry import Wait

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins, after `context`, with `prompt`, which is empty where a suspended run is resumed."""

    run_id: str
    plan: RunPlan
    context: Context
    prompt: Sequence[ModelMessage]


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The model is asked, with these messages and settings; what is tried again is the same step."""

    messages: Sequence[ModelMessage]
    settings: ModelSettings


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """Something came from the provider: an event of pydantic-ai's, as it came."""

    event: ModelResponseStreamEvent


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A request failed before it said anything, and is made again after the pause."""

    failure: ProviderError
    pause: Wait


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The model has answered, or `failure` says why not; `response` is then what came, None where nothing did.

    A step that was cancelled has neither a whole response (its `state` is "interrupted") nor a failure.
    """

    response: ModelResponse | None
    failure: ProviderError | None = None


@dataclass(frozen=True, slots=True)
class ResponseEmitted:
    """The run has said something."""

    response: Response


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool is being called; said in the task in which it runs."""

    call: ToolCallPart


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call has its result, whichever; a call that was answered without its tool being run did not begin."""

    result: ToolReturnPart


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Nothing follows."""

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
    | RunEnded
)


class Observer(Protocol):
    """Watches one run. It is called in the run's event loop and must return at once."""

    def on_event(self, event: Event) -> None:
        """Take note."""
        ...


ObserverFactory = Callable[[], Observer]
"""Makes the observer of a run; it is asked when the run is made."""


class Observers:
    """The observers of one run. Falsy where there are none: whoever tells need then not even make the event."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        """Tell this one too, of what happens from now on."""
        self._observers.append(observer)

    def __call__(self, event: Event) -> None:
        for observer in list(self._observers):
            try:
                observer.on_event(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # a CancelledError, say, which would look as if the run had been cancelled
                log.exception("%s failed and is told nothing more", type(observer).__name__)
                self._observers = [one for one in self._observers if one is not observer]
