"""While an answer is written, the turns before it stay untouched, and older ones come in above what is read."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor, becomes

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
WATCH = """() => {
  const log = document.querySelector(".transcript");
  window.changes = window.frames = 0;
  new MutationObserver((all) => (window.changes += all.length))
    .observe(log.querySelector(".turn"), { childList: true, subtree: true, characterData: true });
  window.moved = [];
  let before = new Map();
  const look = () => {
    const top = log.scrollTop - log.getBoundingClientRect().top;
    const parts = [...log.querySelectorAll(".parts > *")].filter((part) => part.checkVisibility());
    const now = new Map(parts.map((part) => [part, part.getBoundingClientRect().top + top]));
    for (const [part, y] of now) if (Math.abs(y - (before.get(part) ?? y)) > 1) {
      window.moved.push([part.textContent.slice(0, 20), before.get(part), y]);
    }
    before = now;
    window.frames += 1;
    requestAnimationFrame(() => setTimeout(look)); // as it was drawn
  };
  window.watch = look;
}"""
"""Counts what changes in the first turn, and keeps the blocks that have moved since the frame before."""
LONG = "word " * 150
ANSWER = "\\n\\n".join(
    [
        "# A head",
        LONG,
        "- one\\n- two",
        LONG,
        "```python\\nx = 1\\n```",
        LONG,
        "> quoted",
        LONG,
        "1. one\\n2. two",
        "---",
        LONG,
        "$$x^2$$",
        LONG,
        "| a | b |\\n|---|---|\\n| 1 | 2 |",
        LONG,
        "## The end\\n\\nof it.",
    ]
)


def test_answer_changes_no_earlier_turn_and_keeps_what_was_opened(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.allow_tools()
    visitor.ask("!reasoning Short. !text A first answer.")
    page.evaluate(WATCH)
    visitor.say(f'!wait 0.5 !reasoning Hm. !tool nap {{"seconds": 0.1}} !pace 400 !text {ANSWER}')
    fold = visitor.chat.locator("[data-action=steps]").last
    expect(visitor.chat.get_by_role("heading", name="A head")).to_be_visible()
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "true")
    page.evaluate("window.watch()")
    expect(visitor.chat.locator(".turn > footer .caption")).to_have_count(2)
    visitor.idle()
    frames = page.evaluate("window.frames")
    becomes(True, lambda: page.evaluate("window.frames") > frames + 30)  # nothing moves later
    assert page.evaluate("window.changes") == 0
    assert page.evaluate("window.moved") == []
    expect(fold).to_have_attribute("aria-expanded", "true")
    visitor.shot("running-at-the-end")


WATCH_FIRST_IN_VIEW = """() => {
  const log = document.querySelector(".transcript");
  window.seen = [];
  const look = () => {
    const top = log.getBoundingClientRect().top;
    const row = [...log.querySelectorAll("article")].find((row) => row.getBoundingClientRect().bottom > top);
    window.seen.push([row.textContent.trim().slice(0, 60), Math.round(row.getBoundingClientRect().top)]);
    requestAnimationFrame(() => setTimeout(look)); // as it was drawn
  };
  look();
}"""


def test_older_turns_come_when_the_reader_scrolls_up(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, rows = visitor.page, visitor.chat.locator(".mine")
    for number in range(18):
        visitor.ask(
            f"!pace 2000 !text Answer {number}.\\n\\n" + "\\n\\n".join(["- a\\n- b", "```\\ncode\\n```"] * number)
        )
    page.reload()
    expect(rows.last).to_contain_text("Answer 17")
    becomes(True, lambda: page.evaluate("document.querySelector('.transcript').scrollTop") > 300)
    shown = rows.count()
    assert shown < 18
    button = page.get_by_role("button", name="Show earlier messages")
    expect(button).to_be_visible()
    page.mouse.move(600, 400)
    page.evaluate(WATCH_FIRST_IN_VIEW)
    page.mouse.wheel(0, -100_000)
    expect(rows).to_have_count(18)
    expect(button).to_be_hidden()
    watched = page.evaluate("window.seen.length")
    becomes(True, lambda: page.evaluate("window.seen.length") > watched + 40)  # nothing moves later
    seen: list[tuple[str, int]] = page.evaluate("window.seen")
    assert page.evaluate("document.querySelector('.transcript').scrollTop") > 200
    at_top = seen.index(seen[-1])
    assert len(seen) - at_top > 20
    assert all(text == seen[-1][0] and abs(top - seen[-1][1]) <= 2 for text, top in seen[at_top:]), seen[at_top:]
