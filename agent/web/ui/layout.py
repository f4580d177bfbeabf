"""The page: which widgets there are, and which event of theirs calls which handler."""

import os
from typing import Any

import gradio as gr

from agent.i18n.translator import LANGUAGES, column
from agent.web.chat.attachments import kinds
from agent.web.ui import formulas
from agent.web.ui.api import ChatApi
from agent.web.ui.components import TEMPERATURE
from agent.web.ui.handlers import Handlers

QUIET: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
    {"left": formulas.LEFT, "right": formulas.RIGHT, "display": False},
]


LOCALES = {locale: locale for locale in LANGUAGES} | {"zh-CN": "zh", "zh-TW": "zh"}
"""Our name of a language by Gradio's."""


def i18n() -> gr.I18n:
    """The words of widgets that never change, as Gradio gives them to the browser."""
    return gr.I18n(**{locale: column(language, "static") for locale, language in LOCALES.items()})


def static(key: str) -> Any:
    """A word that the browser looks up in `i18n`."""
    return gr.I18n()(key)


def build(
    handlers: Handlers,
    api: ChatApi,
    title: str,
    *,
    sign_of_life: float,
    login: bool = False,
    fleeting: bool = False,
    days: float = 0,
) -> gr.Blocks:
    """Lay out the page; one in which a key was typed gives a sign of life every so many seconds.

    `login`: visitors of this Space may log in to the hub; `fleeting`: what they say is lost when it restarts;
    `days`: how long after its last message a conversation is deleted, 0 for never.
    Widgets hold no conversation: the chatbot is an output, its value is never read back."""
    if login:
        # Elsewhere Gradio would log everybody in as the owner. The hub's own images set this, those of Docker do not.
        os.environ["SYSTEM"] = "spaces"
    with gr.Blocks(title=title, fill_height=True, fill_width=True, analytics_enabled=False) as page:
        # First, so that the scripts below find them first among the inputs. The browser fills them in.
        addressed = gr.Textbox(visible=False, elem_id="addressed")
        edited = gr.Textbox(visible=False, elem_id="edited")
        with gr.Sidebar(open=False, elem_id="settings", width=300):
            gr.HTML(f"<h2>{static('settings')}</h2>", padding=False)
            gr.HTML(f"<p>{static('settings_hold')}</p>", padding=False)
            system = gr.Textbox(
                label=static("system"),
                lines=3,
                max_lines=10,
                placeholder=static("system_how"),
                elem_id="system",
            )
            reasoning = gr.Checkbox(label=static("reasoning"), value=True, elem_id="reasoning")
            tools = gr.Checkbox(label=static("tools"), value=False, elem_id="tools")
            reads = gr.Checkbox(
                label=static("read_here"), info=static("read_here_how"), value=False, elem_id="read-here"
            )
            warmth = gr.Slider(0, 2, value=TEMPERATURE, step=0.05, label=static("temperature"), elem_id="temperature")
            most = gr.Number(
                None, label=static("max_tokens"), placeholder=static("no_limit"), precision=0, elem_id="max-tokens"
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
            if days:
                gr.HTML(f"<p>{static('keep_days')} {days:g}</p>", elem_id="keep-days", padding=False)
        with gr.Column(elem_id="page"):
            with gr.Row(elem_id="bar"):
                gr.HTML(f"<h1>{title}</h1>", elem_id="name", padding=False)
                new = gr.Button(static("new_chat"), elem_id="new", size="sm")
                gr.HTML(
                    '<button type="button" aria-label="Keyboard shortcuts">?</button>', elem_id="help", padding=False
                )
            notice = gr.HTML(elem_id="notice", padding=False)
            switch = gr.Button("", elem_id="switch", size="sm", visible=False)
            earlier = gr.Button(static("earlier"), elem_id="earlier", size="sm", visible=False)
            chat = gr.Chatbot(
                elem_id="chat",
                label=static("conversation"),
                show_label=False,
                container=False,
                layout="bubble",
                height="100%",
                buttons=["copy"],
                editable="user",
                latex_delimiters=LATEX,
                allow_tags=False,
                autoscroll=False,  # page.js does it
            )
            chat.change(None, chat, None, js="(messages) => window.addressed.held(messages)", **QUIET)
            edit = gr.Button("", elem_id="edit", visible="hidden")  # pressed by address.js
            with gr.Column(elem_id="key"):
                said = gr.HTML(elem_id="key-said", padding=False, visible=False)
                key = gr.Textbox(
                    elem_id="key-box",
                    label=static("key"),
                    show_label=False,
                    type="password",
                    submit_btn="Use this key",
                    visible=False,
                    html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
                )
                forget = gr.Button(static("forget_keys"), elem_id="key-forget", size="sm", visible=False)
            links = gr.HTML(
                '<div role="status"><ul></ul></div>', elem_id="links", padding=False
            )  # attach.js writes into it
            fetch = gr.Button("", elem_id="fetch", visible="hidden")  # pressed by attach.js, as is the next
            give_up = gr.Button("", elem_id="give-up", visible="hidden")
            attached = gr.HTML(elem_id="attached", padding=False)
            sending = gr.HTML(elem_id="sending", padding=False)
            look = gr.Button("", elem_id="look", visible="hidden")  # pressed by page.js when something was attached
            with gr.Column(elem_id="dock"):
                box = gr.MultimodalTextbox(
                    elem_id="composer",
                    label=static("message"),
                    show_label=False,
                    placeholder=static("message"),
                    file_count="multiple",
                    # Of any model: what was attached for one is not lost with another, it is said what becomes of it.
                    file_types=["image", "audio", *(one for one in kinds() if one.startswith("."))],
                    max_plain_text_length=200_000,
                    max_lines=12,
                    autofocus=True,
                )
                model = gr.Dropdown(
                    [], label=static("model"), container=False, elem_id="model", allow_custom_value=True
                )
            about = gr.HTML(elem_id="about", padding=False)
            found = gr.MultimodalTextbox(visible="hidden")  # what was fetched, in the form that the composer takes
            if fleeting:
                gr.HTML(f"<p>{static('fleeting')}</p>", elem_id="fleeting", padding=False)
        timer = gr.Timer(1.0)
        here = gr.Timer(sign_of_life, active=False)

        settings: set[Any] = {model, system, reasoning, warmth, most, tools, reads}
        menu = [model, notice, switch]
        keys = [said, key, forget, here]
        for_model = [system, reasoning, tools, warmth, most, box, chat, about, *keys]

        def follow(event: Any) -> None:
            """After `event`, show the answer as it comes, then give the buttons back, however it went.

            Where it was refused that may be for an answer that another page of the same visitor asked for.
            """
            other = event.failure(handlers.refused, None, [box, sending], **QUIET)
            for begun, watch in ((event.success, handlers.watch), (other.success, handlers.watch_other)):
                shown = begun(watch, None, chat, postprocess=False, **QUIET)
                for after in (shown.then, shown.failure):
                    after(handlers.refresh_buttons, None, [box, earlier], **QUIET)

        follow(page.load(handlers.page_loaded, None, [reads, *menu, *for_model], **QUIET))
        follow(box.submit(handlers.submit, {box, *settings}, [box, sending], **QUIET))
        follow(chat.example_select(handlers.example, settings, [box, sending], **QUIET))
        follow(chat.option_select(handlers.option, settings, box, **QUIET))
        last = "(_, ...settings) => [window.addressed.last, ...settings]"
        follow(chat.retry(handlers.retry, {addressed, *settings}, box, js=last, **QUIET))
        follow(chat.undo(handlers.undo, addressed, box, js="() => [window.addressed.last]", **QUIET))
        changed = "(_, __, ...settings) => [...window.addressed.edited(), ...settings]"
        sent = edit.click(handlers.edit, {addressed, edited, *settings}, box, js=changed, **QUIET)
        sent.success(None, None, None, js="() => window.addressed.done()", **QUIET)
        follow(sent)
        follow(earlier.click(handlers.earlier, None, None, **QUIET))
        box.stop(handlers.stop, None, None, **QUIET)
        new.click(handlers.new, None, [chat, earlier, box], **QUIET)
        look.click(handlers.attaching.attached, [box, model, reads], attached, trigger_mode="always_last", **QUIET)
        asked = "() => [document.getElementById('links').dataset.asked]"
        got = fetch.click(handlers.attaching.fetched, links, found, js=asked, trigger_mode="multiple", **QUIET)
        # In the browser alone, where what was typed meanwhile is known.
        got.success(None, [box, found], box, js="(value, found) => window.linked(value, found)", **QUIET)
        got.failure(None, box, box, js="(value) => window.linked(value)", **QUIET)
        give_up.click(handlers.attaching.fetch_cancelled, links, None, js=asked, trigger_mode="multiple", **QUIET)
        # Leaving the list counts as input too, so another choice may follow while that is answered.
        chosen = model.input(
            handlers.model_chosen, [model, system], [*menu, *for_model], trigger_mode="always_last", **QUIET
        )
        chosen.then(handlers.attaching.attached, [box, model, reads], attached, **QUIET)
        turned = reads.input(handlers.attaching.read_here, [reads, model], [box, about], **QUIET)
        turned.then(handlers.attaching.attached, [box, model, reads], attached, **QUIET)
        setting = handlers.settings
        for written in (system.input, system.blur):  # Gradio tells of no input when the box is emptied at once
            written(setting.set_prompt, system, None, trigger_mode="always_last", **QUIET)
        for widget, remember in (
            (reasoning, setting.set_reasoning),
            (tools, setting.set_tools),
            (warmth, setting.set_temperature),
            (most, setting.set_max_tokens),
        ):
            widget.input(remember, widget, None, trigger_mode="always_last", **QUIET)
        switch.click(handlers.switch, None, [*menu, *for_model], **QUIET)
        key.submit(handlers.key_typed, [key, model], [*menu, *keys], **QUIET)
        forget.click(handlers.key_forgotten, model, [*menu, *keys], **QUIET)
        here.tick(handlers.still_here, model, keys, **QUIET)
        timer.tick(handlers.refresh_models, model, [timer, *menu, *for_model], **QUIET)
        _endpoint(api)
    return page


def _endpoint(api: ChatApi) -> None:
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
