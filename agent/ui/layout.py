"""The page: which widgets there are, and which event of theirs calls which handler."""

import os
from pathlib import Path
from typing import Any

import gradio as gr

from agent.space import FLEETING
from agent.ui.api import Api
from agent.ui.handlers import Handlers
from agent.ui.widgets import MOST_TOKENS, TEMPERATURE

HERE = Path(__file__).parent
QUIET: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
EXAMPLES: list[Any] = [
    {"text": "What is the capital of France? Answer in one word.", "display_text": "Ask a quick question"},
    {"text": "Write a Python function that reverses a string.", "display_text": "Write a little code"},
    {"text": "Make a table of three planets and how many moons each has.", "display_text": "Draw up a table"},
]


def build(
    handlers: Handlers, api: Api, title: str, *, sign_of_life: float, login: bool = False, fleeting: bool = False
) -> gr.Blocks:
    """Lay out the page; one in which a key was typed gives a sign of life every so many seconds.

    `login`: visitors of this Space may log in to the hub; `fleeting`: what they say is lost when it restarts.
    Widgets hold no conversation: the chatbot is an output, its value is never read back."""
    if login:
        # Elsewhere Gradio would log everybody in as the owner. The hub's own images set this, those of Docker do not.
        os.environ["SYSTEM"] = "spaces"
    with gr.Blocks(
        title=title, fill_height=True, fill_width=True, analytics_enabled=False, delete_cache=(3600, 86_400)
    ) as page:
        with gr.Sidebar(open=False, elem_id="settings", width=320):
            gr.HTML("<h2>Settings</h2><p>They hold from the next message on.</p>", padding=False)
            system = gr.Textbox(
                label="System prompt",
                lines=3,
                max_lines=10,
                placeholder="How the model should behave",
                elem_id="system",
            )
            reasoning = gr.Checkbox(label="Reasoning", value=True, elem_id="reasoning")
            tools = gr.Checkbox(label="Tools", value=False, elem_id="tools")
            warmth = gr.Slider(0, 2, value=TEMPERATURE, step=0.05, label="Temperature", elem_id="temperature")
            most = gr.Slider(
                16, 4096, value=MOST_TOKENS, step=16, label="Maximum tokens of an answer", elem_id="max-tokens"
            )
            if login:
                # Its icon is a file in Gradio's cache, which the walls give to nobody.
                button = gr.LoginButton(
                    "Log in with Hugging Face", "Log out ({})", icon=None, size="md", elem_id="login"
                )
                # Gradio would name this event to programs, which have no use for it.
                event, button.load_event_to_attach = button.load_event_to_attach, None
                if event:
                    page.load(event[0], None, button, **QUIET)
        with gr.Column(elem_id="page"):
            with gr.Row(elem_id="bar"):
                gr.HTML(f"<h1>{title}</h1>", elem_id="name", padding=False)
                model = gr.Dropdown([], label="Model", container=False, elem_id="model", allow_custom_value=True)
                new = gr.Button("New chat", elem_id="new", size="sm")
            notice = gr.HTML(elem_id="notice", padding=False)
            switch = gr.Button("", elem_id="switch", size="sm", visible=False)
            earlier = gr.Button("Show earlier messages", elem_id="earlier", size="sm", visible=False)
            chat = gr.Chatbot(
                elem_id="chat",
                label="Conversation",
                show_label=False,
                container=False,
                layout="bubble",
                height="100%",
                buttons=["copy"],
                editable="user",
                latex_delimiters=LATEX,
                allow_tags=False,
                placeholder=(HERE / "empty.html").read_text(encoding="utf-8"),
                examples=EXAMPLES,
            )
            with gr.Column(elem_id="key"):
                said = gr.HTML(elem_id="key-said", padding=False, visible=False)
                key = gr.Textbox(
                    elem_id="key-box",
                    label="Key",
                    show_label=False,
                    type="password",
                    submit_btn="Use this key",
                    visible=False,
                    html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
                )
                forget = gr.Button("Forget my keys", elem_id="key-forget", size="sm", visible=False)
            box = gr.MultimodalTextbox(
                elem_id="composer",
                label="Message",
                show_label=False,
                placeholder="Message",
                file_count="multiple",
                max_plain_text_length=200_000,
                max_lines=12,
                autofocus=True,
            )
            about = gr.HTML(elem_id="about", padding=False)
            if fleeting:
                gr.HTML(f"<p>{FLEETING}</p>", elem_id="fleeting", padding=False)
        timer = gr.Timer(1.0)
        here = gr.Timer(sign_of_life, active=False)

        settings: set[Any] = {model, system, reasoning, warmth, most, tools}
        menu = [model, notice, switch]
        keys = [said, key, forget, here]
        for_model = [reasoning, tools, warmth, most, box, about, *keys]

        def follow(event: Any) -> None:
            """After `event`, show the answer as it comes, then give the buttons back, however it went."""
            shown = event.success(handlers.watch, None, chat, postprocess=False, **QUIET)
            for after in (shown.then, shown.failure):
                after(handlers.settle, None, [box, earlier], **QUIET)

        follow(page.load(handlers.opened, None, [system, *menu, *for_model], **QUIET))
        follow(box.submit(handlers.accept, {box, *settings}, box, **QUIET))
        follow(chat.example_select(handlers.example, settings, box, **QUIET))
        follow(chat.retry(handlers.retry, settings, box, **QUIET))
        follow(chat.edit(handlers.edit, settings, box, **QUIET))
        follow(chat.undo(handlers.undo, None, box, **QUIET))
        follow(earlier.click(handlers.earlier, None, None, **QUIET))
        box.stop(handlers.stop, None, None, **QUIET)
        new.click(handlers.new, None, [chat, earlier, box], **QUIET)
        model.input(handlers.model_chosen, model, [*menu, *for_model], **QUIET)
        switch.click(handlers.switch, None, [*menu, *for_model], **QUIET)
        key.submit(handlers.key_typed, [key, model], [*menu, *keys], **QUIET)
        forget.click(handlers.key_forgotten, model, [*menu, *keys], **QUIET)
        here.tick(handlers.still_here, model, keys, **QUIET)
        timer.tick(handlers.news, model, [timer, *menu, *for_model], **QUIET)
        _endpoint(api)
    return page


def _endpoint(api: Api) -> None:
    """`/chat`, the one public endpoint; it has a seat of its own, so that one client is one conversation."""
    with gr.Column(visible=False):
        message = gr.MultimodalTextbox(label="message", file_count="multiple", max_plain_text_length=200_000)
        model = gr.Textbox(label="model", value="")
        options = gr.JSON(label="options", value={})
        answer = gr.JSON(label="answer")
        gr.Button("chat").click(
            api.chat,
            [message, model, options],
            answer,
            api_name="chat",
            show_progress="hidden",
            concurrency_limit=None,
        )
