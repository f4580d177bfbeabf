"""The event log of one answer: numbers what happens, keeps it for readers, and stores it every two seconds.

An event is a JSON object. `docs/http.md` lists the types. Many responses of one bubble become one event, made once for
all readers. The end of an answer is published only when it is stored, in one transaction with the last message.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from agent.errors import AgentError, Conflict, NotFound, StoreUnavailable
from agent.history import HistoryStore, Note, Record, RunEvent, RunEvents
from agent.media.references import reference_of, with_urls
from agent.media.store import MediaStore
from agent.response_types import ErrorResponse, Response
from agent.run import Run
from agent.runtime.retry import Wait
from agent.web.chat.run_request import RunRequest
from agent.web.chat.temporary_memory import is_temporary
from agent.web.chat.transcript import Bubble, fold_responses, relabel_last

EVENT_STORE_SECONDS = 2.0
"""Seconds between two writes of events to the store, which is the most text that a killed process loses."""
SHARED_STORE_SECONDS = 0.5
"""The same for a store that other processes read."""
RELABELLED = "relabelled"
"""The event after which the last bubble so far is of another type."""

log = logging.getLogger(__name__)


class RunLog:
    """The events of one run, from its first stored message to its end.

    `events` are all published ones and `bubbles` shows them folded. `is_ended` is True after the last event,
    `is_end_stored` if the store has it, too, and `is_released` if another process will write it. Only the tasks of the
    server's event loop use it.
    """

    def __init__(
        self, store: HistoryStore, media: MediaStore, record: Record, request: RunRequest | None = None
    ) -> None:
        self._store, self._media, self._record = store, media, record
        self._is_shared = store.is_shared and not is_temporary(record.id)
        self.is_released = False
        self._request = request
        self._store_seconds = SHARED_STORE_SECONDS if self._is_shared else EVENT_STORE_SECONDS
        self.events: list[RunEvent] = []
        self.bubbles: list[Bubble] = []
        self.is_ended = self.is_end_stored = False
        self._run: Run | None = None
        self._id = ""
        self._seen = self._stored = self._relabelled = 0
        self._waiting: Wait | None = None
        self._stored_at = monotonic()
        self._can_store = record.revision > 0
        self._is_unsure = False
        """True after a write without an answer: the store may have these events."""
        self._lock = asyncio.Lock()
        self._published = asyncio.Event()

    # For readers

    @property
    def number(self) -> int:
        """The number of the newest event, 0 before the first."""
        return len(self.events)

    @property
    def seen(self) -> int:
        """The number of the run's responses that are in the log."""
        return self._seen

    @property
    def is_stored(self) -> bool:
        """True if the store has events of the run, or may have some."""
        return self._stored > 0 or self._is_unsure

    async def wait_for_event(self, after: int, seconds: float) -> None:
        """Wait up to `seconds` for an event with a higher number than `after`, or for the end."""
        try:
            async with asyncio.timeout(seconds):
                while self.number <= after and not self.is_ended and not self.is_released:
                    await self._published.wait()
        except TimeoutError:
            return

    async def publish(self) -> None:
        """Publish what the run has said so far."""
        async with self._lock:
            await self._take()

    # For the run

    def attach(self, run: Run, continues: str = "") -> None:
        """Begin the log of this run. Call it before the run starts. `continues` is the run whose text it continues."""
        self._run, self._id = run, run.id
        more: dict[str, Any] = {"continues": continues} if continues else {}
        if self._request is not None:
            more["request"] = self._request.value()
        self._publish([*self._numbered([{"type": "begun", "run": run.id, "conversation": self._record.id, **more}])])

    async def store_if_due(self) -> None:
        """Store new events if the last write was some time ago, see `store_events`."""
        if self._stored != self.number and monotonic() - self._stored_at >= self._store_seconds:
            await self.store_events()

    async def store_events(self) -> None:
        """Store new events.

        A failure does not end the answer. It is logged, and the next message that cannot be stored ends the run. But if
        somebody has ended the run as a lost one, this gives it up, and if the conversation is gone, the run is
        cancelled.
        """
        if not self._can_store:
            return
        async with self._lock:
            try:
                await self._look_what_is_stored()
                pending = self.events[self._stored :]
                if pending and not self.is_ended:
                    await self._store.runs.append(self._batch(pending))
                    self._stored += len(pending)
            except AgentError as error:
                self._is_unsure = self._is_unsure or isinstance(error, StoreUnavailable)
                self._can_store = not isinstance(error, Conflict | NotFound)  # until a message is stored
                log.warning("events of run %s were not stored: %s", self._id, error)
                if isinstance(error, Conflict):
                    self.give_up()
                elif isinstance(error, NotFound) and self._run is not None:
                    self._run.cancel("taken_over")
            self._stored_at = monotonic()

    @asynccontextmanager
    async def saving(self, note: Note) -> AsyncGenerator[RunEvents | None]:
        """Give the events to store with a message. If the block succeeds, they count as stored.

        The last message adds the end of the answer, which readers see only after the block.
        """
        async with self._lock:
            await self._take()
            await self._look_what_is_stored()
            ending = self._ending(note) if note.ended is not None and not self.is_ended else []
            pending = [*self.events[self._stored :], *ending] if self._run is not None else []
            try:
                yield self._batch(pending, has_ended=bool(ending)) if pending else None
            except StoreUnavailable:
                self._is_unsure = True
                raise
            self._stored += len(pending)
            self._stored_at, self._can_store = monotonic(), True
            self.is_end_stored = self.is_end_stored or bool(ending)
            self._publish_end(note, ending)

    async def release(self) -> None:
        """Leave the run to another process, if one can go on with it: store its events, and from now on no end.

        Call it before the run is cancelled. Readers get no end either, and find the run at the other process.
        """
        if not self._is_shared or self._run is None or self.is_ended:
            return
        await self.publish()
        await self.store_events()
        self.is_released = self._can_store and self._stored == self.number
        if self.is_released:
            await self._release_lease()
        self._wake_readers()

    async def _look_what_is_stored(self) -> None:
        """Count the events of a write without an answer that the store has. Raises `HistoryError`.

        If it has others, somebody has ended the run, and the next write is refused.
        """
        if not self._is_unsure:
            return
        stored: Sequence[RunEvent] = ()
        with suppress(NotFound):  # it has none
            stored = await self._store.runs.events(self._id, owner=self._record.owner, after=self._stored)
        own = self.events[self._stored : self._stored + len(stored)]
        if [(one.number, one.value) for one in stored] == [(one.number, one.value) for one in own]:
            self._stored += len(stored)
        self._is_unsure = False

    async def _release_lease(self) -> None:
        try:
            await self._store.runs.hold([self._id], release=True)
        except AgentError as error:  # then the lease expires
            log.warning("the lease of run %s was not released: %s", self._id, error)

    def give_up(self) -> None:
        """Cancel a run that was ended as a lost one. Readers get no end here, and find the rest in the store."""
        if self._run is not None and not self.is_ended:
            self.is_released, self._can_store = True, False
            self._run.cancel("taken_over")
            self._wake_readers()

    async def end(self) -> None:
        """Publish the end of a run whose last message could not be stored, or that was refused."""
        async with self._lock:
            if not self.is_released and not self.is_ended and self._run is not None and self._run.result is not None:
                await self._take()
                note = self._run.result.note
                self._publish_end(note, self._ending(note))

    # Helpers

    async def _take(self) -> None:
        """Publish the responses that the run has emitted since the last call, and a change of what it waits for."""
        run = self._run
        if run is None or self.is_ended:
            return
        relabelled = [first for first in run.relabelled[self._relabelled :] if first < self._seen]
        self._relabelled = len(run.relabelled)
        responses, times = run.responses[self._seen :], run.emitted_at[self._seen :]
        self._seen += len(responses)
        new = [await self._shown(response) for response in responses]
        values = [*_joined(new)]
        for first in relabelled:
            kind = run.responses[first].type
            relabel_last(self.bubbles, kind)
            values.insert(0, {"type": RELABELLED, "as": kind})
        fold_responses(self.bubbles, new, times)
        if run.waiting is not self._waiting:
            self._waiting = run.waiting
            values.append(_wait(run.waiting))
        self._publish([*self._numbered(values)])

    async def _shown(self, response: Response) -> Response:
        """Return the response with URLs of its files, or without files if they cannot be stored."""
        try:
            return await with_urls(self._media, self._record.owner, response, reference_of(self._record.id))
        except (AgentError, OSError) as error:
            log.warning("files of run %s were not stored: %s", self._id, error)
            if response.type != "tool_call_result":  # the only kind with files
                raise
            return replace(response, content={**response.content, "files": ()})

    def _publish(self, events: Sequence[RunEvent], *, is_ended: bool = False) -> None:
        self.events += events
        self.is_ended = self.is_ended or is_ended
        if is_ended:  # the run leads to this log, and such a cycle would keep both, with a visitor's key, for long
            self._run = None
        if events or is_ended:
            self._wake_readers()

    def _wake_readers(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _ending(self, note: Note) -> list[RunEvent]:
        """Return the last events: the error if the run failed and readers do not have it yet, then the end."""
        return [*self._numbered(ending_values(note, with_error=self._has_unseen_error(note)))]

    def _publish_end(self, note: Note, ending: Sequence[RunEvent]) -> None:
        if ending:
            if self._has_unseen_error(note):
                fold_responses(self.bubbles, [ErrorResponse("error", str(note.detail), is_type_switched=True)])
            self._publish(ending, is_ended=True)

    def _has_unseen_error(self, note: Note) -> bool:
        last = self.bubbles[-1].first.type if self.bubbles else ""
        return note.ended in ("error", "limit") and last != "error"

    def _numbered(self, values: Sequence[Mapping[str, Any]]) -> Iterator[RunEvent]:
        for number, value in enumerate(values, self.number + 1):
            yield RunEvent.of(number, value)

    def _batch(self, events: Sequence[RunEvent], *, has_ended: bool = False) -> RunEvents:
        return RunEvents(
            run_id=self._id,
            conversation_id=self._record.id,
            owner=self._record.owner,
            events=events,
            has_ended=has_ended,
        )


def ending_values(note: Note, *, with_error: bool) -> list[dict[str, Any]]:
    """Return the last events of a run that ended with this note, without their numbers."""
    detail = str(note.detail)
    error = {"type": "error", "content": detail, "is_type_switched": True}
    timings = asdict(note.timings) if note.timings else None
    ended = {"type": "ended", "finish_reason": note.ended, "detail": detail, "timings": timings, "cost": note.cost}
    return [error, ended] if with_error else [ended]


def _joined(responses: Sequence[Response]) -> Iterator[dict[str, Any]]:
    """Yield the responses as events. Consecutive deltas of one bubble become one event."""
    event: dict[str, Any] = {}
    for response in responses:
        if event and not response.is_type_switched:
            event["content"] += response.content
            continue
        if event:
            yield event
        content = response.content if isinstance(response.content, str) else Bubble(response, []).content
        event = {"type": response.type, "content": content, "is_type_switched": response.is_type_switched}
    if event:
        yield event


def _wait(wait: Wait | None) -> dict[str, Any]:
    return {"type": "waiting", "content": str(wait.sentence) if wait else "", "seconds": wait.seconds if wait else 0}
