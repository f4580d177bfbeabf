"""The page tells how full the model's window is, and sends a summary instead of the oldest messages."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.errors import Conflict, InputError, NotFound
from agent.history import ChatSummary, Entry
from agent.models.catalog import Price
from agent.models.weights import SMOLLM2
from agent.settings import LocalSettings, Settings
from agent.web.app import create_app
from agent.web.chat.answers import LiveRun
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.model_window import FULL, sent_history, summarizable
from agent.web.chat.visitor import Visitor
from tests.support.models import QWEN3
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of

MODEL = "Qwen/Qwen3-8B"
SERVER = Config(models=(MODEL,), max_model_len=4096, rate=0)
ANN, BOB = Visitor(owner="ann"), Visitor(owner="bob")
CHOICES = Choices(max_tokens=512, tools=False)
MARK = "[Summary of the conversation so far]"


class Page:
    """The conversations of an app in this process, and one chat of Ann's."""

    def __init__(self, conversations: Conversations, server: Running) -> None:
        self.conversations, self.server, self.chat = conversations, server, ""

    async def say(self, text: str) -> LiveRun:
        live = await self.conversations.send(ANN, self.chat or None, {"text": text}, CHOICES)
        assert live is not None
        self.chat = live.conversation_id
        return live

    async def turns(self, *texts: str) -> None:
        for text in texts:
            await (await self.say(text)).wait_for_end()

    async def record(self) -> Any:
        return await self.conversations.store.get(self.chat, owner="ann")

    async def entries(self) -> list[Entry]:
        return await self.conversations.store.history(await self.record())

    async def window(self) -> Any:
        return await self.conversations.window("ann", self.chat, CHOICES)

    def sent(self, number: int = -1) -> list[str]:
        """Return the texts of the messages of a request, without the system message."""
        messages = self.server.journal()[number]["body"]["messages"]
        return [str(one["content"]) for one in messages if one["role"] != "system"]


@asynccontextmanager
async def opened(folder: Path, server: Running, summaries: str = "offer") -> AsyncIterator[Page]:
    local, before = LocalSettings(cache_dir=folder, downloads=False, vllm_base_url=server.base_url), gc.get_threshold()
    app = await create_app(Settings(local=local, data_dir=folder / "data", summaries=summaries), say=lambda _line: None)
    try:
        async with app.router.lifespan_context(app):
            await app.state.conversations.models.local.ready()
            yield Page(app.state.conversations, server)
    finally:
        gc.set_threshold(*before)  # the app changes it


@pytest.fixture(autouse=True)
def _no_other_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "unsent"))


WORDS = [f"{name} {'x' * 400}" for name in ("apple", "pear", "plum", "fig", "lime", "date")]


