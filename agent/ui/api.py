"""The page for programs: the one public endpoint, `/chat`."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import gradio as gr

from agent.errors import InputError
from agent.ui.seats import Seats
from agent.ui.sending import send, told
from agent.ui.start import Choices
from agent.ui.turn import Conversations


class Api:
    """The endpoint over the same conversations as the page's."""

    def __init__(self, conversations: Conversations) -> None:
        self._all = conversations
        self._seats = Seats()

    async def chat(
        self,
        message: dict[str, Any] | None,
        model: str,
        options: dict[str, Any] | None,
        request: gr.Request,
    ) -> AsyncIterator[dict[str, Any]]:
        """Send a message; stream the answer's bubbles.

        `message` is `{"text": ..., "files": [...]}`, `model` a model's id ("" for the first), `options` may hold
        system_message, reasoning, temperature, max_tokens, tools, read_here and new (true: a new conversation). Each
        value is `{"text", "bubbles": [{"type", "content"}], "finish_reason"}`, the last one with a finish_reason.
        """
        seat = self._seats.of(request)
        options = dict(options or {})
        if options.pop("new", False):
            seat = replace(seat, conversation=None)
        choices = await told(_options(model, options))
        seat, live = await send(self._all, message, seat, choices, request)
        self._seats.take(request, seat)
        if live is None:  # one of several questions was answered
            yield {"text": "", "bubbles": [], "finish_reason": "suspended"}
            return
        async for answer in self._all.answers(live):
            yield answer


async def _options(model: str, options: dict[str, Any]) -> Choices:
    known = {
        "system_message": str,
        "reasoning": bool,
        "temperature": float,
        "max_tokens": int,
        "tools": bool,
        "read_here": bool,
    }
    if unknown := sorted(set(options) - set(known)):
        raise InputError(f"unknown options: {', '.join(unknown)}; known are {', '.join(known)} and new")
    try:
        given: dict[str, Any] = {name: known[name](value) for name, value in options.items()}
        return Choices(model=model, **given)
    except (TypeError, ValueError) as error:
        raise InputError(f"an option has a value that does not fit: {error}") from error
