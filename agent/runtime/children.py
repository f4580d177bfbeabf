"""Agents that are tools: what their runs count for the runs above them, wait for, and hand over."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai.messages import ToolCallPart

from agent.errors import ToolError
from agent.events import ChildEvent, Event, Observers
from agent.limits import FAILURE_POLICIES
from agent.result import RunPlan
from agent.runtime.outcome import Outcome
from agent.runtime.usage import Budget, UsageMeter
from agent.suspension.suspended_run import Answer, Pending, Resumption, Suspension

_CALL: ContextVar["AgentCall"] = ContextVar("agent_call")


@dataclass(slots=True, kw_only=True)
class CallingRun:
    """A run as its child runs see it. `above` is the run of which it is a child itself.

    `waiting` has the suspended child runs by the id of their call. `successor` is the tool that has handed the turn
    over, and the plan of its agent. `is_alone`: the call that is being made is the only one of its step.
    """

    plan: RunPlan
    budget: Budget
    meter: UsageMeter
    cost: Callable[[], float | None]
    observers: Observers
    resumed: Resumption | None
    above: "CallingRun | None" = None
    waiting: dict[str, Suspension] = field(default_factory=dict[str, Suspension])
    pending: list[Pending] = field(default_factory=list[Pending])
    successor: tuple[str, RunPlan] | None = None
    is_alone: bool = False

    @property
    def depth(self) -> int:
        """The number of levels of agents that can be below this run."""
        own = self.plan.limits.depth
        return own if self.above is None else min(own, self.above.depth - 1)

    def next_step(self) -> Outcome | None:
        """Count a step of a child, here and above. Return the outcome of the child if a limit forbids the step."""
        limit = self.budget.start_step(self.meter.timings(), self.cost())
        if limit is not None:
            return Outcome.from_limit(limit, self.plan.limits)
        return self.above.next_step() if self.above is not None else None

    def begin(self, call: ToolCallPart) -> None:
        """Let the current task, which makes this call, find the call."""
        _CALL.set(AgentCall(call.tool_call_id, call.tool_name, self))


@dataclass(frozen=True, slots=True)
class AgentCall:
    """The call of a tool that is an agent, in the run that makes it."""

    id: str
    name: str
    caller: CallingRun

    @classmethod
    def current(cls) -> "AgentCall":
        """Return the call that the current task makes. Raises `ToolError` outside of a run."""
        try:
            return _CALL.get()
        except LookupError:
            raise ToolError("An agent as a tool can only be called in a run: use agent.ask here.") from None

    def check_depth(self) -> None:
        """Raise `ToolError` if no agent can be below the calling run."""
        if self.caller.depth <= 0:
            raise ToolError(FAILURE_POLICIES["depth"].note)

    @property
    def resumed(self) -> tuple[Suspension, Mapping[str, Answer]] | None:
        """The suspended child run that this call continues, and the answers to what it waits for."""
        return self.caller.resumed.child(self.id) if self.caller.resumed is not None else None

    @property
    def changed_ok(self) -> bool:
        """True if the suspended run is resumed with other tools or another model."""
        return self.caller.resumed is not None and self.caller.resumed.changed_ok

    def suspend(self, child: Suspension) -> None:
        """Let the calling run wait for what its child waits for."""
        self.caller.waiting[self.id] = child
        self.caller.pending += [
            replace(one, call_id=f"{self.id}/{one.call_id}", agent="/".join(filter(None, [self.name, one.agent])))
            for one in child.pending
        ]

    def hand_over(self, plan: Callable[[Mapping[str, Any]], RunPlan]) -> None:
        """Let the agent of this plan go on with the calling run. `plan` gets the options of the run.

        Raises `ToolError` beside other calls, and `InputError` if the agent cannot be asked with these options.
        """
        if not self.caller.is_alone:
            raise ToolError("The turn was not handed over: make this call alone, without other calls beside it.")
        now = self.caller.plan
        new = plan({name: value for name, value in vars(now.options).items() if name not in _OF_PROVIDER})
        kept = {"limits": now.limits, "seals": now.seals, "documents": now.documents, "vectors": now.vectors}
        self.caller.successor = self.name, replace(new, output=now.output, **kept)

    def on_event(self, event: Event) -> None:
        """Tell the observers of the calling run what happens in its child."""
        self.caller.observers(ChildEvent(self.id, event))


_OF_PROVIDER = ("headers", "extra_body", "cache")
"""Options that are meant for one provider. They can hold a key."""
