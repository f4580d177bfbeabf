"""The history stores that the chats of this process share: one store for each URL, in an event loop of their own.

A store belongs to one event loop, and each chat has its own. So a thousand chats need one pool of connections, and
chats in memory see each other's conversations.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agent.errors import StoreUnavailable
from agent.history import HistoryStore, open_store
from agent.runtime.loop_thread import LoopThread

_T = TypeVar("_T")


@dataclass(slots=True)
class _Shared:
    """A store and the number of its users. `lock` lets one of them open or close it."""

    users: int = 0
    store: HistoryStore | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The URL of a store, and the folder that a relative path in it begins at."""

    url: str
    folder: Path

    @property
    def is_memory(self) -> bool:
        """True if the store has no other place than this process."""
        return self.url.partition(":")[0] == "memory"


class SharedStores:
    """Opens a store for its first user and closes it after its last one. One in memory stays until the process ends.

    The methods can be called from any event loop.
    """

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop_thread: LoopThread | None = None
        self._stores: dict[StoreAddress, _Shared] = {}

    async def acquire(self, address: StoreAddress) -> None:
        """Open the store, or count another user of it. Raises `ConfigError` and `HistoryError`."""
        with _without_driver():
            await self._thread().submit(self._acquire(address))

    async def call(self, address: StoreAddress, work: Callable[[HistoryStore], Awaitable[_T]]) -> _T:
        """Return what `work` makes of an acquired store. Raises what it raises."""
        with _without_driver():
            return await self._thread().submit(self._call(address, work))

    async def release(self, address: StoreAddress) -> None:
        """Close the store, unless it has other users."""
        await self._thread().submit(self._release(address))

    def forget(self) -> None:
        """Forget all stores, in a forked process, which has neither their loop nor their connections."""
        self.__init__()

    def _thread(self) -> LoopThread:
        with self._starting:
            if self._loop_thread is None:
                self._loop_thread = LoopThread(name="stores of chats")
            return self._loop_thread

    async def _acquire(self, address: StoreAddress) -> None:
        shared = self._stores.setdefault(address, _Shared())
        async with shared.lock:
            if shared.store is None:
                shared.store = await open_store(address.url, folder=address.folder)
            shared.users += 1

    async def _call(self, address: StoreAddress, work: Callable[[HistoryStore], Awaitable[_T]]) -> _T:
        store = self._stores[address].store
        assert store is not None
        return await work(store)

    async def _release(self, address: StoreAddress) -> None:
        shared = self._stores[address]
        async with shared.lock:
            shared.users -= 1
            if shared.users == 0 and shared.store is not None and not address.is_memory:
                store, shared.store = shared.store, None
                await store.aclose()


@contextmanager
def _without_driver() -> Generator[None]:
    """Raise that a server is away without the traceback of its driver."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreUnavailable(str(error).replace("SWITCHBOARD_STORE", "the argument store")) from None


SHARED_STORES = SharedStores()
"""The stores of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARED_STORES.forget)
