"""Waiting for a condition in asynchronous tests, and looking at processes that can end meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import psutil


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


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process, which is empty if it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
