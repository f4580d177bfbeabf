"""Handles signals: the first lets answers finish and saves them, the second ends at once, the third kills.

Uvicorn alone would close its connections first, which cuts off pages that watch an answer, and would then die of the
signal. This module uses private API of the pinned Gradio, because its streams end only on request.
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
"""Seconds of the shutdown time reserved for saving, for the pages' last update and for the model's process."""
HURRY = 1.0
"""Seconds left for saving after a second signal."""
ECHO = 1.0
"""Seconds in which another SIGTERM counts as the first. `make` forwards one that its process group already got."""
QUIET = 0.4
"""Seconds without any page event after which all pages count as up to date."""
AT_ONCE = 2.5
"""Seconds from the second signal to the forced exit. Child processes end by themselves."""


class GracefulServer(uvicorn.Server):
    """Uvicorn with a graceful shutdown.

    `status` is the exit status: 0, or 128 plus the signal number after a second signal. The app's `state` holds
    `conversations` and `page`. The shutdown takes at most `seconds` after the first signal, unless the store or a
    process of the model takes longer to close.
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
        """Handle the signals until the process ends, so that nothing disturbs the shutdown."""
        signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGTERM, self.handle_exit)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
            signal.signal(signal.SIGHUP, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. Can run at any moment, so it only notifies the event loop."""
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
        """Let answers run for `seconds` (None: no time), save what the rest have, then let uvicorn end."""
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
    """Wait at most `seconds` until the pages have read their last update and what they requested after it."""
    end = monotonic() + seconds
    quiet = monotonic() + QUIET
    while monotonic() < min(end, quiet):
        if any(queue.pending_event_ids_session.values()):  # holds an event's id until its last message was sent
            quiet = monotonic() + QUIET
        await asyncio.sleep(0.02)
