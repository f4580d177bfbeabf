"""A queue in front of a server that does only so much at once, such as a model server. Visitors take turns.

llama.cpp makes requests wait silently. This queue tells each request how many are before it. A visitor's second request
waits behind the first request of every other visitor, so that nobody waits for all requests of somebody else.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

MAX_OVERTAKEN = 10
"""The most requests that can overtake another one. Without a limit, a stream of new visitors could delay it forever."""

Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a slot and holds it for the block, like `RequestQueue.slot`."""
_visitor: ContextVar[str] = ContextVar("visitor", default="")


@contextmanager
def acting_for(visitor: str) -> Generator[None]:
    """Count the slots that this block, and the tasks that it starts, ask for as this visitor's."""
    before = _visitor.set(visitor)
    try:
        yield
    finally:
        _visitor.reset(before)


@dataclass(eq=False, slots=True)
class _Ticket:
    """A request that waits or is served, and the means to wake its task in its own event loop.

    `round` orders the waiting tickets: a visitor's second ticket is in a later round than their first.
    """

    visitor: str = field(default_factory=_visitor.get)
    round: int = 0
    overtaken: int = 0
    served: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> bool:
        """Wake the waiting task from any thread. Returns False if its event loop is closed."""
        try:
            self.loop.call_soon_threadsafe(self.moved.set)
        except RuntimeError:
            return False
        return True


class RequestQueue:
    """A queue for the `slots` of a server. A visitor holds at most `slots_per_visitor`; None means no such limit.

    Any number of tasks can share it, also from several event loops.
    """

    def __init__(self, slots: int, *, slots_per_visitor: int | None = None) -> None:
        self._slots, self._slots_per_visitor = slots, slots_per_visitor or slots
        self._lock = threading.Lock()
        self._waiting: list[_Ticket] = []
        """In the order of service, except that a visitor with enough slots is passed over."""
        self._served: list[_Ticket] = []
        self._round = 0
        """The latest round that has been served."""

    @asynccontextmanager
    async def slot(self, on_position: Callable[[int], None] = lambda _: None) -> AsyncGenerator[None]:
        """Wait for a free slot and hold it for the block. The slot is freed however the block or the wait ends.

        `on_position` gets the number of requests that must end first, at once and whenever the queue moves.
        """
        ticket = _Ticket()
        self._enter(ticket)
        try:
            while (before := self._before(ticket)) > 0:
                on_position(before)
                await ticket.moved.wait()
                ticket.moved.clear()
            yield
        finally:
            self._leave(ticket)

    def _before(self, ticket: _Ticket) -> int:
        with self._lock:
            if ticket.served:
                return 0
            return max(1, len(self._served) + self._waiting.index(ticket) - self._slots + 1)

    def _enter(self, ticket: _Ticket) -> None:
        with self._lock:
            own = [one.round for one in (*self._served, *self._waiting) if one.visitor == ticket.visitor]
            ticket.round = max(self._round, *(number + 1 for number in own)) if own else self._round
            firm = [one.round <= ticket.round or one.overtaken >= MAX_OVERTAKEN for one in self._waiting]
            at = len(firm) - firm[::-1].index(True) if True in firm else 0
            behind = self._waiting[at:]
            for one in behind:
                one.overtaken += 1
            self._waiting.insert(at, ticket)
            self._admit()
        self._wake(behind)

    def _leave(self, ticket: _Ticket) -> None:
        with self._lock:
            if ticket in self._served:
                self._served.remove(ticket)
                moved = list(self._waiting)
            elif ticket in self._waiting:
                moved = self._waiting[self._waiting.index(ticket) :]
                self._waiting.remove(ticket)
            else:
                return
            self._admit()
        self._wake(moved)

    def _admit(self) -> None:
        """Give the free slots to the next tickets. The caller holds the lock."""
        has = Counter(one.visitor for one in self._served)
        for ticket in list(self._waiting):
            if len(self._served) >= self._slots:
                return
            if has[ticket.visitor] < self._slots_per_visitor:
                has[ticket.visitor] += 1
                ticket.served, self._round = True, max(self._round, ticket.round)
                self._waiting.remove(ticket)
                self._served.append(ticket)

    def _wake(self, tickets: list[_Ticket]) -> None:
        for one in tickets:
            if not one.wake():
                self._leave(one)
