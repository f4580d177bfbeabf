"""Remembers each setting of the side bar when it is set, not only when a message is sent with it."""

from dataclasses import replace
from typing import Any

import gradio as gr

from agent.web.chat.conversations import Conversations
from agent.web.chat.run_setup import limit_of, temperature_of, text_of
from agent.web.chat.system_prompt import own_prompt
from agent.web.ui.page_sessions import PageSessions


class SettingHandlers:
    """One method for each setting. Each changes one thing: what the model cannot do now stays set for another.

    They are coroutines: in threads two of them could change the choices at once, and one change would be lost.
    """

    def __init__(self, conversations: Conversations, seats: PageSessions) -> None:
        self._conversations, self._sessions = conversations, seats

    async def set_prompt(self, text: str | None, request: gr.Request) -> None:
        """The system prompt was changed. An empty one means none, and the text of the default means the default."""
        own = own_prompt(text_of(text), self._conversations.settings, self._conversations.models.specs())
        self._set(request, system_message=own)

    async def set_reasoning(self, on: bool, request: gr.Request) -> None:
        """Reasoning was turned on or off."""
        self._set(request, reasoning=bool(on))

    async def set_tools(self, on: bool, request: gr.Request) -> None:
        """The tools were turned on or off."""
        self._set(request, tools=bool(on))

    async def set_temperature(self, value: float | None, request: gr.Request) -> None:
        """The temperature was set."""
        self._set(request, temperature=temperature_of(value))

    async def set_max_tokens(self, value: float | None, request: gr.Request) -> None:
        """The length of an answer was limited."""
        self._set(request, max_tokens=limit_of(value))

    def _set(self, request: gr.Request, **changed: Any) -> None:
        """Remember this setting alone: other widgets may show what the model can do, not what was set."""
        seat = self._sessions.get(request)
        self._conversations.remembered.put(seat.visitor, replace(self._conversations.choices(seat.owner), **changed))
