"""Sends a message for an event of the page, and shows errors as toasts."""

import html
import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import gradio as gr

from agent.errors import AgentError, files_unusable
from agent.i18n import _
from agent.i18n.translator import ENGLISH, Translator
from agent.media.transcribe import ReportProgress
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.live_runs import STILL_WRITING, LiveRun
from agent.web.chat.message_id import NO_MESSAGE_ID, MessageId
from agent.web.sending import send_message
from agent.web.ui.page_sessions import PageSession

log = logging.getLogger(__name__)
T = TypeVar("T")
_NOT_SENT = _("Not sent")
PROGRAM_FAILED = _("Something went wrong in this program; its log has the details.")


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
    assert request.request is not None
    work = send_message(
        conversations,
        session.visitor,
        session.conversation,
        value or {},
        choices,
        request.request.scope,
        report=report,
        message=message,
    )
    conversation, live = await toast_errors(work, session.translator)
    return replace(session, conversation=conversation), live


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
