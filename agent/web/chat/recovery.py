"""Ends the answers that a killed server left unfinished: stores the text that their events have, as interrupted.

It runs once, before the server takes requests, or later if the store was away or another process used it. For a store
that several processes share, `agent.web.chat.replica` does this instead.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart

from agent.errors import AgentError, StoreUnavailable
from agent.history import Entry, HistoryStore, Note, Record, RunEvent, RunEvents, Timings, UnfinishedRun, now
from agent.messages.repair import estimate_tokens
from agent.web.chat.expiry import IsBusy, IsOnly
from agent.web.chat.run_log import TAKEN, ending_values
from agent.web.chat.run_request import request_of
from agent.web.chat.transcript import NO_ENDING

RECOVERY_SECONDS = 2.0
"""Seconds between two attempts while the store is away, or another process uses it."""

log = logging.getLogger(__name__)


def join_processes(history: Path | None) -> IsOnly:
    """Say until the end of this process that it uses a history in files. Return whether it is the only one that does.

    `history` is None if it is in memory or on a server. The sign is a lock that all processes share, on a file of its
    own beside the history. The system removes it with its process, however that ends, and no child inherits it.
    """
    number = _hold(history) if history is not None else None
    return lambda: number is None or _is_only(number)


@cache  # a process loses its lock when it closes any number of the file, so it has one, and never closes that
def _hold(history: Path) -> int | None:
    try:
        import fcntl  # not on Windows

        number = os.open(history.with_name(f"{history.name}-used"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(number, fcntl.LOCK_SH)
    except (ImportError, OSError) as error:
        log.warning("nothing here tells whether other processes use %s: %s", history, error)
        return None
    return number


def _is_only(number: int) -> bool:
    import fcntl

    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.lockf(number, fcntl.LOCK_SH)
    return True


async def recover(store: HistoryStore, is_busy: IsBusy, is_only: IsOnly) -> asyncio.Task[None] | None:
    """End all interrupted runs. If that is impossible now, return a task that waits and does it then.

    The store can be away, or other processes use it: then nobody knows which runs are theirs.
    """
    try:
        if await end_interrupted_runs(store, is_busy, is_only) is not None:
            return None
        log.warning("another process uses this history: interrupted answers are ended when it is gone")
    except StoreUnavailable as error:
        log.warning("the page starts without its history: %s", error)
    return asyncio.create_task(_recover_later(store, is_busy, is_only))


async def _recover_later(store: HistoryStore, is_busy: IsBusy, is_only: IsOnly) -> None:
    ended = None
    while ended is None:
        await asyncio.sleep(RECOVERY_SECONDS)
        with suppress(StoreUnavailable):
            ended = await end_interrupted_runs(store, is_busy, is_only)


async def end_interrupted_runs(
    store: HistoryStore, is_busy: IsBusy = lambda _: False, is_only: IsOnly = lambda: True
) -> int | None:
    """End all unfinished runs of the store, except in busy conversations. Return their number.

    Return None and end none if there are some, and other processes use the store. A damaged run is logged and left as
    it is. Raises `StoreUnavailable`.
    """
    ended, runs = 0, await store.runs.unfinished()
    if runs and not is_only():  # asked after they were read, so that no other process has begun one meanwhile
        return None
    for run in runs:
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
    last = _ending_events(run, events, ending, with_error=ending.ended == "interrupted")
    entry = await _text_of(store, run, record, events, ending)
    if entry is None:
        await store.runs.append(last)
    else:
        await store.save(replace(record, head_id=entry.id), [entry], last)


async def mark_taken(
    store: HistoryStore, run: UnfinishedRun, record: Record, events: Sequence[RunEvent], *, with_text: bool
) -> tuple[Record, Sequence[RunEvent]]:
    """Say in the events of a lost run that this replica goes on with it. Return the newest record and all events.

    With `with_text`, store the text of the run as a message, too. The conversation gets a new revision. So a replica
    that took the run before and wakes up late can neither store anything in it nor begin another run.
    """
    entry = await _text_of(store, run, record, events, NO_ENDING) if with_text else None
    number = events[-1].number + 1 if events else run.saved + 1
    saved = number if entry is not None else saved_number(run, events)
    mark = RunEvent.of(number, {"type": TAKEN, "saved": saved})
    changed = replace(record, head_id=entry.id) if entry is not None else record
    record = await store.save(changed, [entry] if entry is not None else (), _batch(run, [mark]))
    return record, [*events, mark]


async def append_end(store: HistoryStore, run: UnfinishedRun, events: Sequence[RunEvent], ending: Note) -> None:
    """End a run that has these events. Its text is stored already, and another run goes on with it."""
    await store.runs.append(_ending_events(run, events, ending, with_error=False))


def saved_number(run: UnfinishedRun, events: Sequence[RunEvent]) -> int:
    """Return the number of the newest event that the entries contain. A mark was stored with them, but has no text."""
    last = next((event for event in events if event.number == run.saved), None)
    return last.value["saved"] if last is not None and last.value["type"] == TAKEN else run.saved


async def _text_of(
    store: HistoryStore, run: UnfinishedRun, record: Record, events: Sequence[RunEvent], ending: Note
) -> Entry | None:
    """Return an entry with the text of a run and with its ending, or None if there is nothing to add."""
    stored = await store.history(record, limit=1)
    newest = stored[-1] if stored else None
    parts = partial_answer([event for event in events if event.number > saved_number(run, events)])
    # Without text, only an ending that says more than that there is none is worth a message.
    says_more = ending is not NO_ENDING and newest is not None and isinstance(newest.message, ModelRequest)
    if newest is None or not _follows(newest.note, run, events) or not (parts or says_more):
        return None
    message = ModelResponse(parts=parts, state="interrupted")
    tokens = Timings(output_tokens=estimate_tokens([part.content for part in parts]), estimated=True)
    note = replace(ending, run_id=run.run_id, model=newest.note.model, timings=tokens, at=now())
    return Entry(parent_id=record.head_id, message=message, note=note)


def _ending_events(run: UnfinishedRun, events: Sequence[RunEvent], ending: Note, *, with_error: bool) -> RunEvents:
    number = events[-1].number + 1 if events else run.saved + 1
    values = ending_values(ending, with_error=with_error)
    return _batch(run, [RunEvent.of(number + place, value) for place, value in enumerate(values)], has_ended=True)


def _batch(run: UnfinishedRun, events: Sequence[RunEvent], *, has_ended: bool = False) -> RunEvents:
    return RunEvents(
        run_id=run.run_id,
        conversation_id=run.conversation_id,
        owner=run.owner,
        events=events,
        has_ended=has_ended,
    )


def _follows(newest: Note, run: UnfinishedRun, events: Sequence[RunEvent]) -> bool:
    """Return True if the run's text follows the newest message.

    That is one of its own, the text that it continues, or the request of the lost run whose step it begins again.
    """
    if newest.run_id == run.run_id:
        return newest.ended is None
    begun_again = newest.ended is None and (request := request_of(events)) and request.instead_of == newest.run_id
    return bool(begun_again) or (bool(events) and events[0].value.get("continues") == newest.run_id)


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
            case {"type": "relabelled", "as": kind} if parts:
                last = parts[-1].content
                parts[-1] = TextPart(last) if kind == "output_text" else ThinkingPart(last)
            case _:
                pass
    return [part for part in parts if part.content]
