"""The temporary chat on the page: it answers, survives a reload, and is over when the server has forgotten it."""

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.support.http_client import marker

ADDRESS = re.compile(r"/c/temporary-[0-9a-f]{32}$")
OVER = "The temporary chat is over, and nothing of it was kept."


def mark(visitor: Visitor) -> Locator:
    return visitor.page.locator("#temporary")


def missing(visitor: Visitor) -> Locator:
    return visitor.page.locator("#missing")


def begin(visitor: Visitor) -> None:
    """Show a temporary chat with the button of the side bar. Its first message begins it."""
    visitor.page.get_by_role("button", name="Temporary chat").click()
    expect(visitor.page).to_have_url(re.compile("/c/temporary$"))
    expect(mark(visitor)).to_contain_text("It is only kept in memory")
    expect(visitor.mine).to_have_count(0)


@pytest.fixture
def own(start_app: Callable[..., App]) -> Iterator[App]:
    """An app that the test can stop."""
    app = start_app()
    yield app
    app.stop()


@pytest.mark.gate("A temporary chat answers like any other, is in no list, and leaves nothing on the disk.")
def test_temporary_chat_leaves_nothing(app: App, visit: Visit) -> None:
    visitor, word = visit(app.url), marker()
    page = visitor.page
    visitor.ask("A kept one")
    kept = page.url
    begin(visitor)
    expect(page).to_have_title("Temporary chat · Switchboard")
    expect(page.locator("#name")).to_have_text("Temporary chat")
    visitor.shot("temporary-empty")
    visitor.ask(f"!text **Otters** float. {word}")
    expect(page).to_have_url(ADDRESS)
    address = page.url
    expect(visitor.bubbles.locator("strong")).to_have_text("Otters")
    visitor.shot("temporary-answer")
    visitor.attach((f"{word}.txt", word.encode()))
    expect(page.locator("#composer").locator(".file")).to_have_count(1)
    visitor.say(f"!tokens 900 @20 {word}")
    expect(visitor.bubbles.last).to_contain_text("word3")
    visitor.stop.click()
    expect(visitor.caption).to_contain_text("stopped", ignore_case=True)
    visitor.idle()
    visitor.chat.get_by_role("button", name="Retry", exact=True).last.click()
    expect(visitor.bubbles.last).to_contain_text("word5")
    visitor.stop.click()
    visitor.idle()
    expect(visitor.chat.locator(".versions").last).to_contain_text("2/2")
    expect(page.locator("#chats li")).to_have_count(1)
    page.get_by_role("searchbox", name="Search chats").fill(word)
    expect(page.locator("#chats .none")).to_have_text("No chat has these words.")
    page.get_by_role("searchbox", name="Search chats").fill("")
    visitor.box.fill("Not sent yet")
    visitor.reload()
    expect(visitor.mine).to_have_count(2)
    expect(visitor.mine.last.get_by_role("group", name=f"{word}.txt")).to_be_visible()
    expect(mark(visitor)).to_be_visible()
    expect(visitor.box).to_have_value("Not sent yet")
    assert app.files_with(word) == []
    page.locator("#chats li a").click()
    expect(page).to_have_url(kept)
    expect(mark(visitor)).to_be_hidden()
    expect(visitor.mine).to_have_text(["A kept one"])
    page.go_back()  # soon after it was left, it is still there
    expect(visitor.mine).to_have_count(2)
    expect(visitor.mine.last.get_by_role("group", name=f"{word}.txt")).to_be_visible()
    expect(mark(visitor)).to_be_visible()
    stranger = visit(address, fresh=True)
    expect(missing(stranger)).to_have_text(OVER)
    expect(stranger.page).to_have_url(app.url + "/")
    expect(mark(stranger)).to_be_hidden()
    page.locator("#new").click()
    expect(mark(visitor)).to_be_hidden()
    visitor.ask("Kept again")
    expect(page.locator("#chats li")).to_have_text(["Kept again", "A kept one"])


@pytest.mark.gate("After a restart of the server the page says that the temporary chat is over, and keeps the text.")
def test_restart_ends_it(own: App, visit: Visit) -> None:
    visitor, word = visit(own.url, fresh=True), marker()
    begin(visitor)
    visitor.ask(f"!text Hello. {word}")
    address = visitor.page.url
    visitor.box.fill("Not sent yet")
    own.stop(signal.SIGKILL)
    own.start()
    expect(missing(visitor)).to_have_text(OVER)  # Gradio reloads the page, or the page asks and is told
    expect(mark(visitor)).to_be_hidden()
    expect(visitor.page).to_have_url(own.url + "/")
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("Not sent yet")
    assert own.files_with(word) == []
    visitor.page.goto(address)
    expect(missing(visitor)).to_have_text(OVER)
    expect(visitor.box).to_have_value("Not sent yet")
    expect(visitor.page.locator("#model-button")).not_to_have_text("")
    visitor.box.press("Enter")
    expect(visitor.mine).to_have_text(["Not sent yet"])
    expect(missing(visitor)).to_be_empty()
    expect(visitor.page.locator("#chats li")).to_have_text(["Not sent yet"])
