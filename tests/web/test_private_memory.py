"""Other processes cannot read keys in the page's memory or environment, and ended events free theirs."""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gradio.exceptions import Error
from gradio.queueing import Queue

from agent.web.gradio_compat.event_queue import bound_queue
from tests.conftest import CONFIG, App
from tests.support.http_client import HttpVisitor

READING = """
import ctypes, os
from agent.web.privacy import make_memory_private

def is_readable():
    reader = os.fork()
    if not reader:
        try:
            open(f"/proc/{os.getppid()}/environ", "rb").read()
            os._exit(1)
        except PermissionError:
            os._exit(0)
    return bool(os.waitpid(reader, 0)[1])

if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # the change of the user has set it to 0
before = is_readable()
make_memory_private()
print(before, is_readable())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system about another process")
@pytest.mark.slow
def test_other_process_of_user_reads_no_environment() -> None:
    assert subprocess.check_output([sys.executable, "-c", READING], text=True).split() == ["True", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system about its own process")
def test_memory_of_page_is_private(start_app: Callable[..., App]) -> None:
    app = start_app(CONFIG.replace("tools = [", 'tools = ["tests.support.heap_tools:is_dumpable", '))
    said = HttpVisitor(app.url).say("!tool is_dumpable {} !text Looked.", tools=True)
    assert "private" in said
    assert "readable" not in said


class Held:
    """An object that an event received."""


async def test_failed_event_frees_memory_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks share an exception. One handles it and waits while the event of the other one ends."""
    caught, go_on = asyncio.Event(), asyncio.Event()
    held = list[weakref.ref[Held]]()
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        try:
            await shared
        except KeyError:
            caught.set()
            await go_on.wait()
            try:
                raise
            except KeyError:
                return "survived"
        return "not failed"

    async def fail() -> None:
        given = Held()
        held.append(weakref.ref(given))
        try:
            await shared
        except KeyError as error:
            await caught.wait()  # now the traceback leads to the frame of the other task
            raise ValueError("failed") from error

    page = cast(Any, SimpleNamespace(process_api=fail))

    async def process(_: Queue) -> None:
        kept: Exception | None = None
        try:
            await page.process_api()
        except Error as error:
            kept = error  # Gradio's queue keeps it too
        assert kept is not None

    monkeypatch.setattr(Queue, "process_events", process)
    queue = bound_queue(page, 4)
    event, waiter = asyncio.create_task(queue.process_events()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    gc.disable()
    try:
        shared.set_exception(KeyError("shared"))
        await event
        assert held[0]() is None, "not freed without a garbage collection"
    finally:
        gc.enable()
    go_on.set()
    await asyncio.wait({waiter}, timeout=10)
    assert waiter.done(), "the other task was not closed while it waited"
    assert waiter.result() == "survived"
