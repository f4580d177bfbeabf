"""The task that removes what has expired, at start and every few minutes for as long as the server runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

Chore = Callable[[], Awaitable[int]]
"""Removes things that have expired, a bounded number of them, and returns how many."""


async def keep_house(chores: Sequence[Chore], seconds: float) -> None:
    """Do the chores in turn, again and again with so many seconds between, until cancelled.

    A chore that fails is logged and done again in the next round, so that a full disk does not end the others.
    """
    while True:
        for chore in chores:
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
        await asyncio.sleep(seconds)
