"""Settings of visitors, remembered while the server runs, with bounds on number and memory."""

import sys
from collections import OrderedDict
from dataclasses import fields

from agent.web.chat.choices import Choices
from agent.web.chat.visitor import Visitor

MAX_OWNERS = 1000
MAX_BYTES = 8_000_000
MAX_OWNER_BYTES = 100_000
"""The most bytes of one visitor's choices: the longest system prompt and a model's name, in any script."""


class RememberedSettings:
    """The choices by owner. Forgets the oldest first.

    Guests are never remembered: each guest page has its own owner, so nobody would come back to their choices.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._choices: OrderedDict[str, Choices] = OrderedDict()

    def get(self, owner: str) -> Choices | None:
        """Return what this owner has set, if it is remembered."""
        return self._choices.get(owner)

    def put(self, visitor: Visitor, choices: Choices) -> None:
        """Remember what this visitor has set, unless the visitor is a guest or it is too large."""
        size = _size(choices)
        if visitor.guest or size > MAX_OWNER_BYTES:
            return
        self._drop(visitor.owner)
        self._choices[visitor.owner] = choices
        self._bytes += size
        while self._choices and (len(self._choices) > MAX_OWNERS or self._bytes > self._max_bytes):
            self._drop(next(iter(self._choices)))

    def forget(self, owner: str) -> None:
        """Forget what this owner has set."""
        self._drop(owner)

    def _drop(self, owner: str) -> None:
        if (choices := self._choices.pop(owner, None)) is not None:
            self._bytes -= _size(choices)


def _size(choices: Choices) -> int:
    return sum(sys.getsizeof(getattr(choices, one.name)) for one in fields(choices))
