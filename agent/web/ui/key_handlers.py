"""The events of the panel for a key, which a visitor types for a hosted provider."""

import gradio as gr

from agent.errors import AgentError
from agent.web.chat.conversations import Conversations
from agent.web.ui.components import Updates, no_updates
from agent.web.ui.model_widgets import ModelWidgets
from agent.web.ui.page_sessions import PageSessions


class KeyHandlers:
    """One method per event. They are coroutines, because the timers of keys run in the event loop of the server."""

    def __init__(self, conversations: Conversations, sessions: PageSessions, widgets: ModelWidgets) -> None:
        self._conversations, self._sessions, self._widgets = conversations, sessions, widgets

    async def key_typed(self, key: str, model: str | None, request: gr.Request) -> Updates:
        """Store a key for the chosen model's provider in memory, and always empty the box."""
        session = self._sessions.get(request)
        spec = self._conversations.model_for(session.owner, model)
        provider, problem = self._conversations.models.provider(spec) if spec else None, ""
        if provider is not None and self._conversations.models.accepts_keys:
            try:
                self._conversations.models.keys.put(session.owner, provider.id, key or "")
            except AgentError as error:
                problem = session.translator(error.text)
        return (
            self._widgets.menu(session, spec)
            | await self._widgets.name(session, spec)
            | self._widgets.keys(session, spec, problem)
        )

    async def key_forgotten(self, model: str | None, request: gr.Request) -> Updates:
        """Forget all keys that this visitor typed."""
        session = self._sessions.get(request)
        self._conversations.models.keys.forget(session.owner)
        spec = self._conversations.model_for(session.owner, model)
        return (
            self._widgets.menu(session, spec)
            | await self._widgets.name(session, spec)
            | self._widgets.keys(session, spec)
        )

    async def still_here(self, model: str | None, request: gr.Request) -> Updates:
        """Keep the visitor's keys alive. An open page calls this; without it they are forgotten."""
        session, keys = self._sessions.get(request), self._conversations.models.keys
        keys.keep_alive(session.owner)
        if keys.has_any(session.owner):
            return no_updates()  # change nothing, because another key may be half typed
        return self._widgets.keys(session, self._conversations.model_for(session.owner, model))
