"""The time limit of a run, which does not count while the run waits in the request queue."""

import asyncio

from agent.runtime.budget import Budget
from agent.runtime.retry import Wait
from agent.runtime.run_stream import RunStream
from agent.runtime.usage_meter import UsageMeter


class RunClock:
    """Owns the time limit of one run, and tells the readers of its `stream` what it waits for.

    It has no reference to the loop that uses it. Such a cycle would keep the messages of an ended run, and its
    visitor's key, until Python looks for cycles.
    """

    def __init__(self, stream: RunStream, budget: Budget, meter: UsageMeter) -> None:
        self.time_limit = asyncio.Timeout(None)
        self._stream, self._budget, self._meter = stream, budget, meter

    def on_wait(self, wait: Wait | None) -> None:
        """Tell the readers what the run waits for. Stop its clock while it is in the request queue."""
        self._stream.set_waiting(wait)
        if not self.time_limit.expired():
            left = self._budget.seconds_left - self._meter.timings().total
            is_queued = wait is not None and wait.ahead
            self.time_limit.reschedule(None if is_queued else asyncio.get_running_loop().time() + left)
