"""The routes `/conversations/{id}/links`: the read-only links to a conversation, for its owner.

`docs/http.md` describes them. The answer to a new link is the only one with its address.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from agent.errors import InputError
from agent.history import Link
from agent.web.chat.choices import MAX_PROMPT_CHARACTERS
from agent.web.chat.links import MAX_DAYS, ChatLinks, LinkChoices
from agent.web.client_address import client_address
from agent.web.conversation_routes import answering, json_object
from agent.web.heavy_work import RequestLimit

LINKS = "/conversations/{id_}/links"
SHARED = "/s/"
"""The beginning of the path of a link."""
MAX_BODY = 8 * MAX_PROMPT_CHARACTERS
"""Bytes of a body. A character can take six bytes as JSON."""
BODY = (
    'Send {"days": 30, "later_messages": false, "attachments": false, "system_prompt": ""}, or only some of these. '
    f'"days" is a number up to {MAX_DAYS}, or null for a link that does not expire.'
)


class _Body(BaseModel):
    """The choices for a new link. Without `days`, the settings decide."""

    model_config = ConfigDict(extra="forbid")

    days: Annotated[StrictInt | StrictFloat, Field(gt=0, le=MAX_DAYS, allow_inf_nan=False)] | None = None
    later_messages: StrictBool = False
    attachments: StrictBool = False
    system_prompt: Annotated[StrictStr, Field(max_length=MAX_PROMPT_CHARACTERS)] = ""


class LinkRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page.

    `is_answering` returns True while an answer is written in this conversation of this owner.
    """

    def __init__(
        self,
        links: ChatLinks,
        owner_of: Callable[[Request], str],
        is_answering: Callable[[str, str], Awaitable[bool]],
        limit: RequestLimit | None = None,
    ) -> None:
        self._links, self._owner_of, self._is_answering, self._limit = links, owner_of, is_answering, limit

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        for path, method, handler in (
            (LINKS, "GET", self._list),
            (LINKS, "POST", self._create),
            (LINKS + "/{digest}", "DELETE", self._revoke),
        ):
            app.add_api_route(path, answering(handler, self._owner_of), methods=[method])

    async def _list(self, request: Request, owner: str) -> Any:
        links = await self._links.list(owner, _conversation(request))
        return {"links": [_fields(link) for link in links], "default_days": self._links.default_days}

    async def _create(self, request: Request, owner: str) -> Any:
        self._count(request, owner)
        body = _checked(await json_object(request, MAX_BODY))
        choices = LinkChoices(
            days=body.days if "days" in body.model_fields_set else self._links.default_days,
            later=body.later_messages,
            with_files=body.attachments,
            system_prompt=body.system_prompt,
        )
        # The link ends with the last stored message, and the store cannot say that the next one belongs to it.
        ends_early = not choices.later and await self._is_answering(_conversation(request), owner)
        token, link = await self._links.create(owner, _conversation(request), choices)
        return _fields(link) | {"path": SHARED + token, "ends_before_answer": ends_early}

    async def _revoke(self, request: Request, owner: str) -> Any:
        self._count(request, owner)
        await self._links.revoke(owner, _conversation(request), str(request.path_params["digest"]))

    def _count(self, request: Request, owner: str) -> None:
        if self._limit is not None:
            self._limit.count(owner, client_address(request.scope))


def _conversation(request: Request) -> str:
    return str(request.path_params["id_"])


def _checked(given: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(given)
    except ValidationError as error:
        raise InputError(BODY) from error


def _fields(link: Link) -> dict[str, Any]:
    return {
        "id": link.digest,
        "created_at": link.created_at.isoformat(),
        "expires_at": link.expires_at.isoformat() if link.expires_at else None,
        "later_messages": link.head_id is None,
        "attachments": link.with_files,
        "system_prompt": link.system_prompt is not None,
    }
