"""The tools of an MCP server: `python examples/mcp_server.py "How long is the word strawberry?"`

The server is a child process that ends with the run. `McpServer.http(url, name=...)` uses a server that is already
running.
"""

import asyncio
import sys
from pathlib import Path

from agent import Agent
from agent.tools.mcp import McpServer

words = McpServer.stdio(
    sys.executable,
    [str(Path(__file__).with_name("words_server.py"))],
    name="words",
    tools=["length"],  # the only tool to use of this server
)


async def main(question: str) -> None:
    """Ask, and print the tool calls, their results and the answer."""
    async with Agent("auto", tools=[words]) as agent:
        async for response in agent.run(question):
            print(f"{response.type}: {response.content}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "How long is the word strawberry?"))
