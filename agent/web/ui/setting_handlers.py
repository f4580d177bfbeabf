"""Remembers each setting of the side bar as soon as it is set, not only when a message is sent."""

from dataclasses import replace
from typing import Any

import gradio as gr

from agent.models.families import LONGEST_NAME
from agent.web.chat.choices import limit_of, temperature_of, text_of
from agent.web.chat.conversations import Conversations
from agent.web.chat.system_prompt import own_prompt
from agent.web.ui.page_sessions import PageSessions


class SettingHandlers:
    """One method per setting. Each changes one value, so what this model does not support stays set for another.

    The methods are coroutines: in threads two of them could change the choices at once, and one change would be lost.
    """

    def __init__(self, conversations: Conversations, sessions: PageSessions) -> None:
        self._conversations, self._sessions = conversations, sessions

    async def set_prompt(self, text: str | None, request: gr.Request) -> None:
        """Set the system prompt. Empty text means no prompt, and the default's text means the default."""
        model = self._conversations.choices(self._sessions.get(request).owner).model
        specs = self._conversations.models.specs_with(model)
        own = own_prompt(text_of(text), self._conversations.settings, specs)
        self._set(request, system_message=own)

    async def set_reasoning(self, on: bool, request: gr.Request) -> None:
        """Turn reasoning on or off."""
        self._set(request, reasoning=bool(on))

    async def set_tools(self, on: bool, request: gr.Request) -> None:
        """Turn the tools on or off."""
        self._set(request, tools=bool(on))

    async def set_temperature(self, value: float | None, request: gr.Request) -> None:
        """Set the temperature."""
        self._set(request, temperature=temperature_of(value))

    async def set_max_tokens(self, value: float | None, model: str | None, request: gr.Request) -> None:
        """Set the limit of an answer, at most that of this model. The limit stays if the value cannot be one."""
        limit = self._limit(value, model)
        if value is None or limit is not None:
            self._set(request, max_tokens=limit)

    async def correct_max_tokens(self, value: float | None, model: str | None) -> Any:
        """Return the limit that is used if a higher one was typed. settings.js puts back what cannot be a limit."""
        limit = self._limit(value, model)
        return gr.skip() if limit is None or limit == value else limit

    def _limit(self, value: float | None, model: str | None) -> int | None:
        limit, spec = limit_of(value), self._conversations.models.get(text_of(model, LONGEST_NAME + 1))
        return limit if limit is None or spec is None else min(limit, spec.max_output_tokens)

    def _set(self, request: gr.Request, **changed: Any) -> None:
        """Remember only this setting: other widgets can show what the model supports, not what was set."""
        session = self._sessions.get(request)
        self._conversations.remembered.put(
            session.visitor, replace(self._conversations.choices(session.owner), **changed)
        )
