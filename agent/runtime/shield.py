"""Protects work from being interrupted by a cancellation."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even if this task is cancelled meanwhile. Then raise the cancellation after the work."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    failure = None if task.cancelled() else task.exception()
    if cancelled or task.cancelled():
        raise asyncio.CancelledError
    if failure is not None:
        raise failure
