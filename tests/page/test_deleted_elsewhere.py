"""A page whose chat was deleted in another tab or on another device says so, and a message begins a new chat there."""

import re

from playwright.sync_api import expect

from tests.conftest import App, Visit, Visitor

GONE = "This chat was deleted meanwhile. The next message begins a new chat."
BEGUN = "The chat was deleted meanwhile, so this message begins a new one."


def delete(visitor: Visitor) -> None:
    """Delete the only chat in the list."""
    visitor.page.locator("#chats li").hover()
    visitor.page.locator("#chats li").get_by_role("button").click()
    visitor.page.get_by_role("menuitem", name="Delete", exact=True).click()
    expect(visitor.page.locator("#chats li")).to_have_count(0)


def test_deleted_chat_is_not_shown_in_another_tab(app: App, visit: Visit) -> None:
    first = visit(app.url)
    first.ask("About ships")
    second = visit(first.page.url, like=first)
    expect(second.mine).to_have_text(["About ships"])
    second.box.fill("About whales")
    delete(first)
    expect(second.page.locator("#missing")).to_have_text(GONE)
    expect(second.mine).to_have_count(0)
    expect(second.page).to_have_url(f"{app.url}/")
    expect(second.page).to_have_title("Switchboard")
    second.shot("deleted-elsewhere")
    expect(second.box).to_have_value("About whales")
    second.box.press("Enter")
    expect(second.mine).to_have_text(["About whales"])
    expect(second.page).to_have_url(re.compile(r"/c/[0-9a-f]{32}$"))
    second.idle()
    expect(second.page.locator("#missing")).to_be_empty()
    expect(second.page.locator("#hint")).to_be_empty()
    expect(second.box).to_have_value("")
    begun = second.page.url
    first.page.locator("#chats .offers").get_by_role("button", name="Undo", exact=True).click()
    expect(first.mine).to_have_text(["About ships"])
    expect(second.page.locator("#chats li")).to_have_count(2)
    expect(second.mine).to_have_text(["About whales"])
    expect(second.page).to_have_url(begun)
    second.reload()
    expect(second.mine).to_have_text(["About whales"])


def test_message_into_a_deleted_chat_begins_a_new_one(app: App, visit: Visit) -> None:
    """Nothing has told the page that the chat was deleted on another device."""
    first = visit(app.url)
    first.ask("About ships")
    second = visit(first.page.url, elsewhere=first)
    expect(second.mine).to_have_text(["About ships"])
    delete(first)
    second.ask("About whales")
    expect(second.mine).to_have_text(["About whales"])
    expect(second.page.locator("#hint")).to_have_text(BEGUN)
    second.shot("begun-after-a-deletion")
    second.reload()
    expect(second.mine).to_have_text(["About whales"])
