"""The sessions of toolsets. They open when a run begins and close when it ends, without delaying its end for long."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

from agent.errors import AgentError, InputError, reason_of
from agent.i18n.text import _
from agent.tools.function_tools import GRACE_SECONDS, Tool, Toolset

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""The seconds that a run waits for closing, which then continues in the background."""

_closing: set[asyncio.Task[None]] = set()


def tools_by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by name. Raises `InputError` if two tools have the same name."""
    named: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in named:
            raise InputError(f"two tools are named {tool.name!r}; give one of them another name")
        named[tool.name] = tool
    return named


class ToolSessions:
    """The tool sessions of one run. Owns the open ones."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._entering: list[asyncio.Task[Sequence[Tool]]] = []

    async def open(self, tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> Mapping[str, Tool]:
        """Open the toolsets and return all tools. Raises an `AgentError` with a sentence if one cannot be opened."""
        given = list(tools.values())
        for toolset in toolsets:
            work = asyncio.create_task(self._stack.enter_async_context(toolset.session()))
            self._entering.append(work)
            given += await _wait_until_open(work, toolset)
        return tools_by_name(given) if toolsets else tools

    async def close(self, *, hurried: bool) -> None:
        """Close the sessions in a task that continues in the background if it is slow or one is still opening."""
        if not self._entering:
            return
        work = asyncio.create_task(self._close())
        _closing.add(work)
        work.add_done_callback(_closing.discard)
        await asyncio.wait([work], timeout=GRACE_SECONDS if hurried else CLOSE_SECONDS)

    async def _close(self) -> None:
        await asyncio.wait(self._entering)
        try:
            await self._stack.aclose()
        except Exception:
            log.exception("tools could not be closed")


async def _wait_until_open(work: asyncio.Task[Sequence[Tool]], toolset: Toolset) -> Sequence[Tool]:
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([work], timeout=GRACE_SECONDS)
        raise
    try:
        return work.result()
    except AgentError:
        raise
    except Exception as failure:
        log.exception("the tools %s could not be opened", toolset.name)
        why = reason_of(failure)
        raise AgentError(_("The tools {name!r} could not be opened: {why}", name=toolset.name, why=why)) from failure
