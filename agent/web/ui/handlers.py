"""Event handlers of the page: identify the page session, call `Conversations`, and return widget values."""

import asyncio
import html
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import gradio as gr

from agent.errors import AgentError, Conflict
from agent.fetch import GUARD, Guard
from agent.i18n import _
from agent.models.catalog import ModelSpec
from agent.providers import preload
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.live_runs import LiveRun
from agent.web.chat.message_id import MessageId
from agent.web.chat.system_prompt import adapt_prompt, own_prompt
from agent.web.file_names import given_name
from agent.web.sending import Submission
from agent.web.ui.attachment_handlers import AttachmentHandlers
from agent.web.ui.chat_handlers import ChatHandlers
from agent.web.ui.chat_widgets import ChatWidgets
from agent.web.ui.components import (
    Given,
    Told,
    Updates,
    choices_of,
    composer,
    no_updates,
    sending_status,
    status_line,
    usual_temperature,
    values,
)
from agent.web.ui.examples import example_message
from agent.web.ui.key_handlers import KeyHandlers
from agent.web.ui.layout import Widgets
from agent.web.ui.model_widgets import ModelWidgets
from agent.web.ui.page_sessions import PageSession, PageSessions
from agent.web.ui.setting_handlers import SettingHandlers
from agent.web.ui.submit import ask_to_wait, not_sent, submit


