"""The buttons under an answer: other versions of its message, another model, and a copy of the branch in a new chat."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit, Visitor, becomes
from tests.peers.axe import grave
from tests.support.scripted_server import Config, running

FIRST = "!text One of the words of a title that is long."
NUMBER = """(title) => {
  const [words, number] = title.children, { right } = title.getBoundingClientRect();
  const isWhole = number.getBoundingClientRect().right <= right + 0.5;
  return [words.scrollWidth > words.clientWidth, number.textContent, isWhole];
}"""
"""A title: true if its words are cut, its number, and true if all of that is seen."""


def numbers_are_whole(visitor: Visitor) -> None:
    """Check the branch in the list, under the pointer, as a hit of the search, and in the header of a phone."""
    page = visitor.page
    title, search = page.locator("#chats .title").first, page.get_by_role("searchbox", name="Search chats")
    link = page.get_by_role("link", name=f"{FIRST} (2)", exact=True)
    expect(link).to_have_attribute("title", f"{FIRST} (2)")
    assert title.evaluate(NUMBER) == [True, " (2)", True]
    title.hover()
    assert title.evaluate(NUMBER) == [True, " (2)", True]
    search.fill("(2)")
    expect(title.locator(".number mark")).to_have_text("(2)")
    assert title.evaluate(NUMBER) == [True, " (2)", True]
    visitor.shot("branch-found")
    search.fill("")
    expect(title.locator("mark")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    becomes([True, " (2)", True], lambda: page.locator("#name h1").evaluate(NUMBER))
    page.locator("#chats-toggle button").click()
    assert title.evaluate(NUMBER) == [True, " (2)", True]
    visitor.shot("branch-phone")
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1100, "height": 900})


@pytest.mark.gate("Retry and edit keep the old versions, and a branch can go on in a new chat.")
def test_versions_and_branches(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(FIRST)
    visitor.ask("!text Two.")
    expect(visitor.chat.locator(".versions")).to_have_count(0)
    visitor.chat.get_by_role("button", name="Edit").last.click()
    visitor.chat.locator(".edit textarea").fill("!text Other.")
    visitor.chat.get_by_role("button", name="Send").click()
    expect(visitor.chat).to_contain_text("Other.")
    visitor.idle()
    question = visitor.chat.locator(".mine .versions")
    expect(question).to_have_text("2/2")
    expect(visitor.chat.locator(".turn > footer .versions")).to_have_count(0)  # the answer has one version
    expect(question.get_by_role("button", name="Next version of your message")).to_be_disabled()
    question.get_by_role("button", name="Previous version of your message").click()
    expect(question).to_have_text("1/2")
    expect(visitor.chat).to_contain_text("Two.")
    expect(visitor.chat).not_to_contain_text("Other.")
    expect(question.get_by_role("button", name="Next version of your message")).to_be_focused()
    visitor.page.keyboard.type("More")
    expect(visitor.box).to_have_value("More")
    visitor.shot("versions")
    visitor.page.reload()
    expect(question).to_have_text("1/2")
    visitor.ask("!text Three.")
    expect(question).to_have_count(1)
    question.get_by_role("button", name="Next version of your message").click()
    expect(visitor.chat).to_contain_text("Other.")
    expect(visitor.chat).not_to_contain_text("Three.")

    # A chat that begins like this one, up to its first answer.
    visitor.chat.get_by_role("button", name="Branch from here into a new chat").first.press("Enter")
    expect(visitor.mine).to_have_count(1)
    begun = visitor.page.get_by_role("status").filter(has_text="This is a new chat, with the messages up to here.")
    expect(begun).to_be_visible()
    expect(visitor.box).to_be_focused()
    titles = visitor.page.locator("#chats .title")
    expect(titles).to_have_text([f"{FIRST} (2)", FIRST])
    visitor.shot("branched")
    numbers_are_whole(visitor)
    titles.last.click()
    expect(visitor.chat).to_contain_text("Other.")
    expect(begun).to_have_count(0, timeout=3000)  # else it goes after 6 s
    titles.first.click()
    expect(visitor.mine).to_have_count(1)
    expect(question).to_have_count(0)
    visitor.ask("!text Four.")
    visitor.page.reload()
    expect(visitor.chat).to_contain_text("Four.")
    expect(visitor.chat).not_to_contain_text("Other.")


def test_answer_is_tried_with_another_model(start_app: Callable[..., App], visit: Visit) -> None:
    models = ("Qwen/Qwen3-8B", "lab/Other", "lab/Third")
    with running(Config(models=models, rate=500.0)) as server:
        visitor = visit(start_app(VLLM_BASE_URL=server.base_url).url)
        below = visitor.chat.locator(".turn > footer").last
        visitor.ask("!text One.")
        again = visitor.chat.get_by_role("button", name="Retry with…")
        expect(again).to_be_visible()
        visitor.shot("retry-with")
        again.click()
        offered = visitor.page.get_by_role("dialog", name="Retry with…")
        expect(offered.get_by_role("option").locator("b")).to_have_text(["Other", "Third"])
        visitor.shot("retry-with-models")
        assert not grave(visitor.page)
        offered.get_by_role("option", name="Third").click()
        expect(below).to_contain_text(re.compile("^Third · .*2/2"))
        visitor.idle()
        assert [request["body"]["model"] for request in server.journal()[-2:]] == ["Qwen/Qwen3-8B", "lab/Third"]
        expect(visitor.page.locator("#model-button")).to_have_text("Qwen3-8B")  # the composer keeps its model
        visitor.chat.get_by_role("button", name="Previous version of the answer").click()
        expect(below).to_contain_text(re.compile("^Qwen3-8B · .*1/2"))
        visitor.chat.get_by_role("button", name="Retry", exact=True).click()
        expect(below).to_contain_text(re.compile("^Qwen3-8B · .*3/3"))
        visitor.idle()
        visitor.ask("!text Two.")
        assert [request["body"]["model"] for request in server.journal()[-2:]] == ["Qwen/Qwen3-8B"] * 2
        visitor.shot("retried-with")
        visitor.reload()
        expect(visitor.chat.locator(".caption")).to_contain_text([re.compile("^Qwen3-8B · ")] * 2)
