"""One run: model requests with tool calls in between, until there is an answer.

`Run._drive` is the loop. It knows no web page, store or vendor: it passes finished messages to a `Journal` and puts
streamed pieces into `Run.responses`. Every failure becomes an `Outcome`, never an exception.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from uuid import uuid4

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from agent.context import Context
from agent.errors import AgentError, InputError
from agent.events import Observers, ResponseEmitted, RunEnded, RunStarted
from agent.limits import Limit
from agent.messages.repair import repair
from agent.responses import Piece, call_content, result_content
from agent.result import Journal, RecordedEnd, RunPlan, RunResult
from agent.runtime.budget import Budget, BudgetUsed
from agent.runtime.message_log import MessageLog
from agent.runtime.model_request import ModelRequests
from agent.runtime.outcome import INTERNAL_ERROR, NOT_SEALED, Outcome
from agent.runtime.result_builder import ResultBuilder
from agent.runtime.retry import Wait
from agent.runtime.shield import run_to_completion
from agent.runtime.subscription import RunStream
from agent.runtime.tool_calls import ToolCalls
from agent.runtime.usage_meter import UsageMeter
from agent.suspension import STOP, Pending, Resumption, ask_to_continue
from agent.tracing.recorder import Recorder

log = logging.getLogger(__name__)


class Run(RunStream):
    """One run. Owns its task. The work begins with `start`, which iterating and awaiting call."""

    def __init__(
        self,
        plan: RunPlan,
        prompt: list[ModelMessage],
        context: Context,
        journal: Journal | None = None,
        *,
        resumed: Resumption | None = None,
        observers: Observers | None = None,
    ) -> None:
        super().__init__()
        self.id = uuid4().hex
        self.cancel_reason: str | None = None
        self._plan, self._prompt, self._resumed = plan, prompt, resumed
        # Don't repair the history of a suspended run: its pending calls must stay unanswered.
        history = context.messages if resumed else repair(context.messages)
        self._log = MessageLog(context.session_id, history, journal)
        self._clock = asyncio.Timeout(None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._observers = observers or Observers()
        self._start_clock()
        spent = resumed.suspension.spent.allowing(resumed.suspension.limit) if resumed else BudgetUsed()
        self._budget = Budget(plan.limits, spent)
        self._calls = ToolCalls(plan, self._budget, resumed, self._emit, self._observers)
        self._pending: tuple[Pending, ...] = ()
        self._limit: Limit | None = None
        self._last: ModelMessage | None = None
        self._is_ending = self._is_hurried = self._end_kept = False
        self._cancelled_at = 0.0

    # Public methods

    def start(self) -> "Run":
        """Begin in a task of the running event loop. A second call does nothing."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._start_clock()
            self._task = self._loop.create_task(self._guarded(), name=f"run {self.id}")
            self._task.add_done_callback(lambda _: self._ensure_result())  # also if the task never ran
            if self.cancel_reason is not None:  # not at once: a task cancelled before its first step never runs
                self._loop.call_soon(self._task.cancel)
        return self

    def cancel(self, reason: str = "user_request") -> None:
        """Cancel the run from any thread, even during a model request or a tool call. Does nothing after the end.

        `reason` is free text and is shown; "user_request", "client_disconnect" and "shutdown" have sentences.
        """
        if self._is_ending or self.cancel_reason is not None:
            return
        self.cancel_reason, self._cancelled_at = reason, monotonic()
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def record(self, path: str | Path) -> "Run":
        """Write a record of the run to `path`, replacing the file. Call this before the run begins.

        `Agent("replay:path")` plays the record. Raises `InputError` if the run has begun.
        """
        if self._task is not None:
            raise InputError("a run is recorded from its beginning; ask for it before iterating or awaiting")
        self._observers.add(Recorder(path))
        return self

    @property
    def context(self) -> Context:
        """The conversation so far. A new run can continue from it at any moment."""
        return self._log.context

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far."""
        return self._meter.reasoning

    @property
    def waiting(self) -> Wait | None:
        """The current pause before a retry, or the place in the request queue; None if the run is not waiting."""
        return self._requests.waiting

    # The loop

    async def _drive(self) -> Outcome:
        if self._resumed is None:
            prompt = await self._plan.prepare(self._prompt) if self._plan.prepare else self._prompt
            for message in prompt:
                await self._keep(message)
        await self._calls.open()
        if self._resumed is not None and (ending := await self._resume(self._resumed)):
            return ending
        while (limit := self._budget.start_step(self._meter.timings(), self._results.cost())) is None:
            response = await self._requests.request(self._log.messages, self._calls.tools.values())
            calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
            if not calls:
                self._last = response
                return Outcome.from_response(response, self._plan.limits)
            if ending := await self._handle_calls(response, calls):
                return ending
        return self._limit_reached(limit)

    async def _handle_calls(self, response: ModelResponse, calls: Sequence[ToolCallPart]) -> Outcome | None:
        """Make the calls of a response. If some of them need a person, return the outcome `suspended`."""
        pending = self._calls.pending(calls)
        ids = {one.call_id for one in pending}
        asked = [call for call in calls if call.tool_call_id in ids]
        at_once = [call for call in calls if call.tool_call_id not in ids]
        self._budget.count_calls(response, calls, self._calls.tools)
        if at_once:
            await self._keep(response)
        else:
            self._last = response
        for call in calls:
            self._emit(("tool_call", call_content(call)))
        if at_once:
            await self._execute(at_once, asked)
        self._budget.finish_step()
        if not pending:
            return None
        self._pending = pending
        return Outcome("suspended", " ".join(one.sentence for one in pending))

    async def _execute(
        self,
        calls: Sequence[ToolCallPart],
        asked: Sequence[ToolCallPart] = (),
        results: Sequence[ToolReturnPart] = (),
    ) -> None:
        """Make the calls and store their results after the given `results`.

        If people are `asked` about other calls, the results become the run's last message, unless it is cancelled.
        """
        done = list(results)
        ends = False
        try:
            await self._calls.execute(calls, asked, done)
            ends = bool(asked)
        finally:
            if ends:
                self._last = ModelRequest(parts=done)
            else:
                await self._keep(ModelRequest(parts=done))

    async def _resume(self, resumed: Resumption) -> Outcome | None:
        """Use up the suspension and add the results of its pending calls. After a limit, add the user's answer."""
        resumed.check(self._calls.tools)
        if resumed.sealed:
            await self._plan.seals.use(resumed.suspension)
        self._log.begun = True
        if (limit := resumed.suspension.limit) is not None:
            answer = resumed.answers[resumed.suspension.pending[0].call_id]
            if not isinstance(answer, str) or answer == STOP:
                return Outcome.from_limit(limit, self._plan.limits)
            await self._keep(ModelRequest(parts=[UserPromptPart(answer)]))
            return None
        results = resumed.results()
        for result in results:
            self._emit(("tool_call_result", result_content(result)))
            self._calls.report_result(result)
        await self._execute(resumed.calls(), results=results)
        return None

    # The end of the run

    async def _guarded(self) -> None:
        """Run to the end. Whatever is raised, the run gets a result and its readers wake up."""
        try:
            ending = await self._outcome()
            self._is_ending = True
            self._last_word.set()
            await run_to_completion(self._finish(ending))
        except Exception:
            log.exception("run %s could not end as it should", self.id)
        finally:
            self._ensure_result()
            await self._calls.close(hurried=self._is_hurried)

    async def _outcome(self) -> Outcome:
        """Drive the run and turn exceptions into its outcome. Raises only KeyboardInterrupt and SystemExit."""
        try:
            if self._observers:
                self._observers(RunStarted(self.id, self._plan, self._log.raw_context(), self._prompt))
            return await self._timed()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:
            try:
                return self._outcome_from(failure)
            except Exception:
                log.exception("run %s: its ending cannot be told", self.id)
                return INTERNAL_ERROR

    def _outcome_from(self, failure: BaseException) -> Outcome:
        match failure:
            case asyncio.CancelledError():
                self._is_hurried = True
                free_after = max(0.0, self._requests.freed_at - self._cancelled_at) if self._cancelled_at else 0.0
                return Outcome.from_cancellation(self.cancel_reason, free_after, self._calls.left_running)
            case RecordedEnd():
                return Outcome(failure.reason, str(failure))
            case AgentError():
                if isinstance(failure, InputError) and not self._log.begun:
                    self.refused = failure
                return Outcome.from_failure(failure)
            case _:
                log.error("run %s broke", self.id, exc_info=failure)
                return INTERNAL_ERROR

    async def _timed(self) -> Outcome:
        try:
            async with self._clock:
                self._on_wait_changed()
                return await self._drive()
        except TimeoutError:
            if not self._clock.expired():
                raise
            return self._limit_reached("time")

    def _on_wait_changed(self) -> None:
        """Wake readers because `waiting` can have changed. Stop the clock while the run is in the request queue."""
        self._updated.set()
        if not self._clock.expired():
            left = self._budget.seconds_left - self._meter.timings().total
            in_line = self.waiting is not None and self.waiting.ahead
            self._clock.reschedule(None if in_line else asyncio.get_running_loop().time() + left)

    def _limit_reached(self, limit: Limit) -> Outcome:
        """Return the outcome of a limit: the end, or a suspension if somebody can be asked whether to continue."""
        limits = self._plan.limits
        if not self._log.begun or not self._calls.can_ask:
            return Outcome.from_limit(limit, limits)
        self._limit, self._pending = limit, (ask_to_continue(limit, limits),)
        return Outcome("suspended", self._pending[0].sentence)

    async def _finish(self, ending: Outcome) -> None:
        """Store the last message with the outcome of the run, then publish the result.

        Everything that can fail is computed before the write, so that the page shows the same live and after a reload.
        Nothing is stored for a run that has not begun, so a suspended run can still be resumed.
        """
        try:
            last = self._last_message()
            result = self._result_of(ending, last)
        except Exception:
            log.exception("run %s: its result cannot be made", self.id)
            last, result = self._last or self._results.empty_answer(), self._results.minimal(INTERNAL_ERROR)
        if self._log.begun:
            try:
                await self._log.append(last, result.note)
                self._end_kept = True
            except BaseException as failure:  # also a cancelled write, because readers must learn of it
                log.exception("run %s: its end could not be saved", self.id)
                result = self._results.mark_unsaved(result, Outcome.from_store_failure(failure))
        self._publish(result)

    def _ensure_result(self) -> None:
        """Publish a minimal result if `_finish` failed, and wake all readers. Uses nothing that can fail."""
        if self.result is None:
            log.error("run %s has ended without a result", self.id)
            self._is_ending = True
            lost = self._log.begun and not self._end_kept
            self._publish(self._results.minimal(Outcome.from_store_failure(None) if lost else INTERNAL_ERROR))

    def _publish(self, result: RunResult) -> None:
        if result.failed:
            super()._emit(("error", result.note.detail))
        self.result = result
        self._last_word.set()
        self._updated.set()
        if self._observers:  # last, after the readers are awake
            if result.failed:
                self._observers(ResponseEmitted(self.responses[-1]))
            self._observers(RunEnded(result))

    def _last_message(self) -> ModelMessage:
        """Return the last message: complete, partial or empty."""
        if (half := self._requests.partial_response()) is not None:
            self._last = half
            self._meter.step(None)
        return self._last or self._results.empty_answer()

    def _result_of(self, ending: Outcome, last: ModelMessage) -> RunResult:
        sealed = None
        if ending.reason == "suspended":
            spent = self._budget.used(self._meter.timings(), self._results.cost())
            try:
                sealed = self._results.seal(last, self._calls.tools.values(), self._pending, self._limit, spent)
            except Exception:
                log.exception("run %s cannot be sealed", self.id)
                ending = NOT_SEALED
        return self._results.build(ending, last, sealed, self._pending)

    # Helpers

    def _start_clock(self) -> None:
        """Start the usage meter, and create the objects that depend on it."""
        self._meter = UsageMeter()
        self._results = ResultBuilder(self.id, self._plan, self._log, self._meter)
        given = self.id, self._plan, self._meter
        self._requests = ModelRequests(*given, self._emit, self._on_wait_changed, self._observers)

    def _emit(self, piece: Piece) -> None:
        if self._plan.options.ignore_reasoning and piece[0] == "reasoning":
            return
        super()._emit(piece)
        if self._observers:
            self._observers(ResponseEmitted(self.responses[-1]))

    async def _keep(self, message: ModelMessage) -> None:
        await self._log.append(message, self._results.note())
