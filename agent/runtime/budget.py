"""Counts what a run has used of its limits, and detects loops. It has no clock: callers pass in the timings."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_core import to_json

from agent.history import Timings
from agent.limits import FAILURE_POLICIES, BudgetUsed, Limit, Limits
from agent.tools.function_tools import Tool, with_note

LONGEST_CYCLE = 4
MAX_REMEMBERED = 64
"""The number of steps, results and calls to remember for loop detection. No limit needs more."""


class Budget:
    """Counts one run against its limits. A resumed run starts from what it has used before."""

    def __init__(self, limits: Limits, used: BudgetUsed) -> None:
        self._limits, self._before = limits, used
        self._steps = used.steps
        self._trail, self._known = list(used.trail), dict.fromkeys(used.known)
        self._errors, self._idle = dict(used.errors), used.idle
        self._pollers: set[str] = set()
        self._notes: dict[str, str] = {}
        self._has_progress = True
        self._circle: Limit | None = used.circle

    @property
    def seconds_left(self) -> float:
        """The time limit in seconds, less what earlier parts of a resumed run have used."""
        return max(0.0, self._limits.seconds - self._before.seconds)

    def used(self, timings: Timings, dollars: float | None) -> BudgetUsed:
        """Return the total usage, including the figures of this run."""
        before = self._before
        return BudgetUsed(
            steps=self._steps,
            seconds=before.seconds + timings.total,
            tokens=before.tokens + timings.input_tokens + timings.output_tokens,
            dollars=before.dollars + (dollars or 0.0),
            trail=tuple(self._trail[-MAX_REMEMBERED:]),
            known=tuple(self._known)[-2 * MAX_REMEMBERED :],
            errors=dict(self._errors),
            idle=self._idle,
            circle=self._circle,
        )

    def start_step(self, timings: Timings, dollars: float | None) -> Limit | None:
        """Count another step, or return the limit that forbids it. `dollars` is None if the cost is unknown."""
        limits, spent = self._limits, self.used(timings, dollars)
        if self._circle is not None:
            return self._circle
        if self._steps >= limits.steps:
            return "steps"
        if limits.tokens is not None and spent.tokens >= limits.tokens:
            return "tokens"
        if limits.dollars is not None and dollars is None and timings.output_tokens:
            return "unpriced"
        if limits.dollars is not None and spent.dollars >= limits.dollars:
            return "money"
        self._steps += 1
        return None

    def count_calls(self, response: ModelResponse, calls: Sequence[ToolCallPart], tools: Mapping[str, Tool]) -> None:
        """Count the calls of a step before their results. `count_result` adds notes about loops to the results."""
        self._notes.clear()
        self._pollers = {call.tool_call_id for call in calls if (one := tools.get(call.tool_name)) and one.poller}
        counted = [call for call in calls if call.tool_call_id not in self._pollers]
        self._has_progress = not counted
        for part in response.parts:
            if isinstance(part, TextPart) and part.content.strip():
                self._mark_seen(_digest("text", part.content.strip()))
        if not counted:
            return
        digests = sorted(_digest(call.tool_name, call.args_as_dict()) for call in counted)
        for digest in digests:
            self._mark_seen(digest)
        self._trail.append(_digest("step", digests))
        note = self._check_cycles()
        if note is None and not self._has_progress and self._idle >= self._limits.idle:
            note = FAILURE_POLICIES["no_progress"].note.format(times=self._idle)
        if note is not None:
            self._notes = {call.tool_call_id: note for call in counted}

    def count_result(self, result: ToolReturnPart) -> ToolReturnPart:
        """Count the result of one of these calls. Return it with a note for the model if there is one."""
        if result.tool_call_id in self._pollers:
            return result
        digest = _digest(result.tool_name, result.content)
        self._mark_seen(digest)
        note = self._notes.get(result.tool_call_id)
        if result.outcome != "failed":
            self._errors.pop(result.tool_name, None)
        else:
            last, times = self._errors.get(result.tool_name, ("", 0))
            times = times + 1 if digest == last else 1
            self._errors[result.tool_name] = digest, times
            note = note or self._strike("repeated_error", times, self._limits.repeats)
        return result if note is None else with_note(result, note)

    def finish_step(self) -> None:
        """Count the step as idle if it brought nothing new. Call this after all results."""
        self._idle = 0 if self._has_progress else self._idle + 1
        if self._circle is None and self._idle >= 2 * self._limits.idle:
            self._circle = "no_progress"

    def _mark_seen(self, digest: str) -> None:
        self._has_progress |= digest not in self._known
        self._known[digest] = None

    def _check_cycles(self) -> str | None:
        for length in range(1, LONGEST_CYCLE + 1):
            times = _count_repeats(self._trail, length)
            if length == 1:
                note = self._strike("repeated_call", times, self._limits.repeats)
            else:
                note = self._strike("cycle", times, max(2, self._limits.repeats - 1), length=length)
            if note is not None:
                return note
        return None

    def _strike(self, kind: Limit, times: int, allowed: int, **more: int) -> str | None:
        """Return the note for the model if `allowed` is reached. At twice that, the run ends before its next step."""
        if times < allowed:
            return None
        if times >= 2 * allowed:
            self._circle = kind
        return FAILURE_POLICIES[kind].note.format(times=times, **more)


def _count_repeats(trail: Sequence[str], length: int) -> int:
    """Count how often the last `length` steps came in a row, including the last time."""
    last = trail[len(trail) - length :]
    if len(last) < length or (length > 1 and len(set(last)) == 1):
        return 0
    times = 0
    for end in range(len(trail), length - 1, -length):
        if trail[end - length : end] != last:
            break
        times += 1
    return times


def _digest(name: str, value: Any) -> str:
    return sha256(to_json([name, value], fallback=str, inf_nan_mode="strings")).hexdigest()[:16]
