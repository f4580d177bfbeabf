"""Measures how late the event loop is, and logs where in the code it was held up."""

import asyncio
import logging
import sys
import threading
import traceback
from collections import deque
from pathlib import Path
from time import monotonic

from agent.settings import ROOT

LOOP_BEAT_SECONDS = 0.05
"""Seconds between two beats of the loop, and between two looks at them."""
LOOP_LATE_SECONDS = 0.5
"""A loop that is later than this is logged."""
LAG_LOG_SECONDS = 10.0
"""The least seconds between two lines in the log."""
LAG_WINDOW_SECONDS = 60.0
FRAMES = 3
"""The innermost places in the code that a line names."""

log = logging.getLogger(__name__)


class Watchdog:
    """A heartbeat of the event loop, and a thread that looks at it."""

    def __init__(self) -> None:
        self._beat_at, self._logged_at = monotonic(), -LAG_LOG_SECONDS
        self._lags = deque[tuple[float, float]]()
        """The times and lags of the last minute that no later one exceeds, the longest first."""
        self._over, self._loop_thread = threading.Event(), 0

    @property
    def longest_lag(self) -> float:
        """The longest lag of the last minute in seconds."""
        self._note(0.0)
        return self._lags[0][1]

    async def run(self) -> None:
        """Beat until this is cancelled."""
        self._loop_thread, self._beat_at = threading.get_ident(), monotonic()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(LOOP_BEAT_SECONDS)
                now = monotonic()
                self._note(max(0.0, now - self._beat_at - LOOP_BEAT_SECONDS))
                self._beat_at = now
        finally:
            self._over.set()

    def _note(self, lag: float) -> None:
        now = monotonic()
        while self._lags and (self._lags[-1][1] <= lag):
            self._lags.pop()
        self._lags.append((now, lag))
        while self._lags[0][0] <= now - LAG_WINDOW_SECONDS:
            self._lags.popleft()

    def _watch(self) -> None:
        while not self._over.wait(LOOP_BEAT_SECONDS):
            now = monotonic()
            lag = now - self._beat_at - LOOP_BEAT_SECONDS
            if lag > LOOP_LATE_SECONDS and now - self._logged_at >= LAG_LOG_SECONDS:
                self._logged_at = now
                log.warning("the event loop has been held up for %.1f s at %s", lag, self._place())

    def _place(self) -> str:
        """Return the innermost calls of the loop's thread, without any value of them."""
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        calls = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
        return " < ".join(f"{_short(call.filename)}:{call.lineno} {call.name}" for call in reversed(calls))


def _short(path: str) -> str:
    found = Path(path)
    return str(found.relative_to(ROOT)) if found.is_relative_to(ROOT) else "/".join(found.parts[-2:])
