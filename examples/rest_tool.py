"""A REST API as a tool: `python examples/rest_tool.py "What are 12 dollars in euros?"`

RATES_URL names your own server for the rates. It can have a private address, so it must be allowed by name.
"""

import asyncio
import os
import sys
from urllib.parse import urlsplit

from agent import Agent
from agent.fetch import GUARD, Guard
from agent.tools.rest import Parameter, rest_tool

RATES = os.environ.get("RATES_URL", "https://api.frankfurter.dev/v1")

rates = rest_tool(
    "currency_rates",
    RATES + "/{date}?base={base}&symbols={symbols}",
    description="Exchange rates of the European Central Bank.",
    parameters={
        "base": Parameter(description="The currency to convert from, as in USD."),
        "symbols": Parameter(description="Only these, as in EUR,JPY.", optional=True),
        "date": Parameter(description="A day as in 2024-02-29.", default="latest"),
    },
    result="rates",
    guard=Guard(allow=(urlsplit(RATES).netloc,)) if "RATES_URL" in os.environ else GUARD,
)


async def main(question: str) -> None:
    """Ask, and print the tool calls, their results and the answer."""
    async with Agent("auto", tools=[rates]) as agent:
        async for response in agent.run(question):
            print(f"{response.type}: {response.content}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "What are 12 dollars in euros?"))
