"""A conversation in a JSON file, which each call continues: `python examples/json_history.py talk.json "Hello"`"""

import asyncio
import json
import sys
from pathlib import Path

from agent import Agent, RunResult


async def ask(*prompt: object) -> RunResult:
    """Ask once."""
    async with Agent("auto", system_message="Be brief.") as agent:
        return await agent.ask(prompt)


def main(file: str, prompt: str) -> None:
    """Ask with the earlier conversation, and save it."""
    path = Path(file)
    history = json.loads(path.read_text()) if path.exists() else []
    result = asyncio.run(ask(*history, prompt))
    path.write_text(json.dumps(result.to_input_list()))  # OpenAI's format; result.context.to_json() keeps all
    print(result.text)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["talk.json", "What did I say before?"]))
