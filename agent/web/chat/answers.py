"""The answers that are being written, by this process or by another one that shares the store.

A public page cancels an answer that nobody watches any more.
"""

import asyncio
import logging
import math
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from agent.errors import AgentError, Conflict, InputError, NotFound
from agent.history import HistoryStore, Note, RunEvent, UnfinishedRun
from agent.i18n.text import LocalizedText, _
from agent.providers.connection import SoundPiece
from agent.providers.delta_merging import reading_each
from agent.providers.retry import Wait
from agent.responses import make_response, steering_id
from agent.runtime.run import Run
from agent.system.request_queue import acting_for
from agent.web.chat.journal import StoreJournal, request_of
from agent.web.chat.recovery import LostRuns
from agent.web.chat.stored_entries import last_turn
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.transcript import (
    NO_ENDING,
    TurnBubble,
    cited_texts,
    fold_output,
    fold_responses,
    generated_files,
    relabel_last,
)

IDLE_SECONDS = 1.0
"""Seconds after which readers of a silent run are woken anyway, so that the server notices if they are gone."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer.

    `files` are the ids of the files that the model made. `cited` are the texts of the turn with their citations, if it
    has any. `goes_on`: its process was lost, and a page may ask for the rest by itself.
    """

    note: Note
    files: tuple[str, ...]
    cited: tuple[TurnBubble, ...] = ()
    goes_on: bool = False

    @property
    def is_suspended(self) -> bool:
        """True if the answer waits for the visitor."""
        return self.note.ended == "suspended"


TEXT_SECONDS = 0.125
"""Seconds from a frame of a text that grows to the next frame, for pages. The first text and the end do not wait.

The stream of the model is read as often, so that a text waits once on its way, and most frames not at all."""
EVENT_SECONDS = 0.03
"""The shortest time between two events of an answer. The first and the last event never wait.

The stream of the model sets the pace. This is for runs that no such stream feeds."""
UPDATE_SECONDS = 0.1
"""The shortest pause between two updates of a program that reads whole bubbles."""
LOOK_SECONDS = 0.5
"""Seconds between two looks at the leases of the running answers, and at what visitors want of them elsewhere."""
MOST_STEERING = 10
"""The most messages that wait for the next step of an answer, those included that were taken back."""
UNSTORED = 1000
"""The most runs that are remembered because their end could not be stored."""
log = logging.getLogger(__name__)

EndCallback = Callable[[], Awaitable[None]]

RESTARTING = _("The server is restarting. Try again in a minute; your text stays here.")
STILL_WRITING = _("An answer is still being written. Stop it, or wait for it to end.")


@dataclass(slots=True)
class SteeringCount:
    """A message to a running answer that counts for the limits once, although it can be sent again meanwhile.

    `give_back` undoes that, and `callers` are those who still wait for it.
    """

    give_back: Callable[[], None]
    callers: int = 0


