"""Hosted models on the page: what they need, keys that are used and never shown, and switching in a conversation."""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.conftest import CONFIG, App, Visitor, becomes
from tests.support.dialect_server import Playing, Reply, Request, playing
from tests.support.replies import anthropic_messages, openai_responses
from tests.support.traffic import EVENT, Traffic

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]

KEY = "sk-typed-on-the-page-0123456789abcdef"
OWNERS = "sk-ant-of-the-owner-0123456789abcdef"
KEY_SECONDS = 12.0


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
    return start_app(CONFIG, **environment(openai, anthropic))


def environment(openai: Playing, anthropic: Playing) -> dict[str, str]:
    """Return the settings of that app: the addresses of the servers, and the owner's key."""
    return {
        "OPENAI_BASE_URL": f"{openai.url}/v1",
        "ANTHROPIC_BASE_URL": anthropic.url,
        "ANTHROPIC_API_KEY": OWNERS,
        "OPENAI_API_KEY": "",
        "LOG_LEVEL": "DEBUG",
    }


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
    expect(visitor.page.locator("#key-said")).to_contain_text("Using your")


def test_model_without_key_keeps_typed_text(hosted: App, visit: Visit) -> None:
    visitor = visit(hosted.url)
    visitor.choose("GPT-6 Luna · needs a key")
    said = visitor.page.locator("#key-said")
    expect(said).to_contain_text("GPT-6 Luna needs an API key from OpenAI.")
    expect(said).to_contain_text("OPENAI_API_KEY")
    expect(said.get_by_role("link")).to_have_attribute("href", "https://platform.openai.com/api-keys")
    visitor.shot("key-missing")
    visitor.say("a long question")
    expect(visitor.hint).to_contain_text("GPT-6 Luna needs an API key from OpenAI")
    expect(visitor.box).to_have_value("a long question")
    expect(visitor.bubbles).to_have_count(0)


IN_FRONT = """(one) => {
  const { left, right, top, bottom } = one.getBoundingClientRect(), x = (left + right) / 2;
  return [top + 3, (top + bottom) / 2, bottom - 3].every((y) => one.contains(document.elementFromPoint(x, y)));
}"""
"""True if nothing covers or cuts an element."""


def in_front(part: Locator) -> None:
    becomes(True, lambda: part.evaluate(IN_FRONT), 8)


@pytest.mark.parametrize("begun", [False, True], ids=["start", "chat"])
@pytest.mark.parametrize(
    ("width", "height"), [(640, 400), (780, 390), (390, 780), (1280, 800)], ids=["zoomed", "lying", "phone", "computer"]
)
def test_card_of_a_missing_key_is_whole(hosted: App, visit: Visit, width: int, height: int, begun: bool) -> None:
    visitor = visit(hosted.url)
    visitor.page.set_viewport_size({"width": width, "height": height})
    if begun:
        visitor.ask("!text " + "One more line of an answer.  \n" * 30)
    visitor.page.locator("#model-button").focus()
    visitor.page.keyboard.press("Enter")
    search = visitor.page.locator("#models").get_by_role("combobox")
    expect(search).to_be_focused()
    visitor.page.keyboard.type("Luna")
    visitor.page.keyboard.press("Enter")
    field = visitor.page.locator("#key-box input")
    expect(field).to_be_visible()
    visitor.shot(f"key-{width}-{'chat' if begun else 'start'}")
    for part in (*visitor.page.locator("#key-said p").all(), field, visitor.page.locator("#key-box button")):
        in_front(part)
    in_front(visitor.page.locator("#key"))
    in_front(visitor.box)
    in_front(visitor.submit)


def test_card_of_a_key_scrolls_where_room_is_short(hosted: App, visit: Visit) -> None:
    """The box stays in view, also with notes on files."""
    visitor = visit(hosted.url)
    visitor.page.set_viewport_size({"width": 640, "height": 400})
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": f"{number}.txt", "mimeType": "text/plain", "buffer": b" "} for number in range(12)]
    )
    notes = visitor.page.locator("#attached li")
    expect(notes.filter(has_text="will be sent as text")).to_have_count(12)
    visitor.choose("gpt-6-luna")
    button = visitor.page.locator("#key-box button")
    expect(button).to_be_visible()
    visitor.shot("key-and-notes")
    in_front(visitor.box)
    in_front(visitor.submit)
    notes.first.scroll_into_view_if_needed()
    in_front(notes.first)
    button.scroll_into_view_if_needed()
    in_front(button)
    in_front(visitor.box)


