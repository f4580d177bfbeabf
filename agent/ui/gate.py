"""How much a page open to everybody gives away: messages a minute, for each visitor and in all, and answers at once."""

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


class Gate:
    """Lets messages through, or says when to come again. Without limits it lets all through."""

    def __init__(self, limits: PublicSettings | None, clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._all = deque[float]()
        self._each: OrderedDict[str, deque[float]] = OrderedDict()

    def enter(self, owner: str, running: int) -> None:
        """Count a message of this owner, while `running` answers are being written. Raises `Limited`, counting none."""
        limits = self._limits
        if limits is None:
            return
        if running >= limits.answers:
            raise ours(Limited, "too_many_answers", count=running)
        now = self._clock()
        mine = self._each.setdefault(owner, deque())
        self._each.move_to_end(owner)
        while len(self._each) > REMEMBERED:
            self._each.popitem(last=False)
        for times, most, whose in (
            (mine, limits.messages, "too_often"),
            (self._all, limits.messages_in_all, "too_often_in_all"),
        ):
            while times and times[0] <= now - MINUTE:
                times.popleft()
            if len(times) >= most:
                wait = math.ceil(times[0] + MINUTE - now) if times else 60
                raise ours(Limited, whose, count=most, seconds=wait)
        mine.append(now)
        self._all.append(now)
