"""The buttons under an answer: other versions of its message, and a copy of the branch in a new chat."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor

Visit = Callable[..., Visitor]


@pytest.mark.gate("Retry and edit keep the old versions, and a branch can go on in a new chat.")
def test_versions_and_branches(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!text One.")
    visitor.ask("!text Two.")
    expect(visitor.chat.locator(".version")).to_have_count(0)
    visitor.chat.get_by_role("button", name="Edit").last.click()
    visitor.page.locator("textarea.edit-textarea").fill("!text Other.")
    visitor.chat.get_by_role("button", name="Submit").click()
    expect(visitor.chat).to_contain_text("Other.")
    visitor.idle()
    expect(visitor.chat.locator(".branches").last).to_have_text("2/2")
    expect(visitor.chat.get_by_role("button", name="Next version")).to_be_disabled()
    visitor.chat.get_by_role("button", name="Previous version").click()
    expect(visitor.chat.locator(".branches").last).to_have_text("1/2")
    expect(visitor.chat).to_contain_text("Two.")
    expect(visitor.chat).not_to_contain_text("Other.")
    visitor.shot("versions")
    visitor.page.reload()
    expect(visitor.chat.locator(".branches").last).to_have_text("1/2")
    visitor.ask("!text Three.")
    visitor.chat.get_by_role("button", name="Next version").click()
    expect(visitor.chat).to_contain_text("Other.")
    expect(visitor.chat).not_to_contain_text("Three.")

    # A chat that begins like this one, up to its first answer.
    visitor.chat.get_by_role("button", name="Branch from here into a new chat").first.dispatch_event("click")
    expect(visitor.mine).to_have_count(1)
    visitor.ask("!text Four.")
    visitor.page.reload()
    expect(visitor.chat).to_contain_text("Four.")
    expect(visitor.chat).not_to_contain_text("Other.")
