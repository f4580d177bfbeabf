"""A chat in one's own Gradio page, with bubbles for reasoning, text and tools: `python examples/transcript.py`"""

import asyncio
from collections.abc import AsyncIterator

import gradio as gr

from agent import Agent, Run, tool
from agent.rendering.bubbles import Turn
from agent.rendering.response_turns import ResponseTurns
from agent.web.ui.transcript.component import Transcript


@tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def answer(prompt: str, turns: ResponseTurns, last: Run | None) -> AsyncIterator[tuple[list[Turn], Run]]:
    """Ask, and yield the transcript about eight times a second. A page that closes stops the run."""
    turns.ask(prompt)
    run = agent.run(prompt, context=last.context if last else None, reasoning=True).start()
    seen = 0
    try:
        while not run.done or seen < len(run.responses):
            yield turns.value, run
            await run.wait_for_update(seen, timeout=5)
            await asyncio.sleep(1 / 8)
            for response in run.responses[seen:]:
                turns.add(response)
                seen += 1
    finally:
        run.cancel()
    turns.end(run.ending)
    yield turns.value, run


def cancel(run: Run | None) -> None:
    """Stop the answer, if there is one."""
    if run is not None:
        run.cancel()


agent = Agent("auto", tools=[word_count])
with gr.Blocks(title="Transcript") as page:
    shown, box, stop = Transcript(), gr.Textbox(label="Message", submit_btn=True), gr.Button("Stop")
    turns, run = gr.State(ResponseTurns()), gr.State()
    box.submit(answer, [box, turns, run], [shown, run], show_progress="hidden", concurrency_limit=None)
    box.submit(lambda: "", None, box, queue=False)
    stop.click(cancel, run, queue=False)

if __name__ == "__main__":
    page.launch()
