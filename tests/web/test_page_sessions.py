"""The conversation of a page in each process that serves it: the page's address leads, but not a late request."""

from dataclasses import replace

import gradio as gr
import pytest
from starlette.requests import Request

from agent.i18n import LocalizedText
from agent.web.chat.temporary_memory import new_temporary_id
from agent.web.ui.page_sessions import PageSessions

ONE, OTHER, THIRD = ("1" * 32, "2" * 32, "3" * 32)


def sent_from(conversation: str | None) -> gr.Request:
    """Return a request of Ann's page while its address names this conversation."""
    address = "http://test/" + (f"c/{conversation}" if conversation else "")
    headers = [(b"referer", address.encode())]
    asked = Request({"type": "http", "headers": headers, "state": {"visitor": "ann"}})
    return gr.Request(asked, session_hash="page")


def change(sessions: PageSessions, conversation: str | None, *, sent: str | None) -> None:
    """Give the page another conversation, as the handler of a request does that was sent from `sent`."""
    request = sent_from(sent)
    sessions.save(request, replace(sessions.get(request), conversation=conversation, missing=None))


@pytest.mark.parametrize("before", [None, OTHER], ids=["new", "other"])
def test_page_of_another_process_has_the_chat_of_its_address(before: str | None) -> None:
    sessions = PageSessions()
    assert sessions.get(sent_from(before)).conversation == before
    for _ in range(2):
        assert sessions.get(sent_from(ONE)).conversation == ONE


@pytest.mark.parametrize("after", [None, OTHER], ids=["new", "copy"])
def test_late_request_does_not_bring_the_conversation_back(after: str | None) -> None:
    sessions = PageSessions()
    for conversation in (THIRD, ONE):
        change(sessions, conversation, sent=conversation)
    change(sessions, after, sent=ONE)
    for late in (ONE, THIRD, None):
        assert sessions.get(sent_from(late)).conversation == after


def test_address_without_a_conversation_is_not_taken_for_one() -> None:
    sessions = PageSessions()
    request = sent_from(ONE)
    sessions.save(request, replace(sessions.get(sent_from(None)), missing=LocalizedText("It is not there.")))
    assert sessions.get(request).conversation is None
    change(sessions, OTHER, sent=ONE)  # a message that was sent from the page that says so
    assert sessions.get(request).conversation == OTHER


def test_temporary_conversation_is_left_by_its_page_only() -> None:
    sessions, temporary = PageSessions(), new_temporary_id()
    change(sessions, temporary, sent=None)
    assert sessions.get(sent_from(ONE)).conversation == temporary
