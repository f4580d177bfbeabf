"""What is attached: what becomes of it, whether it is read here, and pictures that links lead to."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr
from gradio.data_classes import FileData

from agent.catalog import ModelSpec
from agent.errors import AgentError
from agent.guard import Guard
from agent.providers import acting_for
from agent.serving.walls import visitor_of
from agent.ui.inputs import Plan, plans
from agent.ui.links import Links, ask_of
from agent.ui.seats import Seat, Seats
from agent.ui.sending import owned, patiently
from agent.ui.turn import Conversations
from agent.ui.widgets import attachments, looked_at, takes

LOOKED_AT = 4
"""Messages whose files are looked at at once; those of one can fill twice the size of the largest upload."""


class Attaching:
    """The handlers of the panel above the composer. Holds what pages fetch; `guard` says from where they may."""

    def __init__(self, conversations: Conversations, seats: Seats, guard: Guard) -> None:
        self._all, self._seats = conversations, seats
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._looking = asyncio.Semaphore(LOOKED_AT)
        self._links = Links(guard, conversations.gate, max_bytes=conversations.settings.max_upload_bytes)

    async def read_here(self, on: bool, model: str | None, request: gr.Request) -> tuple[Any, Any]:
        """The switch was turned: more can be attached, or less."""
        seat = self._seats.of(request)
        self._all.remembered.put(seat.visitor, replace(self._all.choices(seat.owner), read_here=bool(on)))
        spec = self._all.spec(seat.owner, model)
        if on:
            await self._all.reading.look()
        return takes(spec, seat.words, reading=self._all.reading if on else None) if spec else (gr.skip(), gr.skip())

    async def attached(
        self, value: dict[str, Any] | None, model: str | None, read_here: bool, request: gr.Request
    ) -> AsyncIterator[str]:
        """Say what becomes of each attachment for the chosen model, before anything is sent."""
        seat = self._seats.of(request)
        spec = self._all.spec(seat.owner, model)
        files = [Path(str(file)) for file in (value or {}).get("files") or []]
        if spec is None or not files or not owned(list(map(str, files)), request):
            yield ""
            return
        with acting_for(seat.owner):
            looking = asyncio.ensure_future(self._plans(files, spec, seat, read_here))
        async for _ in patiently(looking):
            yield looked_at([file.name for file in files], seat.words)
        yield attachments(looking.result(), seat.words)

    async def _plans(self, files: list[Path], spec: ModelSpec, seat: Seat, read_here: bool) -> list[Plan]:
        """Look at the files when it is this visitor's turn: one message of theirs at a time, and a few of all."""
        turn = self._turns.setdefault(seat.visitor.counted_as, asyncio.Lock())
        most, menu = self._all.settings.max_upload_bytes, self._all.offers.choosable(seat.owner, seat.login)
        async with turn, self._looking:
            return await plans(files, spec, max_bytes=most, menu=menu, reading=self._all.reading if read_here else None)

    async def fetched(self, asked: str, request: gr.Request) -> dict[str, Any]:
        """The picture at a link, `asked` as in "7 https://...": among `files`, as if uploaded, or why not in `text`."""
        assert request.request is not None
        seat, scope = self._seats.of(request), request.request.scope
        number, _, url = str(asked).partition(" ")
        ask = ask_of(request.session_hash, number)
        if ask is None:
            raise gr.Error(seat.words("broken"), print_exception=False)
        try:
            picture = await self._links.fetch(seat.visitor, ask, url)
            if picture is None:
                return {"text": "", "files": []}
            kept = await scope["state"]["uploads"].add(visitor_of(scope), picture.name, picture.data)
        except AgentError as error:
            return {"text": seat.words.said(error.sayings) or str(error), "files": []}
        scope["state"]["walls"].give(str(kept), visitor_of(scope))
        file = FileData(path=str(kept), orig_name=picture.name, mime_type=picture.media_type)
        return {"text": "", "files": [file]}

    def given_up(self, asked: str, request: gr.Request) -> None:
        """The picture that was `asked` for is not wanted any more."""
        ask = ask_of(request.session_hash, str(asked).partition(" ")[0])
        if ask is not None:
            self._links.give_up(self._seats.of(request).visitor, ask)