class LiveRun:
    """An answer that this process writes: a run, its event log, and the number of pages that watch it.

    `resumed` is True if it continues a suspended turn or an unfinished text. The run is cancelled if nobody has watched
    it for `grace` seconds; None: it always finishes. `frames` holds what pages share of this answer, until it has
    ended: afterwards nothing may keep the run, because it has a visitor's key. Times are on the monotonic clock.
    """

    def __init__(self, run: Run, journal: StoreJournal, grace: float | None, *, resumed: bool = False) -> None:
        self.run, self.log, self.omitted, self.resumed = run, journal.log, journal.omitted, resumed
        self.run_id, self.conversation_id, self.owner = run.id, journal.conversation.id, journal.conversation.owner
        self.events: Sequence[RunEvent] = self.log.events
        self.bubbles: Sequence[TurnBubble] = self.log.bubbles
        self.started_at, self._grace = monotonic(), grace
        self.frames: dict[str, Any] = {}
        self._watchers, self._steering = 0, Counter[str]()
        self.counted = dict[str, SteeringCount]()
        """The messages to it that count for the limits, by id."""
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer()

    @property
    def number(self) -> int:
        """The number of events so far."""
        return self.log.number

    @property
    def waiting(self) -> Wait | None:
        """The wait for a retry or in the request queue, if any."""
        return self.run.waiting

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far, as far as they are known."""
        return self.run.reasoning

    @property
    def quiet_since(self) -> float:
        """When the answer began or last said something."""
        return max(self.started_at, self.run.emitted_at[-1] if self.run.emitted_at else 0.0)

    @property
    def ending(self) -> Ending | None:
        """The ending of the answer, or None before it has ended."""
        result = self.run.result
        if result is None or self.log.is_released:
            return None
        messages = result.context.messages
        files = generated_files(messages, self.owner)
        return Ending(self.omitted.on(result.note), files, cited_texts(messages))

    @property
    def is_ended(self) -> bool:
        """True if no more events will come."""
        return self.log.is_ended and self.run.done

    @property
    def is_end_stored(self) -> bool:
        """True if the store has the end. The frames of the answer then show the turn as it is stored."""
        return self.log.is_end_stored

    async def publish(self) -> None:
        """Look for new events now."""
        await self.log.publish()

    async def stop(self) -> None:
        """Ask for the end of the answer, for the visitor."""
        self.run.cancel("user_request")

    async def sound(self) -> AsyncGenerator[SoundPiece]:
        """Yield the sound that the model writes, from its beginning, while it is written."""
        seen = 0
        while await self.run.wait_for_sound(seen):
            yield self.run.sound[seen]
            seen += 1

    @property
    def draws(self) -> bool:
        """True if the model answers with pictures."""
        return self.run.spec.draws

    @property
    def can_steer(self) -> bool:
        """True if the model may take another message at its next step."""
        return self.run.takes_steering

    @property
    def steered(self) -> Sequence[str]:
        """The ids of the messages that have steered it, as far as this process knows them."""
        return self.run.steered

    async def steer(self, text: str, id_: str) -> bool:
        """Send the model a message with this id at its next step. Return False if the answer ends before.

        It is taken back when the last caller with this id is cancelled. Raises `Conflict` if too many wait.
        """
        if id_ in self.run.steered:
            return True
        sent = (one.is_taken for one in self.run.steering if steering_id(one.message) == id_)
        taken = next((one for one in sent if not one.done()), None)
        if taken is None:
            if len(self.run.steering) >= MOST_STEERING:
                raise Conflict(_("An answer gets {count} messages at a step, which is the most.", count=MOST_STEERING))
            taken = self.run.steer(text, id=id_)
        self._steering[id_] += 1
        try:
            await asyncio.wait([taken])
        finally:
            self._steering[id_] -= 1
            if not self._steering[id_]:
                del self._steering[id_]
                taken.cancel()
        return not taken.cancelled() and taken.result()

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until no more text will come."""
        await self.run.wait_until_done(seconds)

    async def wait_for_end(self) -> None:
        """Wait until the answer has its result."""
        while not self.run.done:
            await self.run.wait_for_update(sys.maxsize)

    async def updates(self) -> AsyncGenerator[int]:
        """Yield the number of the newest event after each update, and once more when the run has its result."""
        run, log = self.run, self.log
        with self.watched():
            await log.publish()
            while not log.is_ended:
                if log.is_released:
                    return
                if run.done:
                    await log.end()
                number = log.number
                yield number
                await log.wait_for_event(number, IDLE_SECONDS)
            await self.wait_for_end()
            yield log.number

    async def bubble_updates(self) -> AsyncGenerator[list[TurnBubble]]:
        """Yield all bubbles after each update while the answer is written, and once more when it has ended."""
        async with aclosing(self.updates()) as updates:
            async for _ in updates:
                yield self.log.bubbles
                await self.pause(UPDATE_SECONDS)

    async def follow(self) -> None:
        """Publish and store the events of the run until its end."""
        run, log, clock = self.run, self.log, asyncio.get_running_loop().time
        due = 0.0
        while not run.done:
            await run.wait_for_update(log.seen, outputs=log.outputs_seen, timeout=IDLE_SECONDS)
            if log.bubbles and (early := due - clock()) > 0:  # nothing delays the first text
                await run.wait_until_done(early)
            due = clock() + EVENT_SECONDS
            await log.publish()
            await log.store_if_due()
        await log.end()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Count a watching page within the block. The grace period, if any, begins when the last page leaves."""
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

    async def obey(self, run: UnfinishedRun) -> None:
        """Do what visitors want of this run, as the store has it."""
        if run.is_watched:
            with self.watched():
                pass
        if run.is_stopped:
            await self.stop()

    def _set_timer(self) -> None:
        if self._grace is not None and not self.run.done:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._grace, self.run.cancel, "client_disconnect", context=Context())

    def cancel_timer(self) -> None:
        """Stop the timer, because the run has ended."""
        if self._timer is not None:
            self._timer.cancel()


class LiveRuns:
    """The running answers, at most one per conversation, or several to one message. Owns the tasks of their ends.

    A run is among them until it has its result, so that a page that then asks for the conversation gets it as stored.
    `grace` is the time in seconds after which an unwatched run is cancelled.
    """

    def __init__(self, grace: float | None) -> None:
        self._grace = grace
        self._runs: dict[str, LiveRun] = {}
        self._by_conversation: dict[str, list[LiveRun]] = {}
        self.together: dict[str, AnswersTogether] = {}
        """The answers to one message, by conversation, until all have ended."""
        self._end_tasks: set[asyncio.Task[None]] = set()
        self.unstored = deque[str](maxlen=UNSTORED)
        """The ids of the runs that have ended here, of which the store has events, but not the end."""
        self.is_closing = False
        self._begun = asyncio.Event()
        """Set while there are running answers."""

    def get(self, conversation_id: str | None, owner: str) -> LiveRun | None:
        """Return the running answer of this owner's conversation, if there is one."""
        found = self._find(conversation_id or "")
        return found if found is not None and found.owner == owner else None

    def find(self, run_id: str, owner: str) -> LiveRun | None:
        """Return this owner's running answer by the id of its run, if there is one."""
        live = self._runs.get(run_id)
        return live if live is not None and live.owner == owner and not live.run.done else None

    def start(
        self,
        run: Run,
        journal: StoreJournal,
        on_end: EndCallback | None = None,
        *,
        resumed: bool = False,
        continues: str = "",
        is_beside: bool = False,
    ) -> LiveRun:
        """Start the run, which writes to `journal`, as a task of the server. `on_end` is called after its end.

        A resumed run claims the conversation first, so that of several processes only one makes the approved calls.
        `continues` is the id of the run whose unfinished text it continues. `is_beside`: others answer this message.
        Raises `Conflict` if the conversation has a running answer already, or if the server is shutting down.
        """
        if self.is_closing:
            raise Conflict(RESTARTING)
        if self.is_busy(journal.conversation.id) and not is_beside:
            raise Conflict(STILL_WRITING)
        journal.log.attach(run, continues)
        if not resumed:
            _start(run, journal.conversation.owner)
        live = LiveRun(run, journal, self._grace, resumed=resumed)
        self._runs[run.id] = live
        self._begun.set()
        self._by_conversation.setdefault(live.conversation_id, []).append(live)
        task = asyncio.create_task(self._end(live, journal, on_end))
        self._end_tasks.add(task)
        task.add_done_callback(self._end_tasks.discard)
        task.add_done_callback(lambda _: self._remove(live))  # also if the task never took its first step
        return live

    async def keep_leases(self, store: HistoryStore) -> None:
        """Renew the leases of the running answers, and do what visitors want of them elsewhere, until cancelled.

        A store that is away is logged once, and asked again.
        """
        gone, failure = set[str](), ""
        while True:
            await self._begun.wait()
            await asyncio.sleep(LOOK_SECONDS)
            writing = {live.run.id: live for live in self._runs.values() if _has_lease(live)}
            try:
                held = {run.run_id: run for run in await store.runs.hold(writing)} if writing else {}
                for run in held.values():
                    await writing[run.run_id].obey(run)
            except Exception as error:
                if repr(error) != failure:
                    failure, is_known = repr(error), isinstance(error, AgentError)
                    text = "the leases of running answers could not be renewed: %s"
                    log.warning(text, error, exc_info=None if is_known else error)
                continue
            before, gone, failure = gone, writing.keys() - held.keys(), ""
            for run_id in gone & before:  # one that was gone for the first time can have ended in this moment
                log.warning("run %s is cancelled, because it was ended as a lost one", run_id)
                writing[run_id].log.give_up()

    def is_busy(self, conversation_id: str) -> bool:
        """Return True if an answer is being written in this conversation."""
        return self._find(conversation_id) is not None

    @property
    def count(self) -> int:
        """The number of answers that are being written."""
        return len(self._runs)

    async def close(self, seconds: float = 0.0) -> None:
        """Start no more runs, let running ones go on for `seconds`, cancel the rest, and wait until all is stored.

        Runs that another process can finish are left to it. Can be called again meanwhile to end them sooner.
        """
        self.is_closing = True
        if self._end_tasks and seconds:
            await asyncio.wait(self._end_tasks, timeout=seconds)
        await asyncio.gather(*map(_leave, [*self._runs.values()]))
        if self._end_tasks:
            await asyncio.wait(self._end_tasks)

    async def _end(self, live: LiveRun, journal: StoreJournal, on_end: EndCallback | None) -> None:
        """Wait for the end, then remove the run first, so that a failure here cannot leave its conversation busy."""
        if live.resumed:
            await _claim(live, journal)
        following = asyncio.create_task(live.follow())
        try:
            await live.run
        except InputError:
            pass  # the run was refused; the pages that watch it show why
        except Exception:
            log.exception("the run %s could not be waited for", live.run.id)
        finally:
            self._remove(live)
            live.cancel_timer()
            await _finish(following, live)
            if live.log.is_stored and not live.log.is_end_stored and not live.log.is_released:
                self.unstored.append(live.run_id)
            if on_end is not None:
                await on_end()

    def of(self, conversation_id: str) -> list[LiveRun]:
        """Return the running answers of this conversation."""
        return [live for live in self._by_conversation.get(conversation_id, ()) if not live.run.done]

    def _find(self, conversation_id: str) -> LiveRun | None:
        return next(iter(self.of(conversation_id)), None)

    def _remove(self, live: LiveRun) -> None:
        if self._runs.pop(live.run_id, None) is not None:
            if not self._runs:
                self._begun.clear()
            self._by_conversation[live.conversation_id].remove(live)
            if not self._by_conversation[live.conversation_id]:
                del self._by_conversation[live.conversation_id]
        if live.conversation_id in self.together and not self.of(live.conversation_id):
            self.together.pop(live.conversation_id).frames.clear()


