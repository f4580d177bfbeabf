"""Memory that only a full garbage collection finds is freed when no answer is being written."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from weakref import ref

import pytest

from agent.web.housekeeping import IDLE_LOOK_SECONDS, LATEST_SECONDS, free_memory_when_idle


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def rare_collections() -> Iterator[None]:
    """Collect only young objects by themselves, as the app does."""
    before = gc.get_threshold()
    gc.set_threshold(200, 10_000, 10_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def rounds(is_busy: bool, *, count: int, works: float = 0.0) -> ref[Node]:
    """Leave an old cycle behind, work, and return it after so many looks at whether the server is idle.

    `works` is the share of the time for which the server uses the processor.
    """
    node, looks, time = Node(), 0, 0.0
    gc.collect()  # the cycle is old now
    found = ref(node)
    del node
    kept = [[] for _ in range(1000)]  # use of the server, with collections of young objects

    async def sleep(seconds: float) -> None:
        nonlocal looks, time
        looks, time = looks + 1, time + seconds
        if looks > count:
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await free_memory_when_idle(lambda: is_busy, sleep, lambda: time, lambda: works * time)
    assert kept
    return found


@pytest.mark.usefixtures("rare_collections")
async def test_idle_server_frees_old_cycles() -> None:
    assert (await rounds(False, count=1))() is None


@pytest.mark.usefixtures("rare_collections")
async def test_busy_server_is_not_stopped_by_a_collection() -> None:
    assert (await rounds(True, count=3))() is not None
    assert (await rounds(True, count=int(LATEST_SECONDS / IDLE_LOOK_SECONDS) + 1))() is None


@pytest.mark.usefixtures("rare_collections")
async def test_working_server_is_not_stopped_by_a_collection() -> None:
    assert (await rounds(False, count=3, works=0.5))() is not None
    assert (await rounds(False, count=1, works=0.01))() is None


async def test_unused_server_collects_nothing() -> None:
    looks, collections = 0, list[int]()

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        collections.append(gc.get_stats()[2]["collections"])
        if looks > 3:
            raise asyncio.CancelledError

    gc.collect()
    gc.disable()
    try:
        with suppress(asyncio.CancelledError):
            await free_memory_when_idle(lambda: False, sleep)
    finally:
        gc.enable()
    assert len(collections) == 4
    assert len(set(collections)) == 1
