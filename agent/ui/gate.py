"""How much a page open to everybody gives away a minute, to each visitor and in all, and at once.

Messages count, and pictures that are fetched from links: both make this server do something for a stranger.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

from agent.errors import Limited
from agent.settings import PublicSettings

MINUTE = 60.0
REMEMBERED = 10_000
"""Visitors whose messages are remembered; who is forgotten was silent for longest, and all still count together."""
FETCHES = 2
"""Pictures that are fetched at once for one visitor; for all together it is as many as there may be answers."""


class Gate:
    """Lets messages and fetches through, or says when to come again. Without limits it lets all through."""

    def __init__(self, limits: PublicSettings | None, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._messages, self._fetches = _Minute("messages", clock), _Minute("pictures from links", clock)

    def enter(self, owner: str, running: int) -> None:
        """Count a message of this owner, while `running` answers are being written. Raises `Limited`, counting none."""
        if self._limits is None:
            return
        if running >= self._limits.answers:
            raise Limited(
                f"{running} answers are being written here at this moment, which is the most. Try again soon."
            )
        self._messages.count(owner, self._limits)

    def fetch(self, owner: str, mine: int, running: int) -> None:
        """Count a picture fetched from a link, while `mine` are for this owner and `running` for all.

        Raises `Limited`, counting none.
        """
        if self._limits is None:
            return
        if mine >= FETCHES or running >= self._limits.answers:
            raise Limited(
                f"{mine if mine >= FETCHES else running} pictures are being fetched at this moment, "
                f"which is the most{' for each visitor' if mine >= FETCHES else ' here'}. Try again soon."
            )
        self._fetches.count(owner, self._limits)


class _Minute:
    """How often something happened in the last minute, for each visitor and in all."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what, self._clock = what, clock
        self._all = deque[float]()
        self._each: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, owner: str, limits: PublicSettings) -> None:
        """Count once more. Raises `Limited`, counting none."""
        now = self._clock()
        mine = self._each.setdefault(owner, deque())
        self._each.move_to_end(owner)
        while len(self._each) > REMEMBERED:
            self._each.popitem(last=False)
        for times, most, whose in (
            (mine, limits.messages, f"each visitor {limits.messages}"),
            (self._all, limits.messages_in_all, f"all visitors together {limits.messages_in_all}"),
        ):
            while times and times[0] <= now - MINUTE:
                times.popleft()
            if len(times) >= most:
                wait = math.ceil(times[0] + MINUTE - now) if times else 60
                raise Limited(f"This public page gives {whose} {self._what} a minute. Try again in {wait} s.")
        mine.append(now)
        self._all.append(now)
