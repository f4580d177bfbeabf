"""The line in front of a model server that writes only so many answers at once: first come, first served.

Such a server (llama.cpp) lets the others wait without a word. Here each knows how many are before it.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class _Ticket:
    """Somebody who waits or is served, and how to wake them in their own event loop."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class Line:
    """`places` at a server. It may be shared by any number of tasks, also of several event loops."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._tickets: list[_Ticket] = []
        """Of all, in the order in which they came; the first `places` of them are served."""

    @asynccontextmanager
    async def place(self, told: Callable[[int], None]) -> AsyncGenerator[None]:
        """Entered when it is one's turn. Whatever happens inside, or to who waits, the place is free again after it.

        `told` is given how many answers must end before this one begins, first and whenever the line moves.
        """
        ticket = _Ticket()
        with self._lock:
            self._tickets.append(ticket)
        try:
            while (before := self._before(ticket)) > 0:
                told(before)
                await ticket.moved.wait()
                ticket.moved.clear()
            yield
        finally:
            self._leave(ticket)

    def _before(self, ticket: _Ticket) -> int:
        with self._lock:
            return self._tickets.index(ticket) - self._places + 1

    def _leave(self, ticket: _Ticket) -> None:
        with self._lock:
            if ticket not in self._tickets:
                return
            number = self._tickets.index(ticket)
            del self._tickets[number]
            behind = self._tickets[max(number, self._places - 1) :]
        for one in behind:
            try:
                one.loop.call_soon_threadsafe(one.moved.set)
            except RuntimeError:  # its loop was closed over its head: nobody waits there any more
                self._leave(one)
