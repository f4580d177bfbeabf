"""Folders of chats: instructions, bounds, moves, export and import. Isolation is in `test_isolation`."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI

from agent.history import FOLDER_INSTRUCTIONS, MOST_FOLDERS, folders_id, folders_owner, now
from agent.settings import PublicSettings
from tests.support.asgi_requests import asked, running_app
from tests.support.http_client import owner_in
from tests.support.scripted_server import Running
from tests.support.views import settle


class Visit:
    """A visitor of an app in this process."""

    def __init__(self, app: FastAPI) -> None:
        self.app, self.cookie = app, b""

    async def ask(self, method: str, path: str, body: Any = None, status: int | None = None) -> Any:
        path, _, query = path.partition("?")
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await asked(
            *(self.app, method, path, query, sent), waits=True, cookie=self.cookie, content_type=b"application/json"
        )
        if status is not None:
            assert answer.status == status, answer.text
        try:
            return json.loads(answer.text) if answer.text else None
        except ValueError:
            return answer.text

    async def begin(self, text: str, **more: Any) -> str:
        """Begin a chat, and wait for the end of its answer. Return its id."""
        begun = await self.ask("POST", "/conversations", {"text": text, "id": uuid4().hex, **more}, 200)
        await self.settle()
        return begun["conversation"]

    async def settle(self) -> None:
        await settle(self.app.state.conversations)

    async def rows(self, query: str = "") -> dict[str, str]:
        """Return the folders of the listed chats by their ids."""
        listed = await self.ask("GET", f"/conversations{query}", status=200)
        return {row["id"]: row.get("folder", "") for row in [*listed.get("pinned", []), *listed["conversations"]]}

    async def folder(self, name: str, **fields: str) -> str:
        return (await self.ask("POST", "/folders", {"name": name, **fields}, 200))["id"]

    async def names(self) -> list[str]:
        return [one["name"] for one in (await self.ask("GET", "/folders", status=200))["folders"]]


async def visit_of(app: FastAPI) -> Visit:
    made = Visit(app)
    made.cookie = (await asked(app, "GET", "/")).cookie
    return made


@pytest.fixture
async def visitor(tmp_path: Path, server: Running) -> AsyncIterator[Visit]:
    async with running_app(tmp_path, server.base_url, system_prompt="The owner speaks.") as app:
        await app.state.conversations.models.local.ready()
        yield await visit_of(app)


def system_of(server: Running) -> str:
    """Return the system prompt of the last request to the model."""
    return server.journal()[-1]["body"]["messages"][0]["content"]


async def test_folder_instructs_its_chats_after_the_owner(visitor: Visit, server: Running) -> None:
    folder = await visitor.folder("Cooking", instructions=" Answer as a cook. ")
    chat = await visitor.begin("!text Soup.", folder=folder)
    assert system_of(server) == "The owner speaks.\n\nAnswer as a cook."
    await visitor.ask("POST", f"/conversations/{chat}/messages", {"text": "!text More.", "id": uuid4().hex}, 200)
    await visitor.settle()
    assert system_of(server) == "The owner speaks.\n\nAnswer as a cook."
    await visitor.ask("PATCH", "/settings", {"system_message": "My own prompt."}, 204)
    await visitor.begin("!text Stew.", folder=folder)
    assert system_of(server) == "My own prompt.\n\nAnswer as a cook."
    await visitor.ask("PATCH", "/settings", {"system_message": ""}, 204)
    await visitor.begin("!text Stew.", folder=folder)
    assert system_of(server) == "Answer as a cook."
    outside = await visitor.begin("!text Rain.", settings={"system_message": "The weather."})
    assert system_of(server) == "The weather."
    window = await visitor.ask("GET", f"/conversations/{chat}/window", status=200)
    assert window["tokens"] > 0
    assert (await visitor.rows())[outside] == ""


async def test_chat_moves_and_stays_when_its_folder_goes(visitor: Visit, server: Running) -> None:
    first, second = await visitor.begin("!text One."), await visitor.begin("!text Two.")
    folder = await visitor.folder("  Plans \n of   mine ")
    assert await visitor.names() == ["Plans of mine"]
    order = [*(await visitor.rows())]
    await visitor.ask("PATCH", f"/conversations/{first}", {"folder": folder}, 200)
    assert await visitor.rows() == {second: "", first: folder}
    assert [*(await visitor.rows())] == order
    assert await visitor.rows(f"?folder={folder}") == {first: folder}
    other = await visitor.folder("Other")
    await visitor.ask("PATCH", f"/conversations/{second}", {"folder": other}, 200)
    assert await visitor.rows(f"?folder={folder}&folder={other}") == {second: other, first: folder}
    await visitor.ask("DELETE", f"/folders/{other}", status=204)
    await visitor.ask("PATCH", f"/conversations/{second}", {"folder": ""}, 200)
    assert (await visitor.ask("PATCH", f"/conversations/{first}", {"folder": uuid4().hex}, 404))["detail"]
    assert await visitor.rows(f"?folder={folder}") == {first: folder}
    changed = await visitor.ask("PATCH", f"/folders/{folder}", {"name": "Notes", "instructions": "Brief."}, 200)
    assert (changed["name"], changed["instructions"], changed["model"]) == ("Notes", "Brief.", "")
    begun = await visitor.ask("POST", f"/conversations/{second}/messages", {"text": "!tokens 30 hold 10 moved"}, 200)
    busy = await visitor.ask("PATCH", f"/conversations/{second}", {"folder": folder}, 409)
    assert "still being written" in busy["detail"]
    server.release("moved")
    await visitor.settle()
    assert begun["conversation"] == second
    await visitor.ask("DELETE", f"/folders/{folder}", status=204)
    assert [*(await visitor.rows())] == [second, first]
    await visitor.ask("POST", f"/conversations/{first}/messages", {"text": "!text Still here."}, 200)
    await visitor.settle()
    assert system_of(server) == "The owner speaks."
    gone = await visitor.ask("POST", "/conversations", {"text": "!text Lost.", "folder": folder}, 404)
    assert gone["detail"] == "This folder is gone. It was deleted meanwhile."
    assert len(await visitor.rows()) == 2
    await visitor.ask("PATCH", f"/folders/{folder}", {"name": "Back"}, 404)
    await visitor.ask("DELETE", f"/folders/{folder}", status=404)


async def test_folders_are_bounded_and_say_so(visitor: Visit) -> None:
    for wrong, sentence in (
        ({"name": " \u200b "}, "A folder needs a name."),
        ({"name": "a", "instructions": "x" * (FOLDER_INSTRUCTIONS + 1)}, "4,001 characters"),
        ({"name": 1}, "Send"),
        ({"instructions": "a"}, "Send"),
        ({"name": "a", "id": "b"}, "Send"),
        ({"name": "a", "model": "m" * 5_000}, "too long"),
    ):
        assert sentence in (await visitor.ask("POST", "/folders", wrong, 400))["detail"]
    assert await visitor.names() == []
    for number in range(MOST_FOLDERS):
        await visitor.folder(f"{number} {'n' * 100}")
    assert all(len(name) == 60 for name in await visitor.names())
    full = await visitor.ask("POST", "/folders", {"name": "One more"}, 429)
    assert full["detail"] == "You can have at most 30 folders. Delete one first."
    temporary = {"text": "!text Hi.", "temporary": True, "folder": uuid4().hex}
    assert "kept" in (await visitor.ask("POST", "/conversations", temporary, 400))["detail"]


async def test_folders_go_with_all_that_is_of_a_visitor(visitor: Visit) -> None:
    folder, other = await visitor.folder("Mine"), await visit_of(visitor.app)
    await other.folder("Theirs")
    await visitor.begin("!text One.", folder=folder)
    store, owner = visitor.app.state.conversations.store, owner_in(visitor.cookie.decode().partition("=")[2])
    assert folders_owner(owner) in await store.retention.sizes()
    await visitor.ask("DELETE", "/own-data", status=200)
    assert await visitor.names() == []
    assert await other.names() == ["Theirs"]
    assert folders_owner(owner) not in await store.retention.sizes()


async def test_document_of_folders_expires_like_a_chat(tmp_path: Path, server: Running) -> None:
    public = PublicSettings(keep_days=3)
    async with running_app(tmp_path, server.base_url, public=public) as app:
        await app.state.conversations.models.local.ready()
        visitor, store = await visit_of(app), app.state.conversations.store
        folder = await visitor.folder("Short")
        owner = owner_in(visitor.cookie.decode().partition("=")[2])

        async def end() -> Any:
            return (await store.get(folders_id(owner), owner=folders_owner(owner))).expires_at

        first = await end()
        assert timedelta(days=2.9) < first - now() <= timedelta(days=3)
        document = await store.get(folders_id(owner), owner=folders_owner(owner))
        await store.retention.set_expiry(document, first - timedelta(hours=1))
        chat = await visitor.begin("!text Used.", folder=folder)
        assert await end() >= first
        outside = await visitor.begin("!text Moved.")
        document = await store.get(folders_id(owner), owner=folders_owner(owner))
        await store.retention.set_expiry(document, first - timedelta(hours=1))
        await visitor.ask("PATCH", f"/conversations/{outside}", {"folder": folder}, 200)
        assert await end() >= first
        document = await store.get(folders_id(owner), owner=folders_owner(owner))
        await store.retention.set_expiry(document, now())
        assert await visitor.names() == []
        await visitor.ask("POST", f"/conversations/{chat}/messages", {"text": "!text On."}, 200)
        await visitor.settle()


async def test_folders_are_exported_and_imported(visitor: Visit) -> None:
    folder = await visitor.folder("Cooking", instructions="Answer as a cook.", model="vllm:any")
    await visitor.begin("!text Soup.", folder=folder)
    await visitor.begin("!text Rain.")
    exported = await visitor.ask("GET", "/export?format=json", status=200)
    kept = [one["folder"] for one in exported if "folder" in one]
    assert kept == [{"name": "Cooking", "instructions": "Answer as a cook.", "model": "vllm:any"}]
    assert not any({"folder", "folders"} & one["conversation"].keys() for one in exported if "conversation" in one)
    hostile = [dict(one) for one in exported]
    hostile[1]["conversation"] = hostile[1]["conversation"] | {"folder": "x" * 99, "folders": [{"name": "Forged"}]}
    reader = await visit_of(visitor.app)
    await reader.ask("POST", "/import", json.dumps(hostile).encode(), 200)
    assert await reader.names() == ["Cooking"]
    [new] = (await reader.ask("GET", "/folders"))["folders"]
    assert (new["id"] != folder, new["instructions"], new["model"]) == (True, "Answer as a cook.", "vllm:any")
    assert sorted((await reader.rows()).values()) == ["", new["id"]]
    await reader.ask("DELETE", "/own-data", status=200)
    for number in range(MOST_FOLDERS):
        await reader.folder(f"Number {number}")
    said = await reader.ask("POST", "/import", json.dumps(exported).encode(), 200)
    assert "the folder of 1 chat" in said
    assert [*(await reader.rows()).values()] == ["", ""]
    damaged = [dict(one) | ({"folder": {"name": 1}} if "conversation" in one else {}) for one in exported]
    other = await visit_of(visitor.app)
    await other.ask("POST", "/import", json.dumps(damaged).encode(), 200)
    assert (len(await other.rows()), await other.names()) == (2, [])
