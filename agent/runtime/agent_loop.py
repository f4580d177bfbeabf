"""The agent loop: model requests with tool calls in between, until there is an answer or a person is needed.

It knows no web page, store or vendor: it passes finished messages to a `Journal` and streamed pieces to a `RunStream`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from agent.context import Context
from agent.errors import AgentError, InputError
from agent.events import HandedOver, StateSnapshot, ToolCallEnded, ToolCallStarted, ToolOutput
from agent.files.long_documents import LongDocument, long_documents, prompt_with_passages
from agent.history import Note, Timings
from agent.i18n.text import N_, LocalizedText, _, joined
from agent.limits import BudgetUsed, Limit
from agent.messages.adapt import adapt, check_prompt
from agent.messages.repair import in_order_of_calls, repair
from agent.models.catalog import ModelSpec
from agent.output import Misfit, repair_prompt
from agent.plain_text import off_loop
from agent.providers.connection import ChosenLater
from agent.providers.retry import Wait
from agent.providers.stand_ins import StandIns
from agent.responses import Piece, call_content, finalize, result_content, steering_id
from agent.result import (
    NOT_SEALED,
    Journal,
    Outcome,
    RunPlan,
    RunResult,
    charts_of_messages,
    files_of_messages,
    text_of_message,
)
from agent.runtime.children import CallingRun
from agent.runtime.fitting import Fitting
from agent.runtime.model_request import ModelRequests
from agent.runtime.run_stream import RunStream
from agent.runtime.usage import Budget, UsageMeter
from agent.suspension.seals import pack
from agent.suspension.suspended_run import (
    STOP,
    Pending,
    Resumption,
    Suspension,
    ask_to_continue,
    digests,
    needs_person,
    pending_call,
)
from agent.system.threads import run_to_completion
from agent.tools.documents import with_document_tools
from agent.tools.function_tools import CUT, LEFT_RUNNING, Tool, ToolSessions, cancelled_result, execute_all


class MessageLog:
    """The history that a run starts from and the messages that it adds. Only this class calls the journal.

    `begun` is False until the run has changed something: until then a refusal leaves no trace.
    """

    def __init__(self, session_id: str, history: Sequence[ModelMessage], journal: Journal | None) -> None:
        self.messages = list(history)
        self.begun = False
        self.session_id = session_id
        self._journal, self._start = journal, len(self.messages)

    async def repair(self) -> None:
        """Repair the history, before anything is added."""
        self.messages = await off_loop(self.messages, repair, self.messages)
        self._start = len(self.messages)

    @property
    def added(self) -> Sequence[ModelMessage]:
        """The messages that this run has added."""
        return self.messages[self._start :]

    @property
    def question(self) -> Sequence[ModelMessage]:
        """The requests since the last answer before this run."""
        before = [one for one, message in enumerate(self.messages[: self._start]) if isinstance(message, ModelResponse)]
        return [one for one in self.messages[max(before, default=-1) + 1 :] if isinstance(one, ModelRequest)]

    @property
    def context(self) -> Context:
        """The conversation so far. A new run can continue from it at any moment."""
        return self.with_last()

    def lazy_context(self) -> Callable[[], Context]:
        """Return a function that makes the conversation as it is now, also if it has grown meanwhile."""
        length = len(self.messages)
        return lambda: Context(session_id=self.session_id, messages=tuple(repair(self.messages[:length])))

    def with_last(self, *messages: ModelMessage) -> Context:
        """Return the conversation as it will be after these messages are written."""
        return Context(session_id=self.session_id, messages=tuple(repair([*self.messages, *messages])))

    def raw_context(self) -> Context:
        """Return the conversation without any repair. This cannot fail."""
        return Context(session_id=self.session_id, messages=tuple(self.messages))

    async def append(self, message: ModelMessage, note: Note) -> None:
        """Write the message to the journal, then add it. Cancelling the run does not interrupt a write in progress.

        A run whose prompt could not be written has not begun: an ending without it would be all that a reader sees.
        """

        async def write() -> None:
            self.begun = True
            if self._journal is not None:
                try:
                    await self._journal.write(message, note)
                except BaseException:
                    self.begun = bool(self.added) or not any(isinstance(one, UserPromptPart) for one in message.parts)
                    raise
            self.messages.append(message)

        await run_to_completion(write())


class ToolCalls:
    """The tool calls of one run. Owns its tools, their sessions, and the names of tools that are left running.

    `emit` gets each result as soon as it is there. The observers get it, too. `run` is the run as agents see it that
    are among the tools. `notes` gets a sentence for each result that was cut, and `output` what running tools
    yield.
    """

    def __init__(
        self,
        run: CallingRun,
        emit: Callable[[Piece], None],
        notes: list[LocalizedText],
        output: Callable[[ToolOutput], None],
    ) -> None:
        self.run, self._notes = run, notes
        self.tools = run.plan.tools
        self.left_running: list[str] = []
        self._emit, self._output, self._observers = emit, output, run.observers
        self._sessions = ToolSessions()

    @property
    def can_ask(self) -> bool:
        """True if somebody can be asked whether to continue."""
        chosen = self.run.plan.limits.interactive
        return any(map(needs_person, self.tools.values())) if chosen is None else chosen

    async def open(self) -> None:
        """Open the toolsets. Raises an `AgentError` with a sentence for people."""
        self.tools = await self._sessions.open(self.run.plan.tools, self.run.plan.toolsets)

    async def close(self, *, hurried: bool) -> None:
        """Close the toolsets. `hurried` waits less before it leaves the rest to the background."""
        await self._sessions.close(hurried=hurried)

    def pending(self, calls: Sequence[ToolCallPart]) -> tuple[Pending, ...]:
        """Return the questions and approvals that must be answered before some of the calls can be made."""
        return tuple(one for call in calls if (one := pending_call(call, self.tools)))

    async def execute(
        self, calls: Sequence[ToolCallPart], asked: Sequence[ToolCallPart], done: list[ToolReturnPart]
    ) -> None:
        """Run the calls concurrently and add one result for each to `done`, even if the run is cancelled meanwhile.

        Readers see a result as soon as it is there, and `done` has this order, too.
        A call whose agent was suspended gets none: it waits in `run`. After a cancellation it does, and so do the
        `asked` calls, because nobody will be asked any more.
        """
        run, waiting = self.run, self.run.waiting

        def add_result(result: ToolReturnPart) -> None:
            if result.tool_call_id in waiting:
                return
            result = run.resumed.with_note(result) if run.resumed else result
            done.append(run.budget.count_result(result))
            self._emit(("tool_call_result", result_content(done[-1])))
            self.report_result(done[-1])
            self._note(result)

        run.is_alone = len(calls) + len(asked) == 1
        try:
            await execute_all(
                self.tools,
                calls,
                timeout=run.plan.limits.tool_seconds,
                characters=run.plan.limits.tool_characters,
                on_result=add_result,
                on_start=self._report_call,
                on_output=lambda call, text: self._output(ToolOutput(call.tool_call_id, call.tool_name, text)),
            )
        except BaseException:
            unasked = [*asked, *(call for call in calls if call.tool_call_id in waiting)]
            waiting.clear()
            for call in unasked:
                add_result(cancelled_result(call))
            raise
        finally:
            run.is_alone = True

    def _note(self, result: ToolReturnPart) -> None:
        """Note a tool that was left running, and a result that was cut."""
        metadata = cast(object, result.metadata)
        about = cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}
        if LEFT_RUNNING in about:
            self.left_running.append(result.tool_name)
        if (length := about.get(CUT)) is not None:
            sentence = N_("The result of {tool} was cut: it had {length} characters, and a result can have {most}.")
            values = {"tool": result.tool_name, "most": self.run.plan.limits.tool_characters, "length": length}
            self._notes.append(LocalizedText(sentence, values))

    def report_result(self, result: ToolReturnPart) -> None:
        """Tell the observers that a call has this result."""
        if self._observers:
            self._observers(ToolCallEnded(result))

    def _report_call(self, call: ToolCallPart) -> None:
        self.run.begin(call)
        if self._observers:
            self._observers(ToolCallStarted(call))


class ResultBuilder:
    """Builds the notes and the result of one run from its messages and figures.

    `corrections` are sentences on what was sent or stored in another way than people would expect.
    """

    def __init__(self, run_id: str, plan: RunPlan, messages: MessageLog, meter: UsageMeter) -> None:
        self.run_id, self.plan, self.messages, self.meter = run_id, plan, messages, meter
        self.corrections: list[LocalizedText] = []

    def cost(self) -> float | None:
        """Return the cost so far in US dollars, or None if it is unknown."""
        return self.meter.cost(self.plan.connection.spec.price)

    def note(self, outcome: Outcome | None = None) -> Note:
        """Return the note of a message. With an `outcome` it is for the last message and has the figures."""
        note = Note(run_id=self.run_id, model=self.plan.connection.spec.id)
        if outcome is None:
            return note
        omitted = joined([*self.plan.stood_in, *self.corrections])
        return replace(_with_outcome(note, outcome), timings=self.meter.timings(), cost=self.cost(), omitted=omitted)

    def empty_answer(self) -> ModelResponse:
        """Return the last message of a run in which the model gave no answer."""
        return ModelResponse(parts=[], model_name=self.plan.connection.spec.name, state="interrupted")

    def suspend(
        self,
        last: ModelMessage,
        tools: Iterable[Tool],
        pending: Sequence[Pending],
        limit: Limit | None,
        spent: BudgetUsed,
        children: Mapping[str, Suspension],
        handed: tuple[str, ...],
    ) -> tuple[str, str]:
        """Return a suspension with everything that resuming needs: sealed, and for the note of the last message."""
        suspension = Suspension(
            run_id=self.run_id,
            session_id=self.messages.session_id,
            model=self.plan.connection.spec.id,
            tools=digests(tools),
            options={**asdict(replace(self.plan.options, headers=None))},  # headers can be secret
            messages=(*self.messages.messages, last),
            pending=tuple(pending),
            limit=limit,
            spent=spent,
            children=children,
            handed=handed,
        )
        return self.plan.seals.seal(suspension), pack(suspension)

    def build(
        self,
        outcome: Outcome,
        last: ModelMessage,
        sealed: tuple[str, str] | None,
        pending: Sequence[Pending],
        output: object,
    ) -> RunResult:
        """Return the result as it will be after `last` is written. A run that has not begun writes nothing.

        `sealed` is the return value of `suspend`, None for a run that is not suspended.
        """
        written = [last] if self.messages.begun else []
        added = [*self.messages.added, *written]
        answer = next((one for one in reversed([*added, last]) if isinstance(one, ModelResponse)), None)
        spec = self.plan.connection.spec
        omitted = adapt([*self.messages.messages, *written], spec).sentence(spec)
        return RunResult(
            finish_reason=outcome.reason,
            text=text_of_message(answer) if answer else "",
            context=self.messages.with_last(*written),
            note=replace(self.note(outcome), suspension=sealed[1] if sealed else ""),
            files=tuple(files_of_messages(added)),
            charts=charts_of_messages(added),
            suspension=sealed[0] if sealed else None,
            pending=tuple(pending) if outcome.reason == "suspended" else (),
            effort=self.plan.effort,
            notes=(*self.plan.notes, *self.corrections, *([omitted] if omitted else [])),
            system_message=self.plan.system_message,
            failure=outcome.failure,
            output=output,
        )

    def mark_unsaved(self, result: RunResult, outcome: Outcome) -> RunResult:
        """Return the result of a run without its last message, which could not be saved."""
        note, context = _with_outcome(result.note, outcome), self.messages.context
        return replace(
            result,
            finish_reason=outcome.reason,
            context=context,
            note=note,
            suspension=None,
            pending=(),
            failure=outcome.failure,
        )

    def minimal(self, outcome: Outcome) -> RunResult:
        """Return a result without figures, made only of existing values, for use after `build` fails."""
        note = replace(_with_outcome(self.note(), outcome), timings=Timings())
        return RunResult(finish_reason=outcome.reason, text="", context=self.messages.raw_context(), note=note)


def _with_outcome(note: Note, outcome: Outcome) -> Note:
    return replace(note, ended=outcome.reason, detail=outcome.detail)


class RunClock:
    """Owns the time limit of one run, and tells the readers of its `stream` what it waits for.

    It has no reference to the loop that uses it. Such a cycle would keep the messages of an ended run, and its
    visitor's key, until Python looks for cycles.
    """

    def __init__(
        self, stream: RunStream[Any], budget: Budget, meter: UsageMeter, above: CallingRun | None = None
    ) -> None:
        self.time_limit = asyncio.Timeout(None)
        self._stream, self._budget, self._meter, self._above = stream, budget, meter, above
        self._child_waits_since: float | None = None

    def on_wait(self, wait: Wait | None) -> None:
        """Tell the readers what the run waits for. Stop its clock while it is in the request queue."""
        self._stream.set_waiting(wait)
        if not self.time_limit.expired():
            left = self._budget.seconds_left - self._meter.timings().total
            is_queued = wait is not None and wait.ahead
            self.time_limit.reschedule(None if is_queued else asyncio.get_running_loop().time() + left)
        if self._above is not None:
            self._above.child_waits(wait)

    def on_child_wait(self, wait: Wait | None) -> None:
        """Do the same for a run below, whose time in the request queue is time in the queue here, too."""
        began, now = self._child_waits_since, monotonic()
        is_queued = wait is not None and wait.ahead
        if began is not None and not is_queued:
            self._meter.add_queue_time(now - began)
        self._child_waits_since = (began or now) if is_queued else None
        self.on_wait(wait)


log = logging.getLogger(__name__)


class AgentLoop:
    """The loop of one run. Owns its budget and time limit, its model requests and its tool calls.

    `results` has the plan, the messages and the meter of the run. `resumed` is the suspended run to continue, if any,
    and `above` the run that asks this one. The responses go to `stream`.
    """

    def __init__(
        self, results: ResultBuilder, stream: RunStream[Any], resumed: Resumption | None, above: CallingRun | None
    ) -> None:
        self._plan, self._resumed, self._stream = (plan := results.plan), resumed, stream
        used = resumed.suspension.spent.allowing(resumed.suspension.limit) if resumed else BudgetUsed()
        self.results, self.messages, self.meter = results, results.messages, results.meter
        self._opened: Mapping[str, Tool] = {}
        self._budget = Budget(plan.limits, used)
        self._clock = RunClock(stream, self._budget, self.meter, above)
        self.requests = ModelRequests(
            results.run_id,
            plan,
            self.meter,
            stream.emit,
            stream.relabel,
            self._clock.on_wait,
            stream.observers,
            results.corrections,
            stream.add_sound,
        )
        self.calling_run = CallingRun(
            plan=plan,
            budget=self._budget,
            meter=self.meter,
            cost=self.results.cost,
            observers=stream.observers,
            resumed=resumed,
            above=above,
            on_child_wait=self._clock.on_child_wait,
            show=stream.add_output,
        )
        self.calls = ToolCalls(self.calling_run, stream.emit, results.corrections, stream.add_output)
        self._fitting = Fitting(self.calling_run, results.corrections)
        self._handed = resumed.suspension.handed if resumed else ()
        self._pending: tuple[Pending, ...] = ()
        self._limit: Limit | None = None
        self._last: ModelMessage | None = None
        self._output: object = None
        self._is_repaired = False

    async def prepare(self) -> None:
        """Repair the history, but not that of a suspended run: its pending calls must stay unanswered."""
        if self._resumed is None:
            await self.messages.repair()

    async def run(self, prompt: list[ModelMessage]) -> Outcome:
        """Run until there is an outcome. Raises the exceptions of model requests, tools and journal."""
        try:
            async with self._clock.time_limit:
                self._clock.on_wait(None)
                return await self._steps(prompt)
        except TimeoutError:
            if not self._clock.time_limit.expired():
                raise
            return self._limit_reached("time")

    def last_message(self) -> ModelMessage:
        """Return the last message, which is not stored yet: complete, partial or empty."""
        if (partial := self.requests.partial_response()) is not None:
            self._last = self._fitting.mark(partial)
            self.meter.count_step(self.requests.unshown_usage)
        return self.last_whole_message()

    def last_whole_message(self) -> ModelMessage:
        """Return the last message without looking for a partial answer. This cannot fail."""
        return self._last or self.results.empty_answer()

    async def ending(self, outcome: Outcome) -> tuple[ModelMessage, RunResult]:
        """Return the last message, and the result of the run as it will be after that is stored."""

        def both() -> tuple[ModelMessage, RunResult]:
            last = self.last_message()
            return last, self.result(outcome, last)

        return await off_loop(self.messages.messages, both)

    def result(self, outcome: Outcome, last: ModelMessage) -> RunResult:
        """Return the result of the run as it will be after `last` is stored. Seals a suspended run."""
        sealed = None
        if outcome.reason == "suspended":
            used = self._budget.used(self.meter.timings(), self.results.cost())
            try:
                tools, children = self.calls.tools.values(), self.calling_run.waiting
                sealed = self.results.suspend(last, tools, self._pending, self._limit, used, children, self._handed)
            except Exception:
                log.exception("run %s cannot be sealed", self.results.run_id)
                outcome = NOT_SEALED
        return self.results.build(outcome, last, sealed, self._pending, self._output)

    # The steps

    async def _steps(self, prompt: list[ModelMessage]) -> Outcome:
        if self._resumed is None:
            prompt = await self._prepare(prompt)
            for message in prompt:
                await self._store(message)
            self.messages.begun = True  # without a prompt, the run continues the last answer
        await self.calls.open()
        self._opened = self.calls.tools
        await self._offer_tools()
        if self._resumed is not None and (outcome := await self._resume(self._resumed)):
            return outcome
        while (outcome := self._start_step()) is None:
            await self._take_steering()
            response = await self._ask()
            calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
            if outcome := await (self._handle_calls(response, calls) if calls else self._end(response)):
                return outcome
        return outcome

    def _start_step(self) -> Outcome | None:
        """Count another step, also for the runs above. Return the outcome if a limit forbids it."""
        limit = self._budget.start_step(self.meter.timings(), self.results.cost())
        if limit is not None:
            return self._limit_reached(limit)
        above = self.calling_run.above
        return above.next_step() if above is not None else None

    async def _take_steering(self) -> None:
        """Add the messages that people sent for this step. A text that the model is to continue gets none."""
        while self._stream.steering and isinstance(self.messages.messages[-1], ModelRequest):
            steering, steered = self._stream.steering[0], self._stream.steered  # it stays there while it is stored
            try:
                if not steering.is_taken.done() and steering_id(steering.message) not in steered:
                    await self._store(steering.message)
            finally:
                if self.messages.messages[-1] is steering.message:  # also if the run was stopped meanwhile
                    steered.append(steering_id(steering.message))
                    self._stream.emit(("user_message", steering.text))
                steering.settle(is_taken=steering_id(steering.message) in steered)
                self._stream.steering.popleft()

    async def _ask(self) -> ModelResponse:
        """Return the next response. As long as nothing of it has come, the next model can stand in for this one."""
        models = self._plan.connection
        while True:
            try:
                fitted = await self._fitting.fit(self.messages.messages)
                tools = self.calls.tools.values()
                return self._fitting.mark(await self.requests.request(fitted, tools, self.messages.messages))
            except AgentError as failure:
                if not isinstance(models, StandIns) or self.requests.has_begun:
                    raise
                self.meter.settle(models.spec.price)
                await models.stand_in(failure, self._can_take)
                await self._offer_tools()

    async def _can_take(self, spec: ModelSpec) -> bool:
        """Return True if this model can answer what the run was asked, with its pictures and sounds."""
        if isinstance(self.messages.messages[-1], ModelResponse) and not spec.continues:
            return False
        question = self.messages.question
        try:
            await off_loop(question, check_prompt, question, spec)
        except InputError:
            return False
        return True

    async def _end(self, response: ModelResponse) -> Outcome | None:
        """Return the outcome of an answer. If it does not fit its type, tell the model so once, and return None."""
        self._last = response
        outcome, wanted = Outcome.from_response(response, self._plan.limits), self._plan.output
        if wanted is None or outcome.reason == "content_filter":
            return outcome
        try:
            self._output = wanted.read(text_of_message(response))
        except Misfit as misfit:
            if outcome.reason == "length":  # a second answer would be cut, too
                return outcome._replace(failure=AgentError(outcome.detail))
            if self._is_repaired:
                return Outcome.from_failure(
                    AgentError(_("The answer does not have the form that was asked for: {faults}.", faults=str(misfit)))
                )
            self._is_repaired = True
            self._last = None
            await self._store(response)
            await self._store(ModelRequest(parts=[UserPromptPart(repair_prompt(misfit))]))
            self._stream.begin_bubble()
            return None
        return outcome

    async def _handle_calls(self, response: ModelResponse, calls: Sequence[ToolCallPart]) -> Outcome | None:
        """Make the calls of a response. If some of them need a person, return the outcome `suspended`."""
        pending = self.calls.pending(calls)
        ids = {one.call_id for one in pending}
        asked = [call for call in calls if call.tool_call_id in ids]
        at_once = [call for call in calls if call.tool_call_id not in ids]
        self._budget.count_calls(response, calls, self.calls.tools)
        if at_once:
            await self._store(response)
        else:
            self._last = response
        for call in calls:
            self._stream.emit(("tool_call", call_content(call)))
        if at_once:
            await self._execute(at_once, asked)
        self._budget.finish_step()
        return self._wait_for_people(pending) or await self._hand_over()

    def _wait_for_people(self, pending: Sequence[Pending] = ()) -> Outcome | None:
        """Return the outcome `suspended` if these questions, or those of agents that are tools, must be answered."""
        self._pending = (*pending, *self.calling_run.pending)
        if not self._pending:
            return None
        return Outcome("suspended", " ".join(one.sentence for one in self._pending))

    async def _hand_over(self) -> None:
        """Let another agent go on if a tool has handed the turn over. The limits of the run stay."""
        run = self.calling_run
        if run.successor is None:
            return
        (name, plan), run.successor = run.successor, None
        self.meter.settle(self._plan.connection.spec.price)
        if isinstance(plan.connection, ChosenLater):
            await plan.connection.ready()
        self._handed = (*self._handed, name)
        self._plan = self.requests.plan = self.results.plan = run.plan = plan
        if observers := self._stream.observers:
            observers(HandedOver(name, plan))
        await self.calls.open()
        self._opened = self.calls.tools
        await self._offer_tools()

    async def _execute(
        self,
        calls: Sequence[ToolCallPart],
        asked: Sequence[ToolCallPart] = (),
        results: Sequence[ToolReturnPart] = (),
    ) -> None:
        """Make the calls and store their results and the given `results`, in the order of the model's calls.

        If people are `asked` about other calls, the results become the last message of the run, which stores it at its
        end. After a failure or a cancellation they are stored at once.
        """
        done = list(results)
        is_last = False
        try:
            await self.calls.execute(calls, asked, done)
            is_last = bool(asked or self.calling_run.waiting)
        finally:
            calling = next(one for one in reversed(self.messages.messages) if isinstance(one, ModelResponse))
            request = ModelRequest(parts=in_order_of_calls(done, calling))
            if is_last:
                self._last = request
            else:
                await self._store(request)

    async def _resume(self, resumed: Resumption) -> Outcome | None:
        """Use up the suspension and add the results of its pending calls, or the user's answer after a limit."""
        resumed.check(self.calls.tools)
        if resumed.sealed:
            await self._plan.seals.use(resumed.suspension)
        self.messages.begun = True
        if (limit := resumed.suspension.limit) is not None:
            answer = resumed.answers[resumed.suspension.pending[0].call_id]
            if not isinstance(answer, str) or answer == STOP:
                return Outcome.from_limit(limit, self._plan.limits)
            await self._store(ModelRequest(parts=[UserPromptPart(answer)]))
            return None
        results = resumed.results()
        for result in results:
            self._stream.emit(("tool_call_result", result_content(result)))
            self.calls.report_result(result)
        await self._execute(resumed.calls(), results=results)
        return self._wait_for_people() or await self._hand_over()

    # Helpers

    async def _prepare(self, prompt: list[ModelMessage]) -> list[ModelMessage]:
        """Return the prompt to store: a model without tools gets passages of earlier documents for a new question."""
        prompt = await self._plan.prepare(prompt) if self._plan.prepare else prompt
        spec = self._plan.connection.spec
        if self._plan.documents is None and spec.tools == "none":
            return await prompt_with_passages(prompt, await self._documents(), spec)
        return prompt

    async def _offer_tools(self) -> None:
        """Offer the tools that were opened, and those for the documents that are too long for this model."""
        documents, plan = await self._documents(), self._plan
        self.calls.tools = with_document_tools(self._opened, documents, plan.connection.spec, plan.vectors)

    async def _documents(self) -> Sequence[LongDocument]:
        """Return the documents of the conversation that are too long for the model."""
        if self._plan.documents is not None:
            return self._plan.documents
        return await long_documents(self.messages.messages, self._plan.connection.spec)

    def _limit_reached(self, limit: Limit) -> Outcome:
        """Return the outcome of a limit: the end, or a suspension if somebody can be asked whether to continue."""
        limits = self._plan.limits
        if not self.messages.begun or not self.calls.can_ask:
            return Outcome.from_limit(limit, limits)
        self._limit, self._pending = limit, (ask_to_continue(limit, limits),)
        return Outcome("suspended", self._pending[0].sentence)

    async def _store(self, message: ModelMessage) -> None:
        """Store a message of the run. What people saw of one that could not be stored is stored with the end."""
        try:
            await self.messages.append(message, self.results.note())
        except BaseException:
            messages = self.messages.messages
            if messages and messages[-1] is message:
                pass  # a write that was cancelled has ended
            elif isinstance(message, ModelResponse):
                self._last = finalize(message, state="interrupted")
            elif any(isinstance(part, ToolReturnPart) for part in message.parts):
                self._last = message
            raise
        if observers := self._stream.observers:
            observers(StateSnapshot(self.messages.lazy_context()))
