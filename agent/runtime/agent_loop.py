"""The agent loop: model requests with tool calls in between, until there is an answer or a person is needed.

It knows no web page, store or vendor: it passes finished messages to a `Journal` and streamed pieces to a `RunStream`.
"""

import logging
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from agent.context import Context
from agent.documents.long_documents import LongDocument, long_documents, prompt_with_passages
from agent.documents.tools import with_document_tools
from agent.events import StateSnapshot
from agent.limits import Limit
from agent.messages.plain_text import off_loop
from agent.messages.repair import in_order_of_calls
from agent.responses import call_content, result_content
from agent.result import Journal, RunPlan, RunResult
from agent.runtime.budget import Budget, BudgetUsed
from agent.runtime.message_log import MessageLog
from agent.runtime.model_request import ModelRequests
from agent.runtime.outcome import NOT_SEALED, Outcome
from agent.runtime.result_builder import ResultBuilder
from agent.runtime.run_clock import RunClock
from agent.runtime.run_stream import RunStream
from agent.runtime.tool_calls import ToolCalls
from agent.runtime.usage_meter import UsageMeter
from agent.suspension import STOP, Pending, Resumption, ask_to_continue

log = logging.getLogger(__name__)


class AgentLoop:
    """The loop of one run. Owns its messages, usage, budget and time limit, its model requests and its tool calls.

    `resumed` is the suspended run to continue, if any. The responses go to `stream`.
    """

    def __init__(
        self,
        run_id: str,
        plan: RunPlan,
        context: Context,
        journal: Journal | None,
        resumed: Resumption | None,
        stream: RunStream,
    ) -> None:
        self._run_id, self._plan, self._resumed, self._stream = run_id, plan, resumed, stream
        used = resumed.suspension.spent.allowing(resumed.suspension.limit) if resumed else BudgetUsed()
        self.messages = MessageLog(context.session_id, context.messages, journal)
        self.meter = UsageMeter()
        self._budget = Budget(plan.limits, used)
        self._clock = RunClock(stream, self._budget, self.meter)
        self.requests = ModelRequests(
            run_id, plan, self.meter, stream.emit, stream.relabel, self._clock.on_wait, stream.observers
        )
        self.results = ResultBuilder(run_id, plan, self.messages, self.meter, self.requests.corrections)
        self.calls = ToolCalls(plan, self._budget, resumed, stream.emit, stream.observers)
        self._pending: tuple[Pending, ...] = ()
        self._limit: Limit | None = None
        self._last: ModelMessage | None = None

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
            self._last = partial
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
                sealed = self.results.suspend(last, self.calls.tools.values(), self._pending, self._limit, used)
            except Exception:
                log.exception("run %s cannot be sealed", self._run_id)
                outcome = NOT_SEALED
        return self.results.build(outcome, last, sealed, self._pending)

    # The steps

    async def _steps(self, prompt: list[ModelMessage]) -> Outcome:
        if self._resumed is None:
            prompt = await self._prepare(prompt)
            for message in prompt:
                await self._store(message)
            self.messages.begun = True  # without a prompt, the run continues the last answer
        await self.calls.open()
        self.calls.tools = with_document_tools(
            self.calls.tools, await self._documents(), self._plan.connection.spec, self._plan.vectors
        )
        if self._resumed is not None and (outcome := await self._resume(self._resumed)):
            return outcome
        while (limit := self._budget.start_step(self.meter.timings(), self.results.cost())) is None:
            response = await self.requests.request(self.messages.messages, self.calls.tools.values())
            calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
            if not calls:
                self._last = response
                return Outcome.from_response(response, self._plan.limits)
            if outcome := await self._handle_calls(response, calls):
                return outcome
        return self._limit_reached(limit)

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
        """Make the calls and store their results and the given `results`, in the order of the model's calls.

        If people are `asked` about other calls, the results become the last message of the run, which stores it at its
        end. After a failure or a cancellation they are stored at once.
        """
        done = list(results)
        is_last = False
        try:
            await self.calls.execute(calls, asked, done)
            is_last = bool(asked)
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
        return None

    # Helpers

    async def _prepare(self, prompt: list[ModelMessage]) -> list[ModelMessage]:
        """Return the prompt to store: a model without tools gets passages of earlier documents for a new question."""
        prompt = await self._plan.prepare(prompt) if self._plan.prepare else prompt
        spec = self._plan.connection.spec
        if self._plan.documents is None and spec.tools == "none":
            return await prompt_with_passages(prompt, await self._documents(), spec)
        return prompt

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
        await self.messages.append(message, self.results.note())
        if observers := self._stream.observers:
            observers(StateSnapshot(self.messages.lazy_context()))
