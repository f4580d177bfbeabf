"""A chat in one's own Gradio page, with files, reasoning, text and tools: `python examples/transcript.py`"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from agent import Agent, Run, tool
from agent.rendering.response_turns import ResponseTurns
from agent.web.ui.composer.component import Composer
from agent.web.ui.transcript.component import Transcript


@tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def answer(message: dict[str, Any], turns: ResponseTurns, last: Run | None) -> AsyncIterator[tuple[Any, ...]]:
    """Ask, and yield the transcript about eight times a second. A page that closes stops the run."""
    files, seen = [Path(path) for path in message["files"]], 0
    turns.ask("\n".join([message["text"], *(f"`{file.name}`" for file in files)]))
    run = agent.run([message["text"], *files], context=last and last.context, reasoning=True).start()
    try:
        while not run.done or seen < len(run.responses):
            yield turns.value, run, Composer(running=True)
            await run.wait_for_update(seen, timeout=5)
            await asyncio.sleep(1 / 8)
            for response in run.responses[seen:]:
                turns.add(response)
                seen += 1
    finally:
        run.cancel()
    turns.end(run.ending)
    yield turns.value, run, Composer(running=False)


agent = Agent("auto", tools=[word_count])
with gr.Blocks(title="Transcript") as page:
    shown, box, turns, run = Transcript(), Composer(), gr.State(ResponseTurns()), gr.State()
    inputs, outputs = [box, turns, run], [shown, run, box]
    box.submit(answer, inputs, outputs, show_progress="hidden", concurrency_limit=None, trigger_mode="multiple")
    box.stop(Run.cancel, run, queue=False)

if __name__ == "__main__":
    page.launch()
