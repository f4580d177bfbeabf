"""The answers that are being written, wherever that happens: by this process, or another one that shares the store."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from agent.errors import AgentError, NotFound, StoreUnavailable
from agent.history import HistoryStore, Note, RunEvent, UnfinishedRun
from agent.i18n import LocalizedText
from agent.response_types import make_response
from agent.runtime.retry import Wait
from agent.web.chat.live_runs import LiveRuns
from agent.web.chat.recovery import LostRuns
from agent.web.chat.run_request import request_of
from agent.web.chat.running_answer import IDLE_SECONDS, Ending, RunningAnswer
from agent.web.chat.stored_entries import last_turn
from agent.web.chat.temporary_memory import is_temporary
from agent.web.chat.transcript import NO_ENDING, Bubble, cited_texts, fold_responses, generated_files, relabel_last

EVENT_READ_SECONDS = 0.25
"""Seconds between two looks at the events of an answer while a page watches it."""
WATCH_SECONDS = 1.0
"""Seconds after which its writer is told again that a page watches, and its lease is looked at."""
STOP_SECONDS = 10.0
"""The longest wait for the end of an answer that was stopped."""

log = logging.getLogger(__name__)


class StoredRun:
    """A `RunningAnswer` that another process writes, read from the store while a page watches it."""

    def __init__(self, store: HistoryStore, lost: LostRuns, run: UnfinishedRun, events: Sequence[RunEvent]) -> None:
        self._store, self._lost = store, lost
        self.run_id, self.owner, self.conversation = run.run_id, run.owner, run.conversation_id
        request = request_of(events)
        self.resumed = request is not None and request.resumed
        self.started_at = self.quiet_since = monotonic()
        self.frames: dict[str, Any] = {}
        self._events, self._bubbles = list[RunEvent](), list[Bubble]()
        self.events: Sequence[RunEvent] = self._events
        self.bubbles: Sequence[Bubble] = self._bubbles
        self.waiting: Wait | None = None
        self.ending: Ending | None = None
        self.is_end_stored = False  # so that pages read the store, which knows more of the run
        self._read_at = self._looked_at = -math.inf
        self._lock = asyncio.Lock()
        self._add(events)

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Implement `RunningAnswer.reasoning`. Only the writer knows them before the end."""
        timings = self.ending.note.timings if self.ending else None
        return timings.reasoning if timings else ()

    @property
    def is_ended(self) -> bool:
        """Implement `RunningAnswer.is_ended`."""
        return self.ending is not None

    async def publish(self) -> None:
        """Implement `RunningAnswer.publish`, at most every `EVENT_READ_SECONDS`, for all pages that watch.

        A lost run is ended. A store that is away for a moment changes nothing.
        """
        async with self._lock:
            if self.is_ended or monotonic() - self._read_at < EVENT_READ_SECONDS / 2:
                return
            self._read_at = monotonic()
            try:
                if monotonic() - self._looked_at >= WATCH_SECONDS:
                    self._looked_at = monotonic()
                    run = await self._store.runs.look(self.run_id, owner=self.owner)
                    await self._lost.living([run] if run else [])
                new = await self._store.runs.events(self.run_id, owner=self.owner, after=len(self._events))
                ending = await self._read_ending(new) if new and new[-1].value["type"] == "ended" else None
            except NotFound:  # the conversation was deleted
                new, ending = (), Ending(NO_ENDING, ())
            except AgentError as error:
                log.warning("the answer of another process could not be read: %s", error)
                return
            self._add(new)
            self.ending = ending

    async def updates(self) -> AsyncGenerator[int]:
        """Implement `RunningAnswer.updates`."""
        await self.publish()
        while not self.is_ended:
            number, idle_at = len(self._events), monotonic() + IDLE_SECONDS
            yield number
            while len(self._events) == number and not self.is_ended and monotonic() < idle_at:
                await asyncio.sleep(EVENT_READ_SECONDS)
                await self.publish()
        yield len(self._events)

    def watched(self) -> AbstractContextManager[None]:
        """Implement `RunningAnswer.watched`. Who reads events watches."""
        return nullcontext()

    async def stop(self) -> None:
        """Implement `RunningAnswer.stop`. The writer looks for such wishes."""
        await self._store.runs.look(self.run_id, owner=self.owner, stop=True)

    async def pause(self, seconds: float) -> None:
        """Implement `RunningAnswer.pause`. New events are read at intervals anyway."""
        await asyncio.sleep(seconds)

    async def wait_for_end(self) -> None:
        """Implement `RunningAnswer.wait_for_end`."""
        async for _ in self.updates():
            pass

    async def _read_ending(self, events: Sequence[RunEvent]) -> Ending:
        """Return the ending as it is stored with the last message, or what the last event says of it."""
        value = events[-1].value
        goes_on = bool(value.get("goes_on"))
        record = await self._store.get(self.conversation, owner=self.owner)
        turn = await last_turn(self._store, record)
        if turn and turn[-1].note.run_id == self.run_id and turn[-1].note.ended:
            messages = [entry.message for entry in turn]
            return Ending(turn[-1].note, generated_files(messages), cited_texts(messages), goes_on)
        note = Note(run_id=self.run_id, ended=value["finish_reason"], detail=value["detail"], cost=value["cost"])
        return Ending(note, (), goes_on=goes_on)

    def _add(self, events: Sequence[RunEvent]) -> None:
        self._events += events
        for event in events:
            match event.value:
                case {"type": "waiting", "content": sentence, "seconds": seconds}:
                    wait = Wait(monotonic() + seconds, seconds, LocalizedText("{text}", {"text": sentence}))
                    self.waiting = wait if sentence else None
                case {"type": "relabelled", "as": "output_text" | "reasoning" as kind}:
                    relabel_last(self._bubbles, kind)
                case {"type": "output_text" | "reasoning" | "tool_call" | "tool_call_result" | "error"} as value:
                    switched = bool(value["is_type_switched"]) or not self._bubbles
                    response = make_response(value["type"], value["content"], is_type_switched=switched)
                    fold_responses(self._bubbles, [response], [monotonic()])
                    self.quiet_since = monotonic()
                case _:
                    pass


