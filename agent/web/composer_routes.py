"""The routes of the composer: a picture from a link, and the chosen model and effort. See docs/http.md.

The page tells a choice at once and by a request that outlives the page, so that a reload does not lose it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from agent.errors import InputError
from agent.i18n.translator import negotiate
from agent.web.chat.choices import effort_of
from agent.web.chat.conversations import Conversations
from agent.web.chat.link_fetch import LinkFetcher
from agent.web.client_address import client_address
from agent.web.conversation_routes import answering
from agent.web.heavy_work import RequestLimit, result_unless_gone
from agent.web.middleware.isolation import visitor_id_of
from agent.web.middleware.requests import EventBodies
from agent.web.sending import add_upload, visitor_of


class ComposerRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page.

    `login_of` returns the token of a request's login.
    """

    def __init__(
        self,
        conversations: Conversations,
        links: LinkFetcher,
        owner_of: Callable[[Request], str],
        login_of: Callable[[Request], Awaitable[str | None]],
        limit: RequestLimit | None = None,
    ) -> None:
        self._conversations, self._links, self._owner_of, self._login_of = conversations, links, owner_of, login_of
        self._bodies, self._limit = EventBodies(limit), limit

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        for path, method, handler in (("/pictures", "POST", self._fetch), ("/settings", "PATCH", self._choose)):
            app.add_api_route(path, answering(handler, self._owner_of), methods=[method])

    async def _fetch(self, request: Request, owner: str) -> Any:
        """Fetch the picture at a link, as if the visitor had uploaded it. A client that goes away cancels it."""
        url = (await self._texts(request, "url"))["url"]
        visitor = visitor_of(request, owner, await self._login_of(request))
        try:
            picture = await result_unless_gone(request, self._links.fetch(visitor, url))
        except ClientDisconnect:
            return Response(status_code=499)
        path = await add_upload(picture.name, picture.data, request.scope)
        return {
            "path": path,
            "name": picture.name,
            "media_type": picture.media_type,
            "size": len(picture.data),
        }

    async def _choose(self, request: Request, owner: str) -> None:
        """Remember the model or the effort that the visitor has chosen. Raises `AgentError` for an unknown model."""
        if self._limit is not None:
            self._limit.count(owner, client_address(request.scope))
        given = await self._texts(request, "model", "effort", needs_all=False)
        visitor = visitor_of(request, owner)
        model, effort = given.get("model"), given.get("effort")
        if model is not None and not model.strip():
            raise InputError("model must be the id or the name of a model.")
        spec = self._conversations.models.find(model.strip()) if model else None
        if effort and effort_of(effort) is None:
            raise InputError("effort must be a reasoning effort, or empty.")
        if spec is not None:
            translator = negotiate(request.headers.get("accept-language", ""))
            self._conversations.choose_model(visitor, spec, translator)
        if effort is not None:
            self._conversations.choose_effort(visitor, effort_of(effort))

    async def _texts(self, request: Request, *names: str, needs_all: bool = True) -> dict[str, str]:
        """Return the body, whose values are texts with these names. Raises `InputError` and `RequestRefused`."""
        async with self._bodies.read(request.scope, request.receive, visitor_id_of(request.scope)) as body:
            is_right = body and set(body) <= {*names} and all(isinstance(one, str) for one in body.values())
            if not is_right or (needs_all and len(body) < len(names)):
                known = ", ".join(f'"{name}": "..."' for name in names)
                raise InputError(f"Send {{{known}}}.")
            return body
