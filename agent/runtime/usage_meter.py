"""How long a run takes and how many tokens it gives: counted as it streams, replaced by the server's own count."""

from time import monotonic

from pydantic_ai.usage import RequestUsage

from agent.history import Timings
from agent.models.catalog import Price
from agent.responses import ResponseType

UNSEEN = 4
"""Times as many tokens as deltas: of such a step most tokens were never seen (a tool call, the schema router's JSON),
so the time between its deltas says nothing of its pace."""


class UsageMeter:
    """The clock of one run. A delta counts as a token until the server has said how many there were."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._first: float | None = None
        self._queued = 0.0
        self._input = 0
        self._output = 0
        self._cached = 0
        self._sound = self._longest = 0
        self._estimated = False
        self._measured: bool | None = None
        self._generating = 0.0
        self._generated = 0
        self._reasoning: list[float] = []
        self._deltas = 0
        self._step_began = self._step_last = self._began
        self._open: ResponseType | None = None

    def queued(self, seconds: float) -> None:
        """So long it stood in line in front of the server, doing nothing."""
        self._queued += seconds

    def delta(self, kind: ResponseType) -> None:
        """A piece of text or reasoning has come."""
        now = monotonic()
        if self._first is None:
            self._first = now - self._began - self._queued
        if self._deltas == 0:
            self._step_began = self._step_last = now
        if self._open == "reasoning":
            self._reasoning[-1] += now - self._step_last
        if kind == "reasoning" != self._open:
            self._reasoning.append(0.0)
        self._deltas += 1
        self._step_last, self._open = now, kind

    def step(self, usage: RequestUsage | None) -> None:
        """A request has ended, with the server's count or, where it broke off, without."""
        known = usage.output_tokens if usage is not None else 0
        if self._deltas and known <= UNSEEN * self._deltas:
            self._generating += self._step_last - self._step_began
            self._generated += known or self._deltas
        counted = usage is not None and (usage.output_tokens or (usage.input_tokens and not self._deltas))
        if usage is not None and counted:
            self._input += usage.input_tokens
            self._cached += usage.cache_read_tokens
            self._sound += usage.input_audio_tokens
            self._longest = max(self._longest, usage.input_tokens)
            self._output += usage.output_tokens
        elif self._deltas:
            self._output += self._deltas
            self._estimated = True
        self._measured = bool(counted) and self._measured is not False
        self._deltas, self._open = 0, None

    def timings(self) -> Timings:
        """The figures so far; seconds."""
        return Timings(
            first_token=self._first,
            total=monotonic() - self._began - self._queued,
            queued=self._queued,
            generating=self._generating + (self._step_last - self._step_began if self._deltas else 0.0),
            generated=self._generated + self._deltas,
            output_tokens=self._output + self._deltas,
            input_tokens=self._input,
            cached_tokens=self._cached,
            estimated=self._estimated or self._deltas > 0,
            reasoning=self.reasoning,
        )

    def cost(self, price: Price) -> float | None:
        """US dollars for what the server counted; None where it did not count every step, or the price is unknown.

        The tokens of the prompt that were read from a cache are among `input_tokens`, for every provider, and so are
        those that are sound; which of the sound was cached nobody says, so it counts as fresh.
        """
        if not self._measured or 0 < price.up_to < self._longest:
            return None
        cached = price.input if price.cached is None else price.cached
        sound = price.input if price.audio is None else price.audio
        text = self._input - self._cached - self._sound
        paid = text * price.input + self._cached * cached + self._sound * sound + self._output * price.output
        return paid / 1e6

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far."""
        return tuple(self._reasoning)
