"""Finishes the answers of replicas that are gone.

What the dead replica had finished is kept. The step in flight is continued where the model can continue its own text,
and otherwise begun again; the answer says so. Tools whose outcome nobody knows are not called again: then the answer
ends as interrupted, and the visitor decides. So does an answer that has lost `MAX_TAKEOVERS` replicas, or whose model
needs a key that the visitor had typed.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass

from pydantic_ai.messages import ModelRequest, TextPart

from agent.errors import AgentError, StoreUnavailable
from agent.history import Entry, HistoryStore, Note, Record, RunEvent, UnfinishedRun, replicas_of
from agent.i18n import _
from agent.models.catalog import ModelSpec
from agent.runtime.shield import run_to_completion
from agent.web.chat.answer_runs import AnswerRuns
from agent.web.chat.recovery import append_end, end_interrupted_run, partial_answer, save_partial
from agent.web.chat.run_request import RunRequest, request_of
from agent.web.chat.storage_quota import size_of
from agent.web.chat.transcript import NO_ENDING
from agent.web.chat.visitor import Visitor

MAX_TAKEOVERS = 2
"""Replicas that may take over one answer, one after the other."""
TAKEN_OVER = Note(ended="interrupted", detail=_("Another server process goes on with this answer."))
KEY_GONE = Note(
    ended="interrupted",
    detail=_(
        "Interrupted: the server process that had your key is gone, and keys are never stored. Enter the key again."
    ),
)
CONTINUED = _("The server process was lost in the middle; another one has continued the text")
BEGUN_AGAIN = _("The server process was lost in the middle; another one has begun this step again")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Lost:
    """A lost run with what the store has of it. `newest` is the newest entry of its conversation."""

    run: UnfinishedRun
    record: Record
    events: Sequence[RunEvent]
    newest: Entry | None

    @property
    def is_before_answer(self) -> bool:
        """True if the step in flight is a request to the model, and nothing of it is stored."""
        newest = self.newest
        return newest is not None and newest.note.run_id == self.run.run_id and isinstance(newest.message, ModelRequest)

    @property
    def text(self) -> str:
        """The unfinished text of the step in flight, if that is what the run wrote last."""
        parts = partial_answer([event for event in self.events if event.number > self.run.saved])
        has_calls = any(event.value["type"] == "tool_call" for event in self.events[self.run.saved :])
        return parts[-1].content if parts and isinstance(parts[-1], TextPart) and not has_calls else ""

    @property
    def continued(self) -> str:
        """The id of the run whose stored text the run continued, or "" if the conversation does not end with it."""
        continued = self.events[0].value.get("continues", "") if self.events else ""
        return continued if self.newest is not None and self.newest.note.run_id == continued else ""


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
        record = await self._store.get(run.conversation_id, owner=run.owner)
        events = await self._store.runs.events(run.run_id, owner=run.owner)
        newest = await self._store.history(record, limit=1)
        lost = _Lost(run, record, events, newest[-1] if newest else None)
        request = request_of(events)
        spec = self._runs.models.get(request.choices.model) if request else None
        note = NO_ENDING
        if request is not None and spec is not None and request.takeovers < MAX_TAKEOVERS:
            if self._runs.models.key_missing(run.owner, spec):
                note = KEY_GONE
            elif await self._go_on(lost, request, spec):
                return
        await end_interrupted_run(self._store, run, note)

    async def _go_on(self, lost: _Lost, request: RunRequest, spec: ModelSpec) -> bool:
        """Begin a run that finishes the answer, then end the lost one. Return False if that is impossible."""
        record, run, continues = lost.record, lost.run, ""
        if spec.continues and (lost.is_before_answer or lost.continued) and lost.text.strip():
            record = await save_partial(self._store, run, record, lost.events, NO_ENDING)
            continues = run.run_id
        elif spec.continues and lost.continued:
            continues = lost.continued
        elif not lost.is_before_answer:
            return False
        try:
            await self._begin(record, request, continues)
        except StoreUnavailable:
            raise
        except AgentError as error:
            log.warning("the lost answer %s could not be continued: %s", run.run_id, error)
            return False
        await append_end(self._store, run, lost.events, TAKEN_OVER)
        return True

    async def _begin(self, record: Record, request: RunRequest, continues: str) -> None:
        runs, visitor = self._runs, Visitor(owner=record.owner)
        async with runs.permit(visitor, request.choices, record.id) as permit:
            await permit.reserve(size_of([]))
            setup = await runs.set_up(
                record,
                request.choices,
                permit,
                (),
                resumed=True,
                takeovers=request.takeovers + 1,
                notice=CONTINUED if continues else BEGUN_AGAIN,
            )
            begin = setup.agent.continue_answer if continues else setup.agent.answer
            run = begin(setup.context, options=setup.options, journal=setup.journal)
            runs.begin(run, setup, permit, resumed=True, continues=continues)
            await run_to_completion(setup.journal.claim(run))
