"""The page to compare with: the pattern of most Gradio chat demos, which yields the whole conversation for each token.

python -m bench.naive --base-url http://127.0.0.1:9000/v1 --port 7861 --turns 40
"""

import argparse
from collections.abc import Iterator
from typing import Any

import gradio as gr
from openai import OpenAI

from bench.turns import as_messages

MODEL = "Qwen/Qwen3-8B"
History = list[dict[str, Any]]


def said(text: str, history: History) -> tuple[str, History]:
    """Empty the box and show the question."""
    return "", [*history, {"role": "user", "content": text}]


def build(base_url: str, turns: int) -> gr.Blocks:
    """Build the page, with `turns` earlier turns in it."""
    client = OpenAI(base_url=base_url, api_key="none")

    def answer(history: History) -> Iterator[History]:
        # The chatbot's value is the only storage, so the model receives what the chatbot shows.
        messages: Any = [{"role": message["role"], "content": message["content"]} for message in history]
        history.append({"role": "assistant", "content": ""})
        for chunk in client.chat.completions.create(model=MODEL, messages=messages, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                history[-1]["content"] += chunk.choices[0].delta.content
                yield history

    with gr.Blocks() as demo:
        chat = gr.Chatbot(value=as_messages(turns), elem_id="chat", height="80vh")
        box = gr.Textbox(elem_id="composer", show_label=False)
        box.submit(said, [box, chat], [box, chat], queue=False).then(answer, chat, chat)
    return demo


def main() -> None:
    """Serve the page until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--turns", type=int, default=0)
    given = parser.parse_args()
    build(given.base_url, given.turns).launch(server_name="127.0.0.1", server_port=given.port, quiet=True)


if __name__ == "__main__":
    main()
