"""The files of a read-only link: what is read to serve them, and that what is remembered opens nothing else."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, UserPromptPart
from starlette.requests import Request
from starlette.responses import Response

from agent.errors import NotFound
from agent.files.store import ROUTE, MediaStore
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.settings import LocalSettings, Settings
from agent.web.chat.links import MAX_BRANCHES, ChatLinks, LinkChoices
from agent.web.link_routes import LinkPageRoutes
from tests.support.asgi_requests import never
from tests.support.history_stores import chain, prompt
from tests.support.media_files import random_png


class CountingStore(MemoryStore):
    """A store that counts how often a branch or a whole conversation is read."""

    reads = 0

    async def history(self, conversation: Conversation, **wanted: Any) -> list[Entry]:
        self.reads += 1
        return await super().history(conversation, **wanted)

    async def entries(self, conversation: Conversation) -> Sequence[Entry]:
        self.reads += 1
        return await super().entries(conversation)


def names(file: str) -> ModelRequest:
    """Return a message with a stored file."""
    return ModelRequest([UserPromptPart(["See", ImageUrl(ROUTE + file)])])


async def test_files_of_a_page_read_the_chat_once(tmp_path: Path) -> None:
    store, media = CountingStore(), MediaStore(tmp_path)
    contents = [BinaryContent(random_png(), media_type="image/png") for _ in range(20)]
    files = [await media.add("ann", content, "message") for content in contents]
    entries = chain(*map(names, files))
    conversation = await store.save(Conversation(owner="ann", head_id=entries[-1].id), entries)
    links = ChatLinks(store, Settings(local=LocalSettings()))
    token, _ = await links.create("ann", conversation.id, LinkChoices(days=None, with_files=True))
    routes = LinkPageRoutes(links, cast(Any, None), media, Settings(local=LocalSettings()))

    async def answer(file: str) -> Response:
        scope = {"type": "http", "method": "GET", "path_params": {"token": token, "id_": file}}
        return await routes.file(Request({**scope, "headers": [], "query_string": b""}, never))

    async def status(file: str) -> int:
        return (await answer(file)).status_code

    assert {*await asyncio.gather(*map(status, files))} == {200}
    assert [await status(file) for file in (files[0], "0" * 64 + ".png")] == [200, 404]
    assert store.reads == 1  # the page of the chat, for all files
    headers = (await answer(files[0])).headers
    assert (headers["cache-control"], headers["x-robots-tag"]) == ("no-store", "noindex, nofollow")


async def test_remembered_files_open_no_other_branch() -> None:
    """A file is missing as soon as its link shows it no more, although the files of the link are remembered."""
    store = MemoryStore()
    first, second, hidden = (f"{digit * 64}.png" for digit in "123")
    entries, edited = chain(prompt("Hi"), names(first)), chain(names(second))
    conversation = await store.save(Conversation(owner="ann", head_id=entries[-1].id), entries)
    links = ChatLinks(store, Settings(local=LocalSettings()))
    (later, _), (fixed, link), (bare, _) = [
        await links.create("ann", conversation.id, LinkChoices(days=None, later=later, with_files=with_files))
        for later, with_files in ((True, True), (False, True), (True, False))
    ]

    async def shown(token: str) -> list[bool]:
        found = await asyncio.gather(
            *(links.owner_of_file(token, file) for file in (first, second, hidden)), return_exceptions=True
        )
        assert all(isinstance(one, NotFound) or one == "ann" for one in found)
        return [one == "ann" for one in found]

    for _ in range(2):
        assert [await shown(token) for token in (later, fixed, bare)] == [[True, False, False]] * 2 + [[False] * 3]
    conversation = await store.save(replace(conversation, head_id=edited[0].id), edited)
    for _ in range(2):
        assert [await shown(token) for token in (later, fixed)] == [[False, True, False], [True, False, False]]
    await links.revoke("ann", conversation.id, link.digest)
    assert await shown(fixed) == [False] * 3
    await store.delete(conversation.id, owner="ann")
    assert await shown(later) == [False] * 3


async def test_remembered_branches_are_bounded() -> None:
    store, file = MemoryStore(), f"{'1' * 64}.png"
    links = ChatLinks(store, Settings(local=LocalSettings()))
    for _ in range(MAX_BRANCHES + 5):
        [entry] = chain(names(file))
        conversation = await store.save(Conversation(owner="ann", head_id=entry.id), [entry])
        token, _ = await links.create("ann", conversation.id, LinkChoices(days=None, with_files=True))
        assert await links.owner_of_file(token, file) == "ann"
    assert len(links._files) == MAX_BRANCHES


async def test_files_of_the_branch_in_use_stay_remembered() -> None:
    """The branch that is forgotten is the one whose files nobody has asked for the longest."""
    store, file = CountingStore(), f"{'1' * 64}.png"
    links = ChatLinks(store, Settings(local=LocalSettings()))
    tokens = list[str]()
    for _ in range(MAX_BRANCHES + 1):
        [entry] = chain(names(file))
        conversation = await store.save(Conversation(owner="ann", head_id=entry.id), [entry])
        tokens.append((await links.create("ann", conversation.id, LinkChoices(days=None, with_files=True)))[0])
        await links.owner_of_file(tokens[0], file)
        await links.owner_of_file(tokens[-1], file)
    store.reads = 0
    await links.owner_of_file(tokens[0], file)
    assert store.reads == 0
    await links.owner_of_file(tokens[1], file)
    assert store.reads > 0
