"""An edit, a retry, an undo or a pressed answer changes the message that the page showed, whatever came since."""

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.support.scripted_server import Running


def row(visitor: Visitor, number: int) -> Locator:
    """Return the visible message with that number, counted from 0."""
    return visitor.chat.locator(".turn > .mine:first-child").nth(number)


def open_edit(visitor: Visitor, number: int) -> None:
    """Open the edit box of the visible message with that number, counted from 0."""
    one = row(visitor, number)
    one.get_by_role("button", name="Edit").click()
    # Older messages can come before it.
    expect(visitor.chat.locator(".edit textarea").filter(visible=True)).to_be_in_viewport(ratio=1)


@pytest.mark.gate("A page that is out of date changes no other message.")
def test_stale_page_changes_nothing(app: App, visit: Visit, model_server: Running) -> None:
    one = visit(app.url)
    one.ask("one")
    one.ask("two")
    other = visit(app.url, elsewhere=one)
    expect(other.mine.last).to_have_text("two")
    open_edit(other, 1)
    other.chat.locator(".edit textarea").fill("typed over two")
    one.ask("three")
    before = len(model_server.journal())
    other.chat.get_by_role("button", name="Retry", exact=True).click()
    expect(other.page.locator("#hint")).to_contain_text("has gone on since then")
    expect(other.mine.last).to_have_text("three")  # the page shows the current chat
    expect(other.chat.locator(".edit textarea")).to_have_value("typed over two")

    one.chat.get_by_role("button", name="Undo").click()
    expect(one.mine).to_have_count(2)
    one.idle()
    one.chat.get_by_role("button", name="Undo").click()
    expect(one.mine).to_have_count(1)
    one.idle()
    other.chat.get_by_role("button", name="Undo").click()
    expect(other.mine).to_have_count(1)
    # The message with the open edit box is gone, but its typed text stays.
    expect(other.box).to_have_value("typed over two")
    expect(one.mine).to_have_text("one")
    assert len(model_server.journal()) == before
    other.page.reload()
    expect(other.mine).to_have_count(1)
