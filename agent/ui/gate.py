"""How much a page open to everybody gives away a minute, to each visitor and in all, and at once.

Messages count, and pictures that are fetched from links: both make this server do something for a stranger.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

from agent.errors import Limited
from agent.settings import PublicSettings
from agent.ui.words import ours

MINUTE = 60.0
REMEMBERED = 10_000
"""Visitors whose messages are remembered; who is forgotten was silent for longest, and all still count together."""
FETCHES = 2
"""Pictures that are fetched at once for one visitor; for all together it is as many as there may be answers."""


class Gate:
    """Lets messages and fetches through, or says when to come again. Without limits it lets all through."""

    def __init__(self, limits: PublicSettings | None, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._messages, self._fetches = (
            _Minute("too_often", "too_often_in_all", clock),
            _Minute("fetched_too_often", "fetched_too_often_in_all", clock),
        )

    def enter(self, owner: str, running: int) -> None:
        """Count a message of this owner, while `running` answers are being written. Raises `Limited`, counting none."""
        if self._limits is None:
            return
        if running >= self._limits.answers:
            raise ours(Limited, "too_many_answers", count=running)
        self._messages.count(owner, self._limits)

    def fetch(self, owner: str, mine: int, running: int) -> None:
        """Count a picture fetched from a link, while `mine` are for this owner and `running` for all.

        Raises `Limited`, counting none.
        """
        if self._limits is None:
            return
        if mine >= FETCHES:
            raise ours(Limited, "too_many_fetches", count=mine)
        if running >= self._limits.answers:
            raise ours(Limited, "too_many_fetches_in_all", count=running)
        self._fetches.count(owner, self._limits)


class _Minute:
    """How often something happened in the last minute, for each visitor and in all; the two name what is said."""

    def __init__(self, too_often: str, in_all: str, clock: Callable[[], float]) -> None:
        self._too_often, self._in_all, self._clock = too_often, in_all, clock
        self._all = deque[float]()
        self._each: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, owner: str, limits: PublicSettings) -> None:
        """Count once more. Raises `Limited`, counting none."""
        now = self._clock()
        mine = self._each.setdefault(owner, deque())
        self._each.move_to_end(owner)
        while len(self._each) > REMEMBERED:
            self._each.popitem(last=False)
        for times, most, key in (
            (mine, limits.messages, self._too_often),
            (self._all, limits.messages_in_all, self._in_all),
        ):
            while times and times[0] <= now - MINUTE:
                times.popleft()
            if len(times) >= most:
                wait = math.ceil(times[0] + MINUTE - now) if times else 60
                raise ours(Limited, key, count=most, seconds=wait)
        mine.append(now)
        self._all.append(now)
