"""A fake model that plays parts and tool calls from memory, for property tests with hundreds of streams a second.

pydantic-ai's own parts manager builds its stream, as for real providers. Only the network is missing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, assert_never

from pydantic_ai import RunContext
from pydantic_ai.messages import FinishReason, ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from agent.errors import ProviderError
from agent.models.catalog import ModelSpec
from agent.providers.connection import Reasoning

SPEC = ModelSpec(id="fake:parts", name="parts", label="Parts", provider="fake", reasoning=True)


@dataclass(frozen=True)
class Words:
    """A part of the answer in chunks. Without chunks it is an empty part."""

    kind: Literal["output_text", "reasoning"]
    chunks: Sequence[str]

    @property
    def text(self) -> str:
        """The text of all chunks. A chunk can end within a surrogate pair."""
        return "".join(self.chunks).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


@dataclass(frozen=True)
class Call:
    """A tool call. Its arguments stream in pieces of three characters."""

    name: str
    arguments: str
    id: str | None


@dataclass(frozen=True)
class Act:
    """An event in the middle of a stream.

    "cancel" calls `run.cancel()` while more is coming, "fail" is a fault of the provider, and "hang" is silence until
    `run.cancel()` is called elsewhere.
    """

    do: Literal["cancel", "fail", "hang"]


@dataclass(frozen=True)
class Pause:
    """Silence for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Step:
    """One model response: the items that it streams, and its finish reason (None: it ends without one).

    `blocked` is the category for which the provider refused the prompt itself, as Google does. `reason` is the
    provider's own finish reason.
    """

    items: Sequence[Words | Call | Act | Pause]
    finish: FinishReason | None = "stop"
    blocked: str = ""
    reason: str = ""


@dataclass
class Parts(StreamedResponse):
    """Streams one step."""

    step: Step
    cancel: Callable[[], None]

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        manager = self._parts_manager
        for number, item in enumerate(self.step.items):
            await asyncio.sleep(0)
            match item:
                case Words(kind=kind, chunks=chunks):
                    handle: Any = manager.handle_text_delta if kind == "output_text" else manager.handle_thinking_delta
                    for chunk in chunks or [""]:
                        await asyncio.sleep(0)
                        for event in handle(vendor_part_id=number, content=chunk):
                            yield event
                case Call(name=name, arguments=arguments, id=id_):
                    for at in range(0, max(1, len(arguments)), 3):
                        first, piece = at == 0, arguments[at : at + 3]
                        for event in manager.handle_tool_call_delta_events(
                            vendor_part_id=number,
                            tool_name=name if first else None,
                            args=piece,
                            tool_call_id=id_ if first else None,
                        ):
                            yield event
                case Pause(seconds=seconds):
                    await asyncio.sleep(seconds)
                case Act(do="cancel"):
                    self.cancel()
                case Act(do="fail"):
                    raise ConnectionError("the line is dead")
                case Act(do="hang"):
                    loop = asyncio.get_running_loop()
                    loop.call_soon(self.cancel)
                    await loop.create_future()
                case _:
                    assert_never(item)
        await asyncio.sleep(0)
        self.finish_reason = self.step.finish
        if self.step.blocked:
            self.provider_details = {"block_reason": self.step.blocked.upper()}
        if self.step.reason:
            self.provider_details = {"finish_reason": self.step.reason}

    async def close_stream(self) -> None:
        """Do nothing, because nothing is open."""

    @property
    def model_name(self) -> str:
        return SPEC.name

    @property
    def provider_name(self) -> str | None:
        return "fake"

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)


class PartsModel(Model):
    """Plays one step for each request, and "done" after the last. Records the messages and settings it receives."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.sent: list[list[ModelMessage]] = []
        self.asked: list[ModelSettings] = []
        self.cancel: Callable[[], None] = lambda: None

    @property
    def model_name(self) -> str:
        return SPEC.name

    @property
    def system(self) -> str:
        return "fake"

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        raise NotImplementedError

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        number = len(self.sent)
        self.sent.append(list(messages))
        self.asked.append(model_settings or ModelSettings())
        step = self.steps[number] if number < len(self.steps) else Step([Words("output_text", ["done"])])
        yield Parts(model_request_parameters, step=step, cancel=self.cancel)


@dataclass
class FakeConnection:
    """A `Connection` to a `PartsModel`. `explain` returns `failure` for every fault."""

    steps: Sequence[Step]
    spec: ModelSpec = SPEC
    failure: ProviderError = field(default_factory=lambda: ProviderError("The connection broke.", kind="connection"))
    played: PartsModel = field(init=False)

    def __post_init__(self) -> None:
        self.played = PartsModel(self.steps)

    def check(self) -> None:
        """Do nothing, because no key is needed."""

    def model(self) -> Model:
        return self.played

    def slot(self, on_position: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        return None

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        return ModelSettings()

    def explain(self, error: Exception) -> ProviderError:
        return self.failure

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""
