"""Visitors' replies to answers with several questions, until all are answered. Bounded in memory."""

import sys
from collections.abc import Mapping

from agent.errors import NotFound
from agent.history import HistoryStore, Record
from agent.web.chat.attachments import check_length

MOST_BYTES = 20_000_000
"""Bytes of all replies. Beyond this, the conversation with the longest replies is asked again."""
ENTRY_BYTES = 500
"""Bytes that a conversation or a reply needs besides its text."""


class Replies:
    """The replies by conversation and call. A restart forgets them, and the questions are asked again."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[str, tuple[str, Mapping[str, str], int]] = {}
        """By conversation: its owner, the replies by call, and their size in bytes."""

    def get(self, conversation: str | None) -> Mapping[str, str] | None:
        """Return the replies so far, or None if there are none."""
        kept = self._kept.get(conversation or "")
        return kept[1] if kept else None

    def put(self, record: Record, replies: Mapping[str, str]) -> None:
        """Store the replies of a conversation.

        Raises `InputError` if they are too long together, and keeps the old ones.
        """
        check_length(*replies.values())
        self._kept.pop(record.id, None)
        over = self.size + _size(replies) - self._most_bytes
        if over > 0:  # longest first, not oldest: a few long replies would push out everybody's short ones
            for conversation in sorted(self._kept, key=lambda one: self._kept[one][2], reverse=True):
                over -= self._kept.pop(conversation)[2]
                if over <= 0:
                    break
        self._kept[record.id] = record.owner, replies, _size(replies)

    @property
    def size(self) -> int:
        """The number of bytes of all replies."""
        return sum(size for _, _, size in self._kept.values())

    def forget(self, conversation: str) -> None:
        """Forget the replies of this conversation."""
        self._kept.pop(conversation, None)

    async def forget_deleted(self, store: HistoryStore) -> None:
        """Forget the replies of conversations that are no longer stored."""
        for conversation, (owner, *_rest) in list(self._kept.items()):
            try:
                await store.get(conversation, owner=owner)
            except NotFound:
                self.forget(conversation)


def _size(replies: Mapping[str, str]) -> int:
    return ENTRY_BYTES + sum(ENTRY_BYTES + sys.getsizeof(call) + sys.getsizeof(text) for call, text in replies.items())
