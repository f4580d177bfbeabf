"""Steps of an answer (thoughts and tools) are a timeline below one row, live and after a reload."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import CONFIG, App, Visitor, becomes

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
NAP = '"tests.support.slow_tools:nap"'
STEPS = '!reasoning Two sums. !tool calculate {"expression": "17+25"} !tool calculate {"expression": "17+"}'
FAILED = "Calculate · failed: '17+' is not an arithmetic expression"
WATCH_PLACES = """() => {
  window.lefts = new Set();
  const look = () => {
    const text = document.querySelector("#chat .bubble[data-kind=output_text] .part");
    if (text) window.lefts.add(Math.round(text.getBoundingClientRect().left));
    requestAnimationFrame(() => setTimeout(look)); // as it was drawn
  };
  look();
}"""

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
OVER_BUTTON = """one => {
  const button = document.querySelector(".to-end");
  return button.hidden ? 0 : button.getBoundingClientRect().top - one.getBoundingClientRect().bottom;
}"""
"""The pixels between the element and the button to the end below it."""


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App]) -> App:
    return start_app(CONFIG.replace(NAP, f'{NAP}, "tests.support.asking_tools:send", "agent.tools:ask_user"'))


@pytest.fixture
def visitor(own: App, visit: Visit) -> Visitor:
    visitor = visit(own.url)
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


def test_timeline_is_open_until_text_begins(visitor: Visitor) -> None:
    visitor.page.evaluate(WATCH_PLACES)
    visitor.say(f'{STEPS} !tool nap {{"seconds": 10}} !think 40 @20 !tokens 60 @30')
    row = rows(visitor)
    expect(row.locator(".title")).to_have_text("Working · 3 tools · 1 failed")
    is_open(row, True)
    expect(row.locator(".time")).to_have_text(re.compile(r"^\d+ s$"))
    expect(steps(visitor)).to_have_count(4)
    expect(steps(visitor).last).to_contain_text("Nap")
    visitor.shot("steps-running")
    expect(visitor.chat).to_contain_text("word20")
    is_open(row, False)
    expect(steps(visitor)).to_have_text([FAILED])
    visitor.shot("steps-folded-while-text-is-written")
    visitor.idle()
    expect(row.locator(".title")).to_have_text(re.compile(r"^Thought \d+\.\d s · 3 tools · 1 failed$"))
    lefts = visitor.page.evaluate("[...window.lefts]")
    assert len(lefts) <= 1, f"the text moved to the side: {lefts}"
    said = row.inner_text()
    for _ in range(2):
        is_open(row, False)
        expect(steps(visitor)).to_have_text([FAILED])
        row.click()
        is_open(row, True)
        expect(steps(visitor)).to_have_count(5)
        visitor.shot("steps-open")
        visitor.reload()
        expect(row).to_have_text(said, use_inner_text=True)


def test_waiting_tool_is_never_hidden(visitor: Visitor) -> None:
    visitor.say('!tools calculate {"expression": "17+25"} send {"to": "Ann", "text": "Hi!"} !text Done.')
    expect(visitor.chat.locator("[data-kind=question]").first).to_be_visible()
    visitor.idle()
    for _ in range(2):
        is_open(rows(visitor), False)
        expect(steps(visitor)).to_have_text(["Send · waiting for you"])
        expect(visitor.chat.get_by_role("button", name="Allow", exact=True)).to_be_visible()
        visitor.shot("steps-waiting")
        visitor.reload()
    visitor.chat.get_by_role("button", name="Refuse", exact=True).click()
    expect(visitor.bubbles.filter(has_text="Done.")).to_be_visible()
    visitor.idle()
    expect(rows(visitor)).to_have_count(1)
    expect(rows(visitor)).to_contain_text("2 tools")
    expect(rows(visitor)).not_to_contain_text("failed")


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


def test_unfolded_steps_come_into_view(own: App, visit: Visit) -> None:
    visitor = visit(own.url, phone=True)
    visitor.allow_tools()
    visitor.ask(f"!text {LINES * 30}")
    more = STEPS.replace("!reasoning Two sums.", "")
    visitor.ask(f'{STEPS} {more} !tool calculate {{"expression": "1+2"}} !text {LINES * 3}')
    row, to_end, last = rows(visitor), visitor.page.locator(".to-end"), steps(visitor).last
    expect(row).to_be_in_viewport()
    expect(to_end).to_be_hidden()
    for step in (row, last):
        unfold(visitor, step, "")
        expect(step).to_be_in_viewport(ratio=1)
        expect(last).to_be_in_viewport(ratio=1)
    result = visitor.chat.locator(".bubble.step:visible .bubble[data-kind=tool_call_result]").last
    expect(result).to_be_in_viewport(ratio=1)
    assert result.evaluate(OVER_BUTTON) >= 0, "the button to the end covers what was unfolded"
    visitor.shot("unfolded")
    row.click()
    is_open(row, False)
    visitor.chat.hover()
    visitor.page.mouse.wheel(0, 5000)
    expect(to_end).to_be_hidden()
