"""Writes that a cancellation cannot interrupt, and that wait for other processes only for a while."""

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import Any, TypeVar

from agent.errors import HistoryError

T = TypeVar("T")


AFTER_LOCK_SECONDS, SHORT_LOCK_SECONDS = 1.0, 0.05
"""Seconds after a write that waited in vain in which others wait only for a moment."""


class LockWait:
    """The time for which the writes of a store, one after the other, wait for the lock of another process.

    It is `seconds`. After a write that waited in vain, it ends `seconds` after the call. Soon after, it is only a
    moment: one request can make several writes, and is refused hardly later than one. The end of an answer always
    waits until `seconds` after the call, because nobody can send it again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_in_vain, self._is_soon, self._failed_at = False, False, -AFTER_LOCK_SECONDS

    def deadline(self) -> float:
        """Return when the wait of a write that is called now ends, if the one before it waits in vain."""
        return monotonic() + self._seconds

    def left(self, deadline: float, *, is_end: bool = False) -> float:
        """Return the seconds for which the write that begins now waits. `is_end`: it has the end of an answer."""
        left = deadline - monotonic() if self._is_in_vain or is_end else self._seconds
        self._is_soon = not is_end and monotonic() < self._failed_at + AFTER_LOCK_SECONDS
        return max(0.0, min(left, SHORT_LOCK_SECONDS) if self._is_soon else left)

    def end(self, *, is_in_vain: bool) -> None:
        """Note whether this write waited in vain."""
        self._is_in_vain = is_in_vain
        if is_in_vain and not self._is_soon:
            self._failed_at = monotonic()


class UninterruptedWork:
    """Runs work in tasks of its own, until `finish`. A cancelled save has stored everything or nothing."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def check_open(self) -> None:
        """Raise `HistoryError` after `finish`."""
        if self._is_closed:
            raise HistoryError("The history store is closed.")

    async def run(self, work: Coroutine[Any, Any, T], *, wait: bool = True) -> T:
        """Finish the work even if the caller is cancelled. The caller's cancellation comes after it, if `wait`."""
        if self._is_closed:
            work.close()
        self.check_open()
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if wait:
                await asyncio.wait([task])
            raise

    async def finish(self) -> None:
        """Refuse further work, and wait for what is in progress."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)
