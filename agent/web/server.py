"""The web server: listens, serves the application until a signal, and opens a share link if it is asked to."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

import uvicorn

from agent.local import zero_gpu
from agent.settings import Settings
from agent.space import FLEETING
from agent.system.malloc import return_free_memory
from agent.web.app import create_app, trusted_proxies
from agent.web.connections import ConnectionLimits, raise_file_limit
from agent.web.gradio_compat.tunnel import close_tunnels
from agent.web.log_levels import limit_log
from agent.web.private_memory import make_memory_private
from agent.web.share_link import open_share_link
from agent.web.shutdown import GracefulServer

log = logging.getLogger(__name__)


def serve(settings: Settings, *, say: Callable[[str], None] = print) -> int:
    """Serve until a signal; return the exit status."""
    if settings.space and settings.space.zero_gpu:
        zero_gpu.load(settings.local.vllm_model, say)
    make_memory_private()
    return_free_memory()
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        return runner.run(_serve(settings, say))


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
    limit_log()
    server = GracefulServer(config, settings.drain_seconds, say)
    sharing = asyncio.create_task(open_share_link(port, say, app.state.origins.add)) if settings.share else None
    try:
        with listener:
            await server.serve(sockets=[listener])
    finally:
        if sharing is not None:
            sharing.cancel()
            close_tunnels()
    return server.status
