"""The web server: listens, serves the application until a signal, and opens a share link if it is asked to.

Under `gradio app.py` it starts again when a file of the program has changed. Pages go on where they were.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import uvicorn

from agent.local import zero_gpu
from agent.settings import FLEETING, Settings, given_environment
from agent.system.malloc import return_free_memory
from agent.system.project import FILES
from agent.web.app import create_app, trusted_proxies
from agent.web.connections import ConnectionLimits, raise_file_limit
from agent.web.gradio_compat.tunnel import close_tunnels, open_tunnel
from agent.web.log_levels import limit_log
from agent.web.privacy import make_memory_private
from agent.web.shutdown import GracefulServer

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


log = logging.getLogger(__name__)

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
