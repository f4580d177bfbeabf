"""The chatbots of the answer that is being written look like one, and meanwhile the stored turns stay untouched."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor, becomes

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
PLACES = """() => {
  const log = document.querySelector("#chat"), top = log.scrollTop - log.getBoundingClientRect().top;
  const blocks = log.querySelectorAll(".prose > *:not(.seam), .thought-group, .user.message");
  const shown = [...blocks].filter((block) => block.checkVisibility() && !block.closest(".thought-group .prose"));
  return shown.map((block) => {
    const { left, top: at, width, height } = block.getBoundingClientRect();
    return [block.nodeName, ...[left, at + top, width, height].map(Math.round)];
  });
}"""
WATCH_HAND_OVER = """() => {
  const log = document.querySelector("#chat"), draw = window.live.draw;
  window.before = [];
  window.stages = 0;
  window.left = [];
  window.heights = [];
  window.live.draw = () => {
    const before = window.live.shown[0].length, now = window.places(), changed = draw();
    if (changed[0]?.length > before && before && !window.before.length) window.before = now;
    if (changed[0] && window.before.length) window.stages++;
    window.most = Math.max(window.most ?? 0, window.live.shown[1].length);
    if (log.matches("[data-leaving]")) window.left.push(window.live.shown[1].length);
    return changed;
  };
  const look = () => {
    if (window.before.length) window.heights.push(log.scrollHeight);
    if (window.heights.length < 60) requestAnimationFrame(look);
  };
  look();
}"""
"""Keeps the places before the first chatbot gets the answer, in how many stages it gets it, how many pieces the others
have at most and at each stage after that, and the height of the chat in each frame."""
COUNT_CHANGES = """() => {
  window.changes = 0;
  const stored = document.querySelector("#chat .message-wrap");
  new MutationObserver((all) => (window.changes += all.length))
    .observe(stored, { childList: true, subtree: true, characterData: true });
}"""
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
Place = tuple[str, int, int, int, int]
SHOWN = "window.live.shown.map((messages) => messages.length)"


def same(one: Place, other: Place) -> bool:
    """Compare two places. Rounding may differ by a pixel."""
    return one[0] == other[0] and all(abs(a - b) <= 1 for a, b in zip(one[1:], other[1:], strict=True))


def test_pieces_look_like_one_answer(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.allow_tools()
    visitor.ask("!reasoning Short. !text A first answer.")
    page.evaluate(f"window.places = {PLACES}")
    page.evaluate(WATCH_HAND_OVER)
    page.evaluate(COUNT_CHANGES)
    visitor.say(f'!wait 0.5 !reasoning Hm. !tool nap {{"seconds": 0.1}} !pace 400 !text {ANSWER}')
    fold = visitor.chat.locator(".thought-group .title").nth(1)
    expect(visitor.chat.get_by_role("heading", name="A head")).to_be_visible()
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "true")
    becomes(True, lambda: page.evaluate(SHOWN)[1] > 5)
    assert page.evaluate(SHOWN)[2] == 1
    assert page.evaluate("window.changes") == 0
    visitor.shot("pieces")
    expect(visitor.chat.locator(".bot-row").last.locator(".caption")).to_be_visible(timeout=15_000)
    visitor.idle()
    becomes(60, lambda: page.evaluate("window.heights.length"))
    assert page.evaluate(SHOWN)[1:] == [0, 0]
    assert page.evaluate("window.stages") == 2, "a long text comes in stages"
    *_, fewer, none = page.evaluate("window.left")
    assert page.evaluate("window.most") > fewer > none == 0, "and its pieces leave in stages"
    expect(visitor.chat.locator(".bot-row")).to_have_count(2)
    before, after = page.evaluate("window.before")[:-1], page.evaluate(PLACES)  # the last block was still growing
    assert len(before) > 20
    assert [moved for moved in zip(before, after, strict=False) if not same(*moved)] == []
    heights = page.evaluate("window.heights")
    assert len(set(heights)) <= 2, "the last words and the caption come at once"
    assert sorted(heights) == heights
    expect(fold).to_have_attribute("aria-expanded", "true")
    visitor.shot("pieces-at-the-end")


def test_copy_has_the_whole_text(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(f"!pace 4000 !text {ANSWER}")
    parts = visitor.chat.locator(".bot.message > .message:has(.seam)")
    expect(parts).to_have_count(2)
    for _ in "stored", "reloaded":
        visitor.chat.get_by_role("button", name="Copy").last.click()
        becomes(ANSWER.replace("\\n", "\n"), lambda: visitor.page.evaluate("navigator.clipboard.readText()"))
        visitor.page.evaluate("navigator.clipboard.writeText('')")
        visitor.page.reload()
        expect(parts).to_have_count(2)


def test_link_defined_at_the_end_is_one(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(f"!pace 4000 !text See [the guide][1].\\n\\n{ANSWER}\\n\\n[1]: https://example.com/guide")
    link = visitor.chat.get_by_role("link", name="the guide")
    expect(link).to_have_attribute("href", "https://example.com/guide")
    visitor.page.reload()
    expect(link).to_have_attribute("href", "https://example.com/guide")


WATCH_FIRST_IN_VIEW = """() => {
  const log = document.querySelector("#chat");
  window.seen = [];
  const look = () => {
    const top = log.getBoundingClientRect().top;
    const row = [...log.querySelectorAll(".message-row")].find((row) => row.getBoundingClientRect().bottom > top);
    window.seen.push([row.textContent.trim().slice(0, 60), Math.round(row.getBoundingClientRect().top)]);
    requestAnimationFrame(() => setTimeout(look)); // as it was drawn
  };
  look();
}"""


def test_older_turns_come_when_the_reader_scrolls_up(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, rows = visitor.page, visitor.chat.locator(".user-row")
    for number in range(14):
        visitor.ask(
            f"!pace 2000 !text Answer {number}.\\n\\n" + "\\n\\n".join(["- a\\n- b", "```\\ncode\\n```"] * number)
        )
    page.reload()
    expect(rows.last).to_contain_text("Answer 13")
    becomes(True, lambda: page.evaluate("document.querySelector('#chat').scrollTop") > 300)
    shown = rows.count()
    assert shown < 14
    button = page.get_by_role("button", name="Show earlier messages")
    expect(button).to_be_visible()
    page.mouse.move(600, 400)
    page.evaluate(WATCH_FIRST_IN_VIEW)
    page.mouse.wheel(0, -100_000)
    expect(rows).to_have_count(14)
    expect(button).to_be_hidden()
    watched = page.evaluate("window.seen.length")
    becomes(True, lambda: page.evaluate("window.seen.length") > watched + 40)  # nothing moves later
    seen: list[tuple[str, int]] = page.evaluate("window.seen")
    assert page.evaluate("document.querySelector('#chat').scrollTop") > 200
    at_top = seen.index(seen[-1])
    assert len(seen) - at_top > 20
    assert all(text == seen[-1][0] and abs(top - seen[-1][1]) <= 2 for text, top in seen[at_top:]), seen[at_top:]
