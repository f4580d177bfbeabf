"""Ends the answers whose process is gone: stores the text that their events have, as interrupted.

Whoever looks at such a run does it: the stream of a page, the list, a new message, or housekeeping. Its last event says
whether a page may ask for the rest by itself. It may not where only the visitor can decide: a tool was at work, so that
nobody knows its outcome; the model's key was the visitor's own, and went with its process; or so many processes were
lost in the answer that it can be the reason.
"""

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import monotonic

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart

from agent.errors import AgentError, Conflict, StoreUnavailable
from agent.history import Conversation, Entry, HistoryStore, Note, RunEvent, RunEvents, Timings, UnfinishedRun, now
from agent.i18n.text import _
from agent.messages.repair import estimate_tokens, open_calls
from agent.result import KNOWN_REASONS
from agent.web.chat.expiry import IsBusy, IsOnly
from agent.web.chat.journal import RunRequest, ending_values, request_of
from agent.web.chat.transcript import NO_ENDING

CONFIRM_SECONDS = 2.0
"""Seconds after which a lease that has expired must still be the same."""
REMEMBERED = 10_000
"""The most expired leases that are remembered."""
MAX_LOST = 2
"""Lost processes after which a page may still ask for the rest of an answer by itself."""
GOES_ON = "goes_on"
"""The field of the last event of a lost run that says why a page may ask for the rest."""
LOST, RELEASED = "lost", "released"
"""Its values: the process was lost, or it has ended in order and left the rest to others."""
STOPPED = Note(ended="cancelled", detail=KNOWN_REASONS["user_request"])
KEY_GONE = Note(
    ended="interrupted",
    detail=_(
        "Interrupted: the server process that had your key is gone, and keys are never stored. Enter the key again."
    ),
)

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


class LostRuns:
    """Finds the runs that are lost, and ends them. `is_written_here` tells it of conversations of this process.

    `ended_here` are the ids of the runs of this process whose end could not be stored. They are lost at once.

    When the store was away, or its clock was set, all leases have expired, and their writers renew them at once. So a
    run is lost only if this process finds the same expired lease again after `CONFIRM_SECONDS`, or if it was released.
    """

    def __init__(self, store: HistoryStore, is_written_here: IsBusy, ended_here: Collection[str] = ()) -> None:
        self._store, self._is_written_here, self._ended_here = store, is_written_here, ended_here
        self._expired = dict[str, tuple[float, float]]()
        """By run: the end of its expired lease, and when that was found."""

    async def living(self, runs: Sequence[UnfinishedRun]) -> Sequence[UnfinishedRun]:
        """Return these runs without the lost ones, which are ended. One that cannot be ended is logged and left out."""
        return [run for run in runs if not (self._is_lost(run) and await self._end(run))]

    async def end_all(self) -> int:
        """End all lost runs, as housekeeping. Return 0."""
        await self.living(await self._store.runs.unfinished())
        return 0

    def _is_lost(self, run: UnfinishedRun) -> bool:
        is_written_here = self._is_written_here(run.conversation_id)
        if run.run_id in self._ended_here and not is_written_here:
            return True
        if not run.is_lost or is_written_here:
            self._expired.pop(run.run_id, None)
            return False
        if len(self._expired) > REMEMBERED:  # of runs that others have ended
            self._expired.clear()
        lease, found_at = self._expired.get(run.run_id, (None, 0.0))
        if lease != run.leased_until:
            found_at = monotonic()
            self._expired[run.run_id] = run.leased_until, found_at
        return run.leased_until == 0 or monotonic() - found_at >= CONFIRM_SECONDS

    async def _end(self, run: UnfinishedRun) -> bool:
        """Return False if somebody else has ended it, or writes it after all."""
        try:
            await end_lost_run(self._store, run)
        except Conflict:
            return False
        except StoreUnavailable:
            raise
        except (AgentError, ValueError) as error:
            log.warning("the lost answer %s could not be ended: %s", run.run_id, error)
            return True
        self._expired.pop(run.run_id, None)
        return True


