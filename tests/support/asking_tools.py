"""Tools that need approval, for tests. One writes a line to a file for each call."""

import os
from pathlib import Path

from agent.tools.function_tools import tool


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


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


ASKING_CONFIG = """
[agent]
tools = ["agent.tools:ask_user", "tests.support.asking_tools:send", "agent.tools.builtin:calculate"]
"""
