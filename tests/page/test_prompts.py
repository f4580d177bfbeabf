"""Saved prompts: kept in the browser, picked by "/" in an empty composer, renamed and deleted in a dialog."""

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visitor, becomes
from tests.peers.axe import grave
from tests.support.scripted_server import Running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
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


def test_first_slash_says_how_prompts_are_saved(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    hint = visitor.page.locator("#hint")
    visitor.box.press_sequentially("/")
    expect(hint).to_contain_text("No prompt is saved yet.")
    expect(options(visitor)).to_have_count(0)
    expect(visitor.page.locator(".prompts-button")).to_be_visible()  # the hint speaks of it
    visitor.shot("prompts-none")
    visitor.box.press("Backspace")
    expect(hint).to_be_empty(timeout=2500)  # every hint goes by itself after 6 s
    put(visitor, *NAMES)
    visitor.reload()
    visitor.box.fill("")
    visitor.box.press_sequentially("/")
    expect(options(visitor)).to_have_count(3)
    expect(hint).to_have_text("")


def test_draft_of_a_chat_can_be_saved_as_a_prompt(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    bookmark = visitor.page.locator(".prompts-button")
    visitor.ask("!text One.")
    visitor.box.fill("A draft")
    expect(bookmark).to_be_visible()
    visitor.page.keyboard.press("Control+Shift+O")
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("")
    expect(bookmark).to_have_count(0)
    visitor.page.locator("#chats li a").click()
    expect(visitor.box).to_have_value("A draft")
    expect(bookmark).to_be_visible()
    visitor.shot("prompts-draft")
    bookmark.click()
    dialog(visitor).get_by_role("textbox", name="Name").fill("Mine")
    dialog(visitor).get_by_role("button", name="Save the text in the box").click()
    expect(dialog(visitor).locator(".use")).to_have_count(1)


AT_REST = """async (one) => {
  for (let same = 0, before; same < 30; ) {
    await new Promise(requestAnimationFrame);
    const now = one.getBoundingClientRect().top;
    same = now === before ? same + 1 : 0;
    before = now;
  }
}"""
"""Waits until the element has been in one place for 30 frames."""


def test_hint_leaves_the_greeting_free(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True, locale="de-DE")
    greeting, hint, dock = (visitor.page.locator(part) for part in ("#greeting p", "#hint", "#dock"))

    def edge(part: Locator, below: bool) -> float:
        box = part.bounding_box()
        assert box
        return box["y"] + (box["height"] if below else 0)

    greeting.evaluate(AT_REST)
    before, top = edge(greeting, False), edge(dock, False)
    hint.evaluate("(hint) => (hint.textContent = 'A hint that does not go by itself, in a long sentence. '.repeat(2))")
    becomes(True, lambda: edge(greeting, True) <= edge(hint, False))
    assert edge(dock, False) == top
    expect(greeting).to_be_in_viewport(ratio=1)
    visitor.shot("prompts-hint")
    hint.evaluate("(hint) => (hint.textContent = '')")
    becomes(before, lambda: edge(greeting, False))


def test_escape_closes_only_the_list(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    put(visitor, *NAMES)
    visitor.say("!tokens 4000 @100")
    expect(visitor.chat).to_contain_text("word9")
    visitor.box.press_sequentially("/gre")
    expect(options(visitor)).to_have_count(2)
    visitor.box.press("Escape")
    expect(options(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("/gre")
    expect(visitor.box).not_to_have_attribute("aria-activedescendant", "prompt-0")
    expect(visitor.chat).to_contain_text("word300")  # the answer goes on
    expect(visitor.stop).to_be_visible()
    visitor.box.fill("one / two")
    expect(options(visitor)).to_have_count(0)
    visitor.box.fill("/rep")
    options(visitor).click()
    expect(visitor.box).to_have_value("!text Said by Report.")
    visitor.box.fill("")
    visitor.box.press("Escape")
    expect(visitor.caption).to_contain_text("Stopped")
    visitor.idle()
    visitor.ask("/no such prompt")
    expect(visitor.mine.last).to_have_text("/no such prompt")


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


def test_number_and_length_of_prompts_are_limited(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.box.fill("x" * 20_001)
    book = open_dialog(visitor)
    book.get_by_role("textbox", name="Name").fill("Long")
    book.get_by_role("button", name="Save").click()
    expect(book.get_by_role("status")).to_contain_text("20,000 characters")
    expect(book.locator(".use")).to_have_count(0)
    book.get_by_role("button", name="Close").click()
    put(visitor, *(f"Prompt {number:02}" for number in range(100)))
    visitor.box.fill("short")
    book = open_dialog(visitor)
    expect(book.locator(".use")).to_have_count(100)
    book.get_by_role("textbox", name="Name").fill("One more")
    book.get_by_role("button", name="Save").click()
    expect(book.get_by_role("status")).to_contain_text("100 prompts")
    expect(book.locator(".use")).to_have_count(100)


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


def test_delete_everything_deletes_prompts(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    put(visitor, *NAMES)
    visitor.open_settings()
    visitor.page.locator("#own-data").get_by_role("button", name="Delete everything").click()
    asked = visitor.page.get_by_role("dialog", name="Delete everything")
    expect(asked).to_contain_text("saved prompts")
    asked.get_by_role("button", name="Delete everything").click()
    becomes(None, lambda: visitor.page.evaluate("localStorage.getItem('prompts')"))


def test_axe_finds_nothing_in_the_prompts(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    put(visitor, *NAMES, text="Write a short and friendly {name}, in three sentences, for a reader who is in a hurry.")
    visitor.box.press_sequentially("/")
    expect(options(visitor)).to_have_count(3)
    assert not grave(visitor.page)
    visitor.box.fill("A new prompt")
    open_dialog(visitor)
    assert not grave(visitor.page)