async def _leave(live: LiveRun) -> None:
    """Leave a run to another process if one can finish it, and cancel it here in any case."""
    try:
        await live.log.release()
    except Exception:
        log.exception("the run %s could not be left to another process", live.run.id)
    finally:
        live.run.cancel("shutdown")


def _start(run: Run, owner: str) -> None:
    with acting_for(owner), reading_each(TEXT_SECONDS):
        run.start()


def _has_lease(live: LiveRun) -> bool:
    return (
        live.log.is_stored and not live.run.done and not live.log.is_released and not is_temporary(live.conversation_id)
    )


async def _claim(live: LiveRun, journal: StoreJournal) -> None:
    """Claim the conversation and start the run. If that fails, the run ends without having begun."""
    try:
        await journal.claim()
    except Exception as failure:  # whoever waits for the first write gets it
        live.run.refuse(failure)
    else:
        _start(live.run, live.owner)


async def _finish(following: asyncio.Task[None], live: LiveRun) -> None:
    """Wait until the last event is published. A failure is logged, because the answer itself is stored."""
    try:
        await following
    except Exception:
        log.exception("the events of run %s could not be published", live.run.id)
    live.frames.clear()


EVENT_READ_SECONDS = 0.25
"""Seconds between two looks at the events of an answer while a page watches it."""
WATCH_SECONDS = 1.0
"""Seconds after which its writer is told again that a page watches, and its lease is looked at."""
STOP_SECONDS = 10.0
"""The longest wait for the end of an answer that was stopped."""


