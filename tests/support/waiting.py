"""Waiting for a condition in asynchronous tests."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(true: Callable[[], object], *, seconds: float = 40.0) -> None:
    """Wait until `true()` holds. Raises `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


async def until_async(true: Callable[[], Awaitable[object]], *, seconds: float = 40.0) -> None:
    """Wait until `await true()` holds. Raises `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            if await true():
                return
            await asyncio.sleep(0.05)
