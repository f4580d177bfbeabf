"""The public endpoint for programs, `/chat`."""

import html
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from math import isfinite
from typing import Any, cast

import gradio as gr

from agent.errors import AgentError, files_unusable
from agent.web.chat.answers import LiveRun
from agent.web.chat.choices import requested_choices
from agent.web.chat.conversations import Conversations
from agent.web.sending import PROGRAM_FAILED, send_message
from agent.web.ui.page_sessions import PageSession, PageSessions

log = logging.getLogger(__name__)


class ChatApi:
    """The endpoint. It uses the same conversations as the page."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._sessions = PageSessions()

    async def chat(
        self,
        message: dict[str, Any] | None,
        model: str,
        options: dict[str, Any] | None,
        request: gr.Request,
    ) -> AsyncIterator[dict[str, Any]]:
        """Send a message and stream the answer's bubbles.

        `message` is `{"text": ..., "files": [...]}`. `model` is a model's id, or "" for the first one. `options` can
        hold system_message, reasoning, temperature, max_tokens, tools, web, extract_text and new (true starts a
        new conversation). Each value is `{"text", "bubbles": [{"type", "content"}], "run", "finish_reason"}`. `run` is
        the id of the run, and only the last value has a finish_reason.
        """
        session = self._sessions.get(request)
        options = dict(options or {})
        new = options.pop("new", False)
        if new:
            session = replace(session, conversation=None)
        try:
            conversation, live = await self._send(message or {}, model, options, session, request)
        except AgentError as error:
            raise _refusal(session.translator(error.text)) from error
        except OSError as error:
            log.exception("a call of /chat failed")
            raise _refusal(session.translator(files_unusable(error).text)) from error
        except Exception as error:
            log.exception("a call of /chat failed")
            raise _refusal(session.translator(PROGRAM_FAILED)) from error
        self._sessions.save(request, replace(session, conversation=conversation))
        if live is None:  # one of several questions was answered
            yield {"text": "", "bubbles": [], "run": "", "finish_reason": "suspended"}
            return
        async for answer in stream_answer(live):
            yield {**answer, "bubbles": [{**one, "content": _portable(one["content"])} for one in answer["bubbles"]]}

    async def _send(
        self, message: dict[str, Any], model: object, options: dict[str, Any], session: PageSession, request: gr.Request
    ) -> tuple[str | None, LiveRun | None]:
        assert request.request is not None
        choices, scope = (
            requested_choices("" if model is None else model, options, elsewhere="new"),
            request.request.scope,
        )
        return await send_message(self._conversations, session, session.conversation, message, choices, scope)


async def stream_answer(live: LiveRun) -> AsyncIterator[dict[str, Any]]:
    """Yield an answer while it is written, for programs: its text, its bubbles and, at the end, its finish reason.

    An answer that has already ended is yielded once. The run ends if the caller stops listening, because a program,
    unlike a page, does not come back.
    """
    try:
        async with aclosing(live.bubble_updates()) as stream:
            async for bubbles in stream:
                yield {
                    "text": "\n\n".join(one.text for one in bubbles if one.first.type == "output_text"),
                    "bubbles": [{"type": one.first.type, "content": one.content} for one in bubbles],
                    "run": live.run.id,
                    "finish_reason": live.run.result.finish_reason if live.run.result else None,
                }
    finally:
        live.run.cancel("client_disconnect")


def _portable(value: Any) -> Any:
    """Return the value with numbers that the stream's JSON cannot carry (beyond 64 bits, infinite) as text."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_portable(item) for item in cast(list[Any], value)]
    if (isinstance(value, int) and not -(2**63) <= value < 2**64) or (isinstance(value, float) and not isfinite(value)):
        return json.dumps(value)
    return value


def _refusal(text: str) -> gr.Error:
    return gr.Error(html.escape(text, quote=False), print_exception=False)