class RunningAnswers:
    """Finds running answers, and ends those that are lost. Every call names the owner, and finds nothing of others."""

    def __init__(self, store: HistoryStore, live_runs: LiveRuns) -> None:
        self._store, self._live_runs = store, live_runs
        self.lost = LostRuns(store, live_runs.is_busy, live_runs.unstored)
        self._stored = WeakValueDictionary[str, StoredRun]()

    async def get(self, conversation: str | None, owner: str) -> RunningAnswer | None:
        """Return the running answer of this owner's conversation, if there is one."""
        live = self._live_runs.get(conversation, owner)
        if live is not None or conversation is None or is_temporary(conversation):
            return live
        found = await self.lost.living(await self._store.runs.unfinished(owner=owner, conversation_id=conversation))
        return await self._read(found[-1]) if found else None

    async def find(self, run_id: str, owner: str) -> RunningAnswer | None:
        """Return this owner's running answer by the id of its run, if there is one."""
        if (live := self._live_runs.find(run_id, owner)) is not None:
            return live
        runs = [run for run in await self._store.runs.unfinished(owner=owner) if run.run_id == run_id]
        found = await self.lost.living(runs)
        return await self._read(found[0]) if found else None

    async def is_busy(self, conversation: str | None, owner: str) -> bool:
        """Return True if an answer is being written in this owner's conversation.

        While the store is away, it cannot be asked: whatever needs it is refused by the store itself.
        """
        with suppress(StoreUnavailable):
            return await self.get(conversation, owner) is not None
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
        """Return this owner's conversations in which others that share the store are writing."""
        if not self._store.is_shared:
            return ()
        return {run.conversation_id for run in await self.lost.living(await self._store.runs.unfinished(owner=owner))}

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

    async def _read(self, run: UnfinishedRun) -> RunningAnswer | None:
        known = self._stored.get(run.run_id)
        if known is not None and not known.is_ended:
            return known
        with suppress(NotFound):
            events = await self._store.runs.events(run.run_id, owner=run.owner)
            if events[-1].value["type"] != "ended":
                self._stored[run.run_id] = known = StoredRun(self._store, self.lost, run, events)
                return known
        return None
