"""The answers that are being written, wherever that happens: by this process, or by another replica of the store."""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from weakref import WeakValueDictionary

from agent.errors import NotFound, StoreUnavailable
from agent.history import HistoryStore, replicas_of
from agent.web.chat.live_runs import LiveRuns
from agent.web.chat.remote_runs import RemoteRun
from agent.web.chat.running_answer import RunningAnswer

STOP_SECONDS = 10.0
"""The longest wait for the end of an answer that was stopped."""


class RunningAnswers:
    """Finds running answers. Every call names the owner, and finds nothing of others."""

    def __init__(self, store: HistoryStore, live_runs: LiveRuns) -> None:
        self._store, self._live_runs, self._replicas = store, live_runs, replicas_of(store)
        self._remote = WeakValueDictionary[str, RemoteRun]()

    async def get(self, conversation: str | None, owner: str) -> RunningAnswer | None:
        """Return the running answer of this owner's conversation, if there is one."""
        if (live := self._live_runs.get(conversation, owner)) is not None or self._replicas is None:
            return live
        run_id = await self._replicas.unfinished_run(conversation or "", owner=owner) if conversation else None
        return await self._find_remote(run_id, owner) if run_id else None

    async def find(self, run_id: str, owner: str) -> RunningAnswer | None:
        """Return this owner's running answer by the id of its run, if there is one."""
        if (live := self._live_runs.find(run_id, owner)) is not None or self._replicas is None:
            return live
        return await self._find_remote(run_id, owner)

    async def is_busy(self, conversation: str | None, owner: str) -> bool:
        """Return True if an answer is being written in this owner's conversation.

        While the store is away, other replicas cannot be asked: whatever needs them is refused by the store itself.
        """
        if conversation is None:
            return False
        if self._live_runs.get(conversation, owner) is not None:
            return True
        with suppress(StoreUnavailable):
            return self._replicas is not None and bool(await self._replicas.unfinished_run(conversation, owner=owner))
        return False

    def is_written_here(self, conversation: str) -> bool:
        """Return True if this process is writing an answer in this conversation."""
        return self._live_runs.is_busy(conversation)

    def is_wanted(self, conversation: str, owner: str) -> bool:
        """Return the same for this owner, and note that a page which shows it still wants the answer."""
        live = self._live_runs.get(conversation, owner)
        if live is not None:
            with live.watched():
                pass
        return live is not None

    async def conversations(self, owner: str) -> Collection[str]:
        """Return this owner's conversations in which other replicas are writing."""
        return set(await self._replicas.unfinished_conversations(owner)) if self._replicas else ()

    async def stop(self, conversations: Iterable[str | None], owner: str, *, wait: bool = False) -> None:
        """Stop the running answers of these conversations. With `wait`, wait up to `STOP_SECONDS` for their ends."""
        found = [await self.get(conversation, owner) for conversation in conversations]
        running = [answer for answer in found if answer is not None]
        for answer in running:
            await answer.stop()
        if wait and running:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.gather(*(answer.wait_for_end() for answer in running))

    async def _find_remote(self, run_id: str, owner: str) -> RunningAnswer | None:
        known = self._remote.get(run_id)
        if known is not None and known.owner == owner and not known.is_ended:
            return known
        assert self._replicas is not None
        with suppress(NotFound):
            events = await self._store.runs.events(run_id, owner=owner)
            if events and events[-1].value["type"] != "ended":
                self._remote[run_id] = run = RemoteRun(self._store, self._replicas, run_id, owner, events)
                return run
        return None
