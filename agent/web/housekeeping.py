"""The tasks that remove what has expired, at start and every few minutes for as long as the server runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

Chore = Callable[[], Awaitable[int]]
"""Removes things that have expired, a bounded number of them, and returns how many."""
Sleep = Callable[[float], Awaitable[object]]


async def run_housekeeping(chores: Sequence[Chore], seconds: float, sleep: Sleep = asyncio.sleep) -> None:
    """Do each chore again and again with so many seconds between, until cancelled.

    No chore waits for another: an hour's work at one must not delay the others.
    """
    async with asyncio.TaskGroup() as tasks:
        for chore in chores:
            tasks.create_task(_repeat(chore, seconds, sleep))


async def _repeat(chore: Chore, seconds: float, sleep: Sleep) -> None:
    """Do a chore in rounds. One that fails is logged and done again in the next round."""
    while True:
        removed, more = 0, 1
        try:
            while more:  # a chore removes a bounded number of things, so that others have their turn
                more = await chore()
                removed += more
                await asyncio.sleep(0)
        except Exception:
            log.exception("housekeeping failed")
        if removed:
            log.info("housekeeping removed %d", removed)
        await sleep(seconds)
