"""Answers that another replica writes, read from the store. Polling it is enough, and the same for all stores."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from agent.errors import AgentError, NotFound
from agent.history import HistoryStore, Note, Replicas, RunEvent
from agent.i18n import LocalizedText
from agent.response_types import make_response
from agent.runtime.retry import Wait
from agent.web.chat.run_request import request_of
from agent.web.chat.running_answer import IDLE_SECONDS, Ending
from agent.web.chat.stored_entries import last_turn
from agent.web.chat.transcript import (
    NO_ENDING,
    Bubble,
    cited_texts,
    fold_responses,
    generated_files,
    relabel_last,
)

REMOTE_SECONDS = 0.25
"""Seconds between two looks at the events of an answer while a page watches it."""
WATCH_SECONDS = 4.0
"""Seconds after which its replica is told again that a page watches."""

log = logging.getLogger(__name__)


class RemoteRun:
    """A `RunningAnswer` that another replica writes. It is read only while a page watches, for all pages at once."""

    def __init__(
        self, store: HistoryStore, replicas: Replicas, run_id: str, owner: str, events: Sequence[RunEvent]
    ) -> None:
        self._store, self._replicas, self._run_id = store, replicas, run_id
        self.owner, self.conversation = owner, str(events[0].value.get("conversation", ""))
        request = request_of(events)
        self.resumed = request is not None and request.resumed
        self.started_at = self._quiet_since = monotonic()
        self.frames: dict[str, Any] = {}
        self._events, self._bubbles = list[RunEvent](), list[Bubble]()
        self._waiting: Wait | None = None
        self._ending: Ending | None = None
        self._watchers = 0
        self._reader: asyncio.Task[None] | None = None
        self._told_at = -math.inf
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._add(events)

    @property
    def run_id(self) -> str:
        """Implement `RunningAnswer.run_id`."""
        return self._run_id

    @property
    def events(self) -> Sequence[RunEvent]:
        """Implement `RunningAnswer.events`."""
        return self._events

    @property
    def number(self) -> int:
        """Implement `RunningAnswer.number`."""
        return len(self._events)

    @property
    def bubbles(self) -> Sequence[Bubble]:
        """Implement `RunningAnswer.bubbles`."""
        return self._bubbles

    @property
    def waiting(self) -> Wait | None:
        """Implement `RunningAnswer.waiting`."""
        return self._waiting

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Implement `RunningAnswer.reasoning`. Only the replica of the run knows them before the end."""
        timings = self._ending.note.timings if self._ending else None
        return timings.reasoning if timings else ()

    @property
    def quiet_since(self) -> float:
        """Implement `RunningAnswer.quiet_since`."""
        return self._quiet_since

    @property
    def ending(self) -> Ending | None:
        """Implement `RunningAnswer.ending`."""
        return self._ending

    @property
    def is_ended(self) -> bool:
        """Implement `RunningAnswer.is_ended`."""
        return self._ending is not None

    @property
    def is_end_stored(self) -> bool:
        """Implement `RunningAnswer.is_end_stored`: pages read the store, which knows more of the run."""
        return False

    async def publish(self) -> None:
        """Implement `RunningAnswer.publish`. A store that is away for a moment changes nothing."""
        async with self._lock:
            if self._ending is not None:
                return
            try:
                new = await self._store.runs.events(self._run_id, owner=self.owner, after=self.number)
                ending = await self._read_ending(new) if new and new[-1].value["type"] == "ended" else None
            except NotFound:  # the conversation was deleted
                new, ending = (), Ending(NO_ENDING, ())
            except AgentError as error:
                log.warning("the answer of another replica could not be read: %s", error)
                return
            self._add(new)
            self._ending = ending
            if new or ending:
                self._changed.set()
                self._changed = asyncio.Event()

    async def updates(self) -> AsyncGenerator[int]:
        """Implement `RunningAnswer.updates`."""
        with self.watched():
            await self.publish()
            while self._ending is None:
                number = self.number
                yield number
                await self._wait_for_event(number)
            yield self.number

    @contextmanager
    def watched(self) -> Generator[None]:
        """Implement `RunningAnswer.watched`. The events are read while somebody watches."""
        self._watchers += 1
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._reader.cancel()
                self._reader = None

    async def stop(self) -> None:
        """Implement `RunningAnswer.stop`. The replica of the run looks for such requests."""
        await self._replicas.request_stop(self._run_id, owner=self.owner)

    async def pause(self, seconds: float) -> None:
        """Implement `RunningAnswer.pause`. New events are read at intervals anyway."""
        await asyncio.sleep(seconds)

    async def wait_for_end(self) -> None:
        """Implement `RunningAnswer.wait_for_end`."""
        async for _ in self.updates():
            pass

    # Helpers

    async def _read(self) -> None:
        while self._ending is None:
            if monotonic() - self._told_at >= WATCH_SECONDS:
                self._told_at = monotonic()
                try:
                    await self._replicas.watch(self._run_id, owner=self.owner)
                except AgentError as error:
                    log.info("the replica of an answer could not be told that a page watches: %s", error)
            await self.publish()
            await asyncio.sleep(REMOTE_SECONDS)

    async def _wait_for_event(self, after: int) -> None:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                while self.number <= after and self._ending is None:
                    await self._changed.wait()
        except TimeoutError:
            return

    async def _read_ending(self, events: Sequence[RunEvent]) -> Ending:
        """Return the ending as it is stored with the last message, or what the last event says of it."""
        record = await self._store.get(self.conversation, owner=self.owner)
        turn = await last_turn(self._store, record)
        if turn and turn[-1].note.run_id == self._run_id and turn[-1].note.ended:
            messages = [entry.message for entry in turn]
            return Ending(turn[-1].note, generated_files(messages), cited_texts(messages))
        value = events[-1].value
        note = Note(run_id=self._run_id, ended=value["finish_reason"], detail=value["detail"], cost=value["cost"])
        return Ending(note, ())

    def _add(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._events.append(event)
            match event.value:
                case {"type": "waiting", "content": sentence, "seconds": seconds}:
                    self._waiting = _wait(sentence, seconds) if sentence else None
                case {"type": "relabelled", "as": "output_text" | "reasoning" as kind}:
                    relabel_last(self._bubbles, kind)
                case {"type": "output_text" | "reasoning" | "tool_call" | "tool_call_result" | "error"} as value:
                    switched = bool(value["is_type_switched"]) or not self._bubbles
                    response = make_response(value["type"], value["content"], is_type_switched=switched)
                    fold_responses(self._bubbles, [response], [monotonic()])
                    self._quiet_since = monotonic()
                case _:
                    pass


def _wait(sentence: str, seconds: float) -> Wait:
    return Wait(monotonic() + seconds, seconds, LocalizedText("{text}", {"text": sentence}))
