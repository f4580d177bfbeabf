"""Small pools of threads, one for each kind of work on what people sent, so that no kind makes the others wait."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet


async def run_to_completion(work: Coroutine[Any, Any, object]) -> None:
    """Finish the work even if this task is cancelled meanwhile. Then raise the cancellation after the work."""
    task = asyncio.ensure_future(work)
    cancelled = await wait_through_cancellation(task)
    failure = None if task.cancelled() else task.exception()
    if cancelled or task.cancelled():
        raise asyncio.CancelledError
    if failure is not None:
        raise failure


async def wait_through_cancellation(work: asyncio.Future[Any]) -> bool:
    """Wait for the end of the work, also if this task is cancelled meanwhile. Return True if it was."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


LONGEST_STEP_SECONDS = 0.02
"""Seconds of work in one step. The work of others gets its turn between two steps."""

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of up to `count` threads, which are started when they are needed.

    If a call is cancelled, work that has not begun never begins, and work that has begun is waited for. So what belongs
    to the work, such as its place among others, can be given back after the call. `ends_by_itself=False` is for reads
    and writes, which can hang with a disk: they are not waited for.
    """

    def __init__(self, name: str, count: int, *, ends_by_itself: bool = True) -> None:
        self._make = partial(ThreadPoolExecutor, count, thread_name_prefix=name)
        self._pool, self._ends_by_itself = self._make(), ends_by_itself
        _POOLS.add(self)

    def restart(self) -> None:
        """Begin with new threads, in a forked process, which has none of its parent's."""
        self._pool = self._make()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `work`, which runs in a thread.

        The thread keeps neither the arguments nor the result, however late it gets its turn afterwards.
        """
        calls, results = [partial(work, *args, **kwargs)], list[T]()
        begun = self._pool.submit(copy_context().run, lambda: results.append(calls.pop()()))
        ended = asyncio.wrap_future(begun)
        try:
            await asyncio.shield(ended)
            return results.pop()
        except asyncio.CancelledError:
            begun.cancel()
            if self._ends_by_itself:
                await wait_through_cancellation(ended)
            ended.add_done_callback(_see)
            raise

    async def steps(self, items: Iterator[T]) -> AsyncGenerator[list[T]]:
        """Yield the items, which are made in a thread, as many at once as one step of work makes."""
        while batch := await self.run(_batch, items):
            yield batch


def _see(ended: asyncio.Future[Any]) -> None:
    """Look at the outcome of work that nobody waits for, because asyncio logs an error that nobody has seen."""
    if not ended.cancelled():
        ended.exception()


def _restart_all() -> None:
    for threads in _POOLS:
        threads.restart()


_POOLS = WeakSet[Threads]()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_restart_all)


def _batch(items: Iterator[T]) -> list[T]:
    batch, until = list[T](), monotonic() + LONGEST_STEP_SECONDS
    for item in items:
        batch.append(item)
        if monotonic() >= until:
            break
    return batch


FILES = Threads("files", 16, ends_by_itself=False)
"""Stored files, which can be on another machine."""
UPLOADS = Threads("uploads", 8, ends_by_itself=False)
"""Files that are not sent yet, on this machine."""
TEXTS = Threads("texts", 2)
"""Short work on the bytes of one file or message."""
PAGES = Threads("pages", 1)
"""The page and its files, which are compressed once. More threads would leave visitors no processor."""
TURNS = Threads("turns", 2)
"""The turns of answers that are being written, as blocks of HTML."""
LOOKS = Threads("looks", 2)
"""The stored turns of chats, as blocks of HTML."""
DECODING = Threads("decoding", 2)
"""Stored messages, and the search in them."""
PREPARING = Threads("preparing", 2)
"""Long histories, as models take them."""
RANKING = Threads("ranking", 2)
"""The search in documents, which takes a second for a long one."""
HISTORY_FILES = Threads("stores", 4, ends_by_itself=False)
"""The files of a history in a folder."""
