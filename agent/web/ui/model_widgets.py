"""The widgets that depend on the chosen model: the menu, the settings that it supports, and the panel for a key."""

import asyncio
from dataclasses import asdict
from typing import Any

import gradio as gr

from agent.models.catalog import ModelSpec
from agent.providers.connection import Effort, efforts
from agent.web.chat.choices import can_search
from agent.web.chat.conversations import Conversations
from agent.web.chat.system_prompt import adapt_prompt, default_prompt
from agent.web.ui.components import (
    Updates,
    key_panel,
    offer,
    shown_model,
    status_line,
    storage_line,
    widgets_for_model,
)
from agent.web.ui.layout import Widgets
from agent.web.ui.page_sessions import PageSession


class ModelWidgets:
    """Makes the updates of these widgets for one page session. Knows no event."""

    def __init__(self, conversations: Conversations, widgets: Widgets) -> None:
        self._conversations, self._widgets = conversations, widgets

    def menu(self, session: PageSession, spec: ModelSpec | None, *, chosen: bool = True) -> Updates:
        """Return the chosen model, the status of a loading one, and the offer of a better one.

        Without `chosen` the choice stays as it is.
        """
        better = self._conversations.better_model(session.owner, spec.id if spec else "")
        named: Updates = {self._widgets.composer.model: spec.id if spec else None} if chosen else {}
        return named | {
            self._widgets.chat.notice: self.notice(session),
            self._widgets.chat.switch: offer(better, session.translator),
        }

    def listed(self, session: PageSession, model: str | None) -> Updates:
        """Return all models with their abilities, for the list in the composer. `model` is the chosen one."""
        spec = self._conversations.model_for(session.owner, model)
        entries = self._conversations.models.listed(session.owner, spec, session.login, session.translator)
        return {self._widgets.chat.view: {"models": [asdict(entry) for entry in entries]}}

    def notice(self, session: PageSession) -> str:
        """Return the line above the chat: that the store is away, or the status of a loading model."""
        if self._conversations.storage.is_away:
            return storage_line(session.translator)
        settled, status = self._conversations.models.is_settled, self._conversations.models.local.status
        return "" if settled else status_line(status, session.translator)

    def timer(self) -> gr.Timer:
        """Return the timer of the page, which asks again until the store is there and all models are loaded."""
        return gr.Timer(active=self._conversations.storage.is_away or not self._conversations.models.is_settled)

    async def for_model(self, session: PageSession, spec: ModelSpec | None) -> Updates:
        """Return all widgets that depend on the chosen model, with the visitor's settings that the model supports."""
        chosen = self._conversations.choices(session.owner)
        settings, models = self._conversations.settings, self._conversations.models
        usual = prompt = default_prompt(settings, spec, session.translator)
        if chosen.system_message is not None:
            specs = models.specs_with(chosen.model)
            prompt = adapt_prompt(chosen.system_message, settings, spec, specs, session.translator)
        transcriber = self._conversations.transcriber if chosen.extract_text else None
        tools = [tool.name for tool in self._conversations.tools]
        shown = widgets_for_model(
            self._widgets,
            spec,
            chosen,
            session.translator,
            transcriber=transcriber,
            tools=tools,
            has_web=spec is not None and can_search(settings, spec),
        )
        panel: dict[str, Any] = shown.setdefault(self._widgets.settings, {})
        panel["system_message"] = prompt
        panel["about"] = panel.get("about", {}) | {"system_message": {"usual": usual}}
        return shown | await self.name(session, spec) | self.keys(session, spec)

    async def name(self, session: PageSession, spec: ModelSpec | None) -> Updates:
        """Return the name of the chosen model, with what is needed for it, and its efforts."""
        entries = self._conversations.models.listed(session.owner, spec, session.login, session.translator)
        entry = next((one for one in entries if spec is not None and one.id == spec.id), None)
        if spec is None:
            return {self._widgets.composer.chosen: {}}
        has_others = any(one.id != spec.id and not one.missing for one in entries)
        if entry is None:  # a record of the owner that is not in the list
            return {self._widgets.composer.chosen: shown_model(spec.id, spec.label, has_others=has_others)}
        accepted, effort = await self._efforts(spec), self._conversations.choices(session.owner).effort
        shown = shown_model(
            *(entry.id, entry.full_label, accepted, session.translator), effort=effort, has_others=has_others
        )
        return {self._widgets.composer.chosen: shown}

    def keys(self, session: PageSession, spec: ModelSpec | None, problem: str = "") -> Updates:
        """Return the widgets of the panel for a key, with the `problem` of one that was just typed."""
        models = self._conversations.models
        provider = models.provider(spec) if spec else None
        typed = provider is not None and models.keys.get(session.owner, provider.id) is not None
        missing = spec is not None and models.key_missing(session.owner, spec, session.login)
        login = None if spec is None or not models.may_log_in(spec) else "done" if session.login else "possible"
        panel = key_panel(
            self._widgets,
            spec,
            provider,
            missing=missing,
            typed=typed,
            taken=models.accepts_keys,
            own=models.own_keys_only,
            login=login,
            problem=problem,
            translator=session.translator,
        )
        return panel | {self._widgets.sign_of_life: gr.Timer(active=models.keys.has_any(session.owner))}

    async def _efforts(self, spec: ModelSpec | None) -> tuple[Effort, ...]:
        """Return the efforts of a hosted model. A record has none: that of its run is fixed."""
        if spec is None or self._conversations.models.provider(spec) is None:
            return ()
        return await asyncio.to_thread(efforts, spec)
