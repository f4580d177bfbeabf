"""Ends the answers that a killed server left unfinished: stores the text that their events have, as interrupted.

It runs once, before the server takes requests, or later if the store was away. For a store that several processes
share, `agent.web.chat.replica` does this instead.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from agent.errors import AgentError, StoreUnavailable
from agent.history import Entry, HistoryStore, Note, Record, RunEvent, RunEvents, Timings, UnfinishedRun, now
from agent.messages.repair import estimate_tokens
from agent.web.chat.run_log import ending_values
from agent.web.chat.transcript import NO_ENDING

RECOVERY_SECONDS = 2.0
"""Seconds between two attempts while the store is away."""

log = logging.getLogger(__name__)


async def recover(store: HistoryStore, is_busy: Callable[[str], bool]) -> asyncio.Task[None] | None:
    """End all interrupted runs. If the store is away, return a task that waits for it and does it then.

    `is_busy` tells whether this server is writing an answer in a conversation.
    """
    try:
        await end_interrupted_runs(store, is_busy)
    except StoreUnavailable as error:
        log.warning("the page starts without its history: %s", error)
        return asyncio.create_task(_recover_later(store, is_busy))
    return None


async def _recover_later(store: HistoryStore, is_busy: Callable[[str], bool]) -> None:
    while True:
        await asyncio.sleep(RECOVERY_SECONDS)
        try:
            await end_interrupted_runs(store, is_busy)
        except StoreUnavailable:
            continue
        return


async def end_interrupted_runs(store: HistoryStore, is_busy: Callable[[str], bool] = lambda _: False) -> int:
    """End all unfinished runs of the store, except in busy conversations. Return their number.

    A damaged one is logged and left as it is. Raises `StoreUnavailable`.
    """
    ended = 0
    for run in await store.runs.unfinished():
        if is_busy(run.conversation_id):
            continue
        try:
            await end_interrupted_run(store, run)
            ended += 1
        except StoreUnavailable:
            raise
        except AgentError as error:
            log.warning("the interrupted answer %s could not be ended: %s", run.run_id, error)
    return ended


async def end_interrupted_run(store: HistoryStore, run: UnfinishedRun, ending: Note = NO_ENDING) -> None:
    """End one unfinished run, and store the text that its events have. `ending` says why it was not finished."""
    record = await store.get(run.conversation_id, owner=run.owner)
    events = await store.runs.events(run.run_id, owner=run.owner)
    await _save_text(store, run, record, events, ending, _ending_events(run, events, ending, with_error=True))


async def save_partial(
    store: HistoryStore, run: UnfinishedRun, record: Record, events: Sequence[RunEvent], ending: Note
) -> Record:
    """Store the text of a run that its events have, without ending the run. Return the record with it."""
    return await _save_text(store, run, record, events, ending, None)


async def append_end(store: HistoryStore, run: UnfinishedRun, events: Sequence[RunEvent], ending: Note) -> None:
    """End a run that has these events. Its text is stored already, and another run goes on with it."""
    await store.runs.append(_ending_events(run, events, ending, with_error=False))


async def _save_text(
    store: HistoryStore,
    run: UnfinishedRun,
    record: Record,
    events: Sequence[RunEvent],
    ending: Note,
    last: RunEvents | None,
) -> Record:
    """Store the text of a run as a message, if its events have any, and `last`. Return the newest record."""
    stored = await store.history(record, limit=1)
    newest = stored[-1].note if stored else None
    parts = partial_answer([event for event in events if event.number > run.saved])
    if newest is None or not _follows(newest, run, events) or not parts:
        if last is not None:
            await store.runs.append(last)
        return record
    message = ModelResponse(parts=parts, state="interrupted")
    tokens = Timings(output_tokens=estimate_tokens([part.content for part in parts]), estimated=True)
    note = replace(ending, run_id=run.run_id, model=newest.model, timings=tokens, at=now())
    entry = Entry(parent_id=record.head_id, message=message, note=note)
    return await store.save(replace(record, head_id=entry.id), [entry], last)


def _ending_events(run: UnfinishedRun, events: Sequence[RunEvent], ending: Note, *, with_error: bool) -> RunEvents:
    number = events[-1].number + 1 if events else run.saved + 1
    values = ending_values(ending, with_error=with_error)
    return RunEvents(
        run_id=run.run_id,
        conversation_id=run.conversation_id,
        owner=run.owner,
        events=[RunEvent.of(number + place, value) for place, value in enumerate(values)],
        has_ended=True,
    )


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
