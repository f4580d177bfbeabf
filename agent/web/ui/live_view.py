"""A conversation while an answer is being written: the turns before it, and the one that grows."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic

from agent.history import Entry
from agent.i18n.translator import Translator
from agent.web.chat.live_runs import LiveRun
from agent.web.chat.transcript import Turn, generated_files, to_turns
from agent.web.ui.render import render_turn
from agent.web.ui.view import View, to_view


async def live_views(
    live: LiveRun, entries: Sequence[Entry], window: int, *, cut: bool, words: Translator
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
                note=live.omitted.on(run.result.note) if run.result else None,
                reasoning=(*turn.reasoning, *run.reasoning),
                replies={} if run.result and run.result.finish_reason == "suspended" else None,
                made=generated_files(run.result.context.messages, live.conversation) if run.result else turn.files,
                watched=watched,
                quiet=max(live.started_at, run.emitted_at[-1] if run.emitted_at else 0.0),
            )
            messages = render_turn(now, live.waiting(words), words)
            # Older turns make room when the page begins to look; nothing moves while the answer grows.
            base = base or to_view(before, window - len(messages), cut=cut, words=words)
            yield View(messages=base.messages + messages, earlier=base.earlier, busy=not run.done)


def _parted(live: LiveRun, entries: Sequence[Entry]) -> tuple[list[Turn], Turn]:
    """The turns before the run, and its own turn, as far as that was there before the run."""
    run = live.run
    mine = [entry for entry in entries if entry.note.run_id == run.id]
    before = to_turns([entry for entry in entries if entry.note.run_id != run.id])
    if not (live.resumed and before):
        return before, Turn(user=mine[0] if mine else None, bubbles=(), note=None, run=run.id)
    turn = replace(before.pop(), run=run.id)
    for bubble in turn.bubbles:
        bubble.began = live.started_at  # what waited for people is done now
    return before, turn