class Handlers:
    """One method per event of the page with these `widgets`. Each returns the widgets that it changes.

    Owns the page sessions and the running submissions. `guard` decides which hosts images can be fetched from.
    `guest_token` returns the token with which a guest's page reads its answers.
    """

    def __init__(
        self,
        conversations: Conversations,
        widgets: Widgets,
        guard: Guard = GUARD,
        guest_token: Callable[[str], str] = str,
    ) -> None:
        self._conversations, self.widgets = conversations, widgets
        self._chat = ChatWidgets(conversations, widgets, guest_token)
        self._sessions = PageSessions()
        self.chats = ChatHandlers(conversations, self._sessions, widgets, self._chat)
        self._submissions: dict[str, Submission[tuple[PageSession, LiveRun | None]]] = {}
        self.attaching = AttachmentHandlers(conversations, self._sessions, widgets, guard)
        self.settings = SettingHandlers(conversations, self._sessions)
        self._model = ModelWidgets(conversations, widgets)
        self.keys = KeyHandlers(conversations, self._sessions, self._model)

    # Display

    async def page_loaded(self, told: object, request: gr.Request) -> Updates:
        """Return the settings and the models for a loaded page, which tells the conversation in its address.

        Without it, the visitor's current conversation is selected, see `ConversationList.current`.
        """
        await self._conversations.storage.check()
        session = await self.chats.select(self._sessions.get(request), Told.of(told).chat, request)
        self._conversations.models.keys.keep_alive(session.owner)
        if self._conversations.choices(session.owner).extract_text:
            await self._conversations.transcriber.check_models()
        busy = await self._conversations.running.is_busy(session.conversation, session.owner)
        return await self._remembered(session, busy) | {self.widgets.timer: self._model.timer()}

    async def settings_deleted(self, request: gr.Request) -> Updates:
        """Return the settings of a new visitor, because what this one has set is deleted."""
        return await self._remembered(self._sessions.get(request), None)

    async def _remembered(self, session: PageSession, busy: bool | None) -> Updates:
        """Return all settings and the models, as the server remembers them."""
        spec = self._conversations.model_for(session.owner, None)
        return self._model.menu(session, spec) | await self._model.for_model(session, spec, busy=busy)

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
        timer: Updates = {self.widgets.timer: self._model.timer()}
        if named := self._conversations.models.get(model):
            return timer | self._model.menu(session, named, chosen=False)
        spec = self._conversations.model_for(session.owner, None)
        shown = self._model.menu(session, spec) | await self._model.for_model(session, spec)
        if spec is None:  # somebody may be typing a prompt
            del shown[self.widgets.settings.system]
        return timer | shown

    async def model_chosen(self, model: str | None, prompt: str | None, request: gr.Request) -> Updates:
        """Select a model that was picked from the list or typed. Its abilities decide which switches are available.

        A visitor's own `prompt` stays in its box, because nothing else remembers a guest's prompt. If it begins with
        the default prompt, it names the new model.
        """
        session = self._sessions.get(request)
        chosen = self._conversations.choices(session.owner)
        try:
            spec = self._conversations.models.find((model or "").strip())
        except AgentError as error:
            message = session.translator(error.text)
            gr.Warning(html.escape(message), title=session.translator(_("No such model")))
            spec = self._conversations.model_for(session.owner, None)
        settings, specs = self._conversations.settings, self._conversations.models.specs_with(chosen.model)
        if spec is not None:
            if chosen.system_message is not None:
                chosen = replace(
                    chosen,
                    system_message=adapt_prompt(chosen.system_message, settings, spec, specs, session.translator),
                )
            self._conversations.remembered.put(session.visitor, replace(chosen, model=spec.id, picked=True))
            asyncio.get_running_loop().run_in_executor(None, preload, spec.dialect)  # while the question is typed
        # The list has that value already, or a newer one, which must stay.
        new = spec is None or spec.id != model
        shown = self._model.menu(session, spec, chosen=new) | await self._model.for_model(session, spec)
        own, box = own_prompt(prompt or "", settings, specs), self.widgets.settings.system
        if own is not None:
            shown[box] = adapt_prompt(own, settings, spec, specs, session.translator)
            if shown[box] == own:
                del shown[box]
        return shown

    async def list_models(self, model: str | None, request: gr.Request) -> Updates:
        """Return the models that can be chosen. The page asks for them when the visitor opens the list."""
        return self._model.listed(self._sessions.get(request), model)

    async def switch(self, request: gr.Request) -> Updates:
        """Select the better model that has become available."""
        session, spec = self._sessions.get(request), self._conversations.models.find("")
        if spec is not None:
            self._conversations.remembered.put(
                session.visitor, replace(self._conversations.choices(session.owner), model=spec.id)
            )
        return self._model.menu(session, spec) | await self._model.for_model(session, spec)

    # Actions

    async def submit(self, given: Given, request: gr.Request) -> AsyncIterator[Updates]:
        """Send a message. composer.js empties the composer once `stored` says that the message is stored."""
        view = self.widgets.chat.view
        async with aclosing(self._submit(values(given)["composer"], given, request)) as sending:
            async for shown in sending:
                yield shown | ({view: shown[view] | {"stored": uuid4().hex}} if view in shown else {})

    async def example(self, given: Given, request: gr.Request) -> AsyncIterator[Updates]:
        """Send a starter example as if it had been typed."""
        text = Told.of(values(given).get("chat")).example
        message = example_message(text, self._sessions.get(request).translator)
        async with aclosing(self._submit(message, given, request)) as sending:
            async for shown in sending:
                yield shown

    async def refused(self, request: gr.Request) -> Updates:
        """Handle a refused event. A running answer can be stopped, whichever page requested it."""
        session = self._sessions.get(request)
        if (request.session_hash or "") in self._submissions:
            return no_updates()
        await self._conversations.storage.check()
        busy = await self._conversations.running.is_busy(session.conversation, session.owner)
        return {
            self.widgets.composer.box: composer(busy=busy),
            self.widgets.composer.sending: "",
            self.widgets.chat.notice: self._model.notice(session),
            self.widgets.timer: self._model.timer(),
        }

    async def stop(self, request: gr.Request) -> None:
        """Cancel the answer that is being written, or the file processing before it."""
        session = self._sessions.get(request)
        if sending := self._submissions.get(request.session_hash or ""):
            sending.stop()
        await self._conversations.running.stop([session.conversation], session.owner)

    # Helpers

    async def _submit(
        self, message: dict[str, Any] | None, given: Given, request: gr.Request
    ) -> AsyncGenerator[Updates]:
        """Send a message. Yield the composer and the status line while it is processed.

        The transcription of files can be stopped, and stops when the page is gone.
        """
        session, page = self._sessions.get(request), request.session_hash or ""
        box, line = self.widgets.composer.box, self.widgets.composer.sending
        told = Told.of(values(given).get("chat"))
        if page in self._submissions:
            raise ask_to_wait(
                session.translator(_("Your last message is still being sent. Stop it, or wait.")), session.translator
            )
        try:
            self.chats.check_address(session, told.chat, request)
        except Conflict as error:
            raise not_sent(error, session.translator) from error
        choices, id_ = self._choices(session, given), MessageId.of(told.message)
        files = [given_name(Path(str(file))) for file in (message or {}).get("files") or []]
        ready = self._conversations.model_for(session.owner, choices.model) is not None
        sending = self._submissions[page] = Submission(
            lambda report: submit(self._conversations, message, session, choices, request, report, id_)
        )
        try:
            async for status in sending.progress():
                if status is None:
                    yield {line: sending_status(files, ready=ready, translator=session.translator)}
                else:
                    yield {box: composer(busy=True), line: status_line(status, session.translator)}
            if sending.stopped:
                yield {box: composer(busy=False), line: ""}
                return
            left = session.conversation != self._sessions.get(request).conversation
            session, live = sending.result()
            if left:  # the page shows another conversation by now
                yield {line: ""}
                return
            session = self._sessions.save(request, replace(session, missing=None))
            if (
                live is not None and not live.resumed
            ):  # a new turn follows all others, so the page needs no list of them
                view = self._chat.view(session, None, live)
            else:
                view = (await self._chat.stored(session))[self.widgets.chat.view]
            yield {box: composer(busy=bool(view["live"])), line: "", self.widgets.chat.view: view}
        finally:
            del self._submissions[page]
            await sending.aclose()

    def _choices(self, session: PageSession, given: Given) -> Choices:
        """Return the settings of this page's widgets.

        The model is remembered. The other settings are remembered only if none are, for example after a restart, so
        that a page opened earlier does not undo what was set on another page.
        """
        remembered, choices = self._conversations.choices(session.owner), choices_of(given)
        choices = replace(choices, picked=remembered.picked)
        choices = self._conversations.for_model(session.owner, choices, session.translator)
        if self._conversations.remembered.get(session.owner) is None:
            remembered = _set_by_visitor(choices, self._conversations.model_for(session.owner, choices.model))
        self._conversations.remembered.put(session.visitor, replace(remembered, model=choices.model))
        return choices


def _set_by_visitor(choices: Choices, spec: ModelSpec | None) -> Choices:
    """Return these settings without those that show what the model can do and not what the visitor has set."""
    if spec is None:
        return choices
    usual = choices.temperature == usual_temperature(spec)
    fixed = not spec.reasoning or spec.always_reasons
    return replace(
        choices,
        temperature=None if usual else choices.temperature,
        reasoning=Choices.reasoning if fixed else choices.reasoning,
    )