class StoredRun:
    """An answer that another process writes, read from the store while a page watches it. Its calls are `LiveRun`'s."""

    def __init__(self, store: HistoryStore, lost: LostRuns, run: UnfinishedRun, events: Sequence[RunEvent]) -> None:
        self._store, self._lost = store, lost
        self.run_id, self.owner, self.conversation_id = run.run_id, run.owner, run.conversation_id
        request = request_of(events)
        self.resumed = request is not None and request.resumed
        self.started_at = self.quiet_since = monotonic()
        self.frames: dict[str, Any] = {}
        self._events, self._bubbles = list[RunEvent](), list[TurnBubble]()
        self.events: Sequence[RunEvent] = self._events
        self.bubbles: Sequence[TurnBubble] = self._bubbles
        self.waiting: Wait | None = None
        self.can_steer, self.steered = False, list[str]()  # only the process that writes it knows more
        self.ending: Ending | None = None
        self.is_end_stored = False  # so that pages read the store, which knows more of the run
        self._read_at = self._looked_at = -math.inf
        self._lock = asyncio.Lock()
        self._add(events)

    @property
    def number(self) -> int:
        return len(self._events)

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble. Only the writer knows them before the end."""
        timings = self.ending.note.timings if self.ending else None
        return timings.reasoning if timings else ()

    @property
    def is_ended(self) -> bool:
        return self.ending is not None

    async def publish(self) -> None:
        """Look for new events, at most every `EVENT_READ_SECONDS`, for all pages that watch.

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
        await self.publish()
        while not self.is_ended:
            number, idle_at = len(self._events), monotonic() + IDLE_SECONDS
            yield number
            while len(self._events) == number and not self.is_ended and monotonic() < idle_at:
                await asyncio.sleep(EVENT_READ_SECONDS)
                await self.publish()
        yield len(self._events)

    def watched(self) -> AbstractContextManager[None]:
        """Do nothing: who reads events watches."""
        return nullcontext()

    async def stop(self) -> None:
        """Ask for the end of the answer. The writer looks for such wishes."""
        await self._store.runs.look(self.run_id, owner=self.owner, stop=True)

    async def pause(self, seconds: float) -> None:
        """Wait that long: new events are read at intervals anyway."""
        await asyncio.sleep(seconds)

    async def wait_for_end(self) -> None:
        async for _number in self.updates():
            pass

    async def _read_ending(self, events: Sequence[RunEvent]) -> Ending:
        """Return the ending as it is stored with the last message, or what the last event says of it."""
        value = events[-1].value
        goes_on = bool(value.get("goes_on"))
        conversation = await self._store.get(self.conversation_id, owner=self.owner)
        turn = await last_turn(self._store, conversation)
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
                case {"type": "tool_output", "call": str(call), "content": str(text)}:
                    fold_output(self._bubbles, call, text)
                case {
                    "type": "output_text" | "reasoning" | "tool_call" | "tool_call_result" | "user_message" | "error"
                } as value:
                    switched = bool(value["is_type_switched"]) or not self._bubbles
                    response = make_response(value["type"], value["content"], is_type_switched=switched)
                    fold_responses(self._bubbles, [response], [monotonic()])
                    self.quiet_since = monotonic()
                case _:
                    pass


