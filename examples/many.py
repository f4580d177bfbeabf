"""Many conversations at the same time with one stateless agent: `python examples/many.py Ada Bob Cem`"""

import asyncio
import sys

from agent import Agent, Context


async def main(*names: str) -> None:
    """Let each person tell their name and then ask for it."""
    async with Agent("auto") as agent:

        async def talk(name: str) -> None:
            first = await agent.ask(f"I am {name}.", context=Context(session_id=name))
            second = await agent.ask("Who am I?", context=first.context)
            print(f"{second.context.session_id}: {second.text}")

        await asyncio.gather(*map(talk, names))


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["Ada", "Bob", "Cem"])))
