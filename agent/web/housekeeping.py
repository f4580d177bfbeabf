"""Tasks beside the page: they remove expired data, and free memory while nobody waits for an answer."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, process_time

from agent.errors import StoreUnavailable
from agent.system.resources import trim_free_memory

Sleep = Callable[[float], Awaitable[object]]

# Frees what only a full garbage collection finds, when no answer is being written.
#
# Python leaves each connection that has ended as a reference cycle of 2 KB, with its transport and its socket. Objects
# that a collection finds in use wait for a full one, which comes by itself after about 100 million allocations. A full
# collection stops everything for some hundredths of a second, or for tenths while an import has made many objects. So
# it does not run while somebody reads an answer, or while the server works on anything else.

IDLE_LOOK_SECONDS = 5.0
"""Seconds between two looks at whether the server is idle."""
IDLE_SHARE = 0.03
"""The most of that time for which an idle server uses the processor. On a busy machine, work gets little of it, too."""
LATEST_SECONDS = 600.0
"""Seconds after which memory is freed even if the server is never idle."""


async def free_memory_when_idle(
    is_busy: Callable[[], bool],
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = monotonic,
    processor: Callable[[], float] = process_time,
) -> None:
    """Free memory once after each time of use, until cancelled.

    `is_busy` is True while an answer is being written, or chats are imported.
    """
    freed_at, before = clock(), processor()
    while True:
        await sleep(IDLE_LOOK_SECONDS)
        works, before = processor() - before > IDLE_SHARE * IDLE_LOOK_SECONDS, processor()
        if not is_used_since_collection() or ((works or is_busy()) and clock() - freed_at < LATEST_SECONDS):
            continue
        gc.collect()
        await asyncio.to_thread(trim_free_memory)
        freed_at = clock()


def is_used_since_collection() -> bool:
    """Return True if so many objects were made since the last full collection that a smaller one has run."""
    _, *larger = gc.get_count()
    return any(larger)


log = logging.getLogger(__name__)

Chore = Callable[[], Awaitable[int]]
"""Removes a bounded number of expired things and returns how many."""


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
