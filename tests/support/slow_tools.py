"""Slow tools, for tests of stop."""

import asyncio
import time


async def nap(seconds: float) -> str:
    """Wait without blocking anything.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "awake"


def block(seconds: float) -> str:
    """Wait and block the thread.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "unblocked"