@pytest.mark.gate("A typed key is used and never shown.")
def test_typed_key_is_used_and_never_shown(hosted: App, visit: Visit, openai: Playing) -> None:
    visitor = visit(hosted.url, fresh=True)
    traffic = Traffic(visitor.page)
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    give_key(visitor)
    openai.play(
        openai_responses.answer("Hello from afar."), Reply(status=401, body={"error": {"message": f"Bad key: {KEY}"}})
    )
    visitor.ask("hello")
    expect(visitor.bubbles.first).to_have_text("Hello from afar.")
    assert openai.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    visitor.shot("key-used")
    visitor.ask("again")
    expect(visitor.chat.locator("[data-kind=error]")).to_contain_text("OpenAI rejected the API key")
    expect(visitor.page.locator("#key-box")).to_be_hidden()
    received = traffic.received()
    assert "process_completed" in received[EVENT]
    assert "afar." in received["/runs"]
    assert [path for path, text in received.items() if KEY in text] == []
    visitor.page.reload()
    expect(visitor.bubbles.first).to_have_text("Hello from afar.")
    assert KEY not in visitor.page.content()
    assert KEY not in json.dumps(visitor.page.context.storage_state())
    assert KEY not in hosted.log
    assert hosted.files_with(KEY) == []


def test_key_is_private_and_can_be_forgotten(hosted: App, visit: Visit, openai: Playing) -> None:
    one, other = visit(hosted.url), visit(hosted.url)
    for visitor in (one, other):
        visitor.choose("gpt-6-luna")
        chosen(visitor, "GPT-6 Luna")
    give_key(one)
    other.say("with whose key?")
    expect(other.hint).to_contain_text("needs an API key from OpenAI")
    assert not openai.requests
    one.page.locator("#key-forget").click()
    expect(one.page.locator("#key-said")).to_contain_text("needs an API key from OpenAI")
    one.say("and now?")
    expect(one.hint).to_contain_text("needs an API key from OpenAI")
    assert not openai.requests


