"""The journal of an answer: stores its messages in the conversation, and its events for readers and other processes.

An event is a JSON object. `docs/http.md` lists the types. Many responses of one bubble become one event, made once for
all readers. The end of an answer is published only when it is stored, in one transaction with the last message.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from agent.errors import AgentError, Conflict, NotFound, StoreUnavailable
from agent.files.references import new_files, reference_of, with_references, with_urls
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore, Note, RunEvent, RunEvents, new_id
from agent.i18n.text import joined
from agent.messages.repair import open_calls
from agent.providers.retry import Wait
from agent.responses import ErrorResponse, Response, steering_id
from agent.runtime.run import Run
from agent.system.threads import TEXTS, run_to_completion
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import FOR_EVER, RetentionPeriods
from agent.web.chat.questions import kept_suspension
from agent.web.chat.sent_message import NO_MESSAGE_ID, MessageId
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.titles import first_words, rename
from agent.web.chat.transcript import TurnBubble, fold_output, fold_responses, relabel_last

EVENT_STORE_SECONDS = 2.0
"""Seconds between two writes of events to the store, which is the most text that a killed process loses."""
SHARED_STORE_SECONDS = 0.5
"""The same for a store that other processes read."""
RELABELLED, OUTPUT = "relabelled", "tool_output"
"""The event after which the last bubble so far is of another type, and that with a text of a running tool."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request for one answer. `choices` name the model that is used.

    `lost` counts the processes that were lost with the answer before. `resumed`: the run adds to the last turn.
    `instead_of` is the lost run whose step in flight this run begins again, "" if it does not. `own_key`: the visitor
    had typed the model's key. `compared` is the id of the message, if other models answer it, too. `results` are what
    the visitor has replied to the questions of the run that this one resumes.
    """

    choices: Choices
    lost: int = 0
    resumed: bool = False
    instead_of: str = ""
    own_key: bool = False
    compared: str = ""
    results: tuple[ToolReturnPart, ...] = ()

    def value(self) -> Mapping[str, Any]:
        """Return it as JSON, for the first event of the run."""
        return _REQUEST.dump_python(self, mode="json")


_REQUEST = TypeAdapter(RunRequest)


def request_of(events: Sequence[RunEvent]) -> RunRequest | None:
    """Return the request in the first event of a run, or None if there is none, or one that cannot be read."""
    try:
        return _REQUEST.validate_python(events[0].value["request"])
    except (IndexError, KeyError, ValidationError):
        return None


log = logging.getLogger(__name__)


class RunLog:
    """The events of one run, from its first stored message to its end.

    `events` are all published ones and `bubbles` shows them folded. `is_ended` is True after the last event,
    `is_end_stored` if the store has it, too, and `is_released` if another process will write it. Only the tasks of the
    server's event loop use it.
    """

    def __init__(
        self, store: HistoryStore, media: MediaStore, conversation: Conversation, request: RunRequest | None = None
    ) -> None:
        self._store, self._media, self._conversation = store, media, conversation
        self._is_shared = store.is_shared and not is_temporary(conversation.id)
        self.is_released = False
        self._request = request
        self._store_seconds = SHARED_STORE_SECONDS if self._is_shared else EVENT_STORE_SECONDS
        self.events: list[RunEvent] = []
        self.bubbles: list[TurnBubble] = []
        self.is_ended = self.is_end_stored = False
        self._run: Run | None = None
        self._id = ""
        self._seen = self._stored = self._relabelled = self.outputs_seen = 0
        self._waiting: Wait | None = None
        self._stored_at = monotonic()
        self._can_store = conversation.revision > 0
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
        self._publish(
            [*self._numbered([{"type": "begun", "run": run.id, "conversation": self._conversation.id, **more}])]
        )

    def keep_replies(self, results: Sequence[ToolReturnPart]) -> None:
        """Store what the visitor replied with the first event, in case the process is lost before its first message.

        Call it before `attach`.
        """
        if self._request is not None:
            self._request = replace(self._request, results=tuple(results))

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

        The last message adds the end of the answer, which readers see only after the block. A message is never stored
        without an event: by its number, recovery knows that the events so far are in the message.
        """
        async with self._lock:
            await self._take()
            await self._look_what_is_stored()
            if self._stored == self.number and note.ended is None:
                self._publish([*self._numbered([_wait(self._waiting)])])
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
            stored = await self._store.runs.events(self._id, owner=self._conversation.owner, after=self._stored)
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
        outputs, self.outputs_seen = run.outputs[self.outputs_seen :], len(run.outputs)
        for call, texts in groupby(outputs, key=itemgetter(0)):
            text = "".join(text for _, text in texts)
            fold_output(self.bubbles, call, text)
            values.append({"type": OUTPUT, "call": call, "content": text})
        if run.waiting is not self._waiting:
            self._waiting = run.waiting
            values.append(_wait(run.waiting))
        self._publish([*self._numbered(values)])

    async def _shown(self, response: Response) -> Response:
        """Return the response with URLs of its files, or without files if they cannot be stored."""
        try:
            return await with_urls(self._media, self._conversation.owner, response, reference_of(self._conversation.id))
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
            conversation_id=self._conversation.id,
            owner=self._conversation.owner,
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
        content = response.content if isinstance(response.content, str) else TurnBubble(response, []).content
        event = {"type": response.type, "content": content, "is_type_switched": response.is_type_switched}
    if event:
        yield event


def _wait(wait: Wait | None) -> dict[str, Any]:
    return {"type": "waiting", "content": str(wait.sentence) if wait else "", "seconds": wait.seconds if wait else 0}


