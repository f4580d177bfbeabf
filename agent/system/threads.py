"""Small pools of threads, one for each kind of work on what people sent, so that no kind makes the others wait."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import ParamSpec, TypeVar

LONGEST_STEP_SECONDS = 0.02
"""Seconds of work in one step. The work of others gets its turn between two steps."""

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of up to `count` threads, which are started when they are needed."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `work`, which runs in a thread.

        If this is cancelled, work that has not begun never begins, and work that has begun is waited for. So what
        belongs to the work, such as its place among others, can be given back after this call.
        """
        begun = self._pool.submit(copy_context().run, partial(work, *args, **kwargs))
        ended = asyncio.wrap_future(begun)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            begun.cancel()
            while not ended.done():
                try:
                    await asyncio.wait([ended])
                except asyncio.CancelledError:
                    continue
            if not ended.cancelled():
                ended.exception()  # otherwise asyncio logs that nobody has seen it
            raise

    async def steps(self, items: Iterator[T]) -> AsyncGenerator[list[T]]:
        """Yield the items, which are made in a thread, as many at once as one step of work makes."""
        while batch := await self.run(_batch, items):
            yield batch


def _batch(items: Iterator[T]) -> list[T]:
    batch, until = list[T](), monotonic() + LONGEST_STEP_SECONDS
    for item in items:
        batch.append(item)
        if monotonic() >= until:
            break
    return batch


FILES = Threads("files", 16)
"""Stored files, which can be on another machine."""
UPLOADS = Threads("uploads", 8)
"""Files that are not sent yet, on this machine."""
TEXTS = Threads("texts", 2)
"""Short work on the bytes of one file or message."""
RANKING = Threads("ranking", 2)
"""The search in documents, which takes a second for a long one."""
STORES = Threads("stores", 4)
"""The files of a history in a folder."""
