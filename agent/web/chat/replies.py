"""Visitors' replies to answers with several questions, until all are answered. Bounded in memory."""

import sys
from collections.abc import Mapping

from agent.errors import NotFound
from agent.history import HistoryStore, Record
from agent.web.chat.attachments import check_length
from agent.web.chat.questions import QuestionId

MAX_BYTES = 20_000_000
"""Bytes of all replies. Beyond this, the conversation with the longest replies is asked again."""
ENTRY_BYTES = 500
"""Bytes that a conversation or a reply needs besides its text."""


class Replies:
    """The replies by conversation and question. A restart forgets them, and the questions are asked again.

    A question is known by its run, too: another run of the conversation can have calls with the same ids.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._replies: dict[str, tuple[str, Mapping[QuestionId, str], int]] = {}
        """By conversation: its owner, the replies by question, and their size in bytes."""

    def get(self, conversation: str | None) -> Mapping[QuestionId, str] | None:
        """Return the replies so far, or None if there are none."""
        found = self._replies.get(conversation or "")
        return found[1] if found else None

    def put(self, record: Record, replies: Mapping[QuestionId, str]) -> None:
        """Store the replies of a conversation.

        Raises `InputError` if they are too long together, and keeps the old ones.
        """
        check_length(*replies.values())
        self._replies.pop(record.id, None)
        excess = self.size + _size(replies) - self._max_bytes
        if excess > 0:  # longest first, not oldest: a few long replies would push out everybody's short ones
            for conversation in sorted(self._replies, key=lambda one: self._replies[one][2], reverse=True):
                excess -= self._replies.pop(conversation)[2]
                if excess <= 0:
                    break
        self._replies[record.id] = record.owner, replies, _size(replies)

    @property
    def size(self) -> int:
        """The number of bytes of all replies."""
        return sum(size for _, _, size in self._replies.values())

    def forget(self, conversation: str) -> None:
        """Forget the replies of this conversation."""
        self._replies.pop(conversation, None)

    async def forget_deleted(self, store: HistoryStore) -> None:
        """Forget the replies of conversations that are no longer stored."""
        for conversation, (owner, *_rest) in list(self._replies.items()):
            try:
                await store.get(conversation, owner=owner)
            except NotFound:
                self.forget(conversation)


def _size(replies: Mapping[QuestionId, str]) -> int:
    return ENTRY_BYTES + sum(
        ENTRY_BYTES + sum(map(sys.getsizeof, (*question, text))) for question, text in replies.items()
    )
