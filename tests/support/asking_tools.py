"""A tool that must be allowed, for tests; it leaves a line in a file for each call."""

import os
from pathlib import Path

from agent.tools import tool


@tool(needs_approval=True)
def send(to: str, text: str) -> str:
    """Send a message.

    Args:
        to: To whom.
        text: What to say.
    """
    with (Path(os.environ["SWITCHBOARD_DATA"]) / "sent.txt").open("a") as file:
        file.write(f"{to}: {text}\n")
    return f"Sent to {to}."
