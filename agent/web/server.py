"""The web server: listens, serves the application until a signal, keeps its log short, and opens a share link.

The first signal lets answers finish and saves them, the second ends at once, the third kills. Uvicorn alone would close
its connections first, which cuts off pages that watch an answer, and would then die of the signal. Gradio's streams end
only on request. Loggers that write what visitors send stay at INFO, whatever level is set for the rest.

Under `gradio app.py` it starts again when a file of the program has changed. Pages go on where they were.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Lock, Timer
from time import monotonic
from traceback import extract_tb
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from agent.local import zero_gpu
from agent.settings import FLEETING, Settings, given_environment
from agent.system.project import FILES
from agent.system.resources import return_free_memory
from agent.web.app import create_app, trusted_proxies
from agent.web.connections import ConnectionLimits, raise_file_limit
from agent.web.gradio_compat.application import close_tunnels, end_heartbeats, open_tunnel
from agent.web.gradio_compat.event_queue import BoundedQueue
from agent.web.privacy import make_memory_private

WITH_CONTENT = ("anthropic", "google_genai", "gradio", "httpcore2", "httpx2", "mcp", "openai", "python_multipart")


def keep_content_out_of_logs() -> None:
    """Raise the loggers of `WITH_CONTENT` to INFO if the root logger has a lower level."""
    for name in WITH_CONTENT:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


LOG_SECONDS = 60.0
"""The length of the period in which lines of one kind are counted."""
MAX_FAILURES = 1
"""Entries about the same failed request in a period. Each has kilobytes of traceback."""
MAX_LINES = 10
"""The most other lines that one place in the code logs in a period."""
MAX_KINDS = 200
"""The number of different kinds that are counted."""


class LogLimit(logging.Filter):
    """Passes a few warnings and errors of each kind in each period. The next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._periods = OrderedDict[tuple[str, str], _Period]()
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if this entry is to be logged. A record keeps its answer, because several handlers ask."""
        if record.levelno < logging.WARNING:
            return True
        passes: bool | None = getattr(record, "passes_limit", None)
        if passes is None:
            passes = record.passes_limit = self._count(record)
        return passes

    def _count(self, record: logging.LogRecord) -> bool:
        """Count an entry. Failures of one type at one place are one kind, as are lines logged at one place."""
        kind, most = _kind(record)
        with self._lock:
            now = monotonic()
            period = self._periods.get(kind)
            if period is None or now - period.began >= LOG_SECONDS:
                left_out = period.entries - most if period else 0
                self._periods.pop(kind, None)
                self._periods[kind] = period = _Period(now)
                if left_out > 0:
                    record.msg = f"{record.getMessage().rstrip()} ({left_out} more like it since the last entry)"
                    record.args = ()
            if len(self._periods) > MAX_KINDS:
                self._periods.popitem(last=False)
            period.entries += 1
            return period.entries <= most


@dataclass(slots=True)
class _Period:
    began: float
    entries: int = 0


def _kind(record: logging.LogRecord) -> tuple[tuple[str, str], int]:
    """Return the kind of an entry, and how many of it pass in a period."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:  # the place, because a message can contain what a client sent
        return ("", f"{record.pathname}:{record.lineno}"), MAX_LINES
    last = extract_tb(error.__traceback__, limit=-1)
    return (type(error).__name__, f"{last[0].filename}:{last[0].lineno}" if last else ""), MAX_FAILURES


def limit_log() -> None:
    """Limit the warnings and errors of this process. Call it after uvicorn has set up its own logging."""
    limit = LogLimit()
    for logger in (logging.getLogger(), logging.getLogger("uvicorn")):
        for handler in logger.handlers:
            handler.addFilter(limit)


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


NEEDS = "A share link needs the network: Gradio's relay and its frpc program, which is fetched once."


async def open_share_link(port: int, say: Callable[[str], None], opened: Callable[[str], None]) -> None:
    """Open a tunnel to this port and report its URL, also to `opened`, or report why it failed. Never raises."""
    say("Opening a share link; everybody who has it can use this page.")
    try:
        url = await asyncio.to_thread(open_tunnel, port)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        say(f"No share link: {reason.rstrip('.')}. {NEEDS} The page itself works as before.")
        return
    opened(url)
    say(f"The page is shared at {url}, for at most a week. Typed keys are refused, and messages are limited.")


