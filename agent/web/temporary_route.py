"""The routes `/temporary/{id}`, with which a page says that it shows a temporary chat, or shows it no longer."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request

from agent.web.chat.temporary import TemporaryChats
from agent.web.conversation_routes import answering


def add_temporary_route(app: FastAPI, chats: TemporaryChats, owner_of: Callable[[Request], str]) -> None:
    """Add the routes. `POST` answers 404 if the chat is over, or is another visitor's."""

    async def keep(request: Request, owner: str) -> Any:
        chats.keep(owner, str(request.path_params["id_"]))

    async def leave(request: Request, owner: str) -> Any:
        chats.leave(owner, str(request.path_params["id_"]))

    for method, handler in (("POST", keep), ("DELETE", leave)):
        app.add_api_route("/temporary/{id_}", answering(handler, owner_of), methods=[method])
