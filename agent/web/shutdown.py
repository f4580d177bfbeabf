"""What a signal does: the first lets answers end and keeps what they have, the second ends at once, the third kills.

Uvicorn's own way is to shut the door first, which cuts off the pages that watch an answer, and to die of the signal.
Uses private API of the pinned Gradio, whose streams end only when they are told to.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

LAST = 1.5
"""Seconds, of those that the end may take, kept for saving, for the pages' last update and for the model's process."""
HURRY = 1.0
"""Seconds that are left for saving after a second signal."""
ECHO = 1.0
"""Seconds in which a second SIGTERM is the first one again: make passes on what its whole process group has got."""
QUIET = 0.4
"""Seconds without any event of a page, after which all pages have what they asked for."""
AT_ONCE = 2.5
"""Seconds after a second signal until the process is gone, whatever still closes; its children end by themselves."""


class GracefulServer(uvicorn.Server):
    """Uvicorn with an end in order. `status` is the exit status: 0, or 128 and the signal where there was a second.

    The app's `state` holds `conversations` and `page`. All is over `seconds` after the first signal, unless the store
    or a process of the model takes longer to close.
    """

    def __init__(self, config: uvicorn.Config, seconds: float, say: Callable[[str], None]) -> None:
        super().__init__(config)
        self.status = 0
        self._seconds, self._say = seconds, say
        self._loop = asyncio.get_running_loop()
        self._first: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take the signals, and keep them until the process ends: nothing may disturb its end."""
        signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGTERM, self.handle_exit)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
            signal.signal(signal.SIGHUP, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came. May be called at any moment, so it only tells the loop."""
        if self._first is None:
            self._first = monotonic()
            self._loop.call_soon_threadsafe(self._begin, max(0.0, self._seconds - LAST))
        elif sig == signal.SIGTERM and monotonic() - self._first < ECHO:
            return
        elif not self.status:
            self.status = 128 + sig
            self._loop.call_soon_threadsafe(self._begin, None)
        else:
            os._exit(128 + sig)

    def _begin(self, seconds: float | None) -> None:
        if seconds is None:
            end = Timer(AT_ONCE, os._exit, (self.status,))
            end.daemon = True
            end.start()
        self._tasks.append(asyncio.create_task(self._down(seconds)))

    async def _down(self, seconds: float | None) -> None:
        """Let answers go on for so many seconds, keep what the rest have, then let uvicorn end. None: at once."""
        app = cast(FastAPI, self.config.app)
        live, queue = app.state.conversations.live_runs, app.state.page._queue
        self.force_exit = self.force_exit or seconds is None
        running = live.count
        if seconds is not None and running:
            answers = "one answer" if running == 1 else f"{running} answers"
            self._say(f"Going down: {answers} may go on for {seconds:.0f} s. Press Ctrl-C again to end at once.")
        patience = HURRY if seconds is None else seconds + self._seconds
        await asyncio.wait({asyncio.create_task(live.close(seconds or 0.0))}, timeout=patience)
        if running and not self.force_exit:
            await _delivered(queue, LAST)
        for route in app.routes:
            inner: Any = getattr(route, "app", None)
            if hasattr(inner, "stop_event"):
                inner.stop_event.set()
        for task in list(queue._asyncio_tasks):
            task.cancel()
        queue.close()
        self.should_exit = True


async def _delivered(queue: Any, seconds: float) -> None:
    """Wait until the pages have seen their last update, and what they ask for after it; at most so many seconds."""
    end = monotonic() + seconds
    quiet = monotonic() + QUIET
    while monotonic() < min(end, quiet):
        if any(queue.pending_event_ids_session.values()):  # an event's id is in it until its last message was sent
            quiet = monotonic() + QUIET
        await asyncio.sleep(0.02)
