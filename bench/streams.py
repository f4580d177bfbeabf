"""CPU per token of runs without a page, beside the bare reader in the same process, for one stream and for many.

python -m bench.streams
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent import Agent, Endpoint, ModelSpec, connect
from bench.reader import MODEL, read
from bench.run import scripted

ROUNDS = 3
LOADS = (("!tokens 1000 @200", 1000, 1), ("!tokens 150 @30", 150, 50), ("!tokens 150 @30", 150, 100))
SPEC = ModelSpec(id=f"vllm:{MODEL}", name=MODEL, label="Bench", provider="vllm")


async def cpu_ms(work: Callable[[], Awaitable[object]], tokens: int, streams: int) -> float:
    """Return the CPU milliseconds of this process per token while it reads so many streams at once."""
    before = time.process_time()
    await asyncio.gather(*(work() for _ in range(streams)))
    return (time.process_time() - before) * 1000 / (tokens * streams)


async def measure(base_url: str) -> None:
    """Measure each load in rounds and print the medians."""
    agent = Agent(connect(SPEC, Endpoint(base_url)))
    for prompt, tokens, streams in LOADS:
        pairs = [
            (
                await cpu_ms(lambda prompt=prompt: read(base_url, 0, prompt), tokens, streams),
                await cpu_ms(lambda prompt=prompt: agent.ask(prompt), tokens, streams),
            )
            for _ in range(ROUNDS + 1)
        ][1:]  # the first round imports and connects
        reader, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for other, one in pairs)
        print(f"{streams} x {prompt}: reader {reader:.3f} ms, run {ours:.3f} ms, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, scripted(Path(folder)) as bench:
        asyncio.run(measure(bench.base_url))
