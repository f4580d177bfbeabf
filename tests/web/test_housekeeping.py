"""Housekeeping on a simulated clock: how long an unsent file can stay with the default settings."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.settings import ROOT, load_settings
from agent.web.housekeeping import run_housekeeping
from agent.web.unsent_files import UnsentFiles

HOUR = 3600.0
AFTER = [seconds + 0.001 for seconds in range(0, 1200, 20)]


class Timeline:
    """A clock that jumps to the next sleeper as soon as all tasks sleep."""

    def __init__(self, tasks: int) -> None:
        self.now, self._tasks = 0.0, tasks
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep until the clock reaches that time."""
        self._count += 1
        wake = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, wake))
        await wake.wait()

    async def step(self) -> None:
        """Set the clock forward to the next sleeper, and wait until all tasks sleep again."""
        self.now, _, wake = heapq.heappop(self._sleepers)
        wake.set()
        await self.settle()

    async def reach(self, time: float) -> None:
        """Set the clock forward to this time, step by step."""
        while self._sleepers[0][0] <= time:
            await self.step()
        self.now = time

    async def settle(self) -> None:
        """Wait until all tasks sleep."""
        while len(self._sleepers) < self._tasks:  # noqa: ASYNC110 - some of the work is done in a thread
            await asyncio.sleep(0.001)


async def lifetime(folder: Path, *, work: float, other_work: float, after: float) -> float:
    """Return the lifetime of an unsent file that is uploaded `after` seconds after the start, in seconds.

    Each round on the uploads takes `work` seconds, and each round on something else `other_work`.
    """
    settings, time = load_settings(ROOT / "configs" / "app.toml", {}), Timeline(tasks=2)
    uploads = UnsentFiles(folder, settings.uploads, clock=time)

    def lasting(chore: Callable[[], Awaitable[int]], seconds: float) -> Callable[[], Awaitable[int]]:
        async def chore_that_takes_time() -> int:
            removed = await chore()
            await time.sleep(seconds)
            return removed

        return chore_that_takes_time

    async def other() -> int:
        return 0

    chores = [lasting(uploads.expire, work), lasting(other, other_work)]
    house = asyncio.create_task(run_housekeeping(chores, settings.housekeeping_minutes * 60, time.sleep))
    try:
        await time.settle()
        await time.reach(uploaded := after)
        path = await uploads.add("ann", "unsent.txt", b"text")
        while path.exists():
            await time.step()
        return time.now - uploaded
    finally:
        house.cancel()
        await asyncio.wait([house])
        uploads.close()


@pytest.mark.slow
async def test_unsent_file_is_gone_within_an_hour(tmp_path: Path) -> None:
    """This holds for a file that arrives between two rounds, even if each round is slow."""
    stayed = [await lifetime(tmp_path, work=20.0, other_work=1800.0, after=after) for after in AFTER]
    assert min(stayed) > 0.5 * HOUR
    assert max(stayed) <= HOUR
