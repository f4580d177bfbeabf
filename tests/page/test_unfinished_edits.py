"""The words of an edit that was not sent wait in the composer of their own chat."""

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor


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
    assert "boats" not in page.evaluate("sessionStorage.getItem('drafts') ?? ''")
    page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("")
