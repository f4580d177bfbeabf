"""One run: steps of model requests with tools in between, until there is an answer.

`Run._drive` is the loop. It knows nothing of pages, stores or vendors: what finishes is handed to a `Journal`, what
streams is in `Run.responses`, and whatever goes wrong becomes an ending, never an exception.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any
from uuid import uuid4

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart

from agent.context import Context
from agent.errors import AgentError
from agent.guardrails import withheld
from agent.history import Note
from agent.messages import repaired
from agent.meter import Meter
from agent.responses import Piece, Response, Stamp, call_content, result_content
from agent.result import CancelReason, FinishReason, Journal, Plan, RunResult
from agent.retry import Waiting
from agent.step import Requests
from agent.tools import Tool, execute_all
from agent.toolsets import opened
from agent.unbroken import unbroken

log = logging.getLogger(__name__)

Ending = tuple[FinishReason, str]


class Run:
    """One run. Owner of its task and of `responses`, the log of all it has said so far.

    Its work begins with `start`, which iterating and awaiting call. Several readers may follow it.
    """

    def __init__(
        self, plan: Plan, prompt: list[ModelMessage], context: Context, journal: Journal | None = None
    ) -> None:
        self.id = uuid4().hex
        self.responses: list[Response] = []
        self.result: RunResult | None = None
        self.cancel_reason: CancelReason | None = None
        self._plan, self._prompt, self._journal = plan, prompt, journal
        self._session_id = context.session_id
        self._messages = repaired(context.messages)
        self._stamp = Stamp()
        self._news, self._over = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()
        self._last: ModelResponse | None = None
        self._ending = False
        self._cancelled_at = 0.0
        self._left_running: list[str] = []

    # What others may ask of a run

    def start(self) -> "Run":
        """Begin, in a task of the running loop; a second call does nothing."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._begin()
            self._task = self._loop.create_task(self._guarded(), name=f"run {self.id}")
            if self.cancel_reason is not None:  # not at once: a task cancelled before its first step never runs
                self._loop.call_soon(self._task.cancel)
        return self

    def cancel(self, reason: CancelReason = "user_request") -> None:
        """End the run, from any thread, whatever the provider or a tool is doing. After the end it does nothing."""
        if self._ending or self.cancel_reason is not None:
            return
        self.cancel_reason, self._cancelled_at = reason, monotonic()
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    @property
    def done(self) -> bool:
        """Whether it has ended; `result` is there then."""
        return self.result is not None

    @property
    def context(self) -> Context:
        """The conversation so far, valid to go on from at any moment."""
        return Context(session_id=self._session_id, messages=tuple(repaired(self._messages)))

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far."""
        return self._meter.reasoning

    @property
    def waiting(self) -> Waiting | None:
        """The pause before another try of a request that failed, while there is one."""
        return self._requests.waiting

    async def news(self, seen: int, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it does not raise
        """Return when there are more than `seen` responses, when the run has ended, when `waiting` begins or ends.

        At most after `timeout` seconds.
        """
        before = self.waiting
        try:
            async with asyncio.timeout(timeout):
                while len(self.responses) <= seen and not self.done and self.waiting is before:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return

    async def over(self, seconds: float) -> bool:
        """Wait that long for the last word, deaf to others: a page that is woken for every token pays for every token.

        Once it is True no more text will come; the result is there when what was said has been kept.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    async def __aiter__(self) -> AsyncIterator[Response]:
        self.start()
        seen = 0
        try:
            while not (self.done and seen == len(self.responses)):
                await self.news(seen)
                for response in self.responses[seen:]:
                    seen += 1
                    yield response
        finally:
            self.cancel("client_disconnect")

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._result().__await__()

    async def _result(self) -> RunResult:
        self.start()
        try:
            while not self.done:
                await self.news(sys.maxsize)
        except asyncio.CancelledError:
            self.cancel("client_disconnect")
            raise
        assert self.result is not None
        return self.result

    # The loop

    async def _drive(self) -> Ending:
        limits = self._plan.limits
        for message in self._prompt:
            await self._keep(message)
        async with opened(self._plan.tools, self._plan.toolsets) as tools:
            for _ in range(limits.steps):
                response = await self._requests.answer(self._messages, tools.values())
                calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
                if not calls:
                    self._last = response
                    return _ended(response)
                await self._keep(response)
                for call in calls:
                    self._say(("tool_call", call_content(call)))
                await self._call_tools(tools, calls)
        return "limit", limits.steps_reached()

    async def _call_tools(self, tools: Mapping[str, Tool], calls: list[ToolCallPart]) -> None:
        """Run the calls at once. Each has a result in the end, also when the run is cancelled meanwhile."""
        results: list[ToolReturnPart] = []

        def said(result: ToolReturnPart) -> None:
            results.append(result)
            self._say(("tool_call_result", result_content(result)))

        try:
            await execute_all(tools, calls, timeout=self._plan.limits.tool_seconds, said=said)
        finally:
            self._left_running += [one.tool_name for one in results if one.metadata]
            await self._keep(ModelRequest(parts=results))

    # How a run ends

    async def _guarded(self) -> None:
        try:
            ending = await self._timed()
        except asyncio.CancelledError:
            ending = "cancelled", self._receipt()
        except AgentError as failure:
            ending = "error", str(failure)
        except Exception:
            log.exception("run %s broke", self.id)
            ending = "error", "Something went wrong in this program; the details are in its log."
        self._ending = True
        self._over.set()
        await unbroken(self._finish(*ending))

    async def _timed(self) -> Ending:
        limits = self._plan.limits
        clock = asyncio.timeout(limits.seconds)
        try:
            async with clock:
                return await self._drive()
        except TimeoutError:
            if not clock.expired():
                raise
            return "limit", limits.time_reached()

    async def _finish(self, reason: FinishReason, detail: str) -> None:
        """Keep the last response, whole, broken off or empty, with how the run ended; then say that it has ended."""
        if (half := self._requests.broken_off()) is not None:
            self._last = half
            self._meter.step(None)
        last = self._last or ModelResponse(parts=[], model_name=self._plan.connection.spec.name, state="interrupted")
        note = self._note(reason, detail)
        try:
            await self._keep(last, note)
        except Exception as failure:
            log.exception("run %s: its end could not be saved", self.id)
            said = str(failure) if isinstance(failure, AgentError) else "the store failed"
            reason, detail = "error", f"This answer could not be saved: {said}"
            note = replace(note, ended=reason, detail=detail)
        if reason in ("limit", "error"):
            self._say(("error", detail))
        self.result = RunResult(
            finish_reason=reason,
            text="\n\n".join(part.content for part in last.parts if isinstance(part, TextPart)),
            context=self.context,
            note=note,
            system_message=self._plan.system_message,
        )
        self._news.set()

    def _receipt(self) -> str:
        """What a cancelled run says of itself: why, and when the connection to the server was closed."""
        free = max(0.0, self._requests.freed_at - self._cancelled_at) * 1000 if self._cancelled_at else 0.0
        said = {
            "user_request": "Stopped",
            "client_disconnect": "Stopped because nobody was watching any more",
            "shutdown": "Stopped because the server was shut down",
            None: "Stopped",
        }[self.cancel_reason]
        receipt = f"{said}; the model server was free after {free:.0f} ms."
        for name in self._left_running:
            receipt += f" The tool {name} cannot be interrupted and was left running."
        return receipt

    # What the loop stands on

    def _begin(self) -> None:
        """The clock runs from here."""
        self._meter = Meter()
        self._requests = Requests(self.id, self._plan, self._meter, self._say, self._news.set)

    def _say(self, piece: Piece) -> None:
        self.responses.append(self._stamp(piece))
        self._news.set()

    async def _keep(self, message: ModelMessage, note: Note | None = None) -> None:
        """Write ahead: what the journal has not taken is not part of the conversation.

        A write that has begun is waited for, or the next one would come before its outcome is known.
        """

        async def write() -> None:
            if self._journal is not None:
                await self._journal.write(message, note or self._note())
            self._messages.append(message)

        await unbroken(write())

    def _note(self, ended: FinishReason | None = None, detail: str = "") -> Note:
        spec = self._plan.connection.spec
        timings = self._meter.timings() if ended else None
        cost = self._meter.cost(spec.price) if ended and spec.price else None
        return Note(run_id=self.id, model=spec.id, ended=ended, detail=detail, timings=timings, cost=cost)


def _ended(response: ModelResponse) -> Ending:
    match response.finish_reason:
        case "content_filter":
            return "content_filter", withheld(response.provider_details or {})
        case "length":
            return "length", ""
        case _:
            return "stop", ""
