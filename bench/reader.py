"""The baseline: the cost of only reading an answer, in a process that wakes for each token and does nothing with it.

    python -m bench.reader --base-url http://127.0.0.1:9000/v1 --turns 40 --prompt "!tokens 2000 @200"

prints one line of JSON: CPU seconds and tokens of the reading, without the start of the process.
"""

import argparse
import asyncio
import json
import time

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.turns import earlier

MODEL = "Qwen/Qwen3-8B"


def conversation(turns: int, prompt: str) -> list[ModelMessage]:
    """Return the earlier turns and the prompt."""
    messages: list[ModelMessage] = []
    for question, answer in earlier(turns):
        messages += [ModelRequest([UserPromptPart(question)]), ModelResponse([TextPart(answer)])]
    return [*messages, ModelRequest([UserPromptPart(prompt)])]


async def read(base_url: str, turns: int, prompt: str) -> dict[str, float]:
    """Read one answer. The CPU time includes all threads of this process and the sending of the request."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key="none"))
    messages = conversation(turns, prompt)
    tokens, wall, cpu = 0, time.monotonic(), time.process_time()
    async with model_request_stream(model, messages) as stream:
        async for event in stream:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    tokens += bool(text)
                case _:
                    continue
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall, "tokens": tokens}


def main() -> None:
    """Read one answer and print its cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--prompt", default="!tokens 2000 @200")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(read(given.base_url, given.turns, given.prompt))))


if __name__ == "__main__":
    main()