OneAnswer = LiveRun | StoredRun


class AnswersTogether:
    """Several answers to one message, with the calls of one and the id of the first. Pages follow all of them."""

    resumed = can_steer = False
    steered = ()

    def __init__(self, answers: Sequence[OneAnswer]) -> None:
        self.answers, first = tuple(answers), answers[0]
        self.run_id, self.conversation_id, self.owner = first.run_id, first.conversation_id, first.owner
        self.started_at, self.frames = first.started_at, dict[str, Any]()
        self.bubbles: Sequence[TurnBubble] = ()
        self.waiting: Wait | None = None
        self.reasoning: tuple[float, ...] = ()
        self.is_stored = asyncio.Event()
        """Set once all messages are stored. A page must not look before."""

    @property
    def number(self) -> int:
        """The number of events of all."""
        return sum(one.number for one in self.answers)

    @property
    def quiet_since(self) -> float:
        """When one of them last said something."""
        return max(one.quiet_since for one in self.answers)

    @property
    def ending(self) -> Ending | None:
        """The ending of the first, once all have ended."""
        endings = [one.ending for one in self.answers]
        return None if None in endings else endings[0]

    @property
    def is_ended(self) -> bool:
        """True if all have ended."""
        return all(one.is_ended for one in self.answers)

    @property
    def is_end_stored(self) -> bool:
        """True if the store has the ends of all."""
        return all(one.is_end_stored for one in self.answers)

    async def publish(self) -> None:
        """Look for new events of all."""
        await asyncio.gather(*(one.publish() for one in self.answers))

    async def updates(self) -> AsyncGenerator[int]:
        """Yield the number of all events after each update of one of them."""
        sources = [one.updates() for one in self.answers]
        steps = {asyncio.ensure_future(anext(source, None)): source for source in sources}
        try:
            while steps:
                done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
                for step in done:
                    source = steps.pop(step)
                    if step.result() is not None:
                        steps[asyncio.ensure_future(anext(source, None))] = source
                yield self.number
        finally:
            for step in steps:
                step.cancel()
            if steps:
                await asyncio.wait(steps)
            for source in sources:
                await source.aclose()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Count a page that watches all."""
        with ExitStack() as stack:
            for one in self.answers:
                stack.enter_context(one.watched())
            yield

    async def stop(self) -> None:
        """Stop all."""
        await asyncio.gather(*(one.stop() for one in self.answers))

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until all have ended."""
        await asyncio.gather(*(one.pause(seconds) for one in self.answers))

    async def wait_for_end(self) -> None:
        """Wait for the ends of all."""
        await asyncio.gather(*(one.wait_for_end() for one in self.answers))


