"""Opens a public link through Gradio's own tunnel, or says what is missing."""

import asyncio
import secrets
from collections.abc import Callable
from importlib import import_module
from typing import Any

NEEDS = "A share link needs the network: Gradio's relay and its frpc program, which is fetched once."


async def open_share_link(port: int, say: Callable[[str], None], opened: Callable[[str], None]) -> None:
    """Open a tunnel to this port and report its URL, also to `opened`, or report why it failed. Never raises."""
    say("Opening a share link; everybody who has it can use this page.")
    try:
        networking: Any = import_module("gradio.networking")
        url = await asyncio.to_thread(networking.setup_tunnel, "127.0.0.1", port, secrets.token_urlsafe(32), None, None)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        say(f"No share link: {reason.rstrip('.')}. {NEEDS} The page itself works as before.")
        return
    opened(url)
    say(f"The page is shared at {url}, for at most a week. Typed keys are refused, and messages are limited.")


def close_share_link() -> None:
    """End the tunnels of this process."""
    tunneling: Any = import_module("gradio.tunneling")
    for tunnel in tunneling.CURRENT_TUNNELS:
        process, tunnel.proc = tunnel.proc, None  # Gradio's own way to end it prints
        if process is not None:
            process.terminate()
            process.wait(5)
