"""What a page shows of a conversation, without a page."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from agent.web.chat.conversations import Conversations
from agent.web.ui.view import PageView, ViewRenderer, render_view


async def view_of(conversations: Conversations, owner: str, conversation: str | None) -> PageView:
    return render_view(await conversations.view(owner, conversation))


async def watch(conversations: Conversations, owner: str, conversation: str | None) -> AsyncGenerator[PageView]:
    renderer = ViewRenderer()
    async with aclosing(conversations.watch(owner, conversation)) as views:
        async for view in views:
            yield renderer.render(view)
