"""Handles signals: the first lets answers finish and saves them, the second ends at once, the third kills.

Uvicorn alone would close its connections first, which cuts off pages that watch an answer, and would then die of the
signal. Gradio's streams end only on request.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import inf
from threading import Timer
from time import monotonic
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from agent.web.gradio_compat.application import end_heartbeats
from agent.web.gradio_compat.event_queue import BoundedQueue

ACCEPTED_AT_ONCE = 128
"""Connections that are accepted before anything else is done."""
NEXT_TRY_SECONDS = 0.5
"""Seconds until the next try, after a connection could not be accepted."""
LOG_PAUSE_SECONDS = 10.0
"""Seconds between two log lines about connections that could not be accepted."""

log = logging.getLogger(__name__)


async def accept_connections(listener: socket.socket, new_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until cancelled. Each gets a protocol of its own."""
    loop, starting, logged = asyncio.get_running_loop(), set[asyncio.Task[object]](), -inf
    listener.setblocking(False)
    while True:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # the client has left meanwhile
                continue
            except OSError as error:
                if monotonic() - logged >= LOG_PAUSE_SECONDS:
                    logged = monotonic()
                    log.error("connections cannot be accepted: %s", error)
                await asyncio.sleep(NEXT_TRY_SECONDS)
                continue
            task = loop.create_task(loop.connect_accepted_socket(new_protocol, connection))
            starting.add(task)
            task.add_done_callback(starting.discard)
        await asyncio.sleep(0)


RESERVED_SECONDS = 1.5
"""The part of the shutdown time that is for saving, for the pages' last update and for the model's process."""
HURRIED_SAVE_SECONDS = 1.0
"""The time for saving after a second signal."""
REPEAT_SECONDS = 1.0
"""The time in which another SIGTERM counts as the first. `make` forwards one that its process group already got."""
LAST_UPDATE_SECONDS = 10.0
"""The longest wait for the pages' last update, if the answers ended early enough to leave it."""
QUIET_SECONDS = 0.4
"""The time without any page event after which all pages count as up to date."""
FORCED_EXIT_SECONDS = 2.5
"""The time from the second signal to the forced exit. Child processes end by themselves."""
POLL_SECONDS = 0.02


class GracefulServer(uvicorn.Server):
    """Uvicorn with a graceful shutdown.

    `status` is the exit status: 0, or 128 plus the signal number after a second signal. The app's `state` holds
    `conversations`, `page` and `queue`. The shutdown takes at most `seconds` after the first signal, unless the store
    or a process of the model takes longer to close.
    """

    def __init__(self, config: uvicorn.Config, seconds: float, say: Callable[[str], None]) -> None:
        super().__init__(config)
        self.status = 0
        self._seconds, self._say = seconds, say
        self._loop = asyncio.get_running_loop()
        self._first: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._accepting: list[asyncio.Task[None]] = []

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle the signals until the process ends, so that nothing disturbs the shutdown."""
        signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGTERM, self.handle_exit)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
            signal.signal(signal.SIGHUP, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then accept connections."""
        await super().startup(sockets=[])
        config = cast(Any, self.config)

        def new_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        self._accepting = [asyncio.create_task(accept_connections(one, new_protocol)) for one in sockets or ()]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, then end those that are open."""
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. Can run at any moment, so it only notifies the event loop."""
        if self._first is None:
            self._first = monotonic()
            self._loop.call_soon_threadsafe(self._begin, max(0.0, self._seconds - RESERVED_SECONDS))
        elif sig == signal.SIGTERM and monotonic() - self._first < REPEAT_SECONDS:
            return
        elif not self.status:
            self.status = 128 + sig
            self._loop.call_soon_threadsafe(self._begin, None)
        else:
            os._exit(128 + sig)

    def _begin(self, seconds: float | None) -> None:
        if seconds is None:
            end = Timer(FORCED_EXIT_SECONDS, os._exit, (self.status,))
            end.daemon = True
            end.start()
        self._tasks.append(asyncio.create_task(self._shut_down(seconds)))

    async def _shut_down(self, seconds: float | None) -> None:
        """Let answers run for `seconds` (None: no time), save what the rest have, then let uvicorn end."""
        state = cast(FastAPI, self.config.app).state
        live = state.conversations.live_runs
        self.force_exit = self.force_exit or seconds is None
        running = live.count
        if seconds is not None and running:
            answers = "one answer" if running == 1 else f"{running} answers"
            self._say(f"Going down: {answers} may go on for {seconds:.0f} s. Press Ctrl-C again to end at once.")
        patience = HURRIED_SAVE_SECONDS if seconds is None else seconds + self._seconds
        await asyncio.wait({asyncio.create_task(live.close(seconds or 0.0))}, timeout=patience)
        if running and not self.force_exit:
            left = self._seconds - (monotonic() - cast(float, self._first))
            longest = min(LAST_UPDATE_SECONDS, max(RESERVED_SECONDS, left))
            await _wait_until_pages_are_current(state.queue, longest)
        end_heartbeats(state.page)
        state.queue.close()
        self.should_exit = True


async def _wait_until_pages_are_current(queue: BoundedQueue, seconds: float) -> None:
    """Wait at most `seconds` until the pages have read their last update and what they requested after it."""
    end = monotonic() + seconds
    quiet = monotonic() + QUIET_SECONDS
    while monotonic() < min(end, quiet):
        if queue.has_unsent:
            quiet = monotonic() + QUIET_SECONDS
        await asyncio.sleep(POLL_SECONDS)
