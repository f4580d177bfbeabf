"""The route `/temporary/{id}`, with which a page says that it still shows a temporary chat."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request

from agent.web.chat.temporary import TemporaryChats
from agent.web.conversation_routes import answering


def add_temporary_route(app: FastAPI, chats: TemporaryChats, owner_of: Callable[[Request], str]) -> None:
    """Add the route. It answers 404 if the chat is over, or is another visitor's."""

    async def keep(request: Request, owner: str) -> Any:
        chats.keep(owner, str(request.path_params["id_"]))

    app.add_api_route("/temporary/{id_}", answering(keep, owner_of), methods=["POST"])
