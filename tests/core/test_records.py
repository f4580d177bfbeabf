"""Run records on the page: replayed from the owner's folder under their bare names, and from nowhere else."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import Agent, Endpoint, connect
from agent.errors import AgentError
from agent.history.memory import MemoryStore
from agent.media.store import MediaStore
from agent.settings import LocalSettings, Settings
from agent.tools.builtin import calculate
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor as Asker
from tests.support.models import QWEN3, FakeLocalModels
from tests.support.scripted_server import Config, running
from tests.support.views import view_of, written

ASKED = '!reasoning Hm. !text Adding. !tool calculate {"expression": "17+25"} !text It is 42.'


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Conversations]:
    """The page of an owner who recorded one answer. The server of that answer is gone."""
    folder = tmp_path / "records"
    folder.mkdir()
    with running(Config(rate=0)) as server:
        async with Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[calculate]) as agent:
            await agent.run(ASKED, record=folder / "sum.jsonl")
    (tmp_path / "secret.jsonl").write_bytes((folder / "sum.jsonl").read_bytes())
    settings = Settings(local=LocalSettings(cache_dir=tmp_path), records=folder)
    page = Conversations(settings, MemoryStore(), MediaStore(tmp_path / "media"), FakeLocalModels(), tools=())
    yield page
    await page.aclose()


async def test_record_is_replayed_unchanged(page: Conversations) -> None:
    assert ("sum · recorded", "replay:sum") in page.models.entries("ann", None)
    live = await page.send(Asker(owner="ann"), None, {"text": "Play it."}, Choices(model="replay:sum"))
    assert live is not None
    assert (await live.run).finish_reason == "stop"
    view = await view_of(page, "ann", live.conversation)
    titles = [one["title"] for one in view.bubbles if "title" in one and one["kind"] != "steps"]
    assert re.fullmatch(r"Reasoning( · [\d.]+ s)?", titles[0])  # a busy machine takes a tenth of a second
    assert titles[1:] == ["Calculate", "Result"]
    said = [written(text) for text in ("Hm.", "Adding.", "It is 42.")]
    assert [text for text in view.texts if text in said] == said


@pytest.mark.parametrize(
    "name", ["replay:../secret", "replay:{folder}/secret", "replay:", "replay:other", "replay:sum?speed=9"]
)
async def test_no_other_file_is_opened(page: Conversations, tmp_path: Path, name: str) -> None:
    with pytest.raises(AgentError, match="no record"):
        await page.send(Asker(owner="ann"), None, {"text": "Play it."}, Choices(model=name.format(folder=tmp_path)))


async def test_missing_folder_disables_replay(tmp_path: Path, page: Conversations) -> None:
    settings = Settings(local=LocalSettings(cache_dir=tmp_path))
    other = Conversations(settings, MemoryStore(), MediaStore(tmp_path), FakeLocalModels(), tools=())
    with pytest.raises(AgentError, match="No model named"):
        await other.send(Asker(owner="ann"), None, {"text": "Play it."}, Choices(model="replay:sum"))
    await other.aclose()
