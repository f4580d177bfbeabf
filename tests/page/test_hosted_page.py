"""Hosted models on the page: what they need, and keys that are used and never shown."""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import CONFIG, App, Visit, Visitor
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.replies import anthropic_messages, openai_responses
from tests.support.traffic import EVENT, Traffic

KEY = "sk-typed-on-the-page-0123456789abcdef"
OWNERS = "sk-ant-of-the-owner-0123456789abcdef"


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


@pytest.mark.gate("A typed key is used and never shown.")
def test_typed_key_is_used_and_never_shown(hosted: App, visit: Visit, openai: Playing) -> None:
    visitor = visit(hosted.url, fresh=True)
    traffic = Traffic(visitor.page)
    visitor.choose("gpt-6-luna")
    chosen(visitor, "GPT-6 Luna")
    visitor.page.locator("#key-box input").fill("no key at all")
    visitor.page.locator("#key-box").get_by_role("button").click()
    expect(visitor.page.locator("#key-said").get_by_role("alert")).to_contain_text("Paste it without spaces")
    expect(visitor.page.locator("#key-box input")).to_have_value("")
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
    assert '"data":' in received[EVENT]
    assert "afar." in received["/runs"]
    assert [path for path, text in received.items() if KEY in text] == []
    visitor.page.reload()
    expect(visitor.bubbles.first).to_have_text("Hello from afar.")
    assert KEY not in visitor.page.content()
    assert KEY not in json.dumps(visitor.page.context.storage_state())
    assert KEY not in hosted.log
    assert hosted.files_with(KEY) == []


def reload_before_options(visitor: Visitor) -> None:
    """Load the page again, so that Gradio tells the model before the script that shows it has loaded."""
    page, held = visitor.page, list[Route]()
    told = "detail.name === 'chosen' && (window.told = true)"
    page.add_init_script(f"document.addEventListener('gradio-event', ({{ detail }}) => {told})")
    page.route("**/modules/page.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    page.wait_for_function("window.told")
    assert held
    for route in held:
        route.continue_()
    page.unroute("**/modules/page.js")


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
