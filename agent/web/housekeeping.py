"""Tasks that remove expired data, at start and every few minutes while the server runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from agent.errors import StoreUnavailable

log = logging.getLogger(__name__)

Chore = Callable[[], Awaitable[int]]
"""Removes a bounded number of expired things and returns how many."""
Sleep = Callable[[float], Awaitable[object]]


async def run_housekeeping(chores: Sequence[Chore], seconds: float, sleep: Sleep = asyncio.sleep) -> None:
    """Repeat each chore with a pause of `seconds`, until cancelled.

    Chores run concurrently, so a chore that takes an hour does not delay the others.
    """
    async with asyncio.TaskGroup() as tasks:
        for chore in chores:
            tasks.create_task(_repeat(chore, seconds, sleep))


async def _repeat(chore: Chore, seconds: float, sleep: Sleep) -> None:
    """Repeat a chore. A failure is logged, and the chore runs again in the next round."""
    while True:
        removed, more = 0, 1
        try:
            while more:  # each chore removes a bounded number of things, so that others have their turn
                more = await chore()
                removed += more
                await asyncio.sleep(0)
        except StoreUnavailable as error:
            log.warning("housekeeping waits for the next round: %s", error)
        except Exception:
            log.exception("housekeeping failed")
        if removed:
            log.info("housekeeping removed %d", removed)
        await sleep(seconds)
