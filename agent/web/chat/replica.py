"""This process as one replica of a shared store: says that it is alive, takes over lost runs, and obeys stops."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from agent.errors import AgentError, StoreUnavailable
from agent.history import BEAT_SECONDS, HistoryStore, OwnRun, Replicas, UnfinishedRun
from agent.web.chat.live_runs import LiveRuns
from agent.web.chat.recovery import end_interrupted_run
from agent.web.chat.takeovers import Takeovers

LOOK_SECONDS = 0.5
"""Seconds between two looks at what visitors said of this replica's runs elsewhere."""
FAILURE_PAUSE_SECONDS = 1.0
"""The longest pause after a failure. When the store is back, each replica says soon that it is alive."""
FORGOTTEN_SECONDS = 5.0
"""Seconds after which a stored run of this replica is ended if this process knows nothing of it."""
DAMAGED_SECONDS = 60.0
"""Seconds after which the end of a run that could not be ended is tried again."""

log = logging.getLogger(__name__)


class Replica:
    """The work of one replica, as a task. The store's replica id is this process's."""

    def __init__(self, store: HistoryStore, replicas: Replicas, live_runs: LiveRuns, takeovers: Takeovers) -> None:
        self._store, self._replicas, self._live_runs, self._takeovers = store, replicas, live_runs, takeovers
        self._ends_at = dict[str, float]()
        """By run: when it is ended, because it is this replica's and this process knows nothing of it."""
        self._gone = set[str]()
        """The runs of this process that were not this replica's at the last look."""
        self._looked_at = 0.0

    async def join(self) -> None:
        """Say that this process is alive, before it begins any run. If the store is away, `work` does it later."""
        try:
            await self._replicas.beat()
        except AgentError as error:
            log.warning("this replica could not join: %s", error)

    async def work(self) -> None:
        """Do the work until this is cancelled. A store that is away is logged, and asked again.

        Nothing that the other work waits for, or that fails in it, delays the signs of life.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_repeat(self._replicas.beat, BEAT_SECONDS))
            tasks.create_task(_repeat(self._take_over_lost_runs, BEAT_SECONDS))
            tasks.create_task(_repeat(self._look, LOOK_SECONDS))

    async def _take_over_lost_runs(self) -> None:
        if self._live_runs.is_closing or not self._replicas.id:
            return
        for run in await self._replicas.lost_runs():
            await self._takeovers.take(run)

    async def _look(self) -> None:
        """Look at this replica's runs: often while it writes any, and sometimes for those that it has forgotten."""
        is_due = monotonic() - self._looked_at >= BEAT_SECONDS
        if self._replicas.id and (self._live_runs.count or self._ends_at or is_due):
            self._looked_at = monotonic()
            stored = self._live_runs.stored_ids()
            own = await self._replicas.own_runs()
            await self._obey(own)
            self._give_up(stored - {one.run.run_id for one in own})
            await self._end_forgotten([one.run for one in own])

    async def _obey(self, own: Sequence[OwnRun]) -> None:
        """Stop the runs that visitors want to stop, and keep those that are watched."""
        for one in own:
            live = self._live_runs.find(one.run.run_id, one.run.owner)
            if live is not None and one.is_watched:
                with live.watched():
                    pass
            if live is not None and one.is_stopped:
                await live.stop()

    def _give_up(self, gone: set[str]) -> None:
        """Cancel the runs that are another replica's by now, also those that have nothing to write at the moment.

        A run that has just ended is gone, too. So only those are cancelled that were gone at the last look already.
        """
        for run_id in gone & self._gone:
            log.warning("run %s is cancelled, because another replica has taken it", run_id)
            self._live_runs.give_up(run_id)
        self._gone = gone

    async def _end_forgotten(self, runs: Sequence[UnfinishedRun]) -> None:
        """End the runs that this process does not write, such as one whose end could not be stored."""
        before, self._ends_at = self._ends_at, dict[str, float]()
        if self._live_runs.is_closing:  # the next replica can go on with them
            return
        for run in runs:
            is_known = self._live_runs.find(run.run_id, run.owner) or self._takeovers.is_pending(run.run_id)
            if not is_known:
                self._ends_at[run.run_id] = before.get(run.run_id, monotonic() + FORGOTTEN_SECONDS)
        for run in runs:
            if monotonic() < self._ends_at.get(run.run_id, monotonic() + 1):
                continue
            self._ends_at[run.run_id] = monotonic() + DAMAGED_SECONDS
            try:
                await end_interrupted_run(self._store, run)
            except StoreUnavailable:
                raise
            except AgentError as error:
                log.warning("the interrupted answer %s could not be ended: %s", run.run_id, error)
            except Exception:
                log.exception("the interrupted answer %s could not be ended", run.run_id)


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Repeat the work for ever. A failure is logged once, until the work succeeds again."""
    failure = ""
    while True:
        pause = seconds
        try:
            await work()
            failure = ""
        except Exception as error:
            pause = min(seconds, FAILURE_PAUSE_SECONDS)
            if repr(error) != failure:
                failure = repr(error)
                is_known = isinstance(error, AgentError)
                log.warning("the work of this replica failed: %s", error, exc_info=None if is_known else error)
        await asyncio.sleep(pause)
