"""This process as one replica of a shared store: says that it is alive, takes over lost runs, and obeys stops."""

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic

from agent.errors import AgentError
from agent.history import BEAT_SECONDS, HistoryStore, OwnRun, Replicas
from agent.web.chat.live_runs import LiveRuns
from agent.web.chat.recovery import end_interrupted_run
from agent.web.chat.takeovers import Takeovers

LOOK_SECONDS = 0.5
"""Seconds between two looks at what visitors said of this replica's runs elsewhere."""
FORGOTTEN_SECONDS = 5.0
"""Seconds after which a stored run of this replica is ended if this process knows nothing of it."""

log = logging.getLogger(__name__)


class Replica:
    """The work of one replica, as a task. The store's replica id is this process's."""

    def __init__(self, store: HistoryStore, replicas: Replicas, live_runs: LiveRuns, takeovers: Takeovers) -> None:
        self._store, self._replicas, self._live_runs, self._takeovers = store, replicas, live_runs, takeovers
        self._unknown_since = dict[str, float]()
        self._beat_at = 0.0

    async def join(self) -> None:
        """Say that this process is alive, before it begins any run. If the store is away, `work` does it later."""
        try:
            await self._replicas.beat()
            self._beat_at = monotonic()
        except AgentError as error:
            log.warning("this replica could not join: %s", error)

    async def work(self) -> None:
        """Do the work until this is cancelled. A store that is away is logged, and asked again."""
        while True:
            try:
                if monotonic() - self._beat_at >= BEAT_SECONDS:
                    await self._replicas.beat()
                    self._beat_at = monotonic()
                    await self._take_over_lost_runs()
                if self._live_runs.count or self._unknown_since:
                    await self._look_at(await self._replicas.own_runs())
            except AgentError as error:
                log.warning("the replicas could not be asked: %s", error)
                self._beat_at = monotonic()
            except Exception:
                log.exception("the work of this replica failed")
                self._beat_at = monotonic()
            await asyncio.sleep(LOOK_SECONDS)

    async def _take_over_lost_runs(self) -> None:
        if self._live_runs.is_closing:
            return
        for run in await self._replicas.lost_runs():
            await self._takeovers.take(run)
        if not self._live_runs.count:  # a run of this process whose end could not be stored
            await self._look_at(await self._replicas.own_runs())

    async def _look_at(self, own: Sequence[OwnRun]) -> None:
        """Stop the runs that visitors want to stop, keep those that are watched, and end those that nobody writes."""
        unknown = dict[str, float]()
        for one in own:
            run = one.run
            live = self._live_runs.find(run.run_id, run.owner)
            if live is not None and one.is_watched:
                with live.watched():
                    pass
            if live is not None and one.is_stopped:
                await live.stop()
            if live is None and not self._takeovers.is_pending(run.run_id):
                unknown[run.run_id] = self._unknown_since.get(run.run_id, monotonic())
        self._unknown_since = unknown
        for run in (one.run for one in own if one.run.run_id in unknown):
            if monotonic() - unknown[run.run_id] >= FORGOTTEN_SECONDS:
                await end_interrupted_run(self._store, run)
