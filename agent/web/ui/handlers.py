"""Event handlers of the page: about the models, the settings, attachments, and keys that a visitor types."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

import gradio as gr

from agent.errors import AgentError
from agent.models.catalog import ModelSpec
from agent.models.families import LONGEST_NAME
from agent.providers.connection import efforts, preload
from agent.system.request_queue import acting_for
from agent.web.chat.attachments import AttachmentPlan, plan_attachments
from agent.web.chat.choices import can_search, text_of
from agent.web.chat.conversations import Conversations
from agent.web.chat.system_prompt import adapt_prompt, default_prompt, own_prompt
from agent.web.heavy_work import RequestLimit, TooManyRequests
from agent.web.sending import owns_files
from agent.web.ui.components import (
    Updates,
    composer_for_model,
    examples,
    extraction_info,
    key_panel,
    no_updates,
    offer,
    render_attachments,
    settings_for_model,
    shown_model,
    status_line,
    storage_line,
)
from agent.web.ui.layout import Widgets
from agent.web.ui.page_sessions import PageSession, PageSessions

MAX_CHECKED_MESSAGES = 4
"""Messages with files checked at the same time. The files of one can be twice the largest upload."""


class AttachmentHandlers:
    """Event handlers of the attachment panel."""

    def __init__(self, conversations: Conversations, sessions: PageSessions, widgets: Widgets) -> None:
        self._conversations, self._sessions, self._widgets = conversations, sessions, widgets
        self._visitor_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._check_slots = asyncio.Semaphore(MAX_CHECKED_MESSAGES)
        self._check_limit = RequestLimit.of_page(public=conversations.settings.public is not None)

    async def extract_text(self, panel: Mapping[str, object], model: str | None, request: gr.Request) -> Updates:
        """Switch the text extraction from images and audio, which changes the files that can be attached."""
        session, on = self._sessions.get(request), panel.get("extract_text") is True
        self._conversations.remembered.put(
            session, replace(self._conversations.choices(session.owner), extract_text=on)
        )
        spec = self._conversations.model_for(session.owner, model)
        if on:
            await self._conversations.transcriber.check_models()
        if spec is None:
            return no_updates()
        transcriber = self._conversations.transcriber if on else None
        info = extraction_info(spec, transcriber, session.translator)
        return composer_for_model(self._widgets, spec, session.translator, transcriber=transcriber) | {
            self._widgets.settings: {"about": {"extract_text": {"info": info}}}
        }

    async def attached(
        self, value: dict[str, Any] | None, model: str | None, panel: Mapping[str, object], request: gr.Request
    ) -> Updates:
        """Return how each attachment will be handled for the chosen model, before anything is sent."""
        session = self._sessions.get(request)
        spec = self._conversations.model_for(session.owner, model)
        files = [Path(str(file)) for file in (value or {}).get("files") or []]
        assert request.request is not None
        if spec is None or not files or not owns_files(list(map(str, files)), request.request.scope):
            return {self._widgets.attached: ""}
        try:
            if self._check_limit is not None:
                self._check_limit.count("" if session.guest else session.owner, session.address)
        except TooManyRequests as error:
            refused = AttachmentPlan(name="", outcome="refused", text=error.text)
            return {self._widgets.attached: render_attachments([refused], session.translator, {})}
        with acting_for(session.owner):
            plans = await self._plans(files, spec, session, panel.get("extract_text") is True)
        others = {spec.id: spec for plan in plans for spec in plan.others}.values()
        models, translator = self._conversations.models, session.translator
        missing = {spec.id: translator(models.missing(session.owner, spec, session.login)) for spec in others}
        return {self._widgets.attached: render_attachments(plans, translator, missing)}

    async def _plans(
        self, files: list[Path], spec: ModelSpec, session: PageSession, extract_text: bool
    ) -> list[AttachmentPlan]:
        """Plan the files when it is their turn: one message per visitor at a time, and a few in total."""
        visitor_lock = self._visitor_locks.setdefault(session.rate_limit_key, asyncio.Lock())
        most, menu = (
            self._conversations.settings.max_upload_bytes,
            self._conversations.models.choosable(session.owner, session.login),
        )
        async with visitor_lock, self._check_slots:
            return await plan_attachments(
                files,
                spec,
                max_bytes=most,
                menu=menu,
                transcriber=self._conversations.transcriber if extract_text else None,
                limits=self._conversations.attachment_limits,
            )


class Handlers:
    """One method per event of the page with these `widgets`. Each returns the widgets that it changes.

    They are coroutines, because the timers of keys run in the event loop of the server. The page asks routes for what
    is about the chat. `guest_token` returns the token with which a guest's page asks them.
    """

    def __init__(
        self,
        conversations: Conversations,
        widgets: Widgets,
        guest_token: Callable[[str], str] = str,
    ) -> None:
        self._conversations, self.widgets, self._guest_token = conversations, widgets, guest_token
        self._models, self._sessions = conversations.models, PageSessions()
        self.attaching = AttachmentHandlers(conversations, self._sessions, widgets)

    async def page_loaded(self, request: gr.Request) -> Updates:
        """Return the settings and the models for a loaded page, and a guest's token."""
        await self._conversations.storage.check()
        session = self._sessions.get(request)
        self._models.keys.keep_alive(session.owner)
        if self._conversations.choices(session.owner).extract_text:
            await self._conversations.transcriber.check_models()
        token = self._guest_token(session.owner) if session.guest else ""
        loaded: Updates = {self.widgets.view: {"guest": token}, self.widgets.timer: self._timer()}
        return loaded | await self._remembered(session)

    async def look(self, request: gr.Request) -> Updates:
        """Look whether the store is there, after a route has said that it is away."""
        await self._conversations.storage.check()
        notice = self._notice(self._sessions.get(request))
        return {self.widgets.notice: notice, self.widgets.timer: self._timer()}

    async def settings_deleted(self, request: gr.Request) -> Updates:
        """Return the settings of a new visitor, because what this one has set is deleted."""
        return await self._remembered(self._sessions.get(request))

    async def _remembered(self, session: PageSession) -> Updates:
        """Return all settings and the models, as the server remembers them."""
        spec = self._conversations.model_for(session.owner, None)
        return self._menu(session, spec) | await self._for_model(session, spec)

    async def refresh_models(self, model: str | None, request: gr.Request) -> Updates:
        """Return the available models and the status of the loading one. Called every second until all are ready.

        While the store is away, it is called as well, and looks again. If both are there when the page has loaded, it
        is never called.

        If the page names an available model, nothing that a visitor sets is changed. The visitor could have chosen
        another model or typed a key since the page asked.
        """
        session = self._sessions.get(request)
        if self._conversations.storage.is_away:
            await self._conversations.storage.check()
        timer: Updates = {self.widgets.timer: self._timer()}
        if named := self._models.get(model):
            return timer | self._menu(session, named, chosen=False)
        spec = self._conversations.model_for(session.owner, None)
        shown = self._menu(session, spec) | await self._for_model(session, spec)
        if spec is None:  # somebody may be typing a prompt
            del shown[self.widgets.settings]
        return timer | shown

    async def model_chosen(
        self, model: object, panel: Mapping[str, object], before: object, request: gr.Request
    ) -> Updates:
        """Select a model that was picked from the list or typed. Its abilities decide which switches are available.

        The `panel` has the settings. A visitor's own prompt stays in its box, because nothing else remembers a guest's
        prompt. If it begins with the default prompt of the model `before`, of which the page has the facts, it names
        the new model.
        """
        session, model = self._sessions.get(request), text_of(model, LONGEST_NAME + 1)
        former = text_of(cast(dict[str, object], before).get("id")) if isinstance(before, dict) else ""
        try:
            spec = self._models.find(model.strip())
            problem = ""
        except AgentError as error:
            problem = session.translator(error.text)
            spec = self._conversations.model_for(session.owner, None)
        settings, former = self._conversations.settings, former or self._conversations.choices(session.owner).model
        specs = self._models.specs_with(former)
        if spec is not None:
            self._conversations.choose_model(session, spec, session.translator)
            asyncio.get_running_loop().run_in_executor(None, preload, spec.dialect)  # while the question is typed
        # The list has that value already, or a newer one, which must stay.
        new = spec is None or spec.id != model
        shown = self._menu(session, spec, chosen=new) | await self._for_model(session, spec)
        shown[self.widgets.chosen] |= {"asked": model, "problem": problem}
        own, changed = own_prompt(text_of(panel.get("system_message")), settings, specs), shown[self.widgets.settings]
        if own is not None:
            changed["system_message"] = adapt_prompt(own, settings, spec, specs, session.translator)
            if changed["system_message"] == own:
                del changed["system_message"]
        return shown

    async def list_models(self, model: str | None, request: gr.Request) -> Updates:
        """Return the models that can be chosen. The page asks for them when the visitor opens the list."""
        session = self._sessions.get(request)
        spec = self._conversations.model_for(session.owner, model)
        entries = self._models.listed(session.owner, spec, session.login, session.translator)
        return {self.widgets.view: {"models": [asdict(entry) for entry in entries]}}

    async def switch(self, request: gr.Request) -> Updates:
        """Select the better model that has become available."""
        session, spec = self._sessions.get(request), self._models.find("")
        if spec is not None:
            self._conversations.remembered.put(
                session, replace(self._conversations.choices(session.owner), model=spec.id)
            )
        return self._menu(session, spec) | await self._for_model(session, spec)

    async def key_typed(self, key: str, model: str | None, request: gr.Request) -> Updates:
        """Store a key for the chosen model's provider in memory, and always empty the box."""
        session = self._sessions.get(request)
        spec = self._conversations.model_for(session.owner, model)
        provider, problem = self._models.provider(spec) if spec else None, ""
        if provider is not None and self._models.accepts_keys:
            try:
                self._models.keys.put(session.owner, provider.id, key or "")
            except AgentError as error:
                problem = session.translator(error.text)
        return (
            self._menu(session, spec)
            | await self._name(session, spec)
            | key_panel(self.widgets, self._models, session, spec, problem)
        )

    async def key_forgotten(self, model: str | None, request: gr.Request) -> Updates:
        """Forget all keys that this visitor typed."""
        session = self._sessions.get(request)
        self._models.keys.forget(session.owner)
        spec = self._conversations.model_for(session.owner, model)
        return (
            self._menu(session, spec)
            | await self._name(session, spec)
            | key_panel(self.widgets, self._models, session, spec)
        )

    async def still_here(self, model: str | None, request: gr.Request) -> Updates:
        """Keep the visitor's keys alive. An open page calls this; without it they are forgotten."""
        session, keys = self._sessions.get(request), self._models.keys
        keys.keep_alive(session.owner)
        if keys.has_any(session.owner):
            return no_updates()  # change nothing, because another key may be half typed
        spec = self._conversations.model_for(session.owner, model)
        return key_panel(self.widgets, self._models, session, spec)

    # Updates of the widgets that depend on the chosen model

    def _menu(self, session: PageSession, spec: ModelSpec | None, *, chosen: bool = True) -> Updates:
        """Return the chosen model, the status of a loading one, and the offer of a better one.

        Without `chosen` the choice stays as it is.
        """
        better = self._conversations.better_model(session.owner, spec.id if spec else "")
        named: Updates = {self.widgets.model: spec.id if spec else None} if chosen else {}
        return named | {
            self.widgets.notice: self._notice(session),
            self.widgets.switch: offer(better, session.translator),
        }

    def _notice(self, session: PageSession) -> str:
        """Return the line above the chat: that the store is away, or the status of a loading model."""
        if self._conversations.storage.is_away:
            return storage_line(session.translator)
        settled, status = self._models.is_settled, self._models.local.status
        return "" if settled else status_line(status, session.translator)

    def _timer(self) -> gr.Timer:
        """Return the timer of the page, which asks again until the store is there and all models are loaded."""
        return gr.Timer(active=self._conversations.storage.is_away or not self._models.is_settled)

    async def _for_model(self, session: PageSession, spec: ModelSpec | None) -> Updates:
        """Return all widgets that depend on the chosen model, with the visitor's settings that the model supports."""
        chosen, settings = self._conversations.choices(session.owner), self._conversations.settings
        translator, widgets = session.translator, self.widgets
        usual = prompt = default_prompt(settings, spec, translator)
        if chosen.system_message is not None:
            specs = self._models.specs_with(chosen.model)
            prompt = adapt_prompt(chosen.system_message, settings, spec, specs, translator)
        panel: dict[str, Any] = {"about": {}}
        shown: Updates = {widgets.about: "", widgets.settings: panel}
        shown[widgets.examples] = examples(spec, translator, [tool.name for tool in self._conversations.tools])
        if spec is not None:
            transcriber = self._conversations.transcriber if chosen.extract_text else None
            has_web = can_search(settings, spec)
            panel |= settings_for_model(spec, chosen, translator, transcriber=transcriber, has_web=has_web)
            shown |= composer_for_model(widgets, spec, translator, transcriber=transcriber)
        panel["system_message"] = prompt
        panel["about"] |= {"system_message": {"usual": usual}}
        return shown | await self._name(session, spec) | key_panel(self.widgets, self._models, session, spec)

    async def _name(self, session: PageSession, spec: ModelSpec | None) -> Updates:
        """Return the name of the chosen model, with what is needed for it, and its efforts."""
        if spec is None:
            return {self.widgets.chosen: {}}
        entries = self._models.listed(session.owner, spec, session.login, session.translator)
        entry = next(one for one in entries if one.id == spec.id)
        accepted = await asyncio.to_thread(efforts, spec) if self._models.provider(spec) else ()
        shown = shown_model(
            *(entry.id, entry.full_label, accepted, session.translator),
            effort=self._conversations.choices(session.owner).effort,
            has_others=any(one.id != spec.id and not one.missing for one in entries),
        )
        return {self.widgets.chosen: shown}
