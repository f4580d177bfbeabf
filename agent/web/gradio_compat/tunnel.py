"""Opens Gradio's tunnel to a public address. Gradio itself opens one only in `launch()`, which this server replaces."""

import secrets

from gradio import networking, tunneling


def open_tunnel(port: int) -> str:
    """Open a tunnel to this port of this machine and return its URL. Blocks, and fetches Gradio's program once."""
    return networking.setup_tunnel("127.0.0.1", port, secrets.token_urlsafe(32), None, None)


def close_tunnels() -> None:
    """End the tunnels of this process."""
    for tunnel in tunneling.CURRENT_TUNNELS:
        process, tunnel.proc = tunnel.proc, None  # not `tunnel.kill`, which prints a line
        if process is not None:
            process.terminate()
            process.wait(5)
