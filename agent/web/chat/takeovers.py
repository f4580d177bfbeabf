"""Finishes the answers of replicas that are gone.

What the dead replica had finished is kept. The step in flight is continued where the model can continue its own text,
and otherwise begun again; the answer says so. Tools whose outcome nobody knows are not called again: then the answer
ends as interrupted, and the visitor decides. So does an answer that has lost `MAX_TAKEOVERS` replicas, or whose model
needs a key that the visitor had typed. An answer that the visitor has stopped meanwhile ends as stopped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import TypeVar

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart

from agent.errors import AgentError, StoreUnavailable
from agent.history import Entry, HistoryStore, Note, Record, RunEvent, UnfinishedRun, replicas_of
from agent.i18n import _
from agent.models.catalog import ModelSpec
from agent.runtime.outcome import KNOWN_REASONS
from agent.system.shield import run_to_completion
from agent.web.chat.answer_runs import AnswerRuns
from agent.web.chat.live_runs import LiveRun
from agent.web.chat.recovery import append_end, end_interrupted_run, mark_taken, partial_answer, saved_number
from agent.web.chat.run_log import RELEASED, TAKEN
from agent.web.chat.run_request import RunRequest, request_of
from agent.web.chat.run_setup import Takeover
from agent.web.chat.storage_quota import size_of
from agent.web.chat.transcript import NO_ENDING
from agent.web.chat.visitor import Visitor

MAX_TAKEOVERS = 2
"""Replicas that may take over one answer, one after the other, because the one before has died."""
STORE_PAUSE_SECONDS = 1.0
"""Seconds between two attempts to finish an answer while the store is away."""
TAKEN_OVER = Note(ended="interrupted", detail=KNOWN_REASONS["taken_over"])
STOPPED = Note(ended="cancelled", detail=KNOWN_REASONS["user_request"])
KEY_GONE = Note(
    ended="interrupted",
    detail=_(
        "Interrupted: the server process that had your key is gone, and keys are never stored. Enter the key again."
    ),
)
CONTINUED = _("The server process was lost in the middle; another one has continued the text")
BEGUN_AGAIN = _("The server process was lost in the middle; another one has begun this step again")

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Lost:
    """A lost run with what the store has of it. `newest` is the newest entry of its conversation."""

    run: UnfinishedRun
    record: Record
    events: Sequence[RunEvent]
    newest: Entry | None

    @property
    def request(self) -> RunRequest | None:
        """The request for the answer."""
        return request_of(self.events)

    @property
    def deaths(self) -> int:
        """The number of replicas that died with this answer. One that ended in order has left the rest to others.

        A replica that took the run and has not begun another one died, too, perhaps of this very answer.
        """
        types = [event.value["type"] for event in self.events]
        before = self.request.takeovers if self.request else 0
        return before + types.count(TAKEN) + (types[-1] != RELEASED)

    @property
    def is_before_answer(self) -> bool:
        """True if the step in flight is a request to the model, and nothing of it is stored."""
        runs = (self.run.run_id, self.request.instead_of if self.request else "")
        newest = self.newest
        return newest is not None and newest.note.run_id in runs and isinstance(newest.message, ModelRequest)

    @property
    def text(self) -> str:
        """The unfinished text of the step in flight, if that is what the run wrote last."""
        new = [event for event in self.events if event.number > saved_number(self.run, self.events)]
        parts, has_calls = partial_answer(new), any(event.value["type"] == "tool_call" for event in new)
        return parts[-1].content if parts and isinstance(parts[-1], TextPart) and not has_calls else ""

    @property
    def continued(self) -> str:
        """The id of the run whose stored text this run goes on with, or "" if the conversation does not end with it.

        That is the run that it continued, or itself if a replica that has taken it had stored its text.
        """
        note = self.newest.note if self.newest is not None and isinstance(self.newest.message, ModelResponse) else None
        if note is None or not self.events:
            return ""
        if note.run_id == self.run.run_id:
            return note.run_id if note.ended == NO_ENDING.ended else ""
        return note.run_id if note.run_id == self.events[0].value.get("continues") else ""


class Takeovers:
    """Takes over lost runs of a shared store. Owns the tasks that do it, because a model may have to start first."""

    def __init__(self, store: HistoryStore, runs: AnswerRuns) -> None:
        self._store, self._runs = store, runs
        self._tasks = dict[str, asyncio.Task[None]]()

    def is_pending(self, run_id: str) -> bool:
        """Return True while a run that was taken is being continued or ended."""
        return run_id in self._tasks

    async def take(self, run: UnfinishedRun) -> None:
        """Take a lost run and begin to finish its answer, unless another replica is faster. Raises `HistoryError`."""
        replicas = replicas_of(self._store)
        if replicas is not None and await replicas.take(run.run_id):
            log.info("run %s was lost with its process and is taken over", run.run_id)
            self._tasks[run.run_id] = task = asyncio.create_task(self._finish(run), context=Context())
            task.add_done_callback(lambda _: self._tasks.pop(run.run_id, None))

    async def aclose(self) -> None:
        """Leave what is not finished to the next replica."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _finish(self, run: UnfinishedRun) -> None:
        """Finish the answer. What fails is logged; if the run has no end then, `Replica` ends it."""
        try:
            await self._continue_or_end(run)
        except AgentError as error:
            log.warning("the lost answer %s could not be finished: %s", run.run_id, error)
        except Exception:
            log.exception("the lost answer %s could not be finished", run.run_id)

    async def _continue_or_end(self, run: UnfinishedRun) -> None:
        lost = await _patiently(lambda: self._read(run))
        if lost is None:
            return
        request, note = lost.request, NO_ENDING
        spec = self._runs.models.get(request.choices.model) if request else None
        if await self._is_stopped(run):
            note = STOPPED
        elif request is not None and spec is not None and lost.deaths <= MAX_TAKEOVERS:
            if self._runs.models.key_missing(run.owner, spec):
                note = KEY_GONE
            elif await self._go_on(lost, request, spec):
                return
        await _patiently(lambda: end_interrupted_run(self._store, run, note))

    async def _read(self, run: UnfinishedRun) -> _Lost | None:
        """Read what the store has of the run.

        If a replica was lost after it had begun the run that finishes this one, end this one, and return None.
        """
        record = await self._store.get(run.conversation_id, owner=run.owner)
        events = await self._store.runs.events(run.run_id, owner=run.owner)
        replicas = replicas_of(self._store)
        if replicas is not None and await replicas.unfinished_run(record.id, owner=run.owner) != run.run_id:
            await append_end(self._store, run, events, TAKEN_OVER)
            return None
        newest = await self._store.history(record, limit=1)
        return _Lost(run, record, events, newest[-1] if newest else None)

    async def _is_stopped(self, run: UnfinishedRun) -> bool:
        """Return True if the visitor wanted the lost run to stop."""
        replicas = replicas_of(self._store)
        own = await _patiently(replicas.own_runs) if replicas is not None else ()
        return any(one.is_stopped for one in own if one.run.run_id == run.run_id)

    async def _go_on(self, lost: _Lost, request: RunRequest, spec: ModelSpec) -> bool:
        """Begin a run that finishes the answer, then end the lost one. Return False if that is impossible."""
        run, continues = lost.run, ""
        has_text = bool(lost.text.strip()) and (lost.is_before_answer or bool(lost.continued))
        if spec.continues and has_text:
            continues = run.run_id
        elif spec.continues and lost.continued:
            continues = lost.continued
        elif not lost.is_before_answer:
            return False
        record, events = await _patiently(
            lambda: mark_taken(self._store, run, lost.record, lost.events, with_text=has_text and bool(continues))
        )
        again = lost.newest.note.run_id if lost.newest is not None and not continues else ""
        takeover = Takeover(deaths=lost.deaths, instead_of=again, notice=CONTINUED if continues else BEGUN_AGAIN)
        try:
            live = await _patiently(lambda: self._begin(record, request, continues, takeover))
        except AgentError as error:
            if self._runs.live_runs.is_closing:  # another replica gets the run when this one has left
                raise
            log.warning("the lost answer %s could not be continued: %s", run.run_id, error)
            return False
        if await self._is_stopped(run):  # just now; later stops find the new run
            await live.stop()
        await _patiently(lambda: append_end(self._store, run, events, TAKEN_OVER))
        return True

    async def _begin(self, record: Record, request: RunRequest, continues: str, takeover: Takeover) -> LiveRun:
        runs, visitor = self._runs, Visitor(owner=record.owner)
        async with runs.permit(visitor, request.choices, record.id) as permit:
            await permit.reserve(size_of([]))
            setup = await runs.set_up(record, request.choices, permit, (), resumed=True, takeover=takeover)
            begin = setup.agent.continue_answer if continues else setup.agent.answer
            run = begin(setup.context, options=setup.options, journal=setup.journal)
            live = runs.begin(run, setup, permit, resumed=True, continues=continues)
            await run_to_completion(setup.journal.wait_for_first_write(run))
            return live


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns. While the store is away, try again."""
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            log.warning("a lost answer waits for the store: %s", error)
            await asyncio.sleep(STORE_PAUSE_SECONDS)
