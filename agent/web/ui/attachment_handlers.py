"""Handlers for attachments: their plans and their transcription."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr

from agent.models.catalog import ModelSpec
from agent.system.request_queue import acting_for
from agent.web.chat.attachments import AttachmentPlan, plan_attachments
from agent.web.chat.conversations import Conversations
from agent.web.heavy_work import RequestLimit, TooManyRequests
from agent.web.sending import owns_files
from agent.web.ui.components import (
    Updates,
    composer_for_model,
    extraction_info,
    no_updates,
    render_attachments,
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
            session.visitor, replace(self._conversations.choices(session.owner), extract_text=on)
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
            return {self._widgets.composer.attached: ""}
        try:
            if self._check_limit is not None:
                visitor = session.visitor
                self._check_limit.count("" if visitor.guest else visitor.owner, visitor.address)
        except TooManyRequests as error:
            refused = AttachmentPlan(name="", outcome="refused", text=error.text)
            return {self._widgets.composer.attached: render_attachments([refused], session.translator, {})}
        with acting_for(session.owner):
            plans = await self._plans(files, spec, session, panel.get("extract_text") is True)
        others = {spec.id: spec for plan in plans for spec in plan.others}.values()
        models, translator = self._conversations.models, session.translator
        missing = {spec.id: translator(models.missing(session.owner, spec, session.login)) for spec in others}
        return {self._widgets.composer.attached: render_attachments(plans, translator, missing)}

    async def _plans(
        self, files: list[Path], spec: ModelSpec, session: PageSession, extract_text: bool
    ) -> list[AttachmentPlan]:
        """Plan the files when it is their turn: one message per visitor at a time, and a few in total."""
        visitor_lock = self._visitor_locks.setdefault(session.visitor.rate_limit_key, asyncio.Lock())
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
