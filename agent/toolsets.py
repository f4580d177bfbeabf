"""The sessions of toolsets: opened when a run begins, closed when it ends, never in the way of its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from agent.errors import AgentError, InputError
from agent.tools import GRACE, Tool, Toolset

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that closing may take before it goes on without the run."""

_closing: set[asyncio.Task[None]] = set()


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """The tools by their names. Raises `InputError` where two have one name."""
    named: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in named:
            raise InputError(f"two tools are named {tool.name!r}; give one of them another name")
        named[tool.name] = tool
    return named


@asynccontextmanager
async def opened(tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> AsyncGenerator[Mapping[str, Tool]]:
    """The tools with those of the toolsets, which are open until the block ends.

    Raises an `AgentError` with a sentence where one cannot be opened, and then closes those that were.
    """
    if not toolsets:
        yield tools
        return
    stack = AsyncExitStack()
    given = list(tools.values())
    entering: list[asyncio.Task[Sequence[Tool]]] = []
    patience = PATIENCE
    try:
        for toolset in toolsets:
            entering.append(asyncio.create_task(stack.enter_async_context(toolset.session())))
            given += await _entered(entering[-1], toolset)
        yield by_name(given)
    except asyncio.CancelledError:
        patience = GRACE
        raise
    finally:
        await _closed(stack, entering, patience)


async def _entered(work: asyncio.Task[Sequence[Tool]], toolset: Toolset) -> Sequence[Tool]:
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([work], timeout=GRACE)
        raise
    try:
        return work.result()
    except AgentError:
        raise
    except Exception as failure:
        log.exception("the tools %s could not be opened", toolset.name)
        raise AgentError(f"The tools {toolset.name!r} could not be opened: {failure or type(failure).__name__}") from (
            failure
        )


async def _closed(stack: AsyncExitStack, entering: Sequence[asyncio.Task[Any]], patience: float) -> None:
    """Close in a task of its own, which goes on by itself when it takes long, or when one is still opening."""

    async def close() -> None:
        await asyncio.wait(entering)
        try:
            await stack.aclose()
        except Exception:
            log.exception("tools could not be closed")

    work = asyncio.create_task(close())
    _closing.add(work)
    work.add_done_callback(_closing.discard)
    await asyncio.wait([work], timeout=patience)
