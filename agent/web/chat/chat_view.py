"""The state of a conversation that a page shows: its newest turns, and the turn that is being written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.history import Entry
from agent.web.chat.live_runs import LiveRun
from agent.web.chat.transcript import Bubble, Turn, Versions, generated_files, to_turns, with_earlier_figures


@dataclass(frozen=True, kw_only=True)
class ChatView:
    """The newest turns of a conversation, without the one that is being written.

    `has_earlier` is True if older entries are stored; then the first turn can be incomplete. `live` is the answer that
    is being written, if any. `is_missing` is True if the owner has no such conversation.
    """

    turns: Sequence[Turn] = ()
    has_earlier: bool = False
    live: LiveRun | None = None
    is_missing: bool = False


class RunningTurn:
    """The turn of a running answer: what was stored of it before the run, and what the run has said so far.

    `entries` are the newest entries of the conversation, and `versions` those of its messages that have several.
    `before` are the turns before this one.
    """

    def __init__(self, live: LiveRun, entries: Sequence[Entry], versions: Mapping[str, Versions]) -> None:
        self.live = live
        before, own = _split(live, entries)
        *self.before, self._stored = with_versions([*before, own], versions)

    def turn(self, watched_since: float) -> Turn:
        """Return the turn for a page that watches since this time on the monotonic clock."""
        live, run, stored = self.live, self.live.run, self._stored
        earlier = [stored.note] if stored.note else []
        return replace(
            stored,
            bubbles=_joined(stored.bubbles, live.log.bubbles),
            note=with_earlier_figures(live.omitted.on(run.result.note), earlier) if run.result else None,
            reasoning=(*stored.reasoning, *run.reasoning),
            replies={} if run.result and run.result.finish_reason == "suspended" else None,
            files=generated_files(run.result.context.messages, live.owner) if run.result else stored.files,
            watched_since=watched_since,
            quiet_since=max(live.started_at, run.emitted_at[-1] if run.emitted_at else 0.0),
        )


def _split(live: LiveRun, entries: Sequence[Entry]) -> tuple[list[Turn], Turn]:
    """Return the turns before the run, and the run's own turn with what was stored before the run."""
    run = live.run
    own = [entry for entry in entries if entry.note.run_id == run.id]
    before = to_turns([entry for entry in entries if entry.note.run_id != run.id])
    if not (live.resumed and before):
        return before, Turn(user=own[0] if own else None, bubbles=(), note=None, run=run.id)
    turn = before.pop()
    bubbles = [bubble for bubble in turn.bubbles if bubble.first.type != "error"]  # what interrupted it is over
    for bubble in bubbles:
        bubble.began = live.started_at  # calls that waited for a person begin now
    return before, replace(turn, run=run.id, bubbles=bubbles)


def with_versions(turns: Sequence[Turn], versions: Mapping[str, Versions]) -> list[Turn]:
    """Return the turns with the versions of their messages, which are given by the ids of the messages."""
    return [replace(turn, versions=versions.get(turn.user.id)) if turn.user else turn for turn in turns]


def _joined(stored: Sequence[Bubble], new: Sequence[Bubble]) -> Sequence[Bubble]:
    """Return the bubbles of a turn. A text that continues a stored text goes on in its bubble, as after a reload."""
    if stored and new and stored[-1].first.type == new[0].first.type == "output_text":
        last = replace(stored[-1], texts=[*stored[-1].texts, *new[0].texts])
        return [*stored[:-1], last, *new[1:]]
    return [*stored, *new]
