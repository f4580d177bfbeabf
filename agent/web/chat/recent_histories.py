"""The histories of the conversations that were continued last, so that a message need not read all earlier ones again.

At 400 turns, reading and decoding them takes half of the time between a message and its request to the model.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass

from agent.history import Entry, HistoryStore, Record
from agent.messages.plain_text import off_loop
from agent.messages.repair import count_bytes

MAX_HISTORY_BYTES = 32_000_000
"""Bytes of all histories, counted as below."""
ENTRY_BYTES = 2_000
"""Bytes that an entry needs besides its text."""
HISTORY_SECONDS = 600.0
"""Seconds after its last message until a history is forgotten."""
NEWEST = 16
"""Entries that are read from the store to continue a history: two, or more if tools were called or a branch began."""


@dataclass(frozen=True, slots=True)
class _History:
    """The entries of a conversation that lead to one of them, and their size."""

    entries: Sequence[Entry]
    size: int
    timer: asyncio.TimerHandle


class RecentHistories:
    """Reads histories from `store`, and keeps the last ones, because entries never change. Don't change their messages.

    The store is asked each time, so that a deleted or foreign conversation is refused.
    """

    def __init__(
        self, store: HistoryStore, max_bytes: int = MAX_HISTORY_BYTES, kept_seconds: float = HISTORY_SECONDS
    ) -> None:
        self.store, self._max_bytes, self._kept_seconds = store, max_bytes, kept_seconds
        self._kept = OrderedDict[str, _History]()

    @property
    def size(self) -> int:
        """The bytes of all histories that are kept."""
        return sum(kept.size for kept in self._kept.values())

    async def read(self, record: Record) -> Sequence[Entry]:
        """Return the entries that lead to the head of `record`, oldest first. Raises `NotFound`."""
        kept = self._kept.get(record.id)
        newest = await self.store.history(record, limit=NEWEST if kept else None)
        entries = _continued(kept.entries, newest) if kept else newest
        if entries is None:
            kept, entries = None, await self.store.history(record)
        self._keep(record.id, entries, await _grown(kept, entries))
        return entries

    def forget(self, conversation: str) -> None:
        """Forget the history of this conversation."""
        if kept := self._kept.pop(conversation, None):
            kept.timer.cancel()

    def _keep(self, conversation: str, entries: Sequence[Entry], size: int) -> None:
        """Keep a history, and forget those that were read longest ago if all are too large together.

        A history that is read whole with its newest entries is not kept, because that would save nothing.
        """
        self.forget(conversation)
        if len(entries) <= NEWEST:
            return
        timer = asyncio.get_running_loop().call_later(self._kept_seconds, self.forget, conversation, context=Context())
        self._kept[conversation] = _History(entries, size, timer)
        while self.size > self._max_bytes:
            self.forget(next(iter(self._kept)))


def _continued(known: Sequence[Entry], newest: Sequence[Entry]) -> Sequence[Entry] | None:
    """Return the history that ends with `newest`, with its older entries from `known`. None if they do not meet."""
    places = {entry.id: place for place, entry in enumerate(known)}
    for number in range(len(newest) - 1, -1, -1):
        if (place := places.get(newest[number].id)) is not None:
            return [*known[: place + 1], *newest[number + 1 :]]
    if not newest or newest[0].parent_id is None:
        return newest
    place = places.get(newest[0].parent_id)
    return None if place is None else [*known[: place + 1], *newest]


async def _grown(before: _History | None, entries: Sequence[Entry]) -> int:
    """Return the size of a history. Counts only what it has more than `before`."""
    known = len(before.entries) if before else 0
    if before is None or not 0 < known <= len(entries) or entries[known - 1] is not before.entries[-1]:
        return await _size(entries)
    return before.size + await _size(entries[known:])


async def _size(entries: Sequence[Entry]) -> int:
    messages = [entry.message for entry in entries]
    return ENTRY_BYTES * len(messages) + await off_loop(messages, lambda: sum(map(count_bytes, messages)))
