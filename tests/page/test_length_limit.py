"""Limits on the length of an answer: where a limit comes from, and how an answer that reached it continues."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, UserPromptPart

from agent.errors import Conflict, Limited
from agent.messages.repair import CUT_THOUGHTS, prepare_messages
from agent.models.catalog import ModelSpec, guess, load_catalog
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.permit import run_options
from agent.web.chat.visitor import Visitor
from tests.conftest import App, Visit
from tests.support.scripted_server import Config, Running, running
from tests.support.views import chats_of, settle, view_of

ANN = Visitor(owner="ann")
GO_ON = "Continue exactly where you stopped."
QWEN = guess("Qwen/Qwen3-8B", "vllm")
LOCAL = ModelSpec(id="local:x", name="x", label="X", provider="llama.cpp", context_tokens=4096, max_output_tokens=2048)


@pytest.mark.parametrize(
    ("spec", "wanted", "public", "most"),
    [
        (QWEN, None, False, None),
        (QWEN, 100, False, 100),
        (QWEN, 10**6, False, QWEN.max_output_tokens),
        (load_catalog().find("openai:gpt-6-luna"), None, False, None),
        (load_catalog().find("openai:gpt-6-luna"), None, True, 16_384),
        (LOCAL, None, False, 2048),
        (LOCAL, 300, False, 300),
    ],
)
def test_limit_comes_from_visitor_or_server(spec: ModelSpec, wanted: int | None, public: bool, most: object) -> None:
    settings = Settings(local=LocalSettings(), public=PublicSettings() if public else None)
    assert run_options(settings, spec, Choices(max_tokens=wanted)).max_tokens == most


@pytest.mark.parametrize(("reason", "kept"), [("length", True), ("stop", False)])
def test_cut_thoughts_are_sent_back(reason: Any, kept: bool) -> None:
    cut = ModelResponse(parts=[ThinkingPart("First I add.")], finish_reason=reason)
    sent = prepare_messages(
        [ModelRequest(parts=[UserPromptPart("Add!")]), cut, ModelRequest(parts=[UserPromptPart(GO_ON)])]
    )
    [part] = sent[1].parts
    assert isinstance(part, TextPart)
    assert (part.content == f"{CUT_THOUGHTS}\n\nFirst I add.") is kept


@pytest.fixture
async def public(model_server: Running, tmp_path: Path) -> AsyncIterator[Conversations]:
    spec = ModelSpec(id="vllm:Qwen/Qwen3-8B", name="Qwen/Qwen3-8B", label="Qwen3", provider="vllm")
    page = chats_of(model_server.base_url, tmp_path, spec, public=PublicSettings(messages=5))
    yield page
    await page.aclose()


async def test_answer_is_continued_once_and_counts_as_message(public: Conversations) -> None:
    async def last(conversation: str) -> str:
        view = await view_of(public, "ann", conversation)
        return view.turns[-1]["id"]

    live = await public.send(ANN, None, {"text": "!length 5"}, Choices())
    assert live is not None
    chat, first = live.conversation_id, await last(live.conversation_id)
    await settle(public)
    await public.continue_answer(ANN, chat, first, "!length 3", Choices())
    with pytest.raises(Conflict, match="still being written"):
        await public.continue_answer(ANN, chat, first, GO_ON, Choices())
    await settle(public)
    with pytest.raises(Conflict, match="gone on since"):
        await public.continue_answer(ANN, chat, first, GO_ON, Choices())
    await public.continue_answer(ANN, chat, await last(chat), "!text The end.", Choices())
    await settle(public)
    with pytest.raises(Conflict, match="gone on since"):  # the limit did not end this answer
        await public.continue_answer(ANN, chat, await last(chat), GO_ON, Choices())
    before = (await view_of(public, "ann", chat)).turns
    with pytest.raises(Limited, match="5 messages a minute"):
        await public.retry(ANN, chat, await last(chat), Choices())
    assert (await view_of(public, "ann", chat)).turns == before


COUNT_WORDS = """() => {
  window.words = [];
  const look = () => {
    window.words.push(document.querySelector("#chat .turns").innerText.match(/word\\d+/g)?.length ?? 0);
    requestAnimationFrame(look);
  };
  look();
}"""
"""Counts in each frame how many of the scripted server's tokens the page shows."""


@pytest.mark.gate("An answer that was cut can be continued.")
def test_continued_answer_stays_one_bubble(start_app: Callable[..., App], visit: Visit) -> None:
    with running(Config(rate=4.0)) as server:
        visitor = visit(start_app(VLLM_BASE_URL=server.base_url).url)
        go_on = visitor.chat.get_by_role("button", name="Continue", exact=True)
        text, caption = visitor.bubbles.first, visitor.caption
        visitor.ask("!length 4")
        visitor.page.evaluate(COUNT_WORDS)
        for words in (8, 12):
            server.server.config = Config(rate=4.0 if words == 8 else 0.4)  # so slow that the test can stop the second
            go_on.click()
            expect(go_on).to_have_count(0)
            expect(text).to_contain_text(f"word{words - 3}")
            expect(visitor.mine).to_have_count(1)
            if words == 8:
                expect(caption).to_contain_text("Reached the length limit")
        visitor.stop.click()
        expect(caption).to_contain_text("Stopped")
        visitor.idle()
        shown = re.findall(r"word\d+", text.inner_text())
        assert shown == [f"word{number}" for number in range(len(shown))]
        assert 9 < len(shown) < 12
        assert visitor.page.evaluate("Math.min(...window.words)") == 4, "the answer vanished for a moment"
        seen = visitor.labels()
        visitor.shot("continued")
        visitor.page.reload()
        expect(caption).to_be_visible()
        assert visitor.labels() == seen
        expect(visitor.bubbles).to_have_count(1)
        sent = server.journal()[-1]["body"]
        assert sent["continue_final_message"]
        assert [one["role"] for one in sent["messages"]][-2:] == ["user", "assistant"]
