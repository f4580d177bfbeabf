"""Saved prompts: kept in the browser, picked by "/" in an empty composer, renamed and deleted in a dialog."""

import json
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from agent.settings import ROOT
from tests.conftest import App, Visit, Visitor
from tests.peers.axe import violations
from tests.support.scripted_server import Running

NAMES = ("Greeting", "Report", "Greek")


def options(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("listbox", name="Saved prompts").get_by_role("option")


def dialog(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("dialog", name="Saved prompts")


def open_dialog(visitor: Visitor) -> Locator:
    visitor.page.locator("#composer .prompts-button").click()
    expect(dialog(visitor)).to_be_visible()
    return dialog(visitor)


def put(visitor: Visitor, *names: str, text: str = "!text Said by {name}.") -> None:
    """Store prompts with these names, as an earlier visit has left them."""
    prompts = [{"name": name, "text": text.format(name=name)} for name in names]
    visitor.page.evaluate("(prompts) => localStorage.setItem('prompts', prompts)", json.dumps(prompts))


def marked(visitor: Visitor) -> str:
    """Return the name of the option that the composer says is active."""
    active = visitor.box.get_attribute("aria-activedescendant")
    option = visitor.page.locator(f"#{active}")
    expect(option).to_have_attribute("aria-selected", "true")
    return option.locator("b").inner_text()


def test_prompt_is_saved_and_picked(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    expect(visitor.page.locator(".prompts-button")).to_have_count(0)
    for name in NAMES:
        visitor.box.fill(f"!text Said by {name}.")
        saved = open_dialog(visitor)
        expect(saved.get_by_role("textbox", name="Name")).to_be_focused()
        visitor.page.keyboard.type(name)
        visitor.page.keyboard.press("Enter")
        expect(saved.get_by_role("status")).to_contain_text("Saved.")
        expect(saved.get_by_role("textbox", name="Name")).to_be_focused()
        visitor.page.keyboard.press("Escape")
        expect(dialog(visitor)).to_be_hidden()
        expect(visitor.box).to_be_focused()
    visitor.box.fill("")
    visitor.reload()
    visitor.box.press_sequentially("/")
    expect(options(visitor).locator("b")).to_have_text(["Greek", "Greeting", "Report"])
    assert marked(visitor) == "Greek"
    visitor.box.press("ArrowDown")
    assert marked(visitor) == "Greeting"
    visitor.box.press("ArrowUp")
    visitor.box.press("ArrowUp")
    assert marked(visitor) == "Report"
    visitor.box.press_sequentially("GREE")
    expect(options(visitor).locator("b")).to_have_text(["Greek", "Greeting"])
    visitor.box.press("ArrowDown")
    visitor.box.press("Enter")
    expect(options(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("!text Said by Greeting.")
    expect(visitor.mine).to_have_count(0)
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Said by Greeting.")).to_be_visible()
    assert model_server.journal()[-1]["body"]["messages"][-1]["content"] == "!text Said by Greeting."


def test_prompts_are_renamed_and_deleted(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    put(visitor, *NAMES)
    visitor.box.blur()
    visitor.box.focus()
    book = open_dialog(visitor)
    names = book.locator(".use b")
    book.get_by_role("button", name="Rename: Report").click()
    area = book.locator("li").get_by_role("textbox", name="Name")
    expect(area).to_be_focused()
    area.fill("greek")
    area.press("Enter")
    expect(book.get_by_role("status")).to_contain_text("This name is taken")
    book.get_by_role("button", name="Rename: Report").click()
    area.fill("Never")
    area.press("Escape")
    expect(book).to_be_visible()
    book.get_by_role("button", name="Rename: Report").click()
    area.fill("A report")
    area.press("Enter")
    expect(book.get_by_role("button", name="Rename: A report")).to_be_focused()
    book.get_by_role("button", name="Delete: Greek").click()
    expect(names).to_have_count(2)
    book.get_by_role("button", name="Undo").click()
    expect(names).to_have_count(3)
    book.get_by_role("button", name="Delete: Greeting").click()
    expect(names).to_have_count(2)
    book.get_by_role("button", name="Close").click()
    visitor.reload()
    visitor.box.press_sequentially("/")
    expect(options(visitor).locator("b")).to_have_text(["A report", "Greek"])


@pytest.fixture(scope="module")
def with_server(tmp_path_factory: pytest.TempPathFactory, start_app: Callable[..., App]) -> App:
    """An app with an MCP server that has prompts and asks people."""
    preset = tmp_path_factory.mktemp("presets") / "things.toml"
    arguments = ["-m", "tests.support.mcp_server", "stdio"]
    lines = [f"command = {json.dumps(sys.executable)}", f"args = {arguments}", f"cwd = {json.dumps(str(ROOT))}"]
    preset.write_text("\n".join(['[mcp]\nname = "things"\nprompts = true', *lines]))
    return start_app(f"[agent]\ntools = [{json.dumps(str(preset))}]\n")


@pytest.mark.gate("A prompt of an MCP server fills the composer, and its questions are asked in the chat.")
def test_server_prompts_and_asks(with_server: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(with_server.url)
    asked = list[str]()
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.box.press_sequentially("/rev")
    option = visitor.page.get_by_role("option", name="review")
    expect(option).to_contain_text("things · How to review a text.")
    assert len([one for one in asked if "/prompts" in one and "assets" not in one]) == 1
    visitor.box.press("Enter")
    form = visitor.page.get_by_role("dialog", name="review")
    expect(form.get_by_role("textbox", name="text")).to_be_focused()
    visitor.page.keyboard.type("Ode")
    visitor.shot("server-prompt")
    assert violations(visitor.page) == []
    visitor.page.keyboard.press("Enter")
    expect(form).to_have_count(0)
    expect(visitor.box).to_have_value("Review this in a kind tone: Ode")
    expect(visitor.box).to_be_focused()
    expect(visitor.mine).to_have_count(0)
    visitor.allow_tools()
    visitor.say('!tool things-book {"day": "Monday"} !text Booked.')
    question = visitor.chat.locator('[data-kind="question"][data-state="waiting"]')
    expect(question).to_contain_text("Things-book asks:")
    expect(question).to_contain_text("Seats on Monday (How many seats?)")
    visitor.shot("server-question")
    visitor.idle()
    visitor.say("2")
    expect(visitor.bubbles.filter(has_text="Booked.")).to_be_visible()
    expect(question).to_have_count(0)
    results = [one for one in model_server.journal()[-1]["body"]["messages"] if one["role"] == "tool"]
    assert results[-1]["content"] == "2 seats on Monday"


def test_nothing_is_offered_without_storage(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    visitor.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    )
    visitor.reload()
    visitor.box.press_sequentially("/")
    expect(visitor.page.locator("#composer .options")).to_be_visible()  # the scripts after it have run
    expect(visitor.page.locator(".prompts-button")).to_have_count(0)
    expect(visitor.page.locator("#prompts")).to_be_hidden()
    visitor.ask("/ is sent")
    expect(visitor.mine).to_have_text("/ is sent")