@dataclass(frozen=True, slots=True)
class Omitted:
    """The part of the history that the model was not sent.

    `left_out` is the number of earliest messages left out. `omitted` names what the model could not take.
    """

    left_out: int = 0
    omitted: str = ""

    def on(self, note: Note) -> Note:
        """Return the note with these fields added."""
        return replace(note, left_out=self.left_out, omitted=joined([self.omitted, note.omitted]))


class StoreJournal:
    """Appends a run's messages to a conversation, one save each. Owns the newest conversation and the event log.

    `omitted` is the part of the history that the model is not sent. `periods` are the retention periods. `request` is
    stored for other processes. `message` is the id of the first message that is written.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        conversation: Conversation,
        omitted: Omitted,
        periods: RetentionPeriods = FOR_EVER,
        request: RunRequest | None = None,
        message: MessageId = NO_MESSAGE_ID,
    ) -> None:
        self.conversation = conversation
        self.first_write: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.omitted = omitted
        self.log = RunLog(store, media, conversation, request)
        self._store, self._media, self._periods = store, media, periods
        self._next_id = message.value
        self._saving = asyncio.Lock()
        self._open_calls: tuple[str, ...] = ()
        """The ids of the calls without a result, in the messages that were written."""

    async def claim(self) -> None:
        """Save the conversation for a resumed run, as its first write. Call it before the run starts.

        From now on, changes by others are refused, and the conversation does not expire before the run ends. Raises
        `Conflict` or `NotFound` if it has changed since it was read, for example because another process resumed it.
        """
        try:
            claimed = replace(self.conversation, expires_at=self._periods.until(self.conversation.owner, running=True))
            async with self._saving, self.log.saving(Note()) as events:
                self.conversation = await self._store.save(claimed, (), events)
        except BaseException as failure:
            self._fail(failure)
            raise
        self.first_write.set_result(None)

    def _fail(self, failure: BaseException) -> None:
        if not self.first_write.done():
            self.first_write.set_exception(failure)
            self.first_write.exception()  # not everybody waits for it; the run ends with it anyway

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Store a message with its note. See `agent.result.Journal`.

        The last message of a run that is left to another process is not stored: that one has its text from the events.
        """
        if self.log.is_released and note.ended is not None:
            return
        try:
            note = replace(note, suspension=kept_suspension(note.suspension))
            await self._save(message, self.omitted.on(note))
        except BaseException as failure:
            self._fail(failure)
            raise
        if not self.first_write.done():
            self.first_write.set_result(None)

    async def wait_for_first_write(self, run: Run) -> None:
        """Wait for the first write. Raises what prevented it, also if the run ended without any write."""
        end = asyncio.ensure_future(_end(run))
        try:
            await asyncio.wait([self.first_write, end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if self.first_write.done():
            self.first_write.result()
        elif run.result is not None:
            raise run.refused or AgentError(run.result.note.detail)

    async def _save(self, message: ModelMessage, note: Note) -> None:
        """Store the files of a message, then the message. If it is refused, remove those that no other one names."""
        id_, self._next_id, is_sent = self._next_id or steering_id(message) or new_id(), "", False
        try:
            kept = await with_references(
                self._media, self.conversation.owner, message, reference_of(self.conversation.id, id_)
            )
            async with self._saving, self.log.saving(note) as events:
                entry = Entry(id=id_, parent_id=self.conversation.head_id, message=kept, note=note)
                is_sent = True
                self.conversation = await self._add(entry, events)
                if entry.parent_id is None:
                    await self._rename(entry)
        except BaseException as failure:
            if isinstance(failure, AgentError) or not is_sent:  # otherwise the store may still be saving it
                await run_to_completion(self._remove_files(message, id_))
            raise

    async def _add(self, entry: Entry, events: RunEvents | None) -> Conversation:
        """Store the entry, and return the conversation with it as the newest one."""
        return await self._store.save(self._advance(entry), [entry], events)

    async def _rename(self, first: Entry) -> None:
        try:
            self.conversation = replace(self.conversation, title=await rename(self._store, self.conversation, first))
        except (AgentError, OSError) as error:  # the message is stored, and its answer matters more
            log.warning("the title did not follow the first message: %s", error)

    async def _remove_files(self, message: ModelMessage, entry_id: str) -> None:
        """Remove the files that only this message names, unless it is stored after all."""
        owner = self.conversation.owner
        try:
            files = await TEXTS.run(new_files, owner, message)
            if files and not await self._store.find(self.conversation, ids=[entry_id]):
                reference = reference_of(self.conversation.id, entry_id)
                await self._media.remove_references(owner, {id_: [reference] for id_ in files})
        except (AgentError, OSError) as error:  # `OrphanedFiles` tries again
            log.warning("the files of a refused message were not removed: %s", error)

    def _advance(self, entry: Entry) -> Conversation:
        self._open_calls = open_calls(self._open_calls, entry.message)
        return replace(
            self.conversation.extended(entry, self._open_calls),
            expires_at=self._periods.until(self.conversation.owner, running=entry.note.ended is None),
            title=self.conversation.title or first_words(entry),
        )


async def _end(run: Run) -> None:
    while not run.done:
        await run.wait_for_update(sys.maxsize)


def branch(conversation: Conversation, head_id: str | None) -> Conversation:
    """Return the conversation with its head at another entry. The old head is kept as the last abandoned branch."""
    left = (conversation.head_id,) if conversation.head_id else ()
    others = tuple(end for end in conversation.branches if end not in left)
    return replace(conversation, head_id=head_id, pending=(), branches=(*others, *left))
