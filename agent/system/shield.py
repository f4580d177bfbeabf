"""Protects work from being interrupted by a cancellation."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even if this task is cancelled meanwhile. Then raise the cancellation after the work."""
    task = asyncio.ensure_future(work)
    cancelled = await wait_through_cancellation(task)
    failure = None if task.cancelled() else task.exception()
    if cancelled or task.cancelled():
        raise asyncio.CancelledError
    if failure is not None:
        raise failure


async def wait_through_cancellation(work: asyncio.Future[Any]) -> bool:
    """Wait for the end of the work, also if this task is cancelled meanwhile. Return True if it was."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
