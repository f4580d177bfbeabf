"""Measures the time and tokens of a run: counted while it streams, then replaced by the server's own count."""

from collections.abc import Callable
from time import monotonic

from pydantic_ai.usage import RequestUsage

from agent.history import Timings
from agent.models.catalog import Price
from agent.responses import ResponseType

MAX_TOKENS_PER_DELTA = 4
"""The most tokens per delta in a step that counts for the generation speed.

A step with more did not stream most of its tokens as deltas (tool calls), so the time
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
