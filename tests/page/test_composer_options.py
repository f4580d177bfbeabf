"""The options in the composer: the model with its list, and the switches for reasoning and tools."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.conftest import App, Visit, Visitor, becomes
from tests.support.scripted_server import Config, Running

SEEING = "Qwen/Qwen3-VL-8B-Instruct"
"""A model that sees and does not reason."""
SERVER = Config(models=("Qwen/Qwen3-8B", SEEING, *(f"lab/Model-{number:03}" for number in range(300))), rate=500.0)
CONFIG = """
[agent]
tools = ["agent.tools.builtin:calculate"]
"""
EMPTY = ":root[data-chat=empty]"


def rows(visitor: Visitor) -> Locator:
    """The models that the open list shows."""
    return visitor.page.locator("#model-list").get_by_role("option")


def marked(visitor: Visitor) -> str:
    """Return the text of the option that the search field names as the active one."""
    return visitor.page.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))?.innerText ?? ''"
    )


def switch(visitor: Visitor, name: str) -> Locator:
    return visitor.page.get_by_role("switch", name=name)


def body(server: Running) -> dict[str, Any]:
    """Return the newest request to the model."""
    return server.journal()[-1]["body"]


@pytest.mark.gate("The models are searched in the composer.")
def test_list_of_models_is_searched_by_keyboard(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    button, press = visitor.page.locator("#model-button"), visitor.page.keyboard.press
    expect(button).to_have_text("Qwen3-8B")
    search = visitor.open_models()
    expect(search).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(rows(visitor).filter(visible=True).nth(301)).to_be_attached()
    expect(rows(visitor).and_(visitor.page.locator("[aria-selected=true]"))).to_contain_text("Qwen3-8B")
    visitor.page.keyboard.type("model-12")
    expect(rows(visitor)).to_have_count(10)
    becomes(True, lambda: "Model-120" in marked(visitor))
    for key, name in (
        ("ArrowDown", "Model-121"),
        ("PageDown", "Model-129"),
        ("ArrowDown", "Model-120"),
        ("ArrowUp", "Model-129"),
    ):
        press(key)
        assert name in marked(visitor)
    expect(rows(visitor).filter(has_text="Model-129")).to_be_in_viewport(ratio=0.9)
    press("Escape")
    expect(search).to_be_hidden()
    expect(button).to_be_focused()
    expect(button).to_have_text("Qwen3-8B")
    press("ArrowDown")  # opens it, too
    expect(search).to_be_focused()
    visitor.page.keyboard.type("model-123")
    expect(rows(visitor)).to_have_count(1)
    press("Enter")
    expect(search).to_be_hidden()
    expect(button).to_have_accessible_name("Model: Model-123")
    expect(visitor.page.locator("#about")).to_contain_text("Model-123")
    visitor.ask("!text Yes.")
    assert body(server)["model"] == "lab/Model-123"


@pytest.mark.gate("The switches in the composer and the settings show the same.")
def test_switches_and_settings_show_the_same(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page = visitor.page
    boxes = {name: page.locator(f"#{name.lower()} input") for name in ("Reasoning", "Tools")}

    def both(name: str, on: bool) -> None:
        expect(switch(visitor, name)).to_have_attribute("aria-checked", str(on).lower())
        expect(boxes[name]).to_be_checked(checked=on)

    visitor.open_settings()
    both("Reasoning", True)
    both("Tools", False)
    with visitor.setting_is_told():
        switch(visitor, "Tools").click()
    with visitor.setting_is_told():
        switch(visitor, "Reasoning").press("Space")
    both("Reasoning", False)
    both("Tools", True)
    visitor.reload()
    visitor.open_settings()
    both("Reasoning", False)
    both("Tools", True)
    visitor.close_settings()
    visitor.ask("!text One.")
    assert body(server)["chat_template_kwargs"]["enable_thinking"] is False
    assert [tool["function"]["name"] for tool in body(server)["tools"]] == ["calculate"]
    visitor.open_settings()
    boxes["Tools"].uncheck()
    boxes["Reasoning"].check()
    both("Reasoning", True)
    both("Tools", False)
    visitor.close_settings()
    visitor.ask("!text Two.")
    assert "tools" not in body(server)
    assert body(server)["chat_template_kwargs"]["enable_thinking"] is True


AT_ONCE = """() => {
  document.querySelector("#model-list .marked").click();
  document.querySelector("#composer .submit-button").click();
  location.reload();
}"""
"""Chooses a model, sends the message, and leaves the page, before anything can be answered."""


def test_choice_is_not_lost_with_a_message_and_a_reload(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    visitor.box.fill("!text Chosen.")
    visitor.open_models().fill("Model-042")
    expect(rows(visitor)).to_have_count(1)
    with visitor.page.expect_navigation():
        visitor.page.evaluate(AT_ONCE)
    expect(visitor.page.locator("#model-button")).to_have_text("Model-042")
    if visitor.box.input_value():  # the reload was faster than the message, whose text is still there
        visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Chosen.")).to_be_visible()
    assert body(server)["model"] == "lab/Model-042"


def test_last_of_two_quick_choices_counts(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page, button = visitor.page, visitor.page.locator("#model-button")
    visitor.choose(SEEING)
    expect(button).to_have_text("Qwen3-VL-8B-Instruct")
    expect(button).to_have_attribute("aria-busy", "false")
    held: list[Route] = []
    search = visitor.open_models()
    search.fill("Model-042")
    expect(rows(visitor)).to_have_count(1)
    page.route("**/gradio_api/run/*", lambda route: route.continue_() if held else held.append(route))
    search.press("Enter")
    expect(button).to_have_text("Model-042")
    visitor.wait_for_requests(held)
    visitor.choose(SEEING)  # the server does not know of the other choice yet
    held[0].continue_()
    visitor.ask("!text Quick.")
    assert body(server)["model"] == SEEING
    expect(button).to_have_text("Qwen3-VL-8B-Instruct")


def test_choice_that_takes_long_shows_nothing_of_the_model_before(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.choose("openai:gpt-6-luna")
    expect(page.locator("#key")).to_contain_text("OpenAI")
    held: list[Route] = []
    search = visitor.open_models()
    search.fill("anthropic:claude-sonnet-5-5")
    expect(rows(visitor)).to_have_count(1)
    page.route("**/gradio_api/run/*", lambda route: held.append(route))
    search.press("Enter")
    expect(page.locator("#model-button")).to_contain_text("Claude")
    expect(page.locator("#key")).to_be_hidden()
    expect(page.get_by_role("switch")).to_have_count(0)
    visitor.wait_for_requests(held)
    held[0].continue_()
    page.unroute("**/gradio_api/run/*")
    expect(page.locator("#key")).to_contain_text("Anthropic")
    expect(page.locator("#model-button")).to_have_attribute("aria-busy", "false")


def middle(part: Locator) -> float:
    box = part.bounding_box()
    assert box
    return box["y"] + box["height"] / 2


@pytest.mark.gate("The composer stands in the middle of an empty page.")
def test_composer_is_in_the_middle_of_empty_page(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    page, dock = visitor.page, visitor.page.locator("#dock")
    expect(page.locator(EMPTY)).to_have_count(1)
    height = page.viewport_size["height"] if page.viewport_size else 0
    assert abs(middle(dock) - height / 2) < height / 12
    example = visitor.examples.first
    assert middle(page.locator("#greeting")) < middle(dock) < middle(example)
    visitor.ask("!text A first answer.")
    expect(page.locator(EMPTY)).to_have_count(0)
    assert middle(dock) > height * 0.8
    page.reload()
    expect(visitor.chat).to_contain_text("A first answer.")
    assert middle(dock) > height * 0.8
    page.get_by_role("button", name="New chat").first.click()
    expect(page.locator(EMPTY)).to_have_count(1)
    expect(example).to_be_visible()
    assert abs(middle(dock) - height / 2) < height / 12
    page.go_back()
    expect(visitor.chat).to_contain_text("A first answer.")
    assert middle(dock) > height * 0.8
