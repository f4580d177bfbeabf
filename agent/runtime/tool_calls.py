"""Makes the tool calls of a run: one result for each call, and pending calls that wait for a person."""

from collections.abc import Callable, Sequence

from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from agent.events import Observers, ToolCallEnded, ToolCallStarted
from agent.responses import Piece, result_content
from agent.result import RunPlan
from agent.runtime.budget import Budget
from agent.runtime.tool_sessions import ToolSessions
from agent.suspension import Pending, Resumption, needs_person, pending_call
from agent.tools import cancelled_result, execute_all


class ToolCalls:
    """The tool calls of one run. Owns its tools, their sessions, and the names of tools that are left running.

    `emit` gets each result as soon as it is there. The `observers` get it, too.
    """

    def __init__(
        self,
        plan: RunPlan,
        budget: Budget,
        resumed: Resumption | None,
        emit: Callable[[Piece], None],
        observers: Observers,
    ) -> None:
        self.tools = plan.tools
        self.left_running: list[str] = []
        self._plan, self._budget, self._resumed, self._emit = plan, budget, resumed, emit
        self._observers = observers
        self._sessions = ToolSessions()

    @property
    def can_ask(self) -> bool:
        """True if somebody can be asked whether to continue."""
        chosen = self._plan.limits.interactive
        return any(map(needs_person, self.tools.values())) if chosen is None else chosen

    async def open(self) -> None:
        """Open the toolsets. Raises an `AgentError` with a sentence for people."""
        self.tools = await self._sessions.open(self._plan.tools, self._plan.toolsets)

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
        After a cancellation the `asked` calls get results, too, because nobody will be asked any more.
        """

        def add_result(result: ToolReturnPart) -> None:
            result = self._resumed.with_note(result) if self._resumed else result
            done.append(self._budget.count_result(result))
            self._emit(("tool_call_result", result_content(done[-1])))
            self.report_result(done[-1])
            if isinstance(result.metadata, dict):
                self.left_running.append(result.tool_name)

        try:
            limit = self._plan.limits.tool_seconds
            await execute_all(self.tools, calls, timeout=limit, on_result=add_result, on_start=self._report_call)
        except BaseException:
            for call in asked:
                add_result(cancelled_result(call))
            raise

    def report_result(self, result: ToolReturnPart) -> None:
        """Tell the observers that a call has this result."""
        if self._observers:
            self._observers(ToolCallEnded(result))

    def _report_call(self, call: ToolCallPart) -> None:
        if self._observers:
            self._observers(ToolCallStarted(call))
