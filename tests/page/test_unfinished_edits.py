"""The words of an edit that was not sent wait in the composer of their own chat."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visitor

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
DRAFTS = "sessionStorage.getItem('drafts')"


def editor(visitor: Visitor) -> Locator:
    return visitor.chat.locator(".edit textarea")


def edit(visitor: Visitor, number: int, words: str) -> None:
    """Open the edit box of the message with that number, counted from 0, and type at its end."""
    row = visitor.chat.locator(".turn > .mine:first-child").nth(number)
    row.get_by_role("button", name="Edit").click()
    box = row.locator(".edit textarea")
    expect(box).to_be_visible()
    box.press("End")
    box.press_sequentially(words)


def begin(visitor: Visitor, text: str) -> None:
    """Ask in a new chat."""
    visitor.page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    visitor.ask(text)


def link(visitor: Visitor, text: str) -> Locator:
    return visitor.page.locator("#chats li", has_text=text).get_by_role("link")


@pytest.mark.parametrize("way", ["another chat", "a new chat", "a temporary chat"])
def test_unfinished_edit_stays_with_its_chat(app: App, visit: Visit, way: str) -> None:
    visitor = visit(app.url)
    page = visitor.page
    begin(visitor, "About whales")
    visitor.box.fill("Of whales")
    begin(visitor, "About ships")
    visitor.box.fill("Of ships")
    edit(visitor, 0, " and boats")
    buttons = {
        "a new chat": page.locator("#new"),
        "a temporary chat": page.get_by_role("button", name="Temporary chat"),
    }
    buttons.get(way, link(visitor, "whales")).click()
    expect(visitor.mine).to_have_text(["About whales"] if way == "another chat" else [])
    expect(editor(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("Of whales" if way == "another chat" else "")
    visitor.reload()
    expect(visitor.box).to_have_value("Of whales" if way == "another chat" else "")
    link(visitor, "ships").click()
    expect(visitor.box).to_have_value("Of ships\n\nAbout ships and boats")
    expect(visitor.mine).to_have_text(["About ships"])
    expect(editor(visitor)).to_have_count(0)


def test_unfinished_edit_is_in_the_composer_after_a_reload(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    begin(visitor, "About ships")
    visitor.box.fill("Of ships")
    edit(visitor, 0, " and boats")
    for _ in range(2):
        visitor.reload()
        expect(visitor.mine).to_have_text(["About ships"])
        expect(visitor.box).to_have_value("Of ships\n\nAbout ships and boats")
    visitor.box.fill("")
    edit(visitor, 0, "")  # nothing was typed
    visitor.reload()
    expect(visitor.mine).to_have_text(["About ships"])
    expect(visitor.box).to_have_value("")


def test_edit_of_a_temporary_chat_ends_with_it(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    begin(visitor, "About whales")
    page.get_by_role("button", name="Temporary chat").click()
    expect(page).to_have_url(re.compile("/c/temporary$"))
    visitor.ask("About ships")
    edit(visitor, 0, " and boats")
    link(visitor, "whales").click()
    expect(visitor.mine).to_have_text(["About whales"])
    expect(editor(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("")
    visitor.reload()
    expect(visitor.box).to_have_value("")
    assert "boats" not in page.evaluate(f"{DRAFTS} ?? ''")
    page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("")


def test_edit_goes_with_all_data(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("About ships")
    edit(visitor, 0, " and boats")
    visitor.open_settings()
    visitor.page.locator("#own-data").get_by_role("button", name="Delete everything").click()
    asked = visitor.page.get_by_role("dialog", name="Delete everything")
    asked.get_by_role("button", name="Delete everything").click()
    expect(visitor.page).not_to_have_url(re.compile("/c/"))
    expect(editor(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("")
    visitor.reload()
    assert "boats" not in visitor.page.evaluate(f"{DRAFTS} ?? ''")


def test_edit_stays_when_its_chat_is_copied(app: App, visit: Visit) -> None:
    """The copy has messages with the same ids."""
    visitor = visit(app.url)
    begin(visitor, "About ships")
    original = visitor.page.url
    visitor.ask("About whales")
    edit(visitor, 0, " and boats")
    visitor.chat.get_by_role("button", name="Branch from here into a new chat").first.click()
    expect(visitor.page).not_to_have_url(original)
    expect(visitor.mine).to_have_text(["About ships"])
    expect(editor(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("")
    visitor.page.go_back()
    expect(visitor.mine).to_have_count(2)
    expect(visitor.box).to_have_value("About ships and boats")


def test_edit_of_another_message_keeps_the_words(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    for text in ("About ships", "About whales", "About *otters*"):
        visitor.ask(text)
    visitor.box.fill("A draft")
    edit(visitor, 0, " and boats")
    edit(visitor, 1, " and seals")
    expect(visitor.box).to_have_value("A draft\n\nAbout ships and boats")
    expect(editor(visitor)).to_have_count(1)
    expect(editor(visitor)).to_have_value("About whales and seals")
    visitor.shot("edit-of-another-message")
    edit(visitor, 2, "")
    expect(visitor.box).to_have_value("A draft\n\nAbout ships and boats\n\nAbout whales and seals")
    expect(editor(visitor)).to_have_value("About *otters*")
    edit(visitor, 0, "")  # nothing was typed into the last one
    expect(editor(visitor)).to_have_value("About ships")
    expect(visitor.box).to_have_value("A draft\n\nAbout ships and boats\n\nAbout whales and seals")
    expect(visitor.mine.filter(visible=True)).to_have_text(["About whales", "About *otters*"])


def test_arrow_up_returns_to_an_open_edit(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("About ships")
    edit(visitor, 0, " and boats")
    visitor.box.press("ArrowUp")
    expect(editor(visitor)).to_be_focused()
    editor(visitor).press_sequentially(" and rafts")
    expect(editor(visitor)).to_have_value("About ships and boats and rafts")
    expect(visitor.box).to_have_value("")
