"""What is kept about a visitor: the summary, and the deletion of everything."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import NotFound
from agent.files.references import reference_of, with_references
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore, now
from agent.history.sql.postgres import PostgresStore
from agent.models.catalog import ModelSpec
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.own_data import OwnData, OwnDataSummary
from agent.web.chat.visitor import Visitor
from tests.conftest import App
from tests.support.history_stores import started
from tests.support.http_client import HttpVisitor
from tests.support.live_folders import files_with
from tests.support.media_files import random_png
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of

PLAIN = ModelSpec(id="local:plain", name="plain", label="Plain", provider="vllm")
SERVER = Config(rate=50.0, models=("plain",))
ALICE, MALLORY = "alice", "alice-too"
NOTHING = OwnDataSummary()
MARK = "quizzaciously"


@pytest.fixture
async def page(server: Running, tmp_path: Path, store: HistoryStore) -> AsyncIterator[Conversations]:
    made = chats_of(server.base_url, tmp_path, PLAIN, store=store)
    yield made
    await made.aclose()


@pytest.fixture
def own_data(page: Conversations, store: HistoryStore) -> OwnData:
    return OwnData(page, store, page.media)


async def with_file(store: HistoryStore, media: MediaStore, owner: str) -> bytes:
    """Store a conversation with a marked text and a file. Return the bytes of the file."""
    data, conversation = random_png(), Conversation(owner=owner, title=MARK)
    first = Entry(
        parent_id=None, message=ModelRequest([UserPromptPart([MARK, BinaryContent(data, media_type="image/png")])])
    )
    message = await with_references(media, owner, first.message, reference_of(conversation.id, first.id))
    await store.save(replace(conversation, head_id=first.id), [replace(first, message=message)])
    return data


async def test_nothing_is_left_and_others_stay(
    page: Conversations, own_data: OwnData, store: HistoryStore, tmp_path: Path
) -> None:
    mine, theirs = await with_file(store, page.media, ALICE), await with_file(store, page.media, MALLORY)
    hidden, _ = await started(store, "Deleted before", owner=ALICE)
    await page.list.delete(ALICE, hidden.id)
    expiring, _ = await started(store, MARK, owner=ALICE)
    first = now() + timedelta(days=3)
    assert await store.retention.set_expiry(expiring, first)
    kept, _ = await started(store, MARK, owner=MALLORY)
    assert await store.retention.set_expiry(kept, first)
    page.remembered.put(Visitor(owner=ALICE), Choices(system_message=MARK))
    before, others = await own_data.summary(ALICE), await own_data.summary(MALLORY)
    assert (before.conversations, before.messages, before.files, before.file_bytes) == (2, 3, 1, len(mine))
    assert before.expires_at == first
    assert before.text_bytes > 0
    assert await own_data.delete_all(ALICE) == NOTHING
    assert await store.list(ALICE) == []
    assert page.remembered.get(ALICE) is None
    with pytest.raises(NotFound):
        await page.list.restore(ALICE, hidden.id)
    assert await own_data.summary(MALLORY) == others
    assert (others.conversations, others.files) == (2, 1)
    assert not files_with(tmp_path, mine)
    assert files_with(tmp_path, theirs)
    await own_data.delete_all(MALLORY)
    await store.aclose()
    assert not files_with(tmp_path, theirs)
    assert not files_with(tmp_path / "media", theirs)
    if not isinstance(store, PostgresStore):  # its server keeps a log of changes and dead rows until it cleans up
        assert not files_with(tmp_path, MARK.encode())


async def test_steps_of_an_answer_are_no_messages(own_data: OwnData, store: HistoryStore) -> None:
    call = ToolCallPart("nap", {"seconds": 1}, tool_call_id="1")
    messages = [
        ModelRequest([UserPromptPart("Sleep.")]),
        ModelResponse([ThinkingPart("Hm."), TextPart("First."), call]),
        ModelRequest([ToolReturnPart("nap", "Slept.", tool_call_id="1")]),
        ModelResponse([TextPart("Done.")]),
    ]
    entries = list[Entry]()
    for message in messages:
        entries.append(Entry(parent_id=entries[-1].id if entries else None, message=message))
    await store.save(Conversation(owner=ALICE, head_id=entries[-1].id), entries)
    assert (await own_data.summary(ALICE)).messages == 2


async def test_running_answer_is_stopped(page: Conversations, own_data: OwnData, store: HistoryStore) -> None:
    live = await page.send(Visitor(owner=ALICE), None, {"text": "!stall-after 5"}, Choices())
    assert live is not None
    while not live.log.bubbles:
        await live.run.wait_for_update(live.log.seen, timeout=1.0)
    assert await own_data.delete_all(MALLORY) == NOTHING
    assert not live.run.done
    assert await own_data.delete_all(ALICE) == NOTHING
    assert live.run.done
    await page.live_runs.close()
    assert await own_data.summary(ALICE) == NOTHING


def test_own_data_over_http(app: App) -> None:
    first, second, nobody = HttpVisitor(app.url), HttpVisitor(app.url), HttpVisitor(app.url, None)
    first.say("!text Yes. One thing")
    unsent = first.upload("unsent.txt", MARK.encode())
    kept = first.ask("GET", "/own-data")
    assert kept.headers["cache-control"] == "no-store"
    assert (kept.json["conversations"], kept.json["messages"], kept.json["unsent_files"]) == (1, 2, 1)
    for method in ("GET", "DELETE"):
        assert nobody.ask(method, "/own-data").status == 401
        assert second.ask(method, "/own-data").json["conversations"] == 0
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert first.ask("DELETE", "/own-data", headers=headers).status >= 400
    assert first.ask("GET", "/own-data").json == kept.json
    gone = first.ask("DELETE", "/own-data")
    assert gone.status == 200
    assert not any(gone.json.values())
    assert first.ask("GET", "/own-data").json == gone.json
    assert not Path(unsent).exists()
    assert first.ask("GET", "/conversations").json["conversations"] == []
