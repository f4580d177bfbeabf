"""Builds the page: its layout, its events with their handlers and widgets, and the endpoint for programs."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from agent.web.chat.conversations import Conversations
from agent.web.gradio_compat.application import take_load_event
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


def build(conversations: Conversations, guest_token: Callable[[str], str] = str) -> gr.Blocks:
    """Build the page. `guest_token` returns the token with which the page of a guest reads its answers."""
    settings = conversations.settings
    with gr.Blocks(title=settings.title, fill_height=True, fill_width=True, analytics_enabled=False) as page:
        widgets = Widgets(settings)
        _connect_events(page, widgets, Handlers(conversations, widgets, guest_token))
        connect_endpoint(ChatApi(conversations))
    return page


def _connect_events(page: gr.Blocks, widgets: Widgets, handlers: Handlers) -> None:
    """Connect the events with their handlers and widgets. The page's modules ask routes for what is about the chat."""
    view = widgets.view
    menu = [widgets.model, widgets.chosen, widgets.notice, widgets.switch]
    keys = [widgets.key_said, widgets.key, widgets.key_forget, widgets.sign_of_life]
    remembered = [*menu, widgets.settings, widgets.about, widgets.examples, *keys]
    last: dict[str, Any] = {"trigger_mode": "always_last", **QUIET}
    each: dict[str, Any] = {"trigger_mode": "multiple", **QUIET}

    def check_after(event: Callable[..., Any]) -> None:
        """Check the attached files, which the page's modules have, after this event."""
        sent = [widgets.box, widgets.model, widgets.settings]
        checked = event(handlers.attaching.attached, sent, widgets.attached, js=asks("attached"), **last)
        checked.then(None, None, None, js=asks("checked"), **each)

    # The page
    loaded = page.load(handlers.page_loaded, None, [view, widgets.timer, *remembered], **QUIET)
    loaded.success(None, view, None, js=asks("loaded"), **QUIET)
    view.look(handlers.look, None, [widgets.notice, widgets.timer], **last)
    check_after(view.attached)
    if widgets.login is not None and (label := take_load_event(widgets.login)):  # which lists it in the API by itself
        page.load(label, None, widgets.login, **QUIET)

    # The list of models, which page.js opens. The widget gets the choice before the server, so that a message which is
    # sent at once goes to this model.
    picked = view.pick(None, None, widgets.model, js=asks("picked model"), **each)
    chosen = picked.then(handlers.model_chosen, [widgets.model, widgets.settings, widgets.chosen], remembered, **last)
    chosen.then(None, widgets.chosen, None, js=asks("model settled"), **each)
    chosen.failure(None, None, None, js=asks("model not chosen"), **each)
    widgets.chosen.change(None, widgets.chosen, None, js=asks("chosen"), **each)
    check_after(chosen.then)
    asked = view.models(handlers.list_models, widgets.model, view, **last)
    asked.success(None, view, None, js=asks("models"), **QUIET)
    asked.failure(None, None, None, js=asks("models"), **QUIET)
    view.switch(handlers.switch, None, remembered, **QUIET)
    widgets.timer.tick(handlers.refresh_models, widgets.model, [widgets.timer, *remembered], **QUIET)

    # The settings that change more than themselves
    forgotten = view.reset(handlers.settings_deleted, None, remembered, **last)
    forgotten.success(None, widgets.chosen, None, js=asks("model settled"), **QUIET)
    extracted = [widgets.about, widgets.settings]
    check_after(
        view.extract(handlers.attaching.extract_text, [widgets.settings, widgets.model], extracted, **last).then
    )

    # The key panel. The page's modules give what was typed, so that no widget keeps it.
    view.use_key(handlers.key_typed, [widgets.key, widgets.model], [*menu, *keys], js=asks("typed key"), **QUIET)
    view.forget(handlers.key_forgotten, widgets.model, [*menu, *keys], **QUIET)
    widgets.sign_of_life.tick(handlers.still_here, widgets.model, keys, **QUIET)


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
