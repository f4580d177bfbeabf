"""Hosted models on the page: what they need, keys that are used and never shown, and switching in a conversation."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Response as Answer
from playwright.sync_api import expect

from tests.conftest import CONFIG, App, Visitor
from tests.support.dialect_server import Playing, Reply, Request, playing

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]

KEY = "sk-typed-on-the-page-0123456789abcdef"
OWNERS = "sk-ant-of-the-owner-0123456789abcdef"
KEY_SECONDS = 6.0


@pytest.fixture(scope="module")
def openai() -> Iterator[Playing]:
    with playing() as server:
        yield server


@pytest.fixture(scope="module")
def anthropic() -> Iterator[Playing]:
    with playing() as server:
        yield server


@pytest.fixture(scope="module")
def hosted(start_app: Callable[..., App], openai: Playing, anthropic: Playing) -> App:
    """An app whose owner has a key for Anthropic and none for OpenAI."""
    config = CONFIG + f"[server]\nkey_seconds = {KEY_SECONDS}\n"
    return start_app(
        config,
        OPENAI_BASE_URL=f"{openai.url}/v1",
        ANTHROPIC_BASE_URL=anthropic.url,
        ANTHROPIC_API_KEY=OWNERS,
        OPENAI_API_KEY="",
        LOG_LEVEL="DEBUG",
    )


@pytest.fixture(autouse=True)
def fresh(openai: Playing, anthropic: Playing) -> None:
    openai.clear()
    anthropic.clear()


def chosen(visitor: Visitor, label: str) -> None:
    """Wait until the page shows this model."""
    expect(visitor.page.locator("#about")).to_contain_text(label)


def give_key(visitor: Visitor, key: str = KEY) -> None:
    """Paste a key and press the button."""
    visitor.page.locator("#key-box input").fill(key)
    visitor.page.locator("#key-box").get_by_role("button").click()
    expect(visitor.page.locator("#key-said")).to_contain_text("asked with your key")


def test_model_without_key_keeps_typed_text(hosted: App, visit: Visit) -> None:
    visitor = visit(hosted.url)
    visitor.choose("GPT-6 Luna · needs a key")
    said = visitor.page.locator("#key-said")
    expect(said).to_contain_text("GPT-6 Luna needs a key of OpenAI.")
    expect(said).to_contain_text("OPENAI_API_KEY")
    expect(said.get_by_role("link")).to_have_attribute("href", "https://platform.openai.com/api-keys")
    visitor.shot("key-missing")
    visitor.say("a long question")
    expect(visitor.toast).to_contain_text("GPT-6 Luna needs a key of OpenAI")
    expect(visitor.box).to_have_value("a long question")
    expect(visitor.bubbles).to_have_count(0)


@pytest.mark.gate("A typed key is used and never shown.")
def test_typed_key_is_used_and_never_shown(hosted: App, visit: Visit, openai: Playing) -> None:
    visitor = visit(hosted.url, fresh=True)
    answers: list[Answer] = []
    visitor.page.on("requestfinished", lambda request: answers.append(request.response()))
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    give_key(visitor)
    openai.play(responses("Hello from afar."), Reply(status=401, body={"error": {"message": f"Bad key: {KEY}"}}))
    visitor.ask("hello")
    expect(visitor.bubbles.first).to_have_text("Hello from afar.")
    assert openai.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    visitor.shot("key-used")
    visitor.ask("again")
    expect(visitor.chat.locator(".problem")).to_contain_text("OpenAI refused the key")
    expect(visitor.page.locator("#key-box")).to_be_hidden()
    assert len(answers) > 10
    for answer in answers:
        assert KEY.encode() not in answer.body(), answer.url
        assert KEY not in str(answer.headers)
    visitor.page.reload()
    expect(visitor.bubbles.first).to_have_text("Hello from afar.")
    assert KEY not in visitor.page.content()
    assert KEY not in json.dumps(visitor.page.context.storage_state())
    assert KEY not in hosted.log
    assert written(hosted.folder, KEY) == []


def test_key_is_private_and_can_be_forgotten(hosted: App, visit: Visit, openai: Playing) -> None:
    one, other = visit(hosted.url), visit(hosted.url)
    for visitor in (one, other):
        visitor.choose("gpt-6-luna")
        chosen(visitor, "GPT-6 Luna")
    give_key(one)
    other.say("with whose key?")
    expect(other.toast).to_contain_text("needs a key of OpenAI")
    assert not openai.requests
    one.page.locator("#key-forget").click()
    expect(one.page.locator("#key-said")).to_contain_text("needs a key of OpenAI")
    one.say("and now?")
    expect(one.toast).to_contain_text("needs a key of OpenAI")
    assert not openai.requests


def test_key_lives_as_long_as_its_page(hosted: App, visit: Visit, openai: Playing) -> None:
    visitor = visit(hosted.url)
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    give_key(visitor)
    visitor.page.wait_for_timeout(KEY_SECONDS * 1500)  # the open page outlasts the lifetime of a key
    openai.play(responses("Still here."))
    visitor.ask("still?")
    expect(visitor.bubbles.first).to_have_text("Still here.")
    context = visitor.page.context
    visitor.page.close()
    away = context.new_page()  # no page is open for longer than the lifetime of a key
    away.wait_for_timeout(KEY_SECONDS * 1500)
    back = Visitor(away)
    back.open(hosted.url)
    expect(back.page.locator("#key-said")).to_contain_text("needs a key of OpenAI")


def test_old_and_unknown_names(hosted: App, visit: Visit) -> None:
    visitor = visit(hosted.url)
    visitor.choose("o4-mini")
    chosen(visitor, "o4-mini")
    expect(visitor.page.locator("#key-said")).to_contain_text("2026-10-23")
    visitor.shot("model-retired")
    visitor.choose("no-such-model")
    expect(visitor.toast).to_contain_text("openai:no-such-model")
    chosen(visitor, "o4-mini")
    visitor.choose("anthropic:claude-of-tomorrow")
    chosen(visitor, "claude-of-tomorrow")


def test_models_switch_during_conversation(hosted: App, visit: Visit, openai: Playing, anthropic: Playing) -> None:
    visitor = visit(hosted.url)
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    visitor.allow_tools()
    call = {"type": "tool_use", "id": "toolu_1", "name": "calculate", "input": {}}
    anthropic.play(
        messages("Adding.", thinking="The capital of France.", call=call, arguments='{"expression": "17+25"}'),
        messages("It is Paris."),
    )
    visitor.ask("capital of France?")
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    give_key(visitor)
    openai.play(responses("Rome."), responses("Madrid."))
    visitor.ask("and of Italy?")
    caption = visitor.chat.locator(".caption")
    expect(caption.last).to_contain_text("Not sent to GPT-6 Luna")
    expect(caption.last).to_contain_text("reasoning")
    assert "The capital of France." not in openai.requests[-1].raw.decode()
    sent = openai.requests[-1].json["input"]
    assert "It is Paris." in json.dumps(sent)
    calls = {item["call_id"]: item for item in sent if item.get("type") == "function_call"}
    results = {item["call_id"]: item for item in sent if item.get("type") == "function_call_output"}
    assert calls.keys() == results.keys() == {"toolu_1"}
    assert json.loads(calls["toolu_1"]["arguments"]) == {"expression": "17+25"}
    assert "42" in results["toolu_1"]["output"]
    visitor.ask("and of Spain?")
    expect(caption.last).not_to_contain_text("Not sent")
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    anthropic.play(messages("Lisbon."))
    visitor.ask("and of Portugal?")
    expect(visitor.bubbles.filter(has_text="Lisbon.")).to_be_visible()
    assert thinking_of(anthropic.requests[-1]) == ["The capital of France."]
    assert "Madrid." in anthropic.requests[-1].raw.decode()
    visitor.shot("switched")


def test_page_explains_its_wait(hosted: App, visit: Visit, anthropic: Playing) -> None:
    visitor = visit(hosted.url)
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    busy = {"type": "error", "error": {"type": "rate_limit_error", "message": "Too many."}}
    anthropic.play(Reply(status=429, headers={"retry-after": "3"}, body=busy), messages("At last."))
    visitor.say("hello")
    expect(visitor.chat.locator(".waiting + .caption")).to_contain_text("waiting 3 s, asked to by the provider")
    visitor.shot("waiting")
    expect(visitor.bubbles.first).to_have_text("At last.")
    assert len(anthropic.requests) == 2
    assert anthropic.requests[0].raw == anthropic.requests[1].raw


def test_stop_ends_wait(hosted: App, visit: Visit, anthropic: Playing) -> None:
    visitor = visit(hosted.url)
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    anthropic.play(Reply(status=529, headers={"retry-after": "40"}, body={"type": "error", "error": {"type": "x"}}))
    visitor.say("hello")
    expect(visitor.chat.locator(".waiting + .caption")).to_contain_text("waiting 40 s")
    visitor.stop.click()
    expect(visitor.chat.locator(".caption")).to_contain_text("Stopped")  # within 30 s, and the wait would take 40 s
    visitor.idle()
    assert len(anthropic.requests) == 1


def responses(text: str) -> Reply:
    """Return an answer in the Responses dialect."""
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    at = {"item_id": "msg_1", "output_index": 0}
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-6-luna", "output": []}
    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", **at, "content_index": 0, "delta": text, "logprobs": []},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "content": content}},
        {"type": "response.completed", "response": {**whole, "status": "completed", "usage": {**usage, **details}}},
    ]
    return Reply(sse=[{**event, "sequence_number": n} for n, event in enumerate(events)], named=True)


def messages(text: str, thinking: str = "", call: dict[str, Any] | None = None, arguments: str = "") -> Reply:
    """Return an answer in the Messages dialect, with a tool call at its end if `call` is given."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "content": []}
    usage = {"input_tokens": 12, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**start, "usage": usage}}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if thinking:
        deltas = [{"type": "thinking_delta", "thinking": thinking}, {"type": "signature_delta", "signature": "EqQB"}]
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": text}]))
    if call:
        blocks.append((call, [{"type": "input_json_delta", "partial_json": arguments}]))
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use" if call else "end_turn"},
            "usage": {"output_tokens": 9},
        }
    )
    return Reply(sse=[*events, {"type": "message_stop"}], named=True)


def thinking_of(request: Request) -> list[str]:
    """Return the thinking that was sent back to Claude."""
    blocks = [block for message in request.json["messages"] for block in message["content"] if isinstance(block, dict)]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


def written(folder: Path, text: str) -> list[Path]:
    """Return the files under `folder` that contain the text."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
