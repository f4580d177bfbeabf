"""A time that a clock's jumps do not change at once, so that nothing expires because somebody set a clock wrong."""

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock

log = logging.getLogger(__name__)

JUMP_SECONDS = 300.0
"""The least difference between a clock and the time that has passed that counts as a jump."""
BELIEVED_SECONDS = 24 * 3600.0
"""A clock that jumped is believed after this time."""


def _elapsed() -> float:
    """Return the seconds since the machine was started, with those in which it slept, where it counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class SteadyTime:
    """The time of a clock that can jump: until a jump has lasted for a day, the time goes on as before.

    Somebody can set a machine's clock a year ahead and back. Conversations must not expire because of that. Threads can
    share one.
    """

    def __init__(self, elapsed: Callable[[], float] = _elapsed) -> None:
        self._elapsed, self._lock = elapsed, Lock()
        self._offset: float | None = None
        self._jumped: tuple[float, float] | None = None
        """After a jump: the new offset, and when it was first seen."""

    def __call__(self, at: datetime) -> datetime:
        """Return the time when the clock shows `at`."""
        with self._lock:
            elapsed = self._elapsed()
            offset = at.timestamp() - elapsed
            if self._offset is None or abs(offset - self._offset) < JUMP_SECONDS:
                self._offset, self._jumped = offset, None
            elif self._jumped is None or abs(offset - self._jumped[0]) >= JUMP_SECONDS:
                self._jumped = offset, elapsed
                by = timedelta(seconds=round(abs(offset - self._offset)))
                way = "ahead" if offset > self._offset else "back"
                log.warning("a clock jumped %s by %s: until it has stayed so for a day, nothing expires by it", way, by)
            elif elapsed - self._jumped[1] >= BELIEVED_SECONDS:
                self._offset, self._jumped = offset, None
            return datetime.fromtimestamp(elapsed + self._offset, UTC)
