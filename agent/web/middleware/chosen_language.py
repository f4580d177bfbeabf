"""Middleware for a visitor who has chosen another language than the browser's. Knows only HTTP."""

from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "switchboard_language"


class ChosenLanguage:
    """Gives a request the language in the cookie as its `Accept-Language`, if it is one of `languages`."""

    def __init__(self, app: ASGIApp, languages: Collection[str]) -> None:
        self._app, self._languages = app, languages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            chosen = HTTPConnection(scope).cookies.get(COOKIE, "")
            if chosen in self._languages:
                MutableHeaders(scope=scope)["accept-language"] = chosen
        await self._app(scope, receive, send)
