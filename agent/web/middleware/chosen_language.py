"""Middleware for a visitor who has chosen another language than the browser's. Knows only HTTP."""

from collections.abc import Collection

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "switchboard_language"


class ChosenLanguage:
    """Gives a request the language in the cookie as its `Accept-Language`, if it is one of `languages`."""

    def __init__(self, app: ASGIApp, languages: Collection[str]) -> None:
        self._app, self._languages = app, languages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and (chosen := _chosen(scope)) in self._languages:
            others = [pair for pair in scope["headers"] if pair[0] != b"accept-language"]
            scope = {**scope, "headers": [*others, (b"accept-language", str(chosen).encode())]}
        await self._app(scope, receive, send)


def _chosen(scope: Scope) -> str | None:
    """Return the language in the cookie, or None."""
    for name, value in scope["headers"]:
        if name == b"cookie" and COOKIE.encode() in value:
            return cookie_parser(value.decode("latin-1")).get(COOKIE)
    return None
