"""Opens a public link through Gradio's tunnel, or says what is missing."""

import asyncio
from collections.abc import Callable

from agent.web.gradio_compat.tunnel import open_tunnel

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
