"""A clock that tests set, and an event loop whose time passes at once."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

from agent.system.threads import Threads

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """A selector that waits for threads only. Its clock jumps ahead if a loop would sleep."""

    now = 0.0
    working = 0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(None if self.working and timeout else 0)
        if not found and timeout:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with that clock."""

    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop whose timers end at once, in their order. It must not wait for sockets.

    The clock stands still while `Threads` work.
    """
    run = Threads.run

    async def counted(self: Threads, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, _Loop):
            return await run(self, work, *args, **kwargs)
        loop.jumping.working += 1
        try:
            return await run(self, work, *args, **kwargs)
        finally:
            loop.jumping.working -= 1

    with patch.object(Threads, "run", counted), asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
