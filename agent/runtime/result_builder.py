"""Builds the result of a run from its plan, its messages and its figures."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from pydantic_ai.messages import ModelMessage, ModelResponse

from agent.history import Note, Timings
from agent.i18n import joined
from agent.limits import Limit
from agent.messages.adapt import adapt
from agent.result import RunPlan, RunResult, files_of_messages, text_of_message
from agent.runtime.budget import BudgetUsed
from agent.runtime.message_log import MessageLog
from agent.runtime.outcome import Outcome
from agent.runtime.usage_meter import UsageMeter
from agent.suspension import Pending, Suspension, digests
from agent.suspension.seals import pack
from agent.tools import Tool


class ResultBuilder:
    """Builds the notes and the result of one run. `corrections` are those of its model requests."""

    def __init__(
        self, run_id: str, plan: RunPlan, messages: MessageLog, meter: UsageMeter, corrections: Sequence[str]
    ) -> None:
        self._run_id, self._plan, self._log, self._meter = run_id, plan, messages, meter
        self._corrections = corrections

    def cost(self) -> float | None:
        """Return the cost so far in US dollars, or None if it is unknown."""
        price = self._plan.connection.spec.price
        return self._meter.cost(price) if price else None

    def note(self, outcome: Outcome | None = None) -> Note:
        """Return the note of a message. With an `outcome` it is for the last message and has the figures."""
        note = Note(run_id=self._run_id, model=self._plan.connection.spec.id)
        if outcome is None:
            return note
        omitted = joined(self._corrections)
        return replace(_with_outcome(note, outcome), timings=self._meter.timings(), cost=self.cost(), omitted=omitted)

    def empty_answer(self) -> ModelResponse:
        """Return the last message of a run in which the model gave no answer."""
        return ModelResponse(parts=[], model_name=self._plan.connection.spec.name, state="interrupted")

    def suspend(
        self,
        last: ModelMessage,
        tools: Iterable[Tool],
        pending: Sequence[Pending],
        limit: Limit | None,
        spent: BudgetUsed,
    ) -> tuple[str, str]:
        """Return a suspension with everything that resuming needs: sealed, and for the note of the last message."""
        suspension = Suspension(
            run_id=self._run_id,
            session_id=self._log.session_id,
            model=self._plan.connection.spec.id,
            tools=digests(tools),
            options=asdict(self._plan.options),
            messages=(*self._log.messages, last),
            pending=tuple(pending),
            limit=limit,
            spent=spent,
        )
        return self._plan.seals.seal(suspension), pack(suspension)

    def build(
        self, outcome: Outcome, last: ModelMessage, sealed: tuple[str, str] | None, pending: Sequence[Pending]
    ) -> RunResult:
        """Return the result as it will be after `last` is written. A run that has not begun writes nothing.

        `sealed` is the return value of `suspend`, None for a run that is not suspended.
        """
        written = [last] if self._log.begun else []
        added = [*self._log.added, *written]
        answer = next((one for one in reversed([*added, last]) if isinstance(one, ModelResponse)), None)
        spec = self._plan.connection.spec
        omitted = adapt([*self._log.messages, *written], spec).sentence(spec)
        return RunResult(
            finish_reason=outcome.reason,
            text=text_of_message(answer) if answer else "",
            context=self._log.with_last(*written),
            note=replace(self.note(outcome), suspension=sealed[1] if sealed else ""),
            files=tuple(files_of_messages(added)),
            suspension=sealed[0] if sealed else None,
            pending=tuple(pending) if outcome.reason == "suspended" else (),
            effort=self._plan.effort,
            notes=(*self._plan.notes, *self._corrections, *([omitted] if omitted else [])),
            system_message=self._plan.system_message,
            failure=outcome.failure,
        )

    def mark_unsaved(self, result: RunResult, outcome: Outcome) -> RunResult:
        """Return the result of a run without its last message, which could not be saved."""
        note, context = _with_outcome(result.note, outcome), self._log.context
        return replace(
            result,
            finish_reason=outcome.reason,
            context=context,
            note=note,
            suspension=None,
            pending=(),
            failure=outcome.failure,
        )

    def minimal(self, outcome: Outcome) -> RunResult:
        """Return a result without figures, made only of existing values, for use after `build` fails."""
        note = replace(_with_outcome(self.note(), outcome), timings=Timings())
        return RunResult(finish_reason=outcome.reason, text="", context=self._log.raw_context(), note=note)


def _with_outcome(note: Note, outcome: Outcome) -> Note:
    return replace(note, ended=outcome.reason, detail=outcome.detail)