def reload_before_options(visitor: Visitor) -> None:
    """Load the page again, so that Gradio tells the model before the script that shows it has loaded."""
    page, held = visitor.page, list[Route]()
    told = "detail.name === 'chosen' && (window.told = true)"
    page.add_init_script(f"document.addEventListener('gradio-event', ({{ detail }}) => {told})")
    page.route("**/modules/options.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    page.wait_for_function("window.told")
    assert held
    for route in held:
        route.continue_()
    page.unroute("**/modules/options.js")


@pytest.mark.gate("The effort of reasoning is chosen in the composer.")
def test_effort_reaches_the_model_and_stays(hosted: App, visit: Visit, anthropic: Playing, openai: Playing) -> None:
    visitor = visit(hosted.url, fresh=True)
    effort = visitor.page.get_by_role("combobox", name="Reasoning effort")
    expect(visitor.page.get_by_role("switch", name="Reasoning")).to_be_visible()
    expect(effort).to_be_hidden()  # the template of this model has only a switch
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    names = dict(low="Low", medium="Medium", high="High", xhigh="Very high", max="Maximum")
    expect(effort.locator("option")).to_have_text(["Default", *names.values()])
    expect(effort).to_have_value("")
    effort.select_option("Very high")
    anthropic.play(*(anthropic_messages.answer(text) for text in ("One.", "Two.", "Three.")))
    visitor.ask("one")
    assert anthropic.requests[-1].json["output_config"] == {"effort": "xhigh"}
    reload_before_options(visitor)
    expect(effort).to_have_value("xhigh")
    visitor.shot("effort")
    reasoning = visitor.page.get_by_role("switch", name="Reasoning")
    reasoning.click()
    expect(effort).to_be_hidden()
    visitor.ask("two")
    assert "output_config" not in anthropic.requests[-1].json
    reasoning.click()
    expect(effort).to_have_value("xhigh")
    visitor.choose("gpt-6.1-sol")
    chosen(visitor, "GPT-6.1 Sol")
    expect(effort).to_be_visible()
    asked = effort.input_value()
    give_key(visitor)
    openai.play(openai_responses.answer("Four."))
    visitor.ask("four")
    assert openai.requests[-1].json["reasoning"]["effort"] == asked
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    expect(effort).to_have_value("xhigh")
    effort.select_option("Default")
    visitor.ask("three")
    assert "output_config" not in anthropic.requests[-1].json


AT_ONCE = """(wanted) => {
  const effort = document.querySelector("#composer .effort select");
  const option = document.querySelector("#model-list .marked");
  effort.value = wanted;
  effort.dispatchEvent(new Event("change"));
  option?.click();
  location.reload();
}"""
"""Makes a choice and leaves the page before anything can be answered."""


def test_choice_before_a_reload_is_not_lost(hosted: App, visit: Visit) -> None:
    visitor = visit(hosted.url, fresh=True)
    page, effort = visitor.page, visitor.page.get_by_role("combobox", name="Reasoning effort")
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    with page.expect_navigation():
        page.evaluate(AT_ONCE, "xhigh")
    expect(effort).to_have_value("xhigh")
    visitor.open_models().fill("gpt-6.1-sol")
    expect(page.locator("#model-list .marked")).to_contain_text("gpt-6.1-sol")
    with page.expect_navigation():
        page.evaluate(AT_ONCE, "low")
    expect(page.locator("#model-button")).to_contain_text("GPT-6.1 Sol")
    expect(effort).to_have_value("low")


def test_switch_of_model_that_always_reasons_says_so(hosted: App, visit: Visit) -> None:
    visitor = visit(hosted.url, fresh=True)
    visitor.choose("gpt-6.1-sol")
    chosen(visitor, "GPT-6.1 Sol")
    reasoning = visitor.page.get_by_role("switch", name="Reasoning")
    expect(reasoning).to_have_attribute("aria-checked", "true")
    expect(reasoning).to_have_attribute("aria-disabled", "true")
    reasoning.click(force=True)  # Playwright waits for enabled elements
    expect(visitor.page.locator("#hint")).to_have_text("This model always reasons.")
    expect(reasoning).to_have_attribute("aria-checked", "true")
    visitor.open_settings()
    box = visitor.page.locator("#reasoning input")
    expect(box).to_be_checked()
    expect(box).to_be_disabled()


def test_key_lives_as_long_as_its_page(
    start_app: Callable[..., App], visit: Visit, openai: Playing, anthropic: Playing
) -> None:
    config = CONFIG + f"[server]\nkey_seconds = {KEY_SECONDS}\n"
    own = start_app(config, **environment(openai, anthropic))
    visitor = visit(own.url)
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    give_key(visitor)
    visitor.page.wait_for_timeout(KEY_SECONDS * 1500)  # the open page outlasts the lifetime of a key
    openai.play(openai_responses.answer("Still here."))
    visitor.ask("still?")
    expect(visitor.bubbles.first).to_have_text("Still here.")
    context = visitor.page.context
    visitor.page.close()
    away = context.new_page()  # no page is open for longer than the lifetime of a key
    away.wait_for_timeout(KEY_SECONDS * 1500)
    back = Visitor(away)
    back.open(own.url)
    expect(back.page.locator("#key-said")).to_contain_text("needs an API key from OpenAI")


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
    adding = anthropic_messages.reply(
        anthropic_messages.begin(),
        anthropic_messages.thinking(0, "The capital of France.", signature="EqQB"),
        anthropic_messages.text(1, "Adding."),
        anthropic_messages.call(2, "toolu_1", '{"expression": "17+25"}', name="calculate"),
        anthropic_messages.ends("tool_use"),
    )
    anthropic.play(adding, anthropic_messages.answer("It is Paris."))
    visitor.ask("capital of France?")
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    give_key(visitor)
    openai.play(openai_responses.answer("Rome."), openai_responses.answer("Madrid."))
    visitor.ask("and of Italy?")
    caption = visitor.caption
    expect(caption).to_contain_text("Not sent to GPT-6 Luna")
    expect(caption).to_contain_text("reasoning")
    assert "The capital of France." not in openai.requests[-1].raw.decode()
    sent = openai.requests[-1].json["input"]
    assert "It is Paris." in json.dumps(sent)
    calls = {item["call_id"]: item for item in sent if item.get("type") == "function_call"}
    results = {item["call_id"]: item for item in sent if item.get("type") == "function_call_output"}
    assert calls.keys() == results.keys() == {"toolu_1"}
    assert json.loads(calls["toolu_1"]["arguments"]) == {"expression": "17+25"}
    assert "42" in results["toolu_1"]["output"]
    visitor.ask("and of Spain?")
    expect(caption).not_to_contain_text("Not sent")
    visitor.choose("claude-sonnet-5-5")
    chosen(visitor, "Claude Sonnet 5.5")
    anthropic.play(anthropic_messages.answer("Lisbon."))
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
    anthropic.play(Reply(status=429, headers={"retry-after": "3"}, body=busy), anthropic_messages.answer("At last."))
    visitor.say("hello")
    expect(visitor.chat.locator(".waiting")).to_contain_text("Provider is busy; retrying in 3 s")
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
    expect(visitor.chat.locator(".waiting")).to_contain_text("retrying in")
    visitor.stop.click()
    expect(visitor.caption).to_contain_text("Stopped")  # within 30 s, and the wait would take 40 s
    visitor.idle()
    assert len(anthropic.requests) == 1


def thinking_of(request: Request) -> list[str]:
    """Return the thinking that was sent back to Claude."""
    blocks = [block for message in request.json["messages"] for block in message["content"] if isinstance(block, dict)]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]
