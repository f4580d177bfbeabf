"""Order in one chat: a message is erased, a text is found, and the versions are a tree."""

import re

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit
from tests.peers.axe import grave


@pytest.mark.gate("A message is erased with what follows it; a text is found in the chat, and a version in its tree.")
def test_chat_is_searched_shown_as_a_tree_and_cut(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    for text in ("!text A pear.", "!text An apple.", "!text Plums."):
        visitor.ask(text)
    visitor.chat.get_by_role("button", name="Edit").last.click()
    visitor.chat.locator(".edit textarea").fill("!text Other plums.")
    visitor.chat.get_by_role("button", name="Send").click()
    expect(visitor.chat).to_contain_text("Other plums.")
    visitor.idle()

    def choose(name: str) -> None:
        page.locator("#chats li", has=page.locator("[aria-current]")).hover()
        page.get_by_role("button", name=re.compile("^Options for")).first.click()
        page.get_by_role("menuitem", name=name).click()

    visitor.chat.locator(".turn").nth(1).hover()
    visitor.chat.get_by_role("button", name="Change the answer").nth(1).click()
    answer = page.get_by_role("textbox", name="Change the answer")
    expect(answer).to_have_value("An apple.")
    answer.fill("A **quince**.")
    visitor.shot("order-rewrite")
    assert grave(page) == []
    page.get_by_role("dialog", name="Change the answer").get_by_role("button", name="Save").click()
    expect(visitor.chat.locator(".turn")).to_have_count(2)
    expect(visitor.chat.locator(".turn").last).to_contain_text("Written by you.")
    expect(visitor.chat.locator(".answer strong")).to_have_text("quince")
    visitor.chat.get_by_role("button", name="Previous version of the answer").click()
    expect(visitor.chat).to_contain_text("Other plums.")

    choose("Search in this chat")
    field, bar = page.get_by_role("searchbox", name="Search in this chat"), page.locator("#find")
    field.fill("pear")
    expect(bar).to_contain_text("1 of 2")
    field.press("Enter")
    expect(bar).to_contain_text("2 of 2")
    expect(visitor.chat.locator(".mine[data-found]")).to_contain_text("A pear.")
    visitor.shot("order-find")
    assert grave(page) == []
    field.press("Escape")
    expect(bar).to_be_hidden()
    choose("Versions of this chat")
    dialog = page.get_by_role("dialog", name="Versions of this chat")
    expect(dialog.locator("li")).to_have_count(5)
    expect(dialog.locator("[aria-current]")).to_contain_text("Other plums.")
    visitor.shot("order-tree")
    assert grave(page) == []
    dialog.get_by_role("button", name=re.compile("^!text Plums")).click()
    expect(visitor.chat.locator(".turn").last).to_contain_text("1/2")
    visitor.chat.locator(".turn").nth(1).hover()
    visitor.chat.get_by_role("button", name="Delete this message and what follows it").nth(1).click()
    page.get_by_role("dialog", name="Delete this version?").get_by_role("button", name="Delete").click()
    expect(visitor.chat.locator(".turn").last).to_contain_text("quince")
    expect(visitor.chat.locator(".versions")).to_have_count(0)
    visitor.chat.get_by_role("button", name="Delete this message and what follows it").nth(1).click()
    question = page.get_by_role("dialog", name="Delete this message and what follows it?")
    visitor.shot("order-erase")
    assert grave(page) == []
    question.get_by_role("button", name="Delete").click()
    expect(visitor.chat.locator(".turn")).to_have_count(1)
    expect(visitor.chat).not_to_contain_text("apple")
    page.reload()
    expect(visitor.chat).to_contain_text("A pear.")
    expect(visitor.chat.locator(".turn")).to_have_count(1)

    page.evaluate("document.addEventListener('composer:stop', () => (globalThis.isStopped = true))")
    visitor.say("!text Begun. !stall-after 600")
    expect(visitor.chat).to_contain_text("Begun.")
    choose("Search in this chat")
    field.press("Escape")
    expect(bar).to_be_hidden()
    assert not page.evaluate("globalThis.isStopped")
    visitor.box.press("Escape")
    visitor.idle()
    assert page.evaluate("globalThis.isStopped")

    page.get_by_role("searchbox", name="Search chats").fill("plums")
    expect(page.locator("#chats .none")).to_contain_text("No chat has these words.")
