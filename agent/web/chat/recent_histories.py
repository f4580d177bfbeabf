"""The conversations that were continued last, in memory: their histories, and the vectors of their long documents.

Vectors are never stored. They are made again after a restart, or if nobody has used them for a while: so nothing of
them remains of a deleted conversation."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, replace

from agent.history import Conversation, Entry, HistoryStore
from agent.messages.repair import count_bytes
from agent.plain_text import off_loop
from agent.providers.connection import Embedder
from agent.runtime.chat_history import ChatVectors
from agent.transfer.portable import all_ids

MAX_HISTORY_BYTES = 18_000_000
"""Bytes of all histories, counted as below. A full garbage collection looks at each entry, 9,000 in 40 ms."""
LONGEST_BYTES = 9_000_000
"""Bytes of one history, more than most models can take. Of a longer one, only the newest entries are read and kept."""
READ_BYTES = 6_000_000
"""Bytes that are read of a longer history, so that it can grow before its first entries are dropped."""
PAGE = 200
"""Entries that are read at once."""
ENTRY_BYTES = 2_000
"""Bytes that an entry needs besides its text."""
HISTORY_SECONDS = 600.0
"""Seconds after its last message until a history is forgotten."""
NEWEST = 16
"""Entries that are read from the store to continue a history: two, or more if tools were called or a branch began."""


@dataclass(frozen=True, slots=True)
class History:
    """The newest entries that lead to one of a conversation, and how many `earlier` ones were not read.

    `earlier` counts those of other branches, too, because that needs no look at them.
    """

    entries: Sequence[Entry]
    earlier: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """A history with its size."""

    history: History
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
        self._cache = OrderedDict[str, _Kept]()

    @property
    def size(self) -> int:
        """The bytes of all histories that are kept."""
        return sum(kept.size for kept in self._cache.values())

    async def read(self, conversation: Conversation) -> History:
        """Return the entries that lead to the head of `conversation`, oldest first. Raises `NotFound`."""
        kept, history, size = self._cache.get(conversation.id), None, 0
        if kept is not None:
            history = _continued(kept.history, await self.store.history(conversation, limit=NEWEST))
            size = await _grown(kept, history.entries) if history else 0
        if history is None or size > LONGEST_BYTES:
            history, size = await self._read_newest(conversation)
        self._keep(conversation.id, history, size)
        return history

    async def _read_newest(self, conversation: Conversation) -> tuple[History, int]:
        """Read page by page, the newest entries first. Return the history and its size."""
        pages, size, head = list[Sequence[Entry]](), 0, conversation.head_id
        while head is not None or not pages:
            page = await self.store.history(replace(conversation, head_id=head), limit=PAGE, most_bytes=READ_BYTES)
            pages.append(page)
            size += await _size(page)
            head = page[0].parent_id if page else None
            if size > READ_BYTES:
                break
        entries = [entry for page in reversed(pages) for entry in page]
        earlier = 0 if head is None else len(await all_ids(self.store, conversation)) - len(entries)
        return History(entries, earlier), size

    def forget(self, conversation_id: str) -> None:
        """Forget the history of this conversation."""
        if kept := self._cache.pop(conversation_id, None):
            kept.timer.cancel()

    def _keep(self, conversation_id: str, history: History, size: int) -> None:
        """Keep a history, and forget those that were read longest ago if all are too large together.

        A history that is read whole with its newest entries is not kept, because that would save nothing.
        """
        self.forget(conversation_id)
        if len(history.entries) <= NEWEST:
            return
        timer = asyncio.get_running_loop().call_later(
            self._kept_seconds, self.forget, conversation_id, context=Context()
        )
        self._cache[conversation_id] = _Kept(history, size, timer)
        while self.size > self._max_bytes:
            self.forget(next(iter(self._cache)))


def _continued(known: History, newest: Sequence[Entry]) -> History | None:
    """Return the history that ends with `newest`, with its older entries from `known`. None if they do not meet."""
    places = {entry.id: place for place, entry in enumerate(known.entries)}
    for number in range(len(newest) - 1, -1, -1):
        if (place := places.get(newest[number].id)) is not None:
            return History([*known.entries[: place + 1], *newest[number + 1 :]], known.earlier)
    if not newest or newest[0].parent_id is None:
        return History(newest)
    place = places.get(newest[0].parent_id)
    return None if place is None else History([*known.entries[: place + 1], *newest], known.earlier)


async def _grown(before: _Kept, entries: Sequence[Entry]) -> int:
    """Return the size of a history. Counts only what it has more than `before`."""
    known = before.history.entries
    if not 0 < len(known) <= len(entries) or entries[len(known) - 1] is not known[-1]:
        return await _size(entries)
    return before.size + await _size(entries[len(known) :])


async def _size(entries: Sequence[Entry]) -> int:
    messages = [entry.message for entry in entries]
    return ENTRY_BYTES * len(messages) + await off_loop(messages, lambda: sum(map(count_bytes, messages)))


VECTORS_SECONDS = 600.0
"""Seconds after the last message of a conversation until its vectors are forgotten."""
MAX_BYTES = 256_000_000
"""Bytes of the vectors of all conversations: 40,000 passages with 1,536 numbers each."""


class RecentVectors:
    """The vectors of the conversations that were continued last. Owns them. Use it from one event loop."""

    def __init__(
        self, embedder: Embedder | None, max_bytes: int = MAX_BYTES, kept_seconds: float = VECTORS_SECONDS
    ) -> None:
        self._embedder, self._max_bytes, self._kept_seconds = embedder, max_bytes, kept_seconds
        self._cache = OrderedDict[str, ChatVectors]()
        self._timers = dict[str, asyncio.TimerHandle]()

    @property
    def conversations(self) -> list[str]:
        """The ids of the conversations whose vectors are kept, the last used at the end."""
        return [*self._cache]

    def of(self, conversation_id: str) -> ChatVectors | None:
        """Return the vectors of a conversation, which are made by its searches; None without an embedder."""
        if self._embedder is None:
            return None
        vectors = self._cache.setdefault(conversation_id, ChatVectors(self._embedder, None))
        self._cache.move_to_end(conversation_id)
        if timer := self._timers.pop(conversation_id, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[conversation_id] = loop.call_later(self._kept_seconds, self._forget, conversation_id)
        while len(self._cache) > 1 and sum(one.size for one in self._cache.values()) > self._max_bytes:
            self._forget(next(iter(self._cache)))
        return vectors

    def _forget(self, conversation_id: str) -> None:
        self._cache.pop(conversation_id, None)
        if timer := self._timers.pop(conversation_id, None):
            timer.cancel()
