"""Logs visitors in to Hugging Face with Gradio's button and session.

Gradio gives a visitor's token only to handlers with a parameter of type `gr.OAuthToken`. Here every handler needs the
token as a part of the page session, so this module reads it from the request.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

import gradio as gr
from fastapi import HTTPException, Request
from gradio.oauth import require_oauth_token
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import Message, Receive, Scope, Send


def log_in_visitors() -> None:
    """Let each visitor log in as themselves. Otherwise Gradio would log everybody in as the owner of this machine.

    Gradio reads this variable to know if it is on a Space. The hub's own images set it, Docker images do not.
    """
    os.environ["SYSTEM"] = "spaces"


def login_token(request: Request | None) -> str | None:
    """Return the valid token in the session of a request, or None."""
    try:
        return require_oauth_token(request) if request else None
    except HTTPException:
        return None


def login_reader(page: gr.Blocks) -> Callable[[Request], Awaitable[str | None]]:
    """Return a function for the token of a request to a route that is not Gradio's. Only Gradio reads its session."""

    async def read(request: Request) -> str | None:
        found: list[str | None] = []

        async def look(scope: Scope, receive: Receive, send: Send) -> None:
            found.append(login_token(Request(scope, receive)))

        for layer in cast(Any, page).app.user_middleware:
            if layer.cls is SessionMiddleware:
                await SessionMiddleware(look, *layer.args, **layer.kwargs)(
                    request.scope, request.receive, _send_nothing
                )
        return found[0] if found else None

    return read


async def _send_nothing(_: Message) -> None:
    """Send nothing: the session is only read."""


def take_load_event(button: gr.LoginButton) -> Callable[..., Any] | None:
    """Return the function that labels the button when a page loads, and keep Gradio from connecting it itself.

    Gradio would list it in the API, where programs have no use for it.
    """
    event, cast(Any, button).load_event_to_attach = button.load_event_to_attach, None
    return event[0] if event else None
