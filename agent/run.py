"""One run: steps of model requests with tools in between, until there is an answer.

`Run._drive` is the loop. It knows nothing of pages, stores or vendors: what finishes is handed to a `Journal`, what
streams is in `Run.responses`, and whatever goes wrong becomes an ending, never an exception.
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
from agent.guardrails import Limit
from agent.messages import repaired
from agent.observe import Audience, RunBegan, RunEnded, Said
from agent.observe.recorder import Recorder
from agent.responses import Piece, call_content, result_content
from agent.result import Ended, Journal, Plan, RunResult
from agent.runs.calls import Calls
from agent.runs.ending import BROKEN, UNSEALED, Ending, by_cancelling, by_failure, by_limit, by_response, by_store
from agent.runs.following import Followed
from agent.runs.message_log import MessageLog
from agent.runs.meter import Meter
from agent.runs.results import Results
from agent.runs.retry import Waiting
from agent.runs.step import Requests
from agent.runs.unbroken import unbroken
from agent.runs.watch import Spent, Watch
from agent.suspension import STOP, Pending, Resumption, whether_to_go_on

log = logging.getLogger(__name__)


class Run(Followed):
    """One run. Owner of its task; its work begins with `start`, which iterating and awaiting call."""

    def __init__(
        self,
        plan: Plan,
        prompt: list[ModelMessage],
        context: Context,
        journal: Journal | None = None,
        *,
        resumed: Resumption | None = None,
        audience: Audience | None = None,
    ) -> None:
        super().__init__()
        self.id = uuid4().hex
        self.cancel_reason: str | None = None
        self._plan, self._prompt, self._resumed = plan, prompt, resumed
        # Don't repair the history of a suspended run: its pending calls must stay unanswered.
        history = context.messages if resumed else repaired(context.messages)
        self._log = MessageLog(context.session_id, history, journal)
        self._clock = asyncio.Timeout(None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._audience = audience or Audience()
        self._begin()
        spent = resumed.suspension.spent.allowing(resumed.suspension.limit) if resumed else Spent()
        self._watch = Watch(plan.limits, spent)
        self._calls = Calls(plan, self._watch, resumed, self._say, self._audience)
        self._pending: tuple[Pending, ...] = ()
        self._limit: Limit | None = None
        self._last: ModelMessage | None = None
        self._ending = self._hurried = self._end_kept = False
        self._cancelled_at = 0.0

    # What others may ask of a run

    def start(self) -> "Run":
        """Begin, in a task of the running loop; a second call does nothing."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._begin()
            self._task = self._loop.create_task(self._guarded(), name=f"run {self.id}")
            self._task.add_done_callback(lambda _: self._ensure_result())  # also if its first step never came
            if self.cancel_reason is not None:  # not at once: a task cancelled before its first step never runs
                self._loop.call_soon(self._task.cancel)
        return self

    def cancel(self, reason: str = "user_request") -> None:
        """End the run, from any thread, whatever the provider or a tool is doing. After the end it does nothing.

        `reason` is free text for the receipt; "user_request", "client_disconnect" and "shutdown" have sentences.
        """
        if self._ending or self.cancel_reason is not None:
            return
        self.cancel_reason, self._cancelled_at = reason, monotonic()
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def record(self, path: str | Path) -> "Run":
        """Write a flight record of it to `path`, which is replaced; to be asked for before it begins.

        `Agent("replay:path")` plays it. Raises `InputError`.
        """
        if self._task is not None:
            raise InputError("a run is recorded from its beginning; ask for it before iterating or awaiting")
        self._audience.add(Recorder(path))
        return self

    @property
    def context(self) -> Context:
        """The conversation so far, valid to go on from at any moment."""
        return self._log.context

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far."""
        return self._meter.reasoning

    @property
    def waiting(self) -> Waiting | None:
        """The pause before another try of a request that failed, or the line it stands in, while there is one."""
        return self._requests.waiting

    # The loop

    async def _drive(self) -> Ending:
        if self._resumed is None:
            prompt = await self._plan.prepare(self._prompt) if self._plan.prepare else self._prompt
            for message in prompt:
                await self._keep(message)
        await self._calls.open()
        if self._resumed is not None and (ending := await self._take_up(self._resumed)):
            return ending
        while (limit := self._watch.next_step(self._meter.timings(), self._results.cost())) is None:
            response = await self._requests.answer(self._log.messages, self._calls.tools.values())
            calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
            if not calls:
                self._last = response
                return by_response(response, self._plan.limits)
            if ending := await self._act(response, calls):
                return ending
        return self._reached(limit)

    async def _act(self, response: ModelResponse, calls: Sequence[ToolCallPart]) -> Ending | None:
        """Make the calls of a response, but for those that wait for people: then this is the end, for now."""
        pending = self._calls.waiting(calls)
        ids = {one.call_id for one in pending}
        asked = [call for call in calls if call.tool_call_id in ids]
        at_once = [call for call in calls if call.tool_call_id not in ids]
        self._watch.calls(response, calls, self._calls.tools)
        if at_once:
            await self._keep(response)
        else:
            self._last = response
        for call in calls:
            self._say(("tool_call", call_content(call)))
        if at_once:
            await self._make(at_once, asked)
        self._watch.step_done()
        if not pending:
            return None
        self._pending = pending
        return Ending("suspended", " ".join(one.sentence for one in pending))

    async def _make(
        self,
        calls: Sequence[ToolCallPart],
        asked: Sequence[ToolCallPart] = (),
        results: Sequence[ToolReturnPart] = (),
    ) -> None:
        """Make the calls and keep their results, after those that are there already.

        Where others are `asked` for they are kept with the end of the run, which is at hand; unless it is cancelled.
        """
        done = list(results)
        ends = False
        try:
            await self._calls.make(calls, asked, done)
            ends = bool(asked)
        finally:
            if ends:
                self._last = ModelRequest(parts=done)
            else:
                await self._keep(ModelRequest(parts=done))

    async def _take_up(self, resumed: Resumption) -> Ending | None:
        """Use up the suspension and give the calls that waited their results; or, after a limit, the user's word."""
        resumed.check(self._calls.tools)
        if resumed.sealed:
            await self._plan.seals.use(resumed.suspension)
        self._log.begun = True
        if (limit := resumed.suspension.limit) is not None:
            answer = resumed.answers[resumed.suspension.pending[0].call_id]
            if not isinstance(answer, str) or answer == STOP:
                return by_limit(limit, self._plan.limits)
            await self._keep(ModelRequest(parts=[UserPromptPart(answer)]))
            return None
        results = resumed.results()
        for result in results:
            self._say(("tool_call_result", result_content(result)))
            self._calls.told(result)
        await self._make(resumed.calls(), results=results)
        return None

    # How a run ends

    async def _guarded(self) -> None:
        """Run to the end. Whatever is raised on the way, the run gets a result and its readers wake."""
        try:
            ending = await self._outcome()
            self._ending = True
            self._over.set()
            await unbroken(self._finish(ending))
        except Exception:
            log.exception("run %s could not end as it should", self.id)
        finally:
            self._ensure_result()
            await self._calls.close(hurried=self._hurried)

    async def _outcome(self) -> Ending:
        """Drive the run; what it raises becomes its ending. Raises only what ends the whole program."""
        try:
            if self._audience:
                self._audience(RunBegan(self.id, self._plan, self._log.as_is(), self._prompt))
            return await self._timed()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:
            try:
                return self._by(failure)
            except Exception:
                log.exception("run %s: its ending cannot be told", self.id)
                return BROKEN

    def _by(self, failure: BaseException) -> Ending:
        match failure:
            case asyncio.CancelledError():
                self._hurried = True
                free_after = max(0.0, self._requests.freed_at - self._cancelled_at) if self._cancelled_at else 0.0
                return by_cancelling(self.cancel_reason, free_after, self._calls.left_running)
            case Ended():
                return Ending(failure.reason, str(failure))
            case AgentError():
                if isinstance(failure, InputError) and not self._log.begun:
                    self.refused = failure
                return by_failure(failure)
            case _:
                log.error("run %s broke", self.id, exc_info=failure)
                return BROKEN

    async def _timed(self) -> Ending:
        try:
            async with self._clock:
                self._waits()
                return await self._drive()
        except TimeoutError:
            if not self._clock.expired():
                raise
            return self._reached("time")

    def _waits(self) -> None:
        """What it waits for may be another. In line its clock stands still: nothing is done for it yet."""
        self._news.set()
        if not self._clock.expired():
            left = self._watch.seconds_left - self._meter.timings().total
            in_line = self.waiting is not None and self.waiting.before
            self._clock.reschedule(None if in_line else asyncio.get_running_loop().time() + left)

    def _reached(self, limit: Limit) -> Ending:
        """A limit ends the run, or suspends it where somebody can be asked whether to go on."""
        limits = self._plan.limits
        if not self._log.begun or not self._calls.can_ask:
            return by_limit(limit, limits)
        self._limit, self._pending = limit, (whether_to_go_on(limit, limits),)
        return Ending("suspended", self._pending[0].sentence)

    async def _finish(self, ending: Ending) -> None:
        """Keep the last message with how the run ended, then publish the result.

        Everything that may fail is made before the write, so that the page says the same live and after a reload. Of a
        run that has not begun nothing is kept: a suspended one can be resumed as before.
        """
        try:
            last = self._last_message()
            result = self._result_of(ending, last)
        except Exception:
            log.exception("run %s: its result cannot be made", self.id)
            last, result = self._last or self._results.no_answer(), self._results.plain(BROKEN)
        if self._log.begun:
            try:
                await self._log.append(last, result.note)
                self._end_kept = True
            except BaseException as failure:  # a cancelled write, too: readers must hear of it
                log.exception("run %s: its end could not be saved", self.id)
                result = self._results.unsaved(result, by_store(failure))
        self._publish(result)

    def _ensure_result(self) -> None:
        """Give a result to a run whose ending failed, and wake all readers. Uses nothing that may fail."""
        if self.result is None:
            log.error("run %s has ended without a result", self.id)
            self._ending = True
            self._publish(self._results.plain(by_store(None) if self._log.begun and not self._end_kept else BROKEN))

    def _publish(self, result: RunResult) -> None:
        if result.failed:
            super()._say(("error", result.note.detail))
        self.result = result
        self._over.set()
        self._news.set()
        if self._audience:  # last, after the readers are awake
            if result.failed:
                self._audience(Said(self.responses[-1]))
            self._audience(RunEnded(result))

    def _last_message(self) -> ModelMessage:
        """The last message, whole, broken off or empty."""
        if (half := self._requests.broken_off()) is not None:
            self._last = half
            self._meter.step(None)
        return self._last or self._results.no_answer()

    def _result_of(self, ending: Ending, last: ModelMessage) -> RunResult:
        sealed = None
        if ending.reason == "suspended":
            spent = self._watch.spent(self._meter.timings(), self._results.cost())
            try:
                sealed = self._results.sealed(last, self._calls.tools.values(), self._pending, self._limit, spent)
            except Exception:
                log.exception("run %s cannot be sealed", self.id)
                ending = UNSEALED
        return self._results.whole(ending, last, sealed, self._pending)

    # What the loop stands on

    def _begin(self) -> None:
        """The clock runs from here."""
        self._meter = Meter()
        self._results = Results(self.id, self._plan, self._log, self._meter)
        self._requests = Requests(self.id, self._plan, self._meter, self._say, self._waits, self._audience)

    def _say(self, piece: Piece) -> None:
        if self._plan.options.ignore_reasoning and piece[0] == "reasoning":
            return
        super()._say(piece)
        if self._audience:
            self._audience(Said(self.responses[-1]))

    async def _keep(self, message: ModelMessage) -> None:
        await self._log.append(message, self._results.note())
