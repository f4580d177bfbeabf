"""The page to compare with: `gr.ChatInterface`, as its documentation streams an answer.

It may answer any number of visitors at once, and asks the model without a thread per visitor, so that only the way in
which it shows an answer is compared. Its earlier turns are in its chatbot, and the model is sent all of them.

python -m bench.naive --base-url http://127.0.0.1:9000/v1 --port 7861 --turns 40
"""

import argparse
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
from openai import AsyncOpenAI

from bench.turns import as_messages

MODEL = "Qwen/Qwen3-8B"


def build(base_url: str, turns: int) -> gr.ChatInterface:
    """Build the page, with `turns` earlier turns in it."""
    client = AsyncOpenAI(base_url=base_url, api_key="none")

    async def answer(message: str, history: list[dict[str, Any]]) -> AsyncIterator[str]:
        earlier: Any = [{"role": one["role"], "content": _text(one["content"])} for one in history]
        messages, text = [*earlier, {"role": "user", "content": message}], ""
        async for chunk in await client.chat.completions.create(model=MODEL, messages=messages, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                yield text

    return gr.ChatInterface(
        answer,
        chatbot=gr.Chatbot(value=as_messages(turns), elem_id="chat", height="80vh"),
        textbox=gr.Textbox(elem_id="composer", show_label=False),
        concurrency_limit=None,
        api_name="chat",
    )


def _text(content: Any) -> str:
    """Return the text of a message, which Gradio gives as a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def main() -> None:
    """Serve the page until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--turns", type=int, default=0)
    given = parser.parse_args()
    build(given.base_url, given.turns).launch(
        server_name="127.0.0.1", server_port=given.port, quiet=True, max_threads=300
    )


if __name__ == "__main__":
    main()
