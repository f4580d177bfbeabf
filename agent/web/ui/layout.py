"""The layout of the page: its widgets and their places. `agent.web.ui.events` connects them."""

import json
from typing import Any

import gradio as gr

from agent.i18n.translator import LANGUAGES, Translator
from agent.settings import Settings
from agent.web.gradio_compat.application import log_in_visitors
from agent.web.ui.composer.component import Message, SettingsPanel
from agent.web.ui.page_text import WIDGETS, keep_days, translated

CALLS = (
    "look",
    "attached",
    "extract",
    "models",
    "pick",
    "reset",
    "switch",
    "use_key",
    "forget",
)
"""The events with which the page's scripts call the server: see `call` in gradio.js."""
ON_LOAD = (
    f"const calls = {json.dumps(CALLS)};"
    + """
document.addEventListener("gradio-call", ({ detail }) => calls.includes(detail) && trigger(detail));
document.documentElement.toggleAttribute("data-calls", true);
document.dispatchEvent(new Event("gradio-calls"));
"""
)
LOCALES = {locale: locale for locale in LANGUAGES} | {"zh-CN": "zh", "zh-TW": "zh"}
"""The page's language code by Gradio's locale."""


def i18n(days: float = 0) -> gr.I18n:
    """Return the texts of widgets that never change, in the form that Gradio sends to the browser.

    A conversation is deleted so many `days` after its last message; 0: never.
    """
    kept = keep_days(days)
    return gr.I18n(
        **{
            locale: translated(WIDGETS, language) | {"keep_days": Translator(language)(kept)}
            for locale, language in LOCALES.items()
        }
    )


def static(key: str) -> Any:
    """Return a text that the browser looks up in `i18n`."""
    return gr.I18n()(key)


class Widgets:
    """The widgets of the page, made inside a `gr.Blocks`. They hold no conversation.

    live.js draws the conversation into `view`. The scripts call the server through it: each of `CALLS` is an event of
    it, and its value is what the server tells the scripts. `model` and `chosen` show nothing and have data: the id of
    the chosen model, which events send, and what page.js is told of it. `key_said` tells which key is missing or used,
    and no value has what is typed. A page with a typed key calls the server at each tick of `sign_of_life`. `login` is
    there if visitors can log in.
    """

    def __init__(self, settings: Settings) -> None:
        with gr.Column(elem_id="page"):
            _bar(settings.title)
            self.settings = SettingsPanel(elem_id="settings")  # here, where the focus comes to its button
            with self.settings:
                self.login = _login_button() if settings.has_login else None
                if settings.retention_days:
                    gr.HTML(f"<p>{static('keep_days')}</p>", elem_id="keep-days", padding=False)
            self.notice = gr.HTML(elem_id="notice", padding=False)
            self.switch = gr.HTML(elem_id="switch", padding=False)  # page.js hears its button
            gr.HTML(f"<p>{static('greeting')}</p>", elem_id="greeting", padding=False)
            self.view = gr.HTML(elem_id="chat", padding=False, html_template="", js_on_load=ON_LOAD)
            with gr.Column(elem_id="foot"):  # the box, and what is said above it
                with gr.Column(elem_id="key"):
                    self.key_said = gr.HTML(elem_id="key-said", padding=False, visible=False)
                    self.key = gr.HTML(elem_id="key-box", padding=False)  # page.js hears its button, and the next one's
                    self.key_forget = gr.HTML(elem_id="key-forget", padding=False)
                gr.HTML('<div role="status"><ul></ul></div>', elem_id="links", padding=False)  # of composer.js
                self.attached = gr.HTML(elem_id="attached", padding=False)
                gr.HTML("<div></div>", elem_id="sending", padding=False)  # live.js writes into it
                with gr.Column(elem_id="dock"):
                    self.box = Message(elem_id="composer")  # shared.js draws into it
            self.model = gr.HTML(html_template="", visible="hidden")
            self.chosen = gr.HTML(html_template="", visible="hidden")
            self.about = gr.HTML(elem_id="about", padding=False)
            self.examples = gr.HTML(elem_id="examples", padding=False)
            if settings.loses_history_on_restart:
                gr.HTML(f"<p>{static('fleeting')}</p>", elem_id="fleeting", padding=False)
        self.timer = gr.Timer(1.0, active=False)
        self.sign_of_life = gr.Timer(settings.key_seconds / 6, active=False)


def _login_button() -> gr.LoginButton:
    log_in_visitors()
    # Its icon is a file in Gradio's cache, which no visitor can read.
    return gr.LoginButton("Log in with Hugging Face", "Log out ({})", icon=None, size="md", elem_id="login")


def _bar(title: str) -> None:
    """Create the bar above the chat."""
    with gr.Column(elem_id="bar"):  # page.css makes it a row, which would be another component to load
        toggle = '<button type="button" aria-label="Chats"></button>'  # chats.js makes the list that it opens
        gr.HTML(toggle, elem_id="chats-toggle", padding=False)
        gr.HTML(f'<button type="button">{static("new_chat")}</button>', elem_id="new", padding=False)
        gr.HTML(f"<h1>{title}</h1>", elem_id="name", padding=False)
        gr.HTML('<button type="button" aria-label="Share"></button>', elem_id="share-chat", padding=False)  # chats.js
        gr.HTML('<button type="button" aria-label="Keyboard shortcuts">?</button>', elem_id="help", padding=False)
