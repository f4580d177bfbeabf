"""One run: a handle to start, follow, await and cancel it, and to get its result.

`agent.runtime.agent_loop` does the work and writes to the run. However that work ends, the run turns its end into an
`Outcome`.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Never, cast
from uuid import uuid4

from pydantic_ai.messages import ModelMessage

from agent.context import Context
from agent.errors import AgentError, InputError
from agent.events import Event, EventQueue, Observers, RunEnded, RunStarted
from agent.keyword_arguments import ExplainsAttributes, no_attribute, shown
from agent.messages.adapt import check_prompt
from agent.models.catalog import ModelSpec
from agent.providers.connection import ChosenLater
from agent.responses import Response, fix_surrogates, steering_message
from agent.result import INTERNAL_ERROR, FinishReason, Journal, Outcome, OutputT, RunPlan, RunResult
from agent.runtime.agent_loop import AgentLoop, MessageLog, ResultBuilder
from agent.runtime.children import AgentCall, CallingRun
from agent.runtime.run_stream import RunStream, Steering
from agent.runtime.usage import UsageMeter
from agent.suspension.suspended_run import Resumption
from agent.system.threads import run_to_completion

log = logging.getLogger(__name__)


def _running_loop(what: str) -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises `InputError`."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InputError(
            f"only a coroutine can {what}: write it in an async function, or Chat(agent).say(prompt) without one"
        ) from None


class Run(ExplainsAttributes, RunStream[OutputT]):
    """One run, as a cancellable stream of responses. Any number of readers can follow it.

    The work runs in its own task. It begins with `start`, which iterating and awaiting call. Leaving the iteration
    early, or cancelling the task that awaits the run, cancels the run.
    """

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
        super().__init__(observers or Observers(), ignore_reasoning=plan.options.ignore_reasoning)
        self.id = uuid4().hex
        self.cancel_reason: str | None = None
        self._plan, self._prompt, self._resumed = plan, prompt, resumed
        self._messages = MessageLog(context.session_id, context.messages, journal)
        self._meter = UsageMeter()
        self._results = ResultBuilder(self.id, plan, self._messages, self._meter)
        self._above: CallingRun | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ending = self._is_hurried = self._end_stored = False
        self._cancelled_at = 0.0
        self._partial: object = None

    if not TYPE_CHECKING:  # a checker would take a run for iterable

        def __iter__(self) -> Never:
            raise TypeError(f"a run is iterated with async for: {no_attribute(self, '__iter__')}")

    async def below(self, call: AgentCall) -> RunResult[OutputT]:
        """Run to the end as a child of the run that makes this call, and return the result."""
        self._above = call.caller
        call.caller.meter.add_child(self._meter, self._results.cost)
        self.observers.add(call)
        try:
            return await self
        except asyncio.CancelledError:
            with suppress(InputError):
                await self  # it is cancelled, too, and counts until its end
            raise

    # Start and cancel

    def start(self) -> "Run[OutputT]":
        """Begin in a task of the running event loop. A second call does nothing."""
        if self._task is None and self.result is None:
            self._event_loop = _running_loop("start a run")
            self._meter.start()
            self._task = self._event_loop.create_task(self._run_to_end(), name=f"run {self.id}")
            self._task.add_done_callback(lambda _: self._ensure_result())  # also if the task never ran
            if self.cancel_reason is not None:  # not at once: a task cancelled before its first step never runs
                self._event_loop.call_soon(self._task.cancel)
        elif not self.done and self._event_loop is not _running_loop("follow a run"):
            raise InputError("this run began in another event loop: await it there, or write Chat(agent).say(prompt)")
        return self

    def cancel(self, reason: str = "user_request") -> None:
        """Cancel the run from any thread, even during a model request or a tool call. Does nothing after the end.

        `reason` is free text and is shown; "user_request", "reader_left", "client_disconnect" and "shutdown" have
        sentences.
        """
        if not isinstance(cast(object, reason), str):
            raise InputError(f"cancel takes a reason in words, not {shown(reason)}: write run.cancel()")
        if self._is_ending or self.cancel_reason is not None:
            return
        self.cancel_reason, self._cancelled_at = reason, monotonic()
        if self._event_loop is not None and self._task is not None:
            self._event_loop.call_soon_threadsafe(self._task.cancel)

    def refuse(self, failure: BaseException) -> None:
        """End a run that has not begun, because its conversation could not be claimed for it."""
        self.publish(self._results.minimal(Outcome.from_store_failure(failure)))

    def steer(self, text: str, *, id: str = "") -> "asyncio.Future[bool]":
        """Send the model another message at its next step, after the results of the tools that are running.

        The future is True once the message is part of the conversation, with this `id` if it is given, and False if the
        run ends before another step: then send the message as the next one. Cancel the future to take the message back,
        which is no proof that it was not sent: the run can be storing it.
        A run without tools has one step. Call it in the event loop of the run. Raises `InputError` for an empty text.
        """
        if not isinstance(cast(object, text), str) or not text.strip():
            raise InputError("steer takes the text of a message, which must not be empty.")
        taken = _running_loop("steer a run").create_future()
        steering = Steering(text, steering_message(fix_surrogates(text), id or uuid4().hex), taken)
        if self._is_ending or self.result is not None or self.cancel_reason is not None:
            steering.settle(is_taken=False)
        else:
            self.steering.append(steering)
        return taken

    @property
    def takes_steering(self) -> bool:
        """True if another step can follow: the run has tools, and no end yet."""
        plan = self._results.plan  # that of the agent which has the turn now
        return not self._is_ending and self.result is None and bool(plan.tools or plan.toolsets or plan.documents)

    # The view of readers

    @property
    def spec(self) -> ModelSpec:
        """The model of the agent that has the turn now."""
        return self._results.plan.connection.spec

    @property
    def context(self) -> Context:
        """The conversation so far. A new run can continue from it at any moment."""
        return self._messages.context

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far."""
        return self._meter.reasoning

    @property
    def partial_output(self) -> OutputT | None:
        """The value of the answer as far as it is written, of the type that was given as `output`; None before.

        Lists and dicts grow. A model or dataclass is there once the fields that it requires are. It can still turn out
        not to fit: `result.output` is the value that counts.
        """
        if (output := self._plan.output) is not None:
            value = output.read_partial(self.last_text)
            self._partial = self._partial if value is None else value
        return cast("OutputT | None", self._partial)

    @property
    def finish_reason(self) -> FinishReason | None:
        """The way in which the run ended: "stop", "length", "content_filter", "cancelled", ...; None before the end."""
        return self.result.finish_reason if self.result is not None else None

    @property
    def ending(self) -> str:
        """The sentence that says why the run ended early, was cut or waits for people; "" if there is nothing to say.

        Only an error and a limit are also a response, the last one. So readers of the responses look here for the rest.
        """
        return self.result.note.detail if self.result is not None else ""

    async def finished(self) -> RunResult[OutputT]:
        """Wait for the end, begin if needed, and return the result. `await run` does the same. Raises `InputError`."""
        return await self._result()

    def events(self) -> AsyncIterator[Event]:
        """Return everything that happens in the run from now on, the responses included, up to `RunEnded`.

        Call it before the run begins to get all events. `agent.events` describes them: for example, `StateSnapshot` has
        the conversation in mid-run, and `UserInputRequested` the record of a suspended run. Iterating begins the run,
        and leaving the iteration early cancels it. Raises `InputError` as iterating over the run does.
        """
        follower = EventQueue()
        if self.result is not None:
            follower.on_event(RunEnded(self.result))
        self.observers.add(follower)
        return self._follow(follower)

    async def _follow(self, follower: EventQueue) -> AsyncIterator[Event]:
        self.start()
        try:
            event: Event | None = None
            while not isinstance(event, RunEnded):
                event = await follower.next()
                if self.refused is not None:
                    raise self.refused
                yield event
            await self._wait_until_released()
        finally:
            self.cancel("reader_left")

    async def __aiter__(self) -> AsyncIterator[Response]:
        self.start()
        seen = 0
        try:
            while not (self.done and seen == len(self.responses)):
                await self.wait_for_update(seen)
                if self.refused is not None:
                    raise self.refused
                for response in self.responses[seen:]:
                    seen += 1
                    yield response
            await self._wait_until_released()
        finally:
            self.cancel("reader_left")

    def __await__(self) -> Generator[Any, None, RunResult[OutputT]]:
        return self._result().__await__()

    async def _result(self) -> RunResult[OutputT]:
        self.start()
        try:
            while not self.done:
                await self.wait_for_update(sys.maxsize)
        except asyncio.CancelledError:
            self.cancel("reader_left")
            raise
        await self._wait_until_released()
        if self.refused is not None:
            raise self.refused
        assert self.result is not None
        return self.result

    async def _wait_until_released(self) -> None:
        """Wait until the run has closed all that it opened, because the program can end right after the run."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    # The task

    async def _run_to_end(self) -> None:
        """Run to the end. Whatever is raised, the run gets a result and its readers wake up."""
        # Only this frame has the loop, which writes to the run. A circle would keep an ended run, and a visitor's key,
        # until Python looks for circles.
        loop = AgentLoop(self._results, self, self._resumed, self._above)
        try:
            outcome = await self._outcome(loop)
            self._is_ending = True
            self.end_text()
            await run_to_completion(self._finish(loop, outcome))
        except Exception:
            log.exception("run %s could not end as it should", self.id)
        finally:
            self._ensure_result()
            await loop.calls.close(hurried=self._is_hurried)

    async def _outcome(self, loop: AgentLoop) -> Outcome:
        """Run the loop and turn exceptions into an outcome. Raises only KeyboardInterrupt and SystemExit."""
        try:
            if isinstance(self._plan.connection, ChosenLater):
                await self._plan.connection.ready()
                check_prompt(self._prompt, self._plan.connection.spec)
            await loop.prepare()
            if self.observers:
                self.observers(RunStarted(self.id, self._plan, self._messages.raw_context(), self._prompt))
            return await loop.run(self._prompt)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:
            try:
                return self._outcome_from(loop, failure)
            except Exception:
                log.exception("run %s: its ending cannot be told", self.id)
                return INTERNAL_ERROR

    def _outcome_from(self, loop: AgentLoop, failure: BaseException) -> Outcome:
        match failure:
            case asyncio.CancelledError():
                self._is_hurried = True
                freed_at, left_running = loop.requests.freed_at, loop.calls.left_running
                if self._cancelled_at:
                    free_after = max(0.0, freed_at - self._cancelled_at)
                    log.info("run %s: the model server was free %.0f ms after the stop", self.id, 1000 * free_after)
                return Outcome.from_cancellation(self.cancel_reason, left_running)
            case AgentError():
                if isinstance(failure, InputError) and not self._messages.begun:
                    self.refused = failure
                return Outcome.from_failure(failure)
            case _:
                log.error("run %s broke", self.id, exc_info=failure)
                return INTERNAL_ERROR

    async def _finish(self, loop: AgentLoop, outcome: Outcome) -> None:
        """Store the last message with the outcome of the run, then publish the result.

        Everything that can fail is computed before the write, so that the page shows the same live and after a reload.
        Nothing is stored for a run that has not begun, so a suspended run can still be resumed.
        """
        messages, results = self._messages, self._results
        try:
            last, result = await loop.ending(outcome)
        except Exception:
            log.exception("run %s: its result cannot be made", self.id)
            last, result = loop.last_whole_message(), results.minimal(INTERNAL_ERROR)
        if messages.begun:
            try:
                await messages.append(last, result.note)
                self._end_stored = True
            except BaseException as failure:  # also a cancelled write, because readers must learn of it
                told = None if isinstance(failure, AgentError) else failure  # a sentence needs no traceback
                log.error("run %s: its end could not be saved: %s", self.id, failure, exc_info=told)
                result = results.mark_unsaved(result, Outcome.from_store_failure(failure))
        self.publish(result, self.cancel_reason)

    def _ensure_result(self) -> None:
        """Publish a minimal result if `_finish` failed, and wake all readers. Uses nothing that can fail."""
        if self.result is None:
            log.error("run %s has ended without a result", self.id)
            self._is_ending = True
            lost = self._messages.begun and not self._end_stored
            outcome = Outcome.from_store_failure(None) if lost else INTERNAL_ERROR
            self.publish(self._results.minimal(outcome))
