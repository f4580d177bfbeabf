"""The runs going on: who watches them, and when a run that nobody watches is ended."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from agent.errors import Conflict
from agent.result import CancelReason
from agent.run import Run


class LiveRun:
    """A run and the number of pages that look at it; `left_out` earlier messages were not sent."""

    def __init__(self, run: Run, owner: str, grace: float, left_out: int) -> None:
        self.run, self.owner, self.left_out = run, owner, left_out
        self._grace = grace
        self._watchers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer()

    @contextmanager
    def watched(self) -> Generator[None]:
        """While a page looks. When the last one goes, the grace period begins."""
        self._watchers += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._set_timer()

    def _set_timer(self) -> None:
        if not self.run.done:
            self._timer = asyncio.get_running_loop().call_later(self._grace, self.run.cancel, "client_disconnect")

    def forget(self) -> None:
        """The run has ended: no timer is needed any more."""
        if self._timer is not None:
            self._timer.cancel()


class Live:
    """The runs by conversation, at most one each. Owner of the tasks that wait for their ends."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._runs: dict[str, LiveRun] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def get(self, conversation: str, owner: str) -> LiveRun | None:
        """The run of this owner's conversation, if one is going on."""
        found = self._runs.get(conversation)
        return found if found is not None and found.owner == owner else None

    def begin(self, conversation: str, owner: str, run: Run, left_out: int = 0) -> LiveRun:
        """Start the run as a task of the server. Raises `Conflict` where one is going on in this conversation."""
        if conversation in self._runs:
            raise Conflict("An answer is still being written. Stop it, or wait for it to end.")
        live = self._runs[conversation] = LiveRun(run.start(), owner, self._grace, left_out)
        task = asyncio.create_task(self._end(conversation, live))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        return live

    def busy(self, conversation: str) -> bool:
        """Whether an answer is being written in this conversation."""
        return conversation in self._runs

    async def close(self, reason: CancelReason = "shutdown") -> None:
        """End all runs and wait until what they had is kept."""
        for live in self._runs.values():
            live.run.cancel(reason)
        await asyncio.gather(*self._ends, return_exceptions=True)

    async def _end(self, conversation: str, live: LiveRun) -> None:
        try:
            await live.run
        finally:
            live.forget()
            del self._runs[conversation]
