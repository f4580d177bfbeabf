"""An edit, a retry, an undo or a pressed answer changes the message that the page showed, whatever came since."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.conftest import App, Visitor
from tests.support.scripted_server import Running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


# Counts the frames in which an edit box is drawn after it was once gone.
COUNT_EDIT_BOXES = """() => {
  let wasGone = false;
  window.shownAgain = 0;
  const look = () => {
    const box = document.querySelector("#chat .edit textarea");
    const isSeen = Boolean(box?.checkVisibility());
    if (isSeen && wasGone) window.shownAgain += 1;
    wasGone ||= !isSeen;
    requestAnimationFrame(look);
  };
  look();
}"""


def shown(visitor: Visitor) -> list[str]:
    """Return the visitor's messages on the page, the first part of each."""
    rows = visitor.chat.locator(".turn > .mine:first-child").all()
    return [(row.locator(".part").first.text_content() or "").strip() for row in rows]


def row(visitor: Visitor, number: int) -> Locator:
    """Return the visible message with that number, counted from 0."""
    return visitor.chat.locator(".turn > .mine:first-child").nth(number)


def open_edit(visitor: Visitor, number: int) -> None:
    """Open the edit box of the visible message with that number, counted from 0."""
    one = row(visitor, number)
    one.get_by_role("button", name="Edit").click()
    # Older messages can come before it.
    expect(visitor.chat.locator(".edit textarea").filter(visible=True)).to_be_in_viewport(ratio=1)


def test_end_stays_in_view_after_an_edit_beside_it(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!text " + "Line.\\n\\n" * 30)
    visitor.ask("!text The end.")
    held: list[Route] = []
    visitor.page.route("**/text", lambda route: held.append(route))
    row(visitor, 1).get_by_role("button", name="Edit").click()
    expect(
        visitor.chat.get_by_text("The text is being loaded")
    ).to_be_visible()  # the box is small until it has its text
    held[0].continue_()
    expect(visitor.chat.locator(".edit textarea")).to_be_in_viewport(ratio=1)
    visitor.page.keyboard.press("Escape")
    expect(visitor.chat.locator(".edit textarea")).to_have_count(0)
    visitor.page.set_viewport_size({"width": 1100, "height": 600})
    expect(visitor.caption).to_be_in_viewport(ratio=1)
    expect(visitor.chat.get_by_role("button", name="Jump to the end")).to_be_hidden()


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


def test_retry_moves_an_open_edit_into_the_composer(app: App, visit: Visit) -> None:
    """The question that is answered again is shown as it was sent, and nothing that was typed is lost."""
    visitor = visit(app.url, fresh=True)
    for text in ("!text One.", "!tokens 40 @60"):
        visitor.ask(text)
    visitor.box.fill("A draft.")
    open_edit(visitor, 1)
    edit = visitor.chat.locator(".edit textarea")
    edit.fill("Other words")
    visitor.page.evaluate(COUNT_EDIT_BOXES)
    visitor.chat.get_by_role("button", name="Retry", exact=True).click()
    expect(visitor.page.get_by_role("button", name="Stop")).to_be_visible()
    visitor.idle()
    expect(visitor.mine).to_have_text(["!text One.", "!tokens 40 @60"])
    expect(visitor.box).to_have_value("A draft.\n\nOther words")
    assert visitor.page.evaluate("window.shownAgain") == 0
    open_edit(visitor, 1)
    expect(edit).to_have_value("!tokens 40 @60")
