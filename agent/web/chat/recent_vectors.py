"""The vectors of the passages in long documents of conversations, for searches of a model. They are never stored.

They are made again after a restart, or if nobody has used them for a while: so nothing of them remains of a deleted
conversation.
"""

import asyncio
from collections import OrderedDict

from agent.providers import Embedder
from agent.runtime.chat_vectors import ChatVectors

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
        self._kept = OrderedDict[str, ChatVectors]()
        self._timers = dict[str, asyncio.TimerHandle]()

    @property
    def conversations(self) -> list[str]:
        """The ids of the conversations whose vectors are kept, the last used at the end."""
        return [*self._kept]

    def of(self, conversation: str) -> ChatVectors | None:
        """Return the vectors of a conversation, which are made by its searches; None without an embedder."""
        if self._embedder is None:
            return None
        vectors = self._kept.setdefault(conversation, ChatVectors(self._embedder, None))
        self._kept.move_to_end(conversation)
        if timer := self._timers.pop(conversation, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[conversation] = loop.call_later(self._kept_seconds, self._forget, conversation)
        while len(self._kept) > 1 and sum(one.size for one in self._kept.values()) > self._max_bytes:
            self._forget(next(iter(self._kept)))
        return vectors

    def _forget(self, conversation: str) -> None:
        self._kept.pop(conversation, None)
        if timer := self._timers.pop(conversation, None):
            timer.cancel()
