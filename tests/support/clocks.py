"""A clock that tests set, and an event loop whose time passes at once."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits. Its clock jumps ahead if a loop would sleep."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with that clock."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop whose timers end at once, in their order. It must not wait for threads or sockets."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
