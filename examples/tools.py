"""A function as a tool, with display in a terminal: `python examples/tools.py "Do I need an umbrella in Paris?"`"""

import asyncio
import sys

from agent import Agent, stream_to_display, tool


@tool(timeout=5)
def weather(city: str) -> dict[str, str]:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return {"city": city, "sky": "rain"}


async def main(question: str) -> None:
    """Ask, and display the tool calls, their results and the answer."""
    async with Agent("auto", tools=[weather]) as agent:
        result = await stream_to_display(agent, question)
        print(result.usage)


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Do I need an umbrella in Paris?"))
