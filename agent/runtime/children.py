"""Calls as tools see them: agents that are tools, whose runs count for those above, and tools that ask people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai.messages import ToolCallPart

from agent.errors import ToolError
from agent.events import ChildEvent, Event, Observers, ResponseEmitted, ToolOutput
from agent.limits import FAILURE_POLICIES
from agent.providers.retry import Wait
from agent.responses import Response
from agent.result import Outcome, RunPlan
from agent.runtime.usage import Budget, UsageMeter
from agent.suspension.suspended_run import Answer, Approve, Pending, Refuse, Resumption, Suspension
from agent.tools.function_tools import CALLER, Question


@dataclass(slots=True, kw_only=True)
class CallingRun:
    """A run as its child runs see it. `above` is the run of which it is a child itself.

    `waiting` has the suspended child runs by the id of their call. `successor` is the tool that has handed the turn
    over, and the plan of its agent. `is_alone`: no other call is being made beside this one. `on_child_wait` stops the
    clock of the run while that call's run waits in the request queue. `show` is `RunStream.add_output`.
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
    is_alone: bool = True
    on_child_wait: Callable[[Wait | None], None] = lambda _: None
    show: Callable[..., None] = lambda *_, **__: None

    def child_waits(self, wait: Wait | None) -> None:
        """Stop the clock here and above while a child waits in the request queue, unless others work meanwhile."""
        if self.is_alone:
            self.on_child_wait(wait)

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
        CALLER.set(AgentCall(call.tool_call_id, call.tool_name, self))


@dataclass(frozen=True, slots=True)
class AgentCall:
    """The call of a tool, in the run that makes it. Agents use it, and tools that ask people do as `Caller`."""

    id: str
    name: str
    caller: CallingRun

    @classmethod
    def current(cls) -> "AgentCall":
        """Return the call that the current task makes. Raises `ToolError` outside of a run."""
        call = CALLER.get()
        if not isinstance(call, AgentCall):
            raise ToolError("An agent as a tool can only be called in a run: use agent.ask here.")
        return call

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
        changed = self.caller.resumed.changed(self.id) if self.caller.resumed is not None else None
        self.caller.waiting[self.id] = replace(child, changed=changed)
        self.caller.pending += [
            replace(one, call_id=f"{self.id}/{one.call_id}", agent="/".join(filter(None, [self.name, one.agent])))
            for one in child.pending
        ]

    @property
    def kept(self) -> Mapping[str, Any] | None:
        return self.resumed[0].options if self.resumed is not None else None

    @property
    def replies(self) -> Mapping[str, str | bool | Mapping[str, Any]]:
        given = self.resumed[1] if self.resumed is not None else dict[str, Answer]()
        return {key: one if isinstance(one, str) else _allowed(one) for key, one in given.items()}

    def ask(self, questions: Sequence[Question], keep: Mapping[str, Any]) -> None:
        pending = [
            Pending(
                call_id=one.key,
                kind="question" if one.arguments is None else "approval",
                name=self.name,
                arguments=one.arguments or {},
                question=one.text,
                choices=tuple(one.choices),
            )
            for one in questions
        ]
        self.suspend(Suspension(session_id="", messages=(), pending=tuple(pending), options=dict(keep)))

    def tell_progress(self, progress: float, total: float | None, message: str) -> None:
        self.caller.show(ToolOutput(self.id, self.name, message, progress, total))

    async def write(self, instructions: str, text: str, max_tokens: int | None) -> str:
        assert self.caller.plan.write is not None
        return await self.caller.plan.write(instructions, text, self, max_tokens)

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
        """Tell the observers of the calling run what happens in its child, and its readers what that does and says."""
        if self.caller.observers:
            self.caller.observers(ChildEvent(self.id, event))
        if self.id and isinstance(event, ResponseEmitted) and (text := _shown_of(event.response)):
            self.caller.show(ToolOutput(self.id, self.name, text), is_told=False)


def _shown_of(response: Response) -> str:
    """Return what people read of a run below while it goes on: its text, and a line for each call."""
    match response.type:
        case "output_text":
            return response.content
        case "tool_call":
            return f"\n{response.content['name']}…\n"
        case _:
            return ""


def _allowed(answer: Approve | Refuse) -> bool | Mapping[str, Any]:
    if isinstance(answer, Refuse):
        return False
    return True if answer.arguments is None else answer.arguments


_OF_PROVIDER = ("headers", "extra_body", "cache")
"""Options that are meant for one provider. They can hold a key."""
