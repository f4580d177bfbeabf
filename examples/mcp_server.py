"""The tools of an MCP server: `python examples/mcp_server.py "How long is the word strawberry?"`

The server is a child process that ends with the run; `McpServer.http(url, name=...)` takes one that listens. The model
is one that a vLLM (or llama.cpp) server serves, at VLLM_BASE_URL.
"""

import asyncio
import os
import sys
from pathlib import Path

from agent import Agent
from agent.tools.mcp import McpServer

words = McpServer.stdio(
    sys.executable,
    [str(Path(__file__).with_name("words_server.py"))],
    name="words",
    tools=["length"],  # of all that it offers, this
)


async def main(question: str) -> None:
    """Ask, and print what is called and what comes of it."""
    server = os.environ.get("VLLM_BASE_URL", "http://127.0.0.1:8000/v1")
    async with Agent("Qwen/Qwen3-8B", provider="vllm", base_url=server, tools=[words]) as agent:
        async for response in agent.run(question):
            print(f"{response.type}: {response.content}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "How long is the word strawberry?"))
