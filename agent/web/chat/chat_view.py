"""The state of a conversation that a page shows: its newest turns, and the turn that is being written."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from agent.history import Entry
from agent.i18n import LocalizedText
from agent.i18n.translator import ENGLISH, Translator
from agent.runtime.retry import Wait
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.transcript import AddedBubbles, Bubble, Turn, to_turns, with_citations, with_earlier_figures
from agent.web.chat.versions import ONLY_ONE, TurnVersions

SHORT_WAIT_SECONDS = 5
"""A shorter wait is shown without counting its seconds down."""
COMPLETE = ("stop", "length", "interrupted")
"""The endings after which a waiting message is sent. An interruption is the end of the server, not of the model."""


def is_complete(turn: Turn) -> bool:
    """Return True if a waiting message can follow: the answer has not failed, was not stopped, and asks nothing."""
    ended = turn.note.ended if turn.note is not None else None
    return ended in COMPLETE and turn.question is None and not turn.is_empty


@dataclass(frozen=True, kw_only=True)
class ChatView:
    """The newest turns of a conversation, without the one that is being written.

    `has_earlier` is True if older entries are stored; then the first turn can be incomplete. `live` is the answer that
    is being written, if any. `is_missing` is True if the owner has no such conversation. `hidden` is the id of the
    message that came next before it was taken back, or "".
    """

    turns: Sequence[Turn] = ()
    has_earlier: bool = False
    live: RunningAnswer | None = None
    is_missing: bool = False
    hidden: str = ""

    @property
    def is_complete(self) -> bool:
        """True if the last answer is complete, so that a waiting message can follow it without asking the visitor."""
        return self.live is None and bool(self.turns) and is_complete(self.turns[-1])


class RunningTurn:
    """The turn of a running answer: what was stored of it before the run, and what the run has said so far.

    `entries` are the newest entries of the conversation, and `versions` those of its turns that have several.
    `before` are the turns before this one. `name_of` returns the name of the model with an id. `is_stored`: the entries
    have the end of the run, too.
    """

    def __init__(
        self,
        live: RunningAnswer,
        entries: Sequence[Entry],
        versions: Mapping[str, TurnVersions],
        name_of: Callable[[str], str] = str,
        *,
        is_stored: bool = False,
    ) -> None:
        self.live, self._name_of = live, name_of
        self._is_whole = live.resumed and is_stored and bool(entries)
        *before, own = to_turns(entries) if self._is_whole else _split(live, entries)
        *self.before, self._stored = with_model_names(with_versions([*before, own], versions), name_of)

    def turn(self, watched_since: float) -> Turn:
        """Return the turn for a page that watches since this time on the monotonic clock."""
        live, stored = self.live, self._stored
        if self._is_whole:  # a text that went on has no mark where it did
            return stored
        earlier = [stored.note] if stored.note else []
        ending = live.ending
        bubbles = join_bubbles(stored.bubbles, live.bubbles)
        if ending and ending.note.model:  # of a text that another model has continued
            (stored,) = with_model_names([replace(stored, model=ending.note.model)], self._name_of)
        return replace(
            stored,
            bubbles=with_citations(bubbles, ending.cited) if ending else bubbles,
            note=with_earlier_figures(ending.note, earlier) if ending else None,
            reasoning=(*stored.reasoning, *live.reasoning),
            replies={} if ending and ending.is_suspended else None,
            files=ending.files if ending else stored.files,
            watched_since=watched_since,
            quiet_since=live.quiet_since,
        )


def _split(live: RunningAnswer, entries: Sequence[Entry]) -> list[Turn]:
    """Return the turns before the run, and then the run's own turn with what was stored before the run."""
    own = [entry for entry in entries if entry.note.run_id == live.run_id]
    before = to_turns([entry for entry in entries if entry.note.run_id != live.run_id])
    if not (live.resumed and before):
        user, model = (own[0], own[0].note.model) if own else (None, "")
        return [*before, Turn(user=user, bubbles=(), note=None, run=live.run_id, model=model)]
    turn = before.pop()
    bubbles = [bubble for bubble in turn.bubbles if bubble.first.type != "error"]  # what interrupted it is over
    for bubble in bubbles:
        bubble.began = live.started_at  # calls that waited for a person begin now
    return [*before, replace(turn, run=live.run_id, bubbles=bubbles)]


def with_versions(turns: Sequence[Turn], versions: Mapping[str, TurnVersions]) -> list[Turn]:
    """Return the turns with their versions, which are given by the ids of the messages."""
    return [replace(turn, versions=versions.get(turn.user.id, ONLY_ONE)) if turn.user else turn for turn in turns]


def with_model_names(turns: Sequence[Turn], name_of: Callable[[str], str]) -> list[Turn]:
    """Return the turns with the names of their models.

    It does not depend on other turns, because a page keeps the messages that it has, and each version has its own.
    """
    return [replace(turn, model_name=name_of(turn.model)) if turn.model else turn for turn in turns]


def join_bubbles(stored: Sequence[Bubble], new: Sequence[Bubble]) -> Sequence[Bubble]:
    """Return the bubbles of a turn, as after a reload.

    A text that continues a stored text goes on in its bubble. Results of stored calls have the order of these calls.
    """
    out = [*stored]
    if stored and new and stored[-1].first.type == new[0].first.type == "output_text":
        out[-1] = replace(stored[-1], texts=[*stored[-1].texts, *new[0].texts])
        new = new[1:]
    added = AddedBubbles(out, since=len(stored))
    for bubble in new:
        added.add(bubble)
    return out


def wait_text(wait: Wait | None, translator: Translator = ENGLISH) -> str:
    """Return why nothing comes from the model at the moment, or "" if the run does not wait."""
    if wait is None:
        return ""
    sentence = wait.sentence
    if wait.ahead or wait.seconds < SHORT_WAIT_SECONDS:
        return translator(sentence)
    left = math.ceil(max(0.0, wait.until - monotonic()))
    return translator(LocalizedText(sentence.message, {**sentence.values, "seconds": left}))
