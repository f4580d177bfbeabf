"""The layout of the page: its widgets and their places. `agent.web.ui.events` connects them."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from agent.i18n.translator import LANGUAGES, Translator
from agent.web.chat.choices import TEMPERATURE
from agent.web.gradio_compat.login import log_in_visitors
from agent.web.ui.page_text import WIDGETS, keep_days, translated

LOCALES = {locale: locale for locale in LANGUAGES} | {"zh-CN": "zh", "zh-TW": "zh"}
"""The page's language code by Gradio's locale."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The widgets of the settings panel."""

    system: gr.Textbox
    reasoning: gr.Checkbox
    tools: gr.Checkbox
    extract_text: gr.Checkbox
    temperature: gr.Slider
    max_tokens: gr.Number
    reset: gr.Button
    login: gr.LoginButton | None


@dataclass(frozen=True, slots=True)
class Chat:
    """The widgets above the composer: the bar and the conversation.

    live.js draws the conversation: `view` tells it what to show. It clicks `refresh` to get another view, `free` to let
    the composer send after an answer, and `example` to send one. chats.js clicks `open` to show another conversation,
    and `swap` to give the composer the text and files that were left there.
    """

    new: gr.Button
    notice: gr.HTML
    switch: gr.Button
    view: gr.JSON
    refresh: gr.Button
    free: gr.Button
    open: gr.Button
    swap: gr.Button
    example: gr.Button


@dataclass(frozen=True, slots=True)
class Keys:
    """The widgets of the key panel. `said` tells which key is missing or used."""

    said: gr.HTML
    key: gr.Textbox
    forget: gr.Button


@dataclass(frozen=True, slots=True)
class Composer:
    """The composer, the model menu, and the texts around them.

    The page's scripts click `fetch`, `give_up`, `look`, `compose` and `send_queued`, and read `fetched`.
    `stored` tells composer.js that a message was stored: each one has another value.
    The menu `model` is hidden: options.js shows its name, which `model_name` has, and clicks `list_models` to get all
    models in `listed` and `pick` to choose one. `effort` is the reasoning effort, "" for the model's own. options.js
    shows it, and clicks `set_effort` to change it.
    """

    keys: Keys
    links: gr.HTML
    fetch: gr.Button
    give_up: gr.Button
    attached: gr.HTML
    sending: gr.HTML
    stored: gr.JSON
    look: gr.Button
    compose: gr.Button
    send_queued: gr.Button
    box: gr.MultimodalTextbox
    model: gr.Dropdown
    model_name: gr.HTML
    list_models: gr.Button
    listed: gr.JSON
    pick: gr.Button
    effort: gr.Textbox
    set_effort: gr.Button
    about: gr.HTML
    examples: gr.HTML
    fetched: gr.MultimodalTextbox


@dataclass(frozen=True, slots=True)
class Widgets:
    """All widgets of the page.

    The browser fills in `addressed` (a conversation), `edited` (an example) and `message_id` (see `MessageId`).
    """

    addressed: gr.Textbox
    edited: gr.Textbox
    message_id: gr.Textbox
    settings: Settings
    chat: Chat
    composer: Composer
    timer: gr.Timer
    sign_of_life: gr.Timer


