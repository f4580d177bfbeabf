"""Writes that a cancellation cannot interrupt: a cancelled save has stored everything or nothing."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from agent.errors import HistoryError

T = TypeVar("T")


class UninterruptedWork:
    """Runs work in tasks of its own, until `finish`."""

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
