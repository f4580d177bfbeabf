"""Slow tools, for tests of stop."""

import asyncio
import time
from collections.abc import AsyncIterator


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


async def tell(text: str) -> AsyncIterator[str]:
    """Show a text and go on for ever.

    Args:
        text: What to show.
    """
    yield text
    await asyncio.sleep(3600)
