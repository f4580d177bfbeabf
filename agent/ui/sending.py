"""A message on its way from the composer into the store, which takes a while where its files are read first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from agent.providers import Status
from agent.reading import Report

T = TypeVar("T")

PACE = 0.5
"""Seconds between two signs of progress; with each it is noticed whether the page is still there."""


class Sending(Generic[T]):
    """Runs `work`, which reports what it reads. Owner of its task; `said` is whether anything was reported."""

    def __init__(self, work: Callable[[Report], Awaitable[T]]) -> None:
        self._status: Status | None = None
        self.said = False
        self._task = asyncio.ensure_future(work(self._report))

    async def progress(self) -> AsyncIterator[Status]:
        """What is being done, again and again until all is; nothing where it needs no time."""
        while not (await asyncio.wait({self._task}, timeout=PACE))[0]:
            if self._status is not None:
                yield self._status

    def stop(self) -> None:
        """Give up, where files are still being read. What comes after that is soon done."""
        if self._status is not None:
            self._task.cancel()

    @property
    def stopped(self) -> bool:
        """Whether it was given up."""
        return self._task.cancelled()

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        return self._task.result()

    async def aclose(self) -> None:
        """End it, if it has not ended."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def _report(self, text: str, done: float | None) -> None:
        self.said = True
        self._status = Status("fetching" if done is not None else "loading", text, done) if text else None
