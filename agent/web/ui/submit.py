"""Sends a message from the composer to the store: checks its files, reports progress and shows errors."""

import asyncio
import html
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import gradio as gr

from agent.errors import AgentError, files_unusable
from agent.i18n import _
from agent.i18n.translator import ENGLISH, Translator
from agent.media.transcribe import ReportProgress
from agent.providers import Status
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.live_runs import STILL_WRITING, LiveRun
from agent.web.chat.message_id import NO_MESSAGE_ID, MessageId
from agent.web.middleware.isolation import visitor_id_of
from agent.web.ui.examples import FILES
from agent.web.ui.page_sessions import PageSession

PROGRESS_SECONDS = 0.5
"""Seconds before progress is shown, and between checks whether the page is gone."""

log = logging.getLogger(__name__)
T = TypeVar("T")
_NOT_SENT = _("Not sent")
PROGRAM_FAILED = _("Something went wrong in this program; its log has the details.")


class Submission(Generic[T]):
    """Runs `work`, which reports its progress. Owns its task."""

    def __init__(self, work: Callable[[ReportProgress], Awaitable[T]]) -> None:
        self._status: Status | None = None
        self._task = asyncio.ensure_future(work(self._report))

    async def progress(self) -> AsyncIterator[Status | None]:
        """Yield what is being read, or None if nothing is, repeatedly until all is done."""
        async for _tick in poll_until_done(self._task):
            yield self._status

    def stop(self) -> None:
        """Cancel while files are being read. The steps after that are short."""
        if self._status is not None:
            self._task.cancel()

    @property
    def stopped(self) -> bool:
        """True if the work was cancelled."""
        return self._task.cancelled()

    def result(self) -> T:
        """Return the result of the work, or raise its exception."""
        return self._task.result()

    async def aclose(self) -> None:
        """Cancel the work if it has not ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        # The exception of the task holds this frame's callers and everything that the visitor sent. This reference
        # cycle would keep megabytes until the next full garbage collection.
        del self._task

    def _report(self, status: Status | None) -> None:
        self._status = status


async def submit(
    conversations: Conversations,
    value: dict[str, Any] | None,
    session: PageSession,
    choices: Choices,
    request: gr.Request,
    report: ReportProgress | None = None,
    message: MessageId = NO_MESSAGE_ID,
) -> tuple[PageSession, LiveRun | None]:
    """Send a message with this visitor's files. Return the page session at its conversation, and the live answer.

    The answer is None if the message answered one of several questions, or if it was sent again and is stored already.
    `report` is called while files are read.
    """
    sent = conversations.find_sent(session.owner, session.conversation, message)
    if found := await toast_errors(sent, session.translator):
        return replace(session, conversation=found), None
    files = [str(file) for file in (value or {}).get("files") or []]
    if not owns_files(files, request):
        raise gr.Error(
            session.translator(_("An attachment could not be read. Attach it again.")),
            title=session.translator(_NOT_SENT),
            print_exception=False,
        )
    work = conversations.send(session.visitor, session.conversation, value, choices, report, message)
    if not files:
        live = await toast_errors(work, session.translator)
    else:
        assert request.request is not None
        scope = request.request.scope
        uploads = scope["state"]["uploads"]
        with uploads.using([Path(file) for file in files]):  # housekeeping must not remove them before they are read
            live = await toast_errors(work, session.translator)
        uploads.remove(files, visitor_id_of(scope))  # the message stores what was sent
    return (replace(session, conversation=live.conversation) if live else session), live


async def poll_until_done(work: asyncio.Future[Any]) -> AsyncIterator[None]:
    """Yield regularly until the work is done. Cancels the work if the caller stops waiting."""
    try:
        while not (await asyncio.wait({work}, timeout=PROGRESS_SECONDS))[0]:
            yield
    finally:
        work.cancel()


def owns_files(files: Sequence[str], request: gr.Request) -> bool:
    """Return True if this visitor uploaded the files, or if they are files of the examples."""
    assert request.request is not None
    scope = request.request.scope
    visitor, isolation = visitor_id_of(scope), scope["state"]["isolation"]
    return all(file in FILES.values() or isolation.uploads.owns(file, visitor) for file in files)


async def toast_errors(work: Awaitable[T], translator: Translator = ENGLISH) -> T:
    """Await the work and show errors as toasts. Unexpected errors get a general message."""
    try:
        return await work
    except AgentError as error:
        waits = error.text == STILL_WRITING
        raise (ask_to_wait(translator(error.text), translator) if waits else not_sent(error, translator)) from error
    except OSError as error:
        log.exception("an event failed")
        raise not_sent(files_unusable(error), translator) from error
    except Exception as error:
        log.exception("an event failed")
        raise gr.Error(
            translator(PROGRAM_FAILED),
            title=translator(_NOT_SENT),
            print_exception=False,
        ) from error


def not_sent(error: AgentError, translator: Translator) -> gr.Error:
    """Return the toast of an error that prevented the sending."""
    return gr.Error(
        html.escape(translator(error.text), quote=False), title=translator(_NOT_SENT), print_exception=False
    )


def ask_to_wait(message: str, translator: Translator) -> gr.Error:
    """Show a notice that asks the visitor to wait. Return the invisible error that ends the event."""
    gr.Info(html.escape(message), title=translator(_NOT_SENT))
    return gr.Error(message, visible=False, print_exception=False)
