"""An event loop in its own thread, for code that can be called from any thread and from any other event loop."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent.errors import Busy, StoreUnavailable
from agent.history import HistoryStore, open_store
from agent.tools.function_tools import GRACE_SECONDS

_T = TypeVar("_T")


class LoopEnded(Exception):
    """The loop has ended, possibly while the caller waited."""


class LoopThread:
    """An event loop in its own thread. At its end it stops its tasks after a short grace period and calls `closing`."""

    def __init__(self, closing: Callable[[], Awaitable[None]] | None = None, *, name: str = "chat") -> None:
        self.pid = os.getpid()
        """The process with the thread. A forked one has only a copy of the loop, which never runs."""
        self._loop = asyncio.new_event_loop()
        self._waiting: dict[Future[Any], Coroutine[Any, Any, Any]] = {}
        self._thread = threading.Thread(target=self._run, args=(closing,), name=name, daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, _T], interrupted: Callable[[], None] | None = None) -> _T:
        """Run the coroutine in the loop and block until it ends. Raises `LoopEnded`, or `Busy` in the loop thread.

        Ctrl-C calls `interrupted` and goes on waiting. Without `interrupted` it cancels the coroutine.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise Busy("A tool of this chat cannot wait for another answer of the same chat.")
        future = self._submit(work)
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if interrupted is None:
                    future.cancel()
                    raise
                interrupted()
            except BaseException:
                future.cancel()
                raise

    async def submit(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run the coroutine in the loop and await it from any other loop. Raises `LoopEnded`."""
        return await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Stop the loop and wait for its thread. Does nothing the second time, and in a forked process."""
        if self.pid != os.getpid():
            return
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _submit(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise LoopEnded from error
        self._waiting[future] = work
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        if self._loop.is_closed():
            self._wake()
        return future

    def _wake(self) -> None:
        """Raise `LoopEnded` in callers that wait for work that will never be done."""
        for future, work in list(self._waiting.items()):
            with suppress(InvalidStateError):
                work.close()
                future.set_exception(LoopEnded())

    def _run(self, closing: Callable[[], Awaitable[None]] | None) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            try:
                self._loop.run_forever()
            finally:  # also after a SystemExit in a task, which stops the loop
                self._loop.run_until_complete(_close(self._loop, closing))
        finally:
            self._loop.close()
            self._wake()


async def _close(loop: asyncio.AbstractEventLoop, closing: Callable[[], Awaitable[None]] | None) -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks, timeout=GRACE_SECONDS)  # so that readers learn of the end
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if closing is not None:
        await closing()
    await loop.shutdown_asyncgens()


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
