"""An answer that is being written, as its readers see it. This process writes it, or another one does."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from agent.history import Note, RunEvent
from agent.runtime.retry import Wait
from agent.web.chat.transcript import Bubble

IDLE_SECONDS = 1.0
"""Seconds after which readers of a silent run are woken anyway, so that the server notices if they are gone."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer.

    `files` are the ids of the files that the model made. `cited` are the texts of the turn with their citations, if it
    has any. `goes_on`: its process was lost, and a page may ask for the rest by itself.
    """

    note: Note
    files: tuple[str, ...]
    cited: tuple[Bubble, ...] = ()
    goes_on: bool = False

    @property
    def is_suspended(self) -> bool:
        """True if the answer waits for the visitor."""
        return self.note.ended == "suspended"


class RunningAnswer(Protocol):
    """The events of an answer, folded to bubbles, and its state. Times are on the monotonic clock.

    `resumed` is True if it continues a suspended turn or an unfinished text. `frames` holds what pages share of it.
    """

    run_id: str
    conversation: str
    owner: str
    resumed: bool
    started_at: float
    events: Sequence[RunEvent]
    bubbles: Sequence[Bubble]
    frames: dict[str, Any]

    @property
    def waiting(self) -> Wait | None:
        """The wait for a retry or in the request queue, if any."""
        ...

    @property
    def reasoning(self) -> tuple[float, ...]:
        """Seconds of each reasoning bubble so far, as far as they are known."""
        ...

    @property
    def quiet_since(self) -> float:
        """When the answer began or last said something."""
        ...

    @property
    def ending(self) -> Ending | None:
        """How the answer ended, or None before that."""
        ...

    @property
    def is_ended(self) -> bool:
        """True if no more events will come."""
        ...

    @property
    def is_end_stored(self) -> bool:
        """True if the store has the end. The frames of the answer then show the turn as it is stored."""
        ...

    async def publish(self) -> None:
        """Look for new events now."""
        ...

    def updates(self) -> AsyncGenerator[int]:
        """Yield the number of the newest event after each update, and once more when the answer has ended."""
        ...

    def watched(self) -> AbstractContextManager[None]:
        """Count a watching page within the block."""
        ...

    async def stop(self) -> None:
        """Ask for the end of the answer, for the visitor."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until no more text will come."""
        ...

    async def wait_for_end(self) -> None:
        """Wait until the answer has its result."""
        ...