def i18n(days: float = 0) -> gr.I18n:
    """Return the texts of widgets that never change, in the form that Gradio sends to the browser.

    See `agent.web.ui.page.build` for the `days`.
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


def lay_out(title: str, *, sign_of_life: float, login: bool, fleeting: bool, days: float) -> Widgets:
    """Create the widgets of the page, inside a `gr.Blocks`. See `agent.web.ui.page.build` for the arguments.

    Widgets hold no conversation.
    """
    # First, so that the page's scripts find them first among the inputs.
    addressed = gr.Textbox(visible=False, elem_id="addressed")
    edited = gr.Textbox(visible=False, elem_id="edited")
    message_id = gr.Textbox(visible=False, elem_id="message-id")
    with gr.Column(elem_id="page"):
        new = _bar(title)
        settings = _settings(login=login, days=days)  # here, where the focus comes to its button
        chat = _chat(new)
        composer = _composer()
        if fleeting:
            gr.HTML(f"<p>{static('fleeting')}</p>", elem_id="fleeting", padding=False)
    return Widgets(
        addressed=addressed,
        edited=edited,
        message_id=message_id,
        settings=settings,
        chat=chat,
        composer=composer,
        timer=gr.Timer(1.0, active=False),
        sign_of_life=gr.Timer(sign_of_life, active=False),
    )


def _settings(*, login: bool, days: float) -> Settings:
    with gr.Sidebar(open=False, elem_id="settings", width=300, position="right"):
        gr.HTML(f"<h2>{static('settings')}</h2>", padding=False)
        gr.HTML(f"<p>{static('settings_hold')}</p>", padding=False)
        settings = Settings(
            system=gr.Textbox(
                label=static("system"), lines=3, max_lines=10, placeholder=static("system_how"), elem_id="system"
            ),
            reasoning=gr.Checkbox(label=static("reasoning"), value=True, elem_id="reasoning"),
            tools=gr.Checkbox(label=static("tools"), value=False, elem_id="tools"),
            extract_text=gr.Checkbox(
                label=static("extract_text"), info=static("extract_text_how"), value=False, elem_id="extract-text"
            ),
            temperature=gr.Slider(
                0, 2, value=TEMPERATURE, step=0.05, label=static("temperature"), elem_id="temperature"
            ),
            max_tokens=gr.Number(
                None, label=static("max_tokens"), placeholder=static("no_limit"), precision=0, elem_id="max-tokens"
            ),
            reset=gr.Button("", elem_id="reset", visible="hidden"),  # clicked by own_data.js
            login=_login_button() if login else None,
        )
        if days:
            gr.HTML(f"<p>{static('keep_days')}</p>", elem_id="keep-days", padding=False)
        gr.HTML("<section></section>", elem_id="own-data", padding=False)  # own_data.js writes into it
    return settings


def _login_button() -> gr.LoginButton:
    log_in_visitors()
    # Its icon is a file in Gradio's cache, which no visitor can read.
    return gr.LoginButton("Log in with Hugging Face", "Log out ({})", icon=None, size="md", elem_id="login")


def _bar(title: str) -> gr.Button:
    """Create the bar above the chat. Return the button for a new chat."""
    with gr.Row(elem_id="bar"):
        toggle = '<button type="button" aria-label="Chats"></button>'  # chats.js makes the list that it opens
        gr.HTML(toggle, elem_id="chats-toggle", padding=False)
        new = gr.Button(static("new_chat"), elem_id="new", size="sm")
        gr.HTML(f"<h1>{title}</h1>", elem_id="name", padding=False)
        gr.HTML('<button type="button" aria-label="Share"></button>', elem_id="share-chat", padding=False)  # chats.js
        gr.HTML('<button type="button" aria-label="Keyboard shortcuts">?</button>', elem_id="help", padding=False)
    return new


def _chat(new: gr.Button) -> Chat:
    notice = gr.HTML(elem_id="notice", padding=False)
    switch = gr.Button("", elem_id="switch", size="sm", visible=False)
    gr.HTML(f"<p>{static('greeting')}</p>", elem_id="greeting", padding=False)
    gr.HTML(elem_id="chat", padding=False)  # live.js draws into it
    names = ("refresh", "free", "example", "open", "swap")
    hidden = {name: gr.Button("", elem_id=name, visible="hidden") for name in names}
    return Chat(new=new, notice=notice, switch=switch, view=gr.JSON(visible=False), **hidden)


def _keys() -> Keys:
    with gr.Column(elem_id="key"):
        return Keys(
            said=gr.HTML(elem_id="key-said", padding=False, visible=False),
            key=gr.Textbox(
                elem_id="key-box",
                label=static("key"),
                show_label=False,
                type="password",
                submit_btn="Use this key",
                visible=False,
                html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
            ),
            forget=gr.Button(static("forget_keys"), elem_id="key-forget", size="sm", visible=False),
        )


def _composer() -> Composer:
    with gr.Column(elem_id="foot"):  # the box, and what is said above it
        keys = _keys()
        # attach.js writes into the first one.
        links = gr.HTML('<div role="status"><ul></ul></div>', elem_id="links", padding=False)
        attached = gr.HTML(elem_id="attached", padding=False)
        sending = gr.HTML(elem_id="sending", padding=False)
        with gr.Column(elem_id="dock"):
            box = gr.MultimodalTextbox(
                elem_id="composer",
                label=static("message"),
                show_label=False,
                placeholder=static("message"),
                file_count="multiple",
                # It has no `file_types`: they are endings, but a text file can have any name. The server reads it.
                max_plain_text_length=4_000,  # text_files.js makes a file of a longer text that is pasted
                max_lines=12,
                autofocus=True,
            )
            model = gr.Dropdown(
                [], label=static("model"), container=False, elem_id="model", allow_custom_value=True, visible="hidden"
            )
    fetch = gr.Button("", elem_id="fetch", visible="hidden")  # clicked by attach.js, like the next one
    give_up = gr.Button("", elem_id="give-up", visible="hidden")
    stored = gr.JSON(visible=False, elem_id="stored")
    look = gr.Button("", elem_id="look", visible="hidden")  # clicked by page.js when something was attached
    compose = gr.Button("", elem_id="compose", visible="hidden")  # clicked by composer.js
    send_queued = gr.Button("", elem_id="send-queued", visible="hidden")  # clicked by queue.js
    model_name = gr.HTML(elem_id="model-name", padding=False, visible="hidden")
    list_models = gr.Button("", elem_id="list-models", visible="hidden")
    listed = gr.JSON(visible=False)
    pick = gr.Button("", elem_id="pick", visible="hidden")
    effort = gr.Textbox(visible=False, elem_id="effort")
    set_effort = gr.Button("", elem_id="set-effort", visible="hidden")
    about = gr.HTML(elem_id="about", padding=False)
    examples = gr.HTML(elem_id="examples", padding=False)
    fetched = gr.MultimodalTextbox(visible="hidden")  # the fetched files, in the composer's format
    return Composer(
        keys=keys,
        links=links,
        fetch=fetch,
        give_up=give_up,
        attached=attached,
        sending=sending,
        stored=stored,
        look=look,
        compose=compose,
        send_queued=send_queued,
        box=box,
        model=model,
        model_name=model_name,
        list_models=list_models,
        listed=listed,
        pick=pick,
        effort=effort,
        set_effort=set_effort,
        about=about,
        examples=examples,
        fetched=fetched,
    )
