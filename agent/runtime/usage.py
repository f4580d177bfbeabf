"""Measures the time and tokens of a run: counted while it streams, then replaced by the server's own count."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json

from agent.history import Timings
from agent.limits import FAILURE_POLICIES, Limit, Limits
from agent.models.catalog import Price
from agent.responses import ResponseType
from agent.tools.function_tools import Tool, with_note

MAX_TOKENS_PER_DELTA = 4
"""The most tokens per delta in a step that counts for the generation speed.

A step with more did not stream most of its tokens as deltas (tool calls, JSON of emulated tool calls), so the time
between its deltas says nothing about its speed.
"""
CACHE_WRITE_COST = 1.25
"""The cost of a prompt token that Anthropic or OpenAI writes to its cache, as a multiple of one that is not cached."""


class UsageMeter:
    """The clock and token counter of one run. A delta counts as one token until the server sends its own count.

    The clock counts from the creation, or from `start` if that is called.
    """

    def __init__(self) -> None:
        self._began = monotonic()
        self._first: float | None = None
        self._queued = 0.0
        self._input = 0
        self._output = 0
        self._cached = self._written = 0
        self._audio = self._longest_input = 0
        self._settled: list[float | None] = []
        self._settled_counts = (0, 0, 0, 0, 0)
        self._estimated = False
        self._measured: bool | None = None
        self._generating = 0.0
        self._generated = 0
        self._reasoning: list[float] = []
        self._deltas = 0
        self._step_began = self._step_last = self._began
        self._open: ResponseType | None = None
        self._children: list[tuple[UsageMeter, Callable[[], float | None]]] = []

    def start(self) -> None:
        """Start the clock again at zero. Call this before the first count."""
        self._began = monotonic()

    def add_queue_time(self, seconds: float) -> None:
        """Add the time that the run waited in the request queue."""
        self._queued += seconds

    def add_child(self, meter: "UsageMeter", cost: Callable[[], float | None]) -> None:
        """Count what a child run uses, now and later. `cost` returns its cost so far."""
        self._children.append((meter, cost))

    def count_delta(self, kind: ResponseType, count: int = 1) -> None:
        """Count a delta of text or reasoning, or `count` deltas that were merged into it."""
        now = monotonic()
        if self._first is None:
            self._first = now - self._began - self._queued
        if self._deltas == 0:
            self._step_began = self._step_last = now
        if self._open == "reasoning":
            self._reasoning[-1] += now - self._step_last
        if kind == "reasoning" != self._open:
            self._reasoning.append(0.0)
        self._deltas += count
        self._step_last, self._open = now, kind

    def relabel(self, kind: ResponseType) -> None:
        """Count the deltas of the open bubble as those of another type."""
        if kind == "reasoning":
            self._reasoning.append(self._step_last - self._step_began)
        elif self._reasoning:
            del self._reasoning[-1]
        self._open = kind

    def count_step(self, usage: RequestUsage | None) -> None:
        """Count the end of a request, with the server's usage, or None if the request broke off."""
        output_tokens = usage.output_tokens if usage is not None else 0
        if self._deltas and output_tokens <= MAX_TOKENS_PER_DELTA * self._deltas:
            self._generating += self._step_last - self._step_began
            self._generated += output_tokens or self._deltas
        counted = usage is not None and (usage.output_tokens or (usage.input_tokens and not self._deltas))
        if usage is not None and counted:
            self._input += usage.input_tokens
            self._cached += usage.cache_read_tokens
            self._written += usage.cache_write_tokens
            self._audio += usage.input_audio_tokens
            self._longest_input = max(self._longest_input, usage.input_tokens)
            self._output += usage.output_tokens
        elif self._deltas:
            self._output += self._deltas
            self._estimated = True
        self._measured = bool(counted) and self._measured is not False
        self._deltas, self._open = 0, None

    def timings(self) -> Timings:
        """Return the figures so far. Times are in seconds. The tokens include those of child runs."""
        below = [meter.timings() for meter, _cost in self._children]
        return Timings(
            first_token=self._first,
            total=monotonic() - self._began - self._queued,
            queued=self._queued,
            generating=self._generating + (self._step_last - self._step_began if self._deltas else 0.0),
            generated=self._generated + self._deltas,
            output_tokens=self._output + self._deltas + sum(one.output_tokens for one in below),
            input_tokens=self._input + sum(one.input_tokens for one in below),
            cached_tokens=self._cached + sum(one.cached_tokens for one in below),
            estimated=self._estimated or self._deltas > 0 or any(one.estimated for one in below),
            reasoning=self.reasoning,
        )

    def settle(self, price: Price | None) -> None:
        """Count the steps so far at this price. Later ones are those of another model."""
        if self._measured is not None:
            self._settled.append(self._unsettled(price))
            self._settled_counts = self._counts
            self._longest_input, self._measured = 0, None

    def cost(self, price: Price | None) -> float | None:
        """Return the cost in US dollars, or None if the server did not count every step or the price does not apply.

        For every provider, `input_tokens` include cached tokens and audio tokens. No provider tells how many audio
        tokens were cached, so they are counted as not cached.
        """
        parts = [*self._settled]
        if self._measured is not None or not parts:
            parts.append(self._unsettled(price))
        for meter, cost in self._children:
            used = meter.timings()
            if used.input_tokens or used.output_tokens:
                parts.append(cost())
        known = [one for one in parts if one is not None]
        return sum(known) if len(known) == len(parts) else None

    @property
    def _counts(self) -> tuple[int, int, int, int, int]:
        plain = self._input - self._cached - self._written - self._audio
        return plain, self._cached, self._written, self._audio, self._output

    def _unsettled(self, price: Price | None) -> float | None:
        """Return the cost of the steps since `settle`."""
        if not price or not self._measured or 0 < price.up_to < self._longest_input:
            return None
        prices = (
            price.input,
            price.input if price.cached is None else price.cached,
            price.input if price.cached is None else price.input * CACHE_WRITE_COST,
            price.input if price.audio is None else price.audio,
            price.output,
        )
        counts = zip(self._counts, self._settled_counts, prices, strict=True)
        return sum((count - settled) * each for count, settled, each in counts) / 1e6

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far."""
        return tuple(self._reasoning)


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
