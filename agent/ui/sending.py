"""A message on its way from the composer into the store: whose files it has, what takes its time, what goes wrong."""

import asyncio
import html
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import gradio as gr

from agent.errors import AgentError
from agent.providers import Status
from agent.reading import Report
from agent.serving.walls import visitor_of
from agent.ui.examples import FILES
from agent.ui.live import LiveRun
from agent.ui.seats import Seat
from agent.ui.start import Choices
from agent.ui.turn import Conversations
from agent.ui.words import ENGLISH, Words

PATIENCE = 0.5
"""Seconds after which it is said what takes so long; as often a page that is gone is noticed."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class Sending(Generic[T]):
    """Runs `work`, which reports what it reads. Owner of its task."""

    def __init__(self, work: Callable[[Report], Awaitable[T]]) -> None:
        self._status: Status | None = None
        self._task = asyncio.ensure_future(work(self._report))

    async def progress(self) -> AsyncIterator[Status | None]:
        """What is being read, or None where nothing is, again and again until all is done."""
        async for _ in patiently(self._task):
            yield self._status

    def stop(self) -> None:
        """Give up, where files are still being read. What comes after that is soon done."""
        if self._status is not None:
            self._task.cancel()

    @property
    def stopped(self) -> bool:
        """Whether it was given up."""
        return self._task.cancelled()

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        return self._task.result()

    async def aclose(self) -> None:
        """End it, if it has not ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        # Its exception holds this frame's callers, and so all that the visitor sent: a reference cycle, which would
        # keep megabytes until the next full garbage collection.
        del self._task

    def _report(self, status: Status | None) -> None:
        self._status = status


async def send(
    conversations: Conversations,
    value: dict[str, Any] | None,
    seat: Seat,
    choices: Choices,
    request: gr.Request,
    report: Report | None = None,
) -> tuple[Seat, LiveRun | None]:
    """Take a message whose files this visitor brought; return the seat at its conversation, and the answer.

    There is none where the message answered one of several questions. `report` is told while files are read.
    """
    files = [str(file) for file in (value or {}).get("files") or []]
    if not owned(files, request):
        raise gr.Error(seat.words("not_read"), title=seat.words("not_sent"), print_exception=False)
    work = conversations.send(seat.visitor, seat.conversation, value, choices, report)
    if not files:
        live = await told(work, seat.words)
    else:
        assert request.request is not None
        scope = request.request.scope
        uploads = scope["state"]["uploads"]
        with uploads.using([Path(file) for file in files]):  # housekeeping must not remove them before they are read
            live = await told(work, seat.words)
        uploads.remove(files, visitor_of(scope))  # what was sent is kept with the message
    return (replace(seat, conversation=live.conversation) if live else seat), live


async def patiently(work: asyncio.Future[Any]) -> AsyncIterator[None]:
    """Now and again while the work takes its time. It is given up with whoever waits for it."""
    try:
        while not (await asyncio.wait({work}, timeout=PATIENCE))[0]:
            yield
    finally:
        work.cancel()


def owned(files: Sequence[str], request: gr.Request) -> bool:
    """Whether this visitor brought the files, or they are ours to be tried."""
    assert request.request is not None
    scope = request.request.scope
    visitor, walls = visitor_of(scope), scope["state"]["walls"]
    return all(file in FILES.values() or walls.owns(file, visitor) for file in files)


async def told(work: Awaitable[T], words: Words = ENGLISH) -> T:
    """Await; say what goes wrong in a toast, in a sentence of ours or in none of anybody's."""
    try:
        return await work
    except AgentError as error:
        said = words.said(error.sayings) or str(error)
        waits = any(saying.key == "still_writing" for saying in error.sayings)
        raise (
            not_yet(said, words) if waits else gr.Error(said, title=words("not_sent"), print_exception=False)
        ) from error
    except Exception as error:
        log.exception("an event failed")
        raise gr.Error(words("broken"), title=words("not_sent"), print_exception=False) from error


def not_yet(said: str, words: Words) -> gr.Error:
    """Ask the visitor to wait, in a notice; return the error that ends the event and is not shown."""
    gr.Info(html.escape(said), title=words("not_sent"))
    return gr.Error(said, visible=False, print_exception=False)