async def test_window_has_the_tokens_of_the_server(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns("!text Hello.", "!reasoning a b c d !text Good.")
        use = await page.window()
        usage = (await page.entries())[-1].message.usage
        assert (usage.output_tokens, usage.details["reasoning_tokens"]) == (5, 4)
        assert (use.tokens, use.is_estimated) == (usage.input_tokens + 1, False)
        assert (use.window, use.room) == (4096, 4096 - 512 - 256)
        assert use.tokens / use.room <= use.share < 0.1
        assert use.can_summarize


async def test_longest_answer_leaves_half_of_the_window(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns("Hello.")
        spec = replace(QWEN3, context_tokens=2048, max_output_tokens=2048)
        use = await page.conversations.runs.window(await page.record(), spec, replace(CHOICES, max_tokens=2048))
        assert use.room == 2048 // 2 - 256


async def test_summary_is_sent_until_it_is_dropped(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns(*WORDS)
        before = await page.entries()
        await page.conversations.summarize(ANN, page.chat, CHOICES)
        assert await page.entries() == before
        summary = (await page.record()).summary
        assert summary.text == "In short: 3 questions were answered."
        use = await page.window()
        assert use.is_estimated
        await page.turns("next")
        first, *others = page.sent()
        assert first.startswith(f"{MARK}\n\n{summary.text}\n\nfig ")
        assert not any(word in text for text in (first, *others) for word in ("apple", "pear", "plum"))
        assert not (await page.window()).is_estimated
        await page.conversations.drop_summary("ann", page.chat)
        await page.turns("last")
        assert [text.split()[0] for text in page.sent()[::2]] == [*(word.split()[0] for word in WORDS), "next", "last"]


async def test_chat_pays_for_its_summary(tmp_path: Path, server: Running) -> None:
    priced = replace(QWEN3, price=Price(input=1.0, output=1.0))
    page = Page(chats_of(server.base_url, tmp_path, priced), server)
    await page.turns(*WORDS)
    before = (await page.record()).cost
    await page.conversations.summarize(ANN, page.chat, CHOICES)
    assert (await page.record()).cost > before > 0
    await page.conversations.aclose()


async def test_model_with_a_smaller_window_gets_the_same_offer(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns(*WORDS[:4])
        assert (await page.window()).share < FULL
        spec = page.conversations.model_for("ann", "")
        assert spec is not None
        small = replace(spec, id="other", context_tokens=2048)
        use = await page.conversations.runs.window(await page.record(), small, CHOICES)
        assert (use.window, use.is_estimated, use.can_summarize) == (2048, True, True)
        assert use.share >= FULL
        smollm = replace(small, examples=SMOLLM2.spec.examples)
        use = await page.conversations.runs.window(await page.record(), smollm, CHOICES)
        assert (use.can_summarize, use.is_too_small) == (False, True)


async def test_second_summary_has_the_first_one(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns(*WORDS)
        await page.conversations.summarize(ANN, page.chat, CHOICES)
        await page.turns(*WORDS[:2])
        await page.conversations.summarize(ANN, page.chat, CHOICES)
        [asked] = page.sent()
        assert "In short: 3 questions were answered." in asked
        assert "apple" not in asked.partition("fig")[0]
        await page.turns("next")
        assert page.sent()[0].count(MARK) == 1


async def test_full_chat_is_summarized_by_itself(tmp_path: Path, server: Running) -> None:
    long = [f"{name} {'x y ' * 700}" for name in ("apple", "pear", "plum")]
    async with opened(tmp_path / "auto", server, "auto") as page:
        await page.turns(*long)
        assert page.sent()[0].startswith(MARK)
        assert [entry.note.left_out for entry in await page.entries()] == [0] * 6
        assert (await page.record()).summary is not None
    async with opened(tmp_path / "offer", server) as page:  # the contrast: the oldest messages are left out
        await page.turns(*long)
        assert (await page.entries())[-1].note.left_out > 0
        assert (await page.record()).summary is None
        assert (await page.window()).share == 1.0


async def test_other_branch_is_sent_whole(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns(*WORDS)
        await page.conversations.summarize(ANN, page.chat, CHOICES)
        first = (await page.entries())[0].id
        live = await page.conversations.edit(ANN, page.chat, first, "orange", CHOICES)
        await live.wait_for_end()
        assert page.sent() == ["orange"]
        await page.conversations.branches.choose("ann", page.chat, first)
        copy = await page.conversations.branches.copy(ANN, page.chat, (await page.entries())[-2].id)
        for chat_id in (page.chat, copy):
            page.chat = chat_id
            await page.turns("next")
            assert page.sent()[0].startswith(MARK)


async def test_summary_is_stored_after_a_running_answer(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns(*WORDS)
        record = await page.record()
        summary = ChatSummary(message=(await page.entries())[4].id, text="Short.")
        live = await page.say("!tokens 60 hold 20 window")
        storing = asyncio.create_task(page.conversations._save_summary(record, summary, 0.5))  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(Conflict):
            await page.conversations.summarize(ANN, page.chat, CHOICES)
        with pytest.raises(Conflict):
            await page.conversations.drop_summary("ann", page.chat)
        server.release("window")
        await storing
        assert live.is_end_stored
        after = await page.record()
        assert (after.summary, after.cost) == (summary, 0.5)
        assert (await page.entries())[-1].note.ended == "stop"


async def test_summary_is_refused(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns("one")
        with pytest.raises(InputError, match="too few"):
            await page.conversations.summarize(ANN, page.chat, CHOICES)
        assert not (await page.window()).can_summarize
        for refused in (
            page.conversations.summarize(BOB, page.chat, CHOICES),
            page.conversations.drop_summary("bob", page.chat),
        ):
            with pytest.raises(NotFound):
                await refused
        with pytest.raises(NotFound):
            await page.conversations.window("bob", page.chat, CHOICES)
    async with opened(tmp_path / "off", server, "off") as page:
        await page.turns(*WORDS)
        with pytest.raises(NotFound):
            await page.conversations.summarize(ANN, page.chat, CHOICES)


async def test_mark_is_in_the_last_summarized_turn(tmp_path: Path, server: Running) -> None:
    async with opened(tmp_path, server) as page:
        await page.turns(*WORDS)
        await page.conversations.summarize(ANN, page.chat, CHOICES)
        view = await page.conversations.views.view("ann", page.chat)
        assert [bool(turn.summary) for turn in view.turns] == [False, False, True, False, False, False]


def chat(turns: int, size: int = 3) -> list[Entry]:
    entries = list[Entry]()
    for number in range(turns):
        for message in (
            ModelRequest([UserPromptPart(f"q{number} {'x' * size}")]),
            ModelResponse([TextPart("a" * size)]),
        ):
            entries.append(Entry(parent_id=entries[-1].id if entries else None, message=message))
    return entries


@pytest.mark.parametrize(("turns", "kept"), [(0, None), (1, None), (2, 1), (3, 2), (4, 3), (9, 3)])
def test_newest_turns_stay(turns: int, kept: int | None) -> None:
    entries = chat(turns)
    first = summarizable(None, entries, 1000)
    assert first == (0 if kept is None else 2 * (turns - kept))


def test_fewer_turns_stay_if_they_are_long() -> None:
    assert summarizable(None, chat(6, 900), 2000) == 10
    entries = chat(6)
    done = ChatSummary(message=entries[6].id, text="Short.")
    assert summarizable(done, entries, 1000) == 10
    assert sent_history(done, entries, 1000).left_out == 0
    assert len(sent_history(done, entries, 1000).messages) == 4
    unknown = ChatSummary(message="other", text="Short.")
    assert sent_history(unknown, entries, 1000) == sent_history(None, entries, 1000)