async def end_lost_run(store: HistoryStore, run: UnfinishedRun) -> None:
    """End a lost run, or one that this process has ended, and store the text that its events have.

    Raises `Conflict` if it is not lost any more.
    """
    conversation = await store.get(run.conversation_id, owner=run.owner)
    events = await store.runs.events(run.run_id, owner=run.owner)
    whole, conversation = conversation, await _on_branch(store, conversation, request_of(events))
    stored = await store.history(conversation, limit=1)
    newest = stored[-1] if stored else None
    is_answered = bool(conversation.pending) and newest is not None and _is_answered(newest.note, events)
    replies = _replies_of(run, newest, events) if newest is not None and is_answered else None
    if replies is not None:
        is_answered = bool(open_calls(conversation.pending, replies.message))
        newest = replies
    note, goes_on = _ending_of(run, events, None if is_answered else newest)
    values = ending_values(note, with_error=note.ended == "interrupted" and not goes_on)
    if goes_on:
        values[-1][GOES_ON] = goes_on
    number = events[-1].number + 1 if events else run.saved + 1
    last = RunEvents(
        run_id=run.run_id,
        conversation_id=run.conversation_id,
        owner=run.owner,
        events=[RunEvent.of(number + place, value) for place, value in enumerate(values)],
        has_ended=True,
        of_lost=run.is_lost,
    )
    text = _text_of(run, events, newest, note, is_answered=is_answered)
    entries = [entry for entry in (replies, text) if entry is not None]
    if not entries:
        await store.runs.append(last)
    else:
        others = (end for end in whole.branches if end != conversation.head_id)
        if conversation.head_id == whole.head_id:
            after = replace(whole, head_id=entries[-1].id, pending=())
        else:
            after = replace(whole, branches=(*others, entries[-1].id))
        await store.save(after, entries, last)
    log.info("the answer %s was lost with its process and has been ended", run.run_id)


async def _on_branch(store: HistoryStore, conversation: Conversation, request: RunRequest | None) -> Conversation:
    """Return the conversation with its head at the end of the run's branch. Of several answers, each has its own."""
    own = await store.following(conversation, request.compared) if request is not None and request.compared else ()
    return replace(conversation, head_id=own[-1]) if own and conversation.head_id not in own else conversation


def _ending_of(run: UnfinishedRun, events: Sequence[RunEvent], newest: Entry | None) -> tuple[Note, str]:
    """Return how a lost run ends, and why a page may ask for the rest, or ""."""
    request = request_of(events)
    if run.is_stopped:
        return STOPPED, ""
    if request is None or newest is None:
        return NO_ENDING, ""
    if request.compared:
        return KEY_GONE if request.own_key else NO_ENDING, ""
    if isinstance(newest.message, ModelRequest):
        is_known = newest.note.run_id in (run.run_id, request.instead_of)  # nothing of the step in flight is stored
    else:
        is_known = newest.note.run_id == events[0].value.get("continues")
    if not is_known:
        return NO_ENDING, ""
    if request.own_key:
        return KEY_GONE, ""
    reason = RELEASED if run.leased_until == 0 else LOST
    return NO_ENDING, reason if request.lost + (reason == LOST) <= MAX_LOST else ""


def _replies_of(run: UnfinishedRun, newest: Entry, events: Sequence[RunEvent]) -> Entry | None:
    """Return an entry with the visitor's replies to the questions of the newest message, which the run had not stored.

    None if there are none.
    """
    request = request_of(events)
    if request is None or not request.results:
        return None
    note = Note(run_id=run.run_id, model=newest.note.model, at=now())
    return Entry(parent_id=newest.id, message=ModelRequest(parts=[*request.results]), note=note)


def _text_of(
    run: UnfinishedRun, events: Sequence[RunEvent], newest: Entry | None, ending: Note, *, is_answered: bool
) -> Entry | None:
    """Return an entry with the text of a run and with its ending, or None if there is nothing to add.

    `is_answered`: the run had answers to questions of the newest message.
    """
    parts = partial_answer([event for event in events if event.number > run.saved])
    # Without text, only an ending that says more than that there is none is worth a message.
    says_more = ending is not NO_ENDING and newest is not None and isinstance(newest.message, ModelRequest)
    if newest is None:
        return None
    if not is_answered and not (_follows(newest.note, run, events) and (parts or says_more)):
        return None
    message = ModelResponse(parts=parts, state="interrupted")
    tokens = Timings(output_tokens=estimate_tokens([part.content for part in parts]), estimated=True)
    note = replace(ending, run_id=run.run_id, model=newest.note.model, timings=tokens, at=now())
    return Entry(parent_id=newest.id, message=message, note=note)


def _is_answered(newest: Note, events: Sequence[RunEvent]) -> bool:
    """Return True if the run had the answers to the questions of the newest message.

    The calls that were allowed may have been made. Nobody is asked about them again, so that none is made twice.
    """
    request = request_of(events)
    is_resumed = request is not None and request.resumed and "continues" not in events[0].value
    return is_resumed and newest.ended == "suspended"


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
