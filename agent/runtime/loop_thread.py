"""An event loop in a thread of its own, for those who may be called from any thread and from any other loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from agent.errors import Busy
from agent.tools import GRACE

_T = TypeVar("_T")


class LoopEnded(Exception):
    """The loop has ended, or ended while one waited."""


class LoopThread:
    """An event loop in a thread of its own; `closing` is called in it when it ends, after all that was going on."""

    def __init__(self, closing: Callable[[], Awaitable[None]] | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: dict[Future[Any], Coroutine[Any, Any, Any]] = {}
        self._thread = threading.Thread(target=self._work, args=(closing,), name="chat", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, _T], interrupted: Callable[[], None] | None = None) -> _T:
        """Run the work in the loop and block this thread until it is done.

        Ctrl-C calls `interrupted` and waits on. Without `interrupted` it cancels the work. Raises `LoopEnded`, and `Busy`
        if this thread is the loop's own.
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
        """Do the work there, from any loop. Raises `LoopEnded`."""
        return await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Stop the loop and wait for its thread. A second call does nothing."""
        with suppress(RuntimeError):  # it is closed
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
        """Tell those who wait for work that will never be done."""
        for future, work in list(self._waiting.items()):
            with suppress(InvalidStateError):
                work.close()
                future.set_exception(LoopEnded())

    def _work(self, closing: Callable[[], Awaitable[None]] | None) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            try:
                self._loop.run_forever()
            finally:  # also after a SystemExit in a task, which ends the loop
                self._loop.run_until_complete(_close(self._loop, closing))
        finally:
            self._loop.close()
            self._wake()


async def _close(loop: asyncio.AbstractEventLoop, closing: Callable[[], Awaitable[None]] | None) -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks, timeout=GRACE)  # readers hear of the end
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if closing is not None:
        await closing()
    await loop.shutdown_asyncgens()
