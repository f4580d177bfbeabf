"""The route `/own-data`: what is stored of a visitor, and the deletion of all of it. `docs/http.md` describes it.

Every request speaks for one owner. The middleware refuses deletions that pages of other sites request.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request

from agent.system.shield import run_to_completion
from agent.web.chat.own_data import OwnData, OwnDataSummary
from agent.web.client_address import client_address
from agent.web.conversation_routes import answering
from agent.web.heavy_work import RequestLimit
from agent.web.unsent_files import UnsentFiles

OWN_DATA = "/own-data"


class OwnDataRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page."""

    def __init__(
        self,
        own_data: OwnData,
        unsent_files: UnsentFiles,
        owner_of: Callable[[Request], str],
        limit: RequestLimit | None = None,
    ) -> None:
        self._own_data, self._unsent_files = own_data, unsent_files
        self._owner_of, self._limit = owner_of, limit

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        for method, handler in (("GET", self._summary), ("DELETE", self._delete_all)):
            app.add_api_route(OWN_DATA, answering(handler, self._owner_of), methods=[method])

    def _count(self, request: Request, owner: str) -> None:
        if self._limit is not None:
            self._limit.count(owner, client_address(request.scope))

    async def _summary(self, request: Request, owner: str) -> Any:
        self._count(request, owner)
        return self._fields(owner, await self._own_data.summary(owner))

    async def _delete_all(self, request: Request, owner: str) -> Any:
        self._count(request, owner)
        found = OwnDataSummary()

        async def delete() -> None:
            nonlocal found
            await self._unsent_files.remove_all(owner)
            found = await self._own_data.delete_all(owner)

        await run_to_completion(delete())
        return self._fields(owner, found)

    def _fields(self, owner: str, found: OwnDataSummary) -> dict[str, Any]:
        return {
            "conversations": found.conversations,
            "messages": found.messages,
            "text_bytes": found.text_bytes,
            "files": found.files,
            "file_bytes": found.file_bytes,
            "unsent_files": self._unsent_files.number_of(owner),
            "expires_at": found.expires_at.isoformat() if found.expires_at else None,
        }
