"""The state of a conversation that a page shows: its newest turns, and the answer that is being written."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import monotonic

from agent.history import Entry
from agent.runtime.retry import Wait
from agent.web.chat.live_runs import LiveRun
from agent.web.chat.transcript import Turn, generated_files, to_turns


@dataclass(frozen=True, kw_only=True)
class ChatView:
    """The newest turns of a conversation.

    `has_earlier` is True if older entries are stored; then the first turn can be incomplete. `live` is the turn that is
    being written, and `wait` is what it waits for at the moment. `is_busy` is True while an answer is being written.
    """

    turns: Sequence[Turn] = ()
    live: Turn | None = None
    wait: Wait | None = None
    has_earlier: bool = False
    is_busy: bool = False


async def live_views(live: LiveRun, entries: Sequence[Entry], *, has_earlier: bool) -> AsyncGenerator[ChatView]:
    """Yield the view after each update of a running answer, and once more when it has ended.

    `entries` are the newest stored ones. The turns before the answer are the same object in all views.
    """
    run, watched_since = live.run, monotonic()
    before, turn = _split(live, entries)
    async with aclosing(live.bubbles()) as updates:
        async for bubbles in updates:
            now = replace(
                turn,
                bubbles=[*turn.bubbles, *bubbles],
                note=live.omitted.on(run.result.note) if run.result else None,
                reasoning=(*turn.reasoning, *run.reasoning),
                replies={} if run.result and run.result.finish_reason == "suspended" else None,
                files=generated_files(run.result.context.messages, live.conversation) if run.result else turn.files,
                watched_since=watched_since,
                quiet_since=max(live.started_at, run.emitted_at[-1] if run.emitted_at else 0.0),
            )
            yield ChatView(turns=before, live=now, wait=run.waiting, has_earlier=has_earlier, is_busy=not run.done)


def _split(live: LiveRun, entries: Sequence[Entry]) -> tuple[list[Turn], Turn]:
    """Return the turns before the run, and the run's own turn with what was stored before the run."""
    run = live.run
    own = [entry for entry in entries if entry.note.run_id == run.id]
    before = to_turns([entry for entry in entries if entry.note.run_id != run.id])
    if not (live.resumed and before):
        return before, Turn(user=own[0] if own else None, bubbles=(), note=None, run=run.id)
    turn = replace(before.pop(), run=run.id)
    for bubble in turn.bubbles:
        bubble.began = live.started_at  # calls that waited for a person begin now
    return before, turn
