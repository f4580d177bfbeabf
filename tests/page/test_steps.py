"""Steps of an answer (thoughts and tools) are a timeline below one row, live and after a reload."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visitor, becomes
from tests.peers.axe import grave

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
STEPS = '!reasoning Two sums. !tool calculate {"expression": "17+25"} !tool calculate {"expression": "17+"}'
FAILED = "Calculate · failed: '17+' is not an arithmetic expression"
UNFOLDED = """async () => {
  const chat = document.querySelector("#chat .transcript");
  for (let same = 0, before; same < 60; ) {
    await new Promise(requestAnimationFrame);
    const now = `${chat.scrollHeight} ${chat.scrollTop}`;
    same = now === before ? same + 1 : 0;
    before = now;
  }
}"""
"""Waits until the chat has had one height and one place for 60 frames; the view may move for some."""
LINES = "Line.\\n\\n"
TOP = "title => title.getBoundingClientRect().top"


@pytest.fixture
def visitor(app: App, visit: Visit) -> Visitor:
    visitor = visit(app.url)
    visitor.allow_tools()
    return visitor


def rows(visitor: Visitor) -> Locator:
    """Return the rows that show and hide steps."""
    return visitor.chat.locator(".bubble[data-kind=steps] > button")


def steps(visitor: Visitor) -> Locator:
    """Return the titles of the steps that can be seen."""
    return visitor.chat.locator(".bubble.step:visible > details > summary")


IS_OPEN = "fold => fold.localName === 'summary' ? fold.parentElement.open : fold.ariaExpanded === 'true'"


def is_open(fold: Locator, state: bool) -> None:
    becomes(state, lambda: fold.evaluate(IS_OPEN))


def test_printed_timeline_is_its_row_and_what_failed(visitor: Visitor) -> None:
    visitor.ask(f"{STEPS} !text Done.")
    visitor.page.emulate_media(media="print")
    expect(rows(visitor)).to_contain_text("2 tools · 1 failed")
    expect(steps(visitor)).to_have_text([FAILED])
    step = visitor.chat.locator(".bubble.step:visible")
    assert step.evaluate("step => getComputedStyle(step, '::before').display") == "none", "a dot is on the sheet"
    visitor.page.emulate_media(media="screen")
    rows(visitor).click()
    expect(steps(visitor)).to_have_count(3)
    visitor.page.emulate_media(media="print")
    expect(steps(visitor)).to_have_count(3)
    visitor.page.emulate_media(media="screen")


def unfold(visitor: Visitor, step: Locator, key: str) -> None:
    """Unfold a step, and wait until its fold no longer grows and the view no longer moves."""
    if key:
        step.focus()
        visitor.page.keyboard.press(key)
    else:
        step.click()
    is_open(step, True)
    expect(steps(visitor).nth(1)).to_be_attached()
    visitor.page.evaluate(UNFOLDED)


@pytest.mark.parametrize("key", ["", "Enter"], ids=["mouse", "keyboard"])
def test_unfolded_row_stays_where_it_is(visitor: Visitor, key: str) -> None:
    visitor.ask(f"!text {LINES * 30}")
    visitor.ask(f"{STEPS} !text {LINES * 8}")
    row, to_end = rows(visitor), visitor.page.locator(".to-end")
    expect(row).to_be_in_viewport()
    expect(to_end).to_be_hidden()
    for step in (row, steps(visitor).nth(1)):
        before = step.evaluate(TOP)
        unfold(visitor, step, key)
        expect(to_end).to_be_visible()
        assert step.evaluate(TOP) == before
    row.click()
    is_open(row, False)
    expect(to_end).to_be_hidden()  # the chat is at its end again
    visitor.ask(f"!text {LINES * 30} The end.")
    expect(visitor.caption).to_be_in_viewport()


def test_output_of_a_running_tool_is_in_its_row(start_app: Callable[..., App], visit: Callable[..., Visitor]) -> None:
    visitor = visit(start_app('[agent]\ntools = ["tests.support.slow_tools:tell"]\n').url)
    visitor.allow_tools()
    visitor.say('!tool tell {"text": "Reading <b>files</b>\\n3 of 9"} !text Done.')
    step = visitor.chat.locator('.bubble[data-kind="tool_call"]')
    expect(step.locator(".title")).to_have_text("Tell · 3 of 9")
    step.locator("summary").click()
    expect(step.locator("pre.output")).to_have_text("Reading <b>files</b>\n3 of 9")
    assert not grave(visitor.page)
    visitor.shot("tool-output")
    visitor.stop.click()
    visitor.idle()
    expect(step.locator(".title").first).to_have_text("Tell · failed: Cancelled before it finished")
