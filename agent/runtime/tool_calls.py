"""The tool calls of a run: with which tools, whom they wait for, that each has one result and what is said with it."""

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
    """The tool calls of one run. Owner of its tools, of their sessions, and of the names of those left running.

    `say` is given each result as it comes; the `audience` hears of it, too.
    """

    def __init__(
        self,
        plan: RunPlan,
        watch: Budget,
        resumed: Resumption | None,
        say: Callable[[Piece], None],
        audience: Observers,
    ) -> None:
        self.tools = plan.tools
        self.left_running: list[str] = []
        self._plan, self._watch, self._resumed, self._emit = plan, watch, resumed, say
        self._observers = audience
        self._sessions = ToolSessions()

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there who can be asked whether to go on."""
        chosen = self._plan.limits.interactive
        return any(map(needs_person, self.tools.values())) if chosen is None else chosen

    async def open(self) -> None:
        """Open the toolsets. Raises an `AgentError` with a sentence."""
        self.tools = await self._sessions.open(self._plan.tools, self._plan.toolsets)

    async def close(self, *, hurried: bool) -> None:
        """Close them."""
        await self._sessions.close(hurried=hurried)

    def pending(self, calls: Sequence[ToolCallPart]) -> tuple[Pending, ...]:
        """What the calls wait for that may not be made at once."""
        return tuple(one for call in calls if (one := pending_call(call, self.tools)))

    async def execute(
        self, calls: Sequence[ToolCallPart], asked: Sequence[ToolCallPart], done: list[ToolReturnPart]
    ) -> None:
        """Run the calls at once; their results go to `done`, one for each, also when the run is cancelled meanwhile.

        Then those that are `asked` for have theirs too: nobody will be asked any more.
        """

        def said(result: ToolReturnPart) -> None:
            result = self._resumed.with_note(result) if self._resumed else result
            done.append(self._watch.count_result(result))
            self._emit(("tool_call_result", result_content(done[-1])))
            self.report_result(done[-1])
            if isinstance(result.metadata, dict):
                self.left_running.append(result.tool_name)

        try:
            limit = self._plan.limits.tool_seconds
            await execute_all(self.tools, calls, timeout=limit, on_result=said, on_start=self._report_call)
        except BaseException:
            for call in asked:
                said(cancelled_result(call))
            raise

    def report_result(self, result: ToolReturnPart) -> None:
        """A call has this result: let it be known."""
        if self._observers:
            self._observers(ToolCallEnded(result))

    def _report_call(self, call: ToolCallPart) -> None:
        if self._observers:
            self._observers(ToolCallStarted(call))
