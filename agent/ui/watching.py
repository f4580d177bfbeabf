"""A conversation while an answer is being written: the turns before it, and the one that grows."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic

from agent.history import Entry
from agent.ui.live import LiveRun
from agent.ui.render import wire
from agent.ui.transcript import Turn, made, turns
from agent.ui.view import View, shown
from agent.ui.words import Words


async def watching(
    live: LiveRun, entries: Sequence[Entry], window: int, *, cut: bool, words: Words
) -> AsyncGenerator[View]:
    """The view, again and again until the answer is there. `entries` are the newest stored ones; `cut`: not all."""
    run, watched = live.run, monotonic()
    before, turn = _parted(live, entries)
    base: View | None = None
    async with aclosing(live.bubbles()) as stream:
        async for bubbles in stream:
            now = replace(
                turn,
                bubbles=[*turn.bubbles, *bubbles],
                note=live.unsent.on(run.result.note) if run.result else None,
                reasoning=(*turn.reasoning, *run.reasoning),
                replies={} if run.result and run.result.finish_reason == "suspended" else None,
                made=made(run.result.context.messages, live.conversation) if run.result else turn.made,
                watched=watched,
                quiet=max(live.began, run.said_at[-1] if run.said_at else 0.0),
            )
            messages = wire(now, live.waiting(words), words)
            # Older turns make room when the page begins to look; nothing moves while the answer grows.
            base = base or shown(before, window - len(messages), cut=cut, words=words)
            yield View(messages=base.messages + messages, earlier=base.earlier, busy=not run.done)


def _parted(live: LiveRun, entries: Sequence[Entry]) -> tuple[list[Turn], Turn]:
    """The turns before the run, and its own turn, as far as that was there before the run."""
    run = live.run
    mine = [entry for entry in entries if entry.note.run_id == run.id]
    before = turns([entry for entry in entries if entry.note.run_id != run.id])
    if not (live.resumed and before):
        return before, Turn(user=mine[0] if mine else None, bubbles=(), note=None, run=run.id)
    turn = replace(before.pop(), run=run.id)
    for bubble in turn.bubbles:
        bubble.began = live.began  # what waited for people is done now
    return before, turn
