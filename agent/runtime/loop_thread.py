"""An event loop in its own thread, for code that can be called from any thread and from any other event loop."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from agent.errors import Busy
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
