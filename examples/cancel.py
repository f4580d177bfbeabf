"""Stops an answer and keeps its beginning: `python examples/cancel.py "Count to a thousand."`"""

import asyncio
import sys

from agent import Agent


async def main(prompt: str) -> None:
    """Stop after ten pieces, then continue the conversation."""
    async with Agent("auto") as agent:
        run = agent.run(prompt)
        async for response in run:
            print(response.content, end="", flush=True)
            if len(run.responses) == 10:
                run.cancel("user_request")  # works from any thread; the model's server is free at once
        assert run.result is not None
        print(f"\n{run.result.finish_reason}: {run.result.note.detail}")
        result = await agent.ask("Where did you stop?", context=run.context)
        print(result.text)


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Count to a thousand."))
