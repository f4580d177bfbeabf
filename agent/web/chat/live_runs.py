"""The running answers and the pages that watch them. A public page cancels a run that nobody watches any more."""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import Context
from time import monotonic
from typing import Any

from agent.errors import AgentError, Conflict, InputError
from agent.history import HistoryStore, Record, RunEvent, UnfinishedRun
from agent.i18n import _
from agent.providers import acting_for
from agent.run import Run
from agent.runtime.retry import Wait
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.run_log import RunLog
from agent.web.chat.running_answer import IDLE_SECONDS, Ending
from agent.web.chat.temporary_memory import is_temporary
from agent.web.chat.transcript import Bubble, cited_texts, generated_files

EVENT_SECONDS = 0.03
"""The shortest time between two events of an answer. The first and the last event never wait.

The stream of the model sets the pace (`agent.providers.http.ReadPace`). This is for runs that no such stream feeds."""
UPDATE_SECONDS = 0.1
"""The shortest pause between two updates of a program that reads whole bubbles."""
LOOK_SECONDS = 0.5
"""Seconds between two looks at the leases of the running answers, and at what visitors want of them elsewhere."""
UNSTORED = 1000
"""The most runs that are remembered because their end could not be stored."""
log = logging.getLogger(__name__)

EndCallback = Callable[[], Awaitable[None]]

RESTARTING = _("The server is restarting. Try again in a minute; your text stays here.")
STILL_WRITING = _("An answer is still being written. Stop it, or wait for it to end.")


class LiveRun:
    """A `RunningAnswer` that this process writes: a run, its event log, and the number of pages that watch it.

    `resumed` is True if it continues a suspended turn or an unfinished text. The run is cancelled if nobody has watched
    it for `grace` seconds; None: it always finishes. `frames` holds what pages share of this answer, until it has
    ended: afterwards nothing may keep the run, because it has a visitor's key.
    """

    def __init__(
        self, run: Run, record: Record, log: RunLog, grace: float | None, omitted: Omitted, *, resumed: bool = False
    ) -> None:
        self.run, self.log, self.omitted, self.resumed = run, log, omitted, resumed
        self.run_id, self.conversation, self.owner = run.id, record.id, record.owner
        self.events: Sequence[RunEvent] = log.events
        self.bubbles: Sequence[Bubble] = log.bubbles
        self.started_at, self._grace = monotonic(), grace
        self.frames: dict[str, Any] = {}
        self._watchers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer()

    @property
    def waiting(self) -> Wait | None:
        """Implement `RunningAnswer.waiting`."""
        return self.run.waiting

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Implement `RunningAnswer.reasoning`."""
        return self.run.reasoning

    @property
    def quiet_since(self) -> float:
        """Implement `RunningAnswer.quiet_since`."""
        return max(self.started_at, self.run.emitted_at[-1] if self.run.emitted_at else 0.0)

    @property
    def ending(self) -> Ending | None:
        """Implement `RunningAnswer.ending`."""
        result = self.run.result
        if result is None or self.log.is_released:
            return None
        messages = result.context.messages
        files = generated_files(messages, self.owner)
        return Ending(self.omitted.on(result.note), files, cited_texts(messages))

    @property
    def is_ended(self) -> bool:
        """Implement `RunningAnswer.is_ended`."""
        return self.log.is_ended and self.run.done

    @property
    def is_end_stored(self) -> bool:
        """Implement `RunningAnswer.is_end_stored`."""
        return self.log.is_end_stored

    async def publish(self) -> None:
        """Implement `RunningAnswer.publish`."""
        await self.log.publish()

    async def stop(self) -> None:
        """Implement `RunningAnswer.stop`."""
        self.run.cancel("user_request")

    async def pause(self, seconds: float) -> None:
        """Implement `RunningAnswer.pause`."""
        await self.run.wait_until_done(seconds)

    async def wait_for_end(self) -> None:
        """Implement `RunningAnswer.wait_for_end`."""
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

    async def bubble_updates(self) -> AsyncGenerator[list[Bubble]]:
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
            await run.wait_for_update(log.seen, timeout=IDLE_SECONDS)
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
    """The running answers, at most one per conversation. Owns the tasks that wait for their ends.

    A run is among them until it has its result, so that a page that then asks for the conversation gets it as stored.
    `grace` is the time in seconds after which an unwatched run is cancelled.
    """

    def __init__(self, grace: float | None) -> None:
        self._grace = grace
        self._runs: dict[str, LiveRun] = {}
        self._end_tasks: set[asyncio.Task[None]] = set()
        self.unstored = deque[str](maxlen=UNSTORED)
        """The ids of the runs that have ended here, of which the store has events, but not the end."""
        self.is_closing = False

    def get(self, conversation: str | None, owner: str) -> LiveRun | None:
        """Return the running answer of this owner's conversation, if there is one."""
        found = self._find(conversation or "")
        return found if found is not None and found.owner == owner else None

    def find(self, run_id: str, owner: str) -> LiveRun | None:
        """Return this owner's running answer by the id of its run, if there is one."""
        running = (live for live in self._runs.values() if not live.run.done)
        return next((live for live in running if live.run.id == run_id and live.owner == owner), None)

    def start(
        self,
        run: Run,
        journal: StoreJournal,
        on_end: EndCallback | None = None,
        *,
        resumed: bool = False,
        continues: str = "",
    ) -> LiveRun:
        """Start the run, which writes to `journal`, as a task of the server. `on_end` is called after its end.

        A resumed run claims the conversation first, so that of several processes only one makes the approved calls.
        `continues` is the id of the run whose unfinished text it continues.
        Raises `Conflict` if the conversation has a running answer already, or if the server is shutting down.
        """
        if self.is_closing:
            raise Conflict(RESTARTING)
        record = journal.record
        if self.is_busy(record.id):
            raise Conflict(STILL_WRITING)
        journal.log.attach(run, continues)
        if not resumed:
            with acting_for(record.owner):
                run.start()
        live = LiveRun(run, record, journal.log, self._grace, journal.omitted, resumed=resumed)
        self._runs[record.id] = live
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

    def is_busy(self, conversation: str) -> bool:
        """Return True if an answer is being written in this conversation."""
        return self._find(conversation) is not None

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

    def _find(self, conversation: str) -> LiveRun | None:
        found = self._runs.get(conversation)
        return None if found is None or found.run.done else found

    def _remove(self, live: LiveRun) -> None:
        if self._runs.get(live.conversation) is live:
            del self._runs[live.conversation]


async def _leave(live: LiveRun) -> None:
    """Leave a run to another process if one can finish it, and cancel it here in any case."""
    try:
        await live.log.release()
    except Exception:
        log.exception("the run %s could not be left to another process", live.run.id)
    finally:
        live.run.cancel("shutdown")


def _has_lease(live: LiveRun) -> bool:
    return live.log.is_stored and not live.run.done and not live.log.is_released and not is_temporary(live.conversation)


async def _claim(live: LiveRun, journal: StoreJournal) -> None:
    """Claim the conversation and start the run. If that fails, the run ends without having begun."""
    try:
        await journal.claim()
    except Exception as failure:  # whoever waits for the first write gets it
        live.run.refuse(failure)
    else:
        with acting_for(live.owner):
            live.run.start()


async def _finish(following: asyncio.Task[None], live: LiveRun) -> None:
    """Wait until the last event is published. A failure is logged, because the answer itself is stored."""
    try:
        await following
    except Exception:
        log.exception("the events of run %s could not be published", live.run.id)
    live.frames.clear()
