"""Several processes that share one history: who is alive, whose runs are lost, and who may write them.

The database coordinates. Each process joins as a replica and says regularly that it is alive, by the database's clock.
A run belongs to the replica that began it. When that one is gone, another takes the run, and from then on nobody else
can write its events: a process that wakes up late is refused.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from agent.history.contract import HistoryStore
from agent.history.run_events import UnfinishedRun

BEAT_SECONDS = 3.0
"""Seconds between two signs of life of a replica."""
DEAD_SECONDS = 10.0
"""Seconds without a sign of life after which a replica counts as gone if its connection is gone too."""
SILENT_SECONDS = 13.0
"""Seconds without a sign of life after which a replica counts as gone in any case."""
STEADY_GAP_SECONDS = 6.0
"""The longest time between two signs of life of a replica that may judge others."""
STEADY_SECONDS = 6.0
"""Seconds for which a replica gives signs of life before it judges others."""
WATCHED_SECONDS = 12.0
"""Seconds for which a run counts as watched after a page has said so."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run of this replica. A visitor wants it to stop if `is_stopped`, and watches it elsewhere if `is_watched`."""

    run: UnfinishedRun
    is_stopped: bool
    is_watched: bool


class Steadiness:
    """Tells whether a replica has reached the server for long enough to judge others by their silence.

    When the server was away, or its clock was set, all replicas look silent. The first one that is back would take the
    runs of all others, which are alive and back a moment later. Times are the server's, in seconds.
    """

    def __init__(self) -> None:
        self._since = self._last = 0.0

    @property
    def is_steady(self) -> bool:
        """True if the signs of life had no gap for `STEADY_SECONDS`."""
        return self._last - self._since >= STEADY_SECONDS

    def add(self, at: float) -> None:
        """Add a sign of life."""
        if not 0 <= at - self._last <= STEADY_GAP_SECONDS:
            self._since = at
        self._last = at


class Replicas(Protocol):
    """The replicas of a shared store, as one of them sees them."""

    async def time(self) -> datetime:
        """Return the current time by the clock of the database, by which conversations expire for all replicas."""
        ...

    @property
    def id(self) -> str:
        """The id of this replica, "" until its first `beat`. The runs that it begins belong to this id."""
        ...

    async def beat(self) -> None:
        """Join, or say that this replica is alive."""
        ...

    async def leave(self) -> None:
        """Leave. Runs that it has not ended are lost at once. Does not fail if the server is away."""
        ...

    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        """Return runs without an end whose replica is gone, the oldest first.

        Those of silent replicas are not among them until this one is steady, see `Steadiness`.
        """
        ...

    async def take(self, run_id: str) -> bool:
        """Make a lost run this replica's own. Return False if it is not lost any more. One of several takers wins."""
        ...

    async def unfinished_run(self, conversation_id: str, *, owner: str) -> str | None:
        """Return the id of the newest run without an end in this owner's conversation, or None."""
        ...

    async def is_answering(self, conversation_id: str) -> bool:
        """Return True if a run without an end would lose its conversation, should somebody delete that now.

        That is any run of a conversation that has not expired: if its replica is gone, another one takes it. In an
        expired one it is a run of another replica that is not gone, because nobody takes or ends the rest.
        """
        ...

    async def unfinished_conversations(self, owner: str) -> Sequence[str]:
        """Return the ids of this owner's conversations that have a run without an end."""
        ...

    async def request_stop(self, run_id: str, *, owner: str) -> bool:
        """Ask the replica of a run to stop it. Return False if this owner has no such run without an end."""
        ...

    async def watch(self, run_id: str, *, owner: str) -> None:
        """Say that a page watches a run of this owner."""
        ...

    async def own_runs(self) -> Sequence[OwnRun]:
        """Return this replica's runs without an end, and what visitors said of them elsewhere."""
        ...

    async def reserve(self, sizes: Mapping[str, int]) -> None:
        """Say how many bytes this replica is about to store, by owner. Replaces what it said before.

        Does nothing before the first `beat`. What a replica has said goes with it.
        """
        ...

    async def reserved(self) -> Mapping[str, int]:
        """Return the bytes that the other living replicas are about to store, by owner."""
        ...


@runtime_checkable
class SharedStore(Protocol):
    """A history that several processes can share, unless `replicas` is None."""

    replicas: Replicas | None


def dump_sizes(sizes: Mapping[str, int]) -> str:
    """Return the reservations of one replica as JSON, "" if there are none."""
    return json.dumps(dict(sizes)) if sizes else ""


def sum_of_sizes(texts: Iterable[str]) -> Mapping[str, int]:
    """Return the reservations of several replicas together."""
    found = Counter[str]()
    for text in texts:
        found.update(json.loads(text))
    return found


def replicas_of(store: HistoryStore) -> Replicas | None:
    """Return the replicas of a store, or None if one process must have it for itself."""
    return store.replicas if isinstance(store, SharedStore) else None
