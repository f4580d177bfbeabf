"""A chat in two tabs: what is sent in one leaves the reader of the other where they are."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor, becomes

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
BELOW = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
TOP = "log => Math.round(log.scrollTop)"
LONG = "!tokens 300 @2000"
NEXT = "!tokens 120 @60 The next one."


@pytest.fixture
def tabs(app: App, visit: Visit) -> tuple[Visitor, Visitor]:
    """Return two tabs with the same long chat, both at its end."""
    first = visit(app.url)
    for number in range(2):
        first.ask(f"{LONG} {number}")
    second = visit(first.page.url, like=first)
    second.page.bring_to_front()
    expect(second.chat.locator(".turn > footer .caption")).to_have_count(2)
    becomes(True, lambda: second.log.evaluate(BELOW) < 3 and second.log.evaluate(TOP) > 300)
    return first, second


def read_above(reader: Visitor) -> None:
    reader.page.mouse.move(500, 300)
    reader.page.mouse.wheel(0, -3000)
    becomes(0, lambda: reader.log.evaluate(TOP))


def sees_all_of_it(reader: Visitor) -> None:
    """Wait until the answer to `NEXT` has been written before the reader's eyes."""
    expect(reader.stop).to_be_visible()
    expect(reader.bubbles.last).to_contain_text("word50")
    expect(reader.chat.locator(".turn > footer .caption")).to_have_count(3)
    reader.idle()


def test_message_of_another_tab_leaves_the_reader(tabs: tuple[Visitor, Visitor]) -> None:
    first, second = tabs
    read_above(second)
    first.say(NEXT)
    sees_all_of_it(second)
    assert second.log.evaluate(TOP) == 0
    expect(second.chat.locator(".to-end")).to_be_visible()
    second.shot("other-tab-reader")
    becomes(True, lambda: first.log.evaluate(BELOW) < 3)
    second.chat.locator("[data-action=retry]").last.click()  # one's own answer is followed
    becomes(True, lambda: second.log.evaluate(BELOW) < 40)
    expect(second.chat.locator(".to-end")).to_be_hidden()


@pytest.mark.parametrize("at_the_end", [False, True], ids=["above", "at the end"])
def test_message_of_another_tab_leaves_an_open_edit(tabs: tuple[Visitor, Visitor], at_the_end: bool) -> None:
    first, second = tabs
    if at_the_end:
        second.ask("!text Short.")
        edit = second.chat.get_by_role("button", name="Edit").last
    else:
        read_above(second)
        edit = second.chat.get_by_role("button", name="Edit").first
    edit.click()
    area = second.chat.get_by_role("textbox")
    area.fill("What I want to say instead")
    count = second.chat.locator(".turn > footer .caption").count()
    first.say("!tokens 400 @200")
    expect(second.chat.locator(".turn > footer .caption")).to_have_count(count + 1)
    second.idle()
    expect(area).to_have_value("What I want to say instead")
    expect(area).to_be_in_viewport(ratio=1)
    expect(second.chat.locator(".to-end")).to_be_visible()


def test_reader_at_the_end_follows_another_tab(tabs: tuple[Visitor, Visitor]) -> None:
    first, second = tabs
    first.say(NEXT)
    expect(second.bubbles.last).to_contain_text("word50")
    becomes(True, lambda: second.log.evaluate(BELOW) < 40)
    sees_all_of_it(second)
    becomes(True, lambda: second.log.evaluate(BELOW) < 3)


def test_answer_that_is_continued_is_followed(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(f"{LONG} 0")
    visitor.say("!tokens 4000 @100")
    expect(visitor.bubbles.last).to_contain_text("word9")
    visitor.stop.click()
    visitor.idle()
    go_on = visitor.chat.get_by_role("button", name="Continue", exact=True)
    expect(go_on).to_be_visible()
    read_above(visitor)
    go_on.evaluate("one => one.click()")  # a click of Playwright would scroll to the button
    expect(visitor.stop).to_be_visible()
    becomes(True, lambda: visitor.log.evaluate(BELOW) < 40)
    visitor.stop.click()
    visitor.idle()