RESTART = -1
"""The status of a server that is to start again."""
SOURCES = (".py", ".css", ".js", ".html", ".po", ".toml")
"""The files of the program that are watched."""
LOOK_SECONDS = 0.5
SWITCH_SECONDS = 0.0005
"""The longest that a thread that computes keeps Python's lock when the event loop waits for it, a tenth of the default.

The loop asks for the lock many times to answer one request, and each time waited that long.
"""
NO_EFFECT = {
    "GRADIO_MCP_SERVER": "programs call /chat, or /v1 with their own tools",
    "GRADIO_ALLOWED_PATHS": "this page gives out no files of this machine",
    "GRADIO_SSR_MODE": "the browser draws this page",
}
"""Variables of Gradio that people set, and why they do nothing here."""


def serve(settings: Settings, *, say: Callable[[str], None] = print) -> int:
    """Serve until a signal; return the exit status."""
    if settings.space and settings.space.zero_gpu:
        zero_gpu.load(settings.local.vllm_model, say)
    make_memory_private()
    return_free_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        status = runner.run(_serve(settings, say))
    if status == RESTART:
        os.execve(sys.executable, sys.orig_argv, given_environment())
    return status


def _event_loop() -> asyncio.AbstractEventLoop:
    """Create uvloop's event loop, which needs a fifth less processor time for each token than asyncio's."""
    if sys.platform == "win32":  # uvloop does not run there
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


async def _serve(settings: Settings, say: Callable[[str], None]) -> int:
    log.debug("the event loop is one of %s", type(asyncio.get_running_loop()).__module__)
    try:
        listener = socket.create_server((settings.host, settings.port), backlog=512)
    except OSError as error:
        say(f"{settings.host}:{settings.port} cannot be used: {error.strerror or error}. Set GRADIO_SERVER_PORT.")
        return 1
    host, port = listener.getsockname()[:2]
    sources = _sources() if os.environ.get("GRADIO_WATCH_DIRS") else None
    app = await create_app(settings, say=say)
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=2,  # all streams have been ended before
        timeout_keep_alive=75,
        http=cast(Any, ConnectionLimits(raise_file_limit(), trusted_proxies(settings)).protocol),
        ws="none",
        proxy_headers=True,
        forwarded_allow_ips=trusted_proxies(settings),
    )
    here = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    say(f"The page is at {f'https://{settings.space.host}' if settings.space and settings.space.host else here}")
    if settings.loses_history_on_restart:
        say(FLEETING)
    for line in _without_effect(os.environ):
        say(line)
    limit_log()
    server = GracefulServer(config, settings.drain_seconds, say)
    sharing = asyncio.create_task(open_share_link(port, say, app.state.origins.add)) if settings.share else None
    watching = asyncio.create_task(_wait_for_change(sources, say)) if sources is not None else None
    if watching is not None:
        os.environ["GRADIO_SERVER_PORT"] = str(port)  # pages come back to it
        watching.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
    try:
        with listener:
            await server.serve(sockets=[listener])
    finally:
        if sharing is not None:
            sharing.cancel()
            close_tunnels()
    return RESTART if watching is not None and watching.done() and not server.status else server.status


def _without_effect(env: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of Gradio that is set and does nothing."""
    are_set = [name for name in NO_EFFECT if env.get(name, "").lower() not in ("", "0", "false")]
    return [f"{name} has no effect: {NO_EFFECT[name]}." for name in are_set]


async def _wait_for_change(before: Mapping[Path, float], say: Callable[[str], None]) -> None:
    """Return when a file of the program is not as it was before. What is no valid Python is not used."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = await asyncio.to_thread(_sources)
        changed = [path for path, at in now.items() if before.get(path) != at] or [*before.keys() - now.keys()]
        before = now
        if not changed:
            continue
        try:
            for path in changed:
                if path.suffix == ".py" and path in now:
                    compile(path.read_bytes(), path, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            say(f"{changed[0].name} has changed and cannot be used: {error}")
            continue
        say(f"{changed[0].name} has changed: starting again.")
        return


def _sources() -> dict[Path, float]:
    """Return the files of the program, with the times of their last changes."""
    found = [FILES / "app.py", *(path for name in ("agent", "configs") for path in (FILES / name).rglob("*"))]
    sources = dict[Path, float]()
    for path in found:
        with suppress(OSError):  # deleted meanwhile
            if path.suffix in SOURCES:
                sources[path] = path.stat().st_mtime
    return sources
