"""Connects the events of the page with their handlers and widgets."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from agent.web.gradio_compat.login import take_load_event
from agent.web.ui.api import ChatApi
from agent.web.ui.composer.component import JsonValue, Message, TextValue
from agent.web.ui.handlers import Handlers
from agent.web.ui.layout import Widgets

QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "queue": False,
    "api_visibility": "private",
}
"""The arguments that all events of the page share. Each is one request, and waits in no queue. An empty
`show_progress_on` keeps the page from copying the values of all outputs that any event has had, several times for each
event."""


def asks(name: str) -> str:
    """Return a script with which an event asks the page's modules: see `answer` in gradio.js."""
    return (
        f"(...values) => {{ const detail = {{ name: '{name}', values }};"
        " document.dispatchEvent(new CustomEvent('gradio-event', { detail })); return detail.answer; }"
    )


class Events:
    """Connects the widgets of one page with their handlers. Each method handles one part of the page."""

    def __init__(self, page: gr.Blocks, widgets: Widgets, handlers: Handlers) -> None:
        self._page, self._widgets, self._handlers = page, widgets, handlers
        chat, composer = widgets.chat, widgets.composer
        self._menu = [composer.model, composer.chosen, chat.notice, chat.switch]
        keys = composer.keys
        self._keys = [keys.said, keys.key, keys.forget, widgets.sign_of_life]
        self._for_model = [widgets.settings, composer.about, composer.examples, *self._keys]

    def connect(self) -> None:
        """Connect all events of the page."""
        self._connect_chat()
        self._connect_attachments()
        self._connect_settings()
        self._connect_keys()
        self._connect_login()

    def _connect_chat(self) -> None:
        """Connect what is about the conversation with the page's modules, which ask routes about it."""
        handlers, widgets = self._handlers, self._widgets
        view = widgets.chat.view
        loaded = self._page.load(
            handlers.page_loaded, None, [view, widgets.timer, *self._menu, *self._for_model], **QUIET
        )
        loaded.success(None, view, None, js=asks("loaded"), **QUIET)
        view.look(handlers.look, None, [widgets.chat.notice, widgets.timer], trigger_mode="always_last", **QUIET)

    def _connect_attachments(self) -> None:
        """Connect the events of attached files."""
        self._check_after(self._widgets.chat.view.attached)

    def _check_after(self, event: Callable[..., Any]) -> None:
        """Check the attached files after this event."""
        composer = self._widgets.composer
        checked = event(
            self._handlers.attaching.attached,
            [composer.box, composer.model, self._widgets.settings],
            composer.attached,
            js=asks("attached"),  # the page's modules have the files, and say that they are being checked
            trigger_mode="always_last",
            **QUIET,
        )
        checked.then(None, None, None, js=asks("checked"), trigger_mode="multiple", **QUIET)

    def _connect_settings(self) -> None:
        """Connect the events of the model menu, and those of the settings that change more than themselves."""
        handlers, settings, composer = self._handlers, self._widgets.settings, self._widgets.composer
        view = self._widgets.chat.view
        last: dict[str, Any] = {"trigger_mode": "always_last", **QUIET}
        self._connect_models()
        remembered = [*self._menu, *self._for_model]
        forgotten = view.reset(handlers.settings_deleted, None, remembered, **last)
        forgotten.success(None, composer.chosen, None, js=asks("model settled"), **QUIET)
        turned = view.extract(
            handlers.attaching.extract_text, [settings, composer.model], [composer.about, settings], **last
        )
        self._check_after(turned.then)
        view.switch(handlers.switch, None, [*self._menu, *self._for_model], **QUIET)
        timer = self._widgets.timer
        timer.tick(handlers.refresh_models, composer.model, [timer, *self._menu, *self._for_model], **QUIET)

    def _connect_models(self) -> None:
        """Connect the events of the list of models, which page.js opens."""
        handlers, composer, settings = self._handlers, self._widgets.composer, self._widgets.settings
        view = self._widgets.chat.view
        # The widget gets the choice before the server, so that a message which is sent at once goes to this model.
        picked = view.pick(None, None, composer.model, js=asks("picked model"), trigger_mode="multiple", **QUIET)
        chosen = picked.then(
            handlers.model_chosen,
            [composer.model, settings, composer.chosen],
            [*self._menu, *self._for_model],
            trigger_mode="always_last",
            **QUIET,
        )
        told: dict[str, Any] = {"trigger_mode": "multiple", **QUIET}
        chosen.then(None, composer.chosen, None, js=asks("model settled"), **told)
        chosen.failure(None, None, None, js=asks("model not chosen"), **told)
        composer.chosen.change(None, composer.chosen, None, js=asks("chosen"), **told)
        self._check_after(chosen.then)
        asked = view.models(handlers.list_models, composer.model, view, trigger_mode="always_last", **QUIET)
        asked.success(None, view, None, js=asks("models"), **QUIET)
        asked.failure(None, None, None, js=asks("models"), **QUIET)

    def _connect_keys(self) -> None:
        """Connect the events of the key panel."""
        handlers, composer = self._handlers, self._widgets.composer
        keys, model, view = composer.keys, composer.model, self._widgets.chat.view
        shown = [*self._menu, *self._keys]
        # The page's modules give what was typed, so that no widget keeps it.
        view.use_key(handlers.keys.key_typed, [keys.key, model], shown, js=asks("typed key"), **QUIET)
        view.forget(handlers.keys.key_forgotten, model, shown, **QUIET)
        self._widgets.sign_of_life.tick(handlers.keys.still_here, model, self._keys, **QUIET)

    def _connect_login(self) -> None:
        """Connect the login event without listing it in the API, where programs have no use for it."""
        button = self._widgets.login
        if button is None:
            return
        if label := take_load_event(button):
            self._page.load(label, None, button, **QUIET)


def connect_endpoint(api: ChatApi) -> None:
    """Create `/chat`, the one public endpoint. It has its own page sessions: one client is one conversation."""
    with gr.Column(visible=False):
        message = Message(label="message")
        model = TextValue(label="model", value="")
        options = JsonValue(label="options", value={})
        answer = JsonValue(label="answer")
        # Nothing triggers it in the page, where a button would load seven files with each visit.
        gr.HTML(js_on_load="'chat'").chat(
            api.chat,
            [message, model, options],
            answer,
            api_name="chat",
            show_progress="hidden",
            concurrency_limit=None,
        )
