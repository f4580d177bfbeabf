"""The events of a run, as stores keep them: numbered JSON objects, in batches.

A store keeps the events of a run while it goes on and for some time after its end, so that a reader that was away can
catch up, and so that a killed process loses little. The conversation's entries stay the truth: an event never changes
them, and a conversation without events is complete.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.i18n.text import _

LEASE_SECONDS = 8.0
"""Seconds after its renewal for which a run cannot be lost."""
RENEWED_SECONDS = 4.0
"""A lease that ends later than so many seconds from now is renewed by nothing but events."""
WATCHED_SECONDS = 12.0
"""Seconds for which a run counts as watched after a page has looked at it."""

NO_RUN = _("There is no such answer.")
RUN_CONFLICT = _("This answer is being written elsewhere, or has ended.")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event. `number` counts the events of the run from 1, without gaps.

    `json` is a JSON object on one line. It is made once, and every store and reader gets this text.
    """

    number: int
    json: str

    @classmethod
    def of(cls, number: int, value: Mapping[str, Any]) -> "RunEvent":
        """Return the event with this JSON object."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair in the arguments of a tool call
            text = json.dumps(value, separators=(",", ":"), default=str)
        return cls(number, text)

    @property
    def value(self) -> dict[str, Any]:
        """The JSON object."""
        return json.loads(self.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvents:
    """Consecutive events of one run in a conversation, at least one. `has_ended` is True if the last one is the end.

    `of_lost`: they are not the writer's, but end a run whose lease has expired.
    """

    run_id: str
    conversation_id: str
    owner: str
    events: Sequence[RunEvent]
    has_ended: bool = False
    of_lost: bool = False

    @property
    def first(self) -> int:
        """The number of the first event."""
        return self.events[0].number

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.events[-1].number


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A run without an end in the store. The entries contain what its events up to `saved` say.

    Its writer renews the lease, which ends at `leased_until` by the clock of the store, 0 if it was released. `is_lost`
    is True if that has passed. A visitor wants it to stop if `is_stopped`, and watches it if `is_watched`.
    """

    run_id: str
    conversation_id: str
    owner: str
    saved: int
    leased_until: float
    is_lost: bool
    is_stopped: bool
    is_watched: bool


def join_events(events: Sequence[RunEvent]) -> str:
    """Return the events as one text, a line each."""
    return "\n".join(event.json for event in events)


def split_events(text: str, first: int) -> list[RunEvent]:
    """Return the events of such a text. `first` is the number of the first one."""
    return [RunEvent(number, line) for number, line in enumerate(text.split("\n"), first)]
