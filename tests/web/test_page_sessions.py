"""A page session belongs to one visitor."""

import gradio as gr
from starlette.requests import Request

from agent.web.ui.page_sessions import PageSessions


def request_of(visitor: str | None) -> gr.Request:
    """Return a request of this visitor's page, with a session that another visitor can name, too."""
    asked = Request({"type": "http", "headers": [], "state": {"visitor": visitor}})
    return gr.Request(asked, session_hash="page")


def test_session_of_another_visitor_is_not_used() -> None:
    sessions = PageSessions()
    assert sessions.get(request_of("ann")).owner == "ann"
    assert sessions.get(request_of("bob")).owner == "bob"
    guest = sessions.get(request_of(None))
    assert guest.guest
    assert guest.owner not in {"ann", "bob"}
    assert sessions.get(request_of(None)).owner == guest.owner
