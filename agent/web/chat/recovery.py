"""Ends the answers that a killed server left unfinished: stores the text that their events have, as interrupted.

It runs once, before the server takes requests. One process serves a data folder, so no other one can be writing them.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from agent.errors import AgentError
from agent.history import Entry, HistoryStore, Note, RunEvent, RunEvents, Timings, UnfinishedRun, now
from agent.messages.repair import estimate_tokens
from agent.web.chat.run_log import ending_values
from agent.web.chat.transcript import NO_ENDING

log = logging.getLogger(__name__)


async def end_interrupted_runs(store: HistoryStore) -> int:
    """End all unfinished runs of the store. Return their number. A damaged one is logged and left as it is."""
    ended = 0
    for run in await store.runs.unfinished():
        try:
            await _end(store, run)
            ended += 1
        except AgentError as error:
            log.warning("the interrupted answer %s could not be ended: %s", run.run_id, error)
    return ended


async def _end(store: HistoryStore, run: UnfinishedRun) -> None:
    record = await store.get(run.conversation_id, owner=run.owner)
    events = await store.runs.events(run.run_id, owner=run.owner)
    number = events[-1].number + 1 if events else run.saved + 1
    values = ending_values(NO_ENDING, with_error=True)
    last = RunEvents(
        run_id=run.run_id,
        conversation_id=run.conversation_id,
        owner=run.owner,
        events=[RunEvent.of(number + place, value) for place, value in enumerate(values)],
        has_ended=True,
    )
    stored = await store.history(record, limit=1)
    newest = stored[-1].note if stored else None
    parts = partial_answer([event for event in events if event.number > run.saved])
    if newest is None or not _follows(newest, run, events) or not parts:
        await store.runs.append(last)
        return
    message = ModelResponse(parts=parts, state="interrupted")
    tokens = Timings(output_tokens=estimate_tokens([part.content for part in parts]), estimated=True)
    note = replace(NO_ENDING, run_id=run.run_id, model=newest.model, timings=tokens, at=now())
    entry = Entry(parent_id=record.head_id, message=message, note=note)
    await store.save(replace(record, head_id=entry.id), [entry], last)


def _follows(newest: Note, run: UnfinishedRun, events: Sequence[RunEvent]) -> bool:
    """Return True if the run's text follows the newest message: one of its own, or the text that it continues."""
    if newest.run_id == run.run_id:
        return newest.ended is None
    return bool(events) and events[0].value.get("continues") == newest.run_id


def partial_answer(events: Sequence[RunEvent]) -> list[TextPart | ThinkingPart]:
    """Return the text and reasoning in these events. Calls are left out: nobody knows what their tools have done."""
    parts: list[TextPart | ThinkingPart] = []
    for value in (event.value for event in events):
        match value:
            case {"type": "output_text" | "reasoning" as kind, "content": str(text), "is_type_switched": switched}:
                if parts and not switched:
                    parts[-1].content += text
                else:
                    parts.append(TextPart(text) if kind == "output_text" else ThinkingPart(text))
            case _:
                pass
    return [part for part in parts if part.content]