RunningAnswer = OneAnswer | AnswersTogether


class RunningAnswers:
    """Finds running answers, and ends those that are lost. Every call names the owner, and finds nothing of others."""

    def __init__(self, store: HistoryStore, live_runs: LiveRuns) -> None:
        self._store, self._live_runs = store, live_runs
        self.lost = LostRuns(store, live_runs.is_busy, live_runs.unstored)
        self._stored = WeakValueDictionary[str, StoredRun]()
        self._together = WeakValueDictionary[str, AnswersTogether]()

    async def get(self, conversation_id: str | None, owner: str) -> RunningAnswer | None:
        """Return the running answer of this owner's conversation, if there is one. Several to one message are one."""
        live = self._live_runs.get(conversation_id, owner)
        if live is not None or conversation_id is None or is_temporary(conversation_id):
            return self._live_runs.together.get(live.conversation_id, live) if live else None
        found = await self.lost.living(await self._store.runs.unfinished(owner=owner, conversation_id=conversation_id))
        answers = [answer for run in found if (answer := await self._read(run)) is not None]
        if len(answers) < 2:
            return answers[0] if answers else None
        key = " ".join(answer.run_id for answer in answers)
        together = self._together.setdefault(key, AnswersTogether(answers))
        together.is_stored.set()
        return together

    async def find_for_page(self, run_id: str, owner: str) -> RunningAnswer | None:
        """Return the answer that a page follows by this id, which several to one message have of the first."""
        known = (one for one in self._live_runs.together.values() if one.run_id == run_id and one.owner == owner)
        if (together := next(known, None)) is not None:
            return together
        found = await self.find(run_id, owner)
        return await self.get(found.conversation_id, owner) if found is not None else None

    async def find(self, run_id: str, owner: str) -> OneAnswer | None:
        """Return this owner's running answer by the id of its run, if there is one."""
        if (live := self._live_runs.find(run_id, owner)) is not None:
            return live
        runs = [run for run in await self._store.runs.unfinished(owner=owner) if run.run_id == run_id]
        found = await self.lost.living(runs)
        return await self._read(found[0]) if found else None

    async def is_busy(self, conversation_id: str | None, owner: str) -> bool:
        """Return True if an answer is being written in this owner's conversation. Raises `HistoryError`."""
        return await self.get(conversation_id, owner) is not None

    def is_written_here(self, conversation_id: str) -> bool:
        """Return True if this process is writing an answer in this conversation."""
        return self._live_runs.is_busy(conversation_id)

    def is_wanted(self, conversation_id: str, owner: str) -> bool:
        """Return the same for this owner, and note that a page which shows it still wants the answer."""
        mine = [live for live in self._live_runs.of(conversation_id) if live.owner == owner]
        for live in mine:
            with live.watched():
                pass
        return bool(mine)

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

    async def _read(self, run: UnfinishedRun) -> StoredRun | None:
        known = self._stored.get(run.run_id)
        if known is not None and not known.is_ended:
            return known
        with suppress(NotFound):
            events = await self._store.runs.events(run.run_id, owner=run.owner)
            if events and events[-1].value["type"] != "ended":
                self._stored[run.run_id] = known = StoredRun(self._store, self.lost, run, events)
                return known
        return None
