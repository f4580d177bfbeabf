"""A file that a tool returns inside other values is stored, shown, sent and deleted as a file."""

import base64
import json
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai.messages import BinaryContent

from agent.files.references import files_named_in
from agent.files.store import ROUTE
from agent.history.sql.sqlite import SqliteStore
from agent.models.catalog import ModelSpec
from agent.tools.function_tools import tool
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import delete_conversation
from agent.web.chat.visitor import Visitor
from tests.support.media_files import random_png
from tests.support.scripted_server import Running
from tests.support.views import chats_of

ANN = Visitor(owner="ann")
MODEL = ModelSpec(id="local:one", name="Qwen/Qwen3-8B", label="One", provider="vllm", image=True, tools="native")
PICTURE = random_png()


class Drawing(BaseModel):
    """A picture with its title."""

    title: str
    picture: BinaryContent


@tool
def draw() -> dict[str, list[Drawing]]:
    """Draw the rain."""
    picture = BinaryContent(PICTURE, media_type="image/png", identifier="chart")
    return {"drawings": [Drawing(title="Rain", picture=picture)]}


def stored_bytes(folder: Path) -> bytes:
    """Return all bytes of the history."""
    return b"".join(path.read_bytes() for path in folder.glob("history.sqlite*"))


def encodings(data: bytes) -> list[bytes]:
    """Return the beginnings of the base64 forms of these bytes."""
    return [encode(data)[:60] for encode in (base64.b64encode, base64.urlsafe_b64encode)]


async def test_nested_picture_is_a_file_from_the_tool_to_its_deletion(tmp_path: Path, model_server: Running) -> None:
    store = await SqliteStore.open(tmp_path / "history.sqlite")
    page = chats_of(model_server.base_url, tmp_path, MODEL, store=store, tools=[draw])
    sent = len(model_server.journal())
    live = await page.send(ANN, None, {"text": "!tool draw !text There."}, Choices(tools=True))
    assert live is not None
    await live.run
    await page.live_runs.close(seconds=30)

    [conversation] = await store.list("ann")
    [file] = files_named_in([entry.message for entry in await store.entries(conversation)])
    assert (await page.media.read("ann", file)).data == PICTURE
    [shown] = [content for bubble in live.log.bubbles if "files" in (content := bubble.content)]
    assert [item["url"] for item in shown["files"]] == [ROUTE + file]

    [_, request] = model_server.journal()[sent:]
    assert base64.b64encode(PICTURE).decode() in json.dumps(request["body"]), "the model does not see the picture"

    await page.aclose()
    await store.aclose()
    rows = stored_bytes(tmp_path)
    assert b"See file chart" in rows
    assert not any(text in rows for text in encodings(PICTURE)), "the row has the bytes of the picture"

    store = await SqliteStore.open(tmp_path / "history.sqlite")
    [conversation] = await store.list("ann")
    assert await delete_conversation(store, page.media, conversation, lambda _: False)
    assert [path for path in (tmp_path / "media").rglob("*") if path.is_file()] == []
    await store.aclose()
