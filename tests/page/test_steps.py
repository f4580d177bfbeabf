"""Steps of an answer (thoughts and tools) are a timeline below one row, live and after a reload."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import CONFIG, App, Visitor, becomes
from tests.peers.axe import violations

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
NAP = '"tests.support.slow_tools:nap"'
STEPS = '!reasoning Two sums. !tool calculate {"expression": "17+25"} !tool calculate {"expression": "17+"}'
LONG_NAP = '!tool nap {"seconds": 50}'
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
RESULT = ".bubble .bubble[data-kind=tool_call_result]"


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


def test_rows_have_32_pixels(visitor: Visitor) -> None:
    visitor.ask(f"{STEPS} !text Done.")
    rows(visitor).click()
    expect(steps(visitor)).to_have_count(3)
    tops = [title.bounding_box() for title in [*rows(visitor).all(), *steps(visitor).all()]]
    heights = [after["y"] - before["y"] for before, after in pairwise(tops) if before and after]
    assert heights == [32, 32, 32]


HEIGHTS = """(title) => {
  const range = document.createRange(), step = title.closest(".step");
  const middle = ({ top, height }) => top + height / 2;
  range.selectNodeContents(title.querySelector(".title").firstChild);
  const lines = [...range.getClientRects()], dot = getComputedStyle(step, "::before");
  const arrow = getComputedStyle(title, "::before"), { paddingTop } = getComputedStyle(title);
  const top = title.getBoundingClientRect().top + parseFloat(paddingTop);
  const place = step.getBoundingClientRect().top + parseFloat(dot.top) + parseFloat(dot.height) / 2;
  return { lines: lines.length, line: middle(lines[0]), arrow: top + parseFloat(arrow.height) / 2, dot: place };
}"""
"""The number of lines of a failed step, and the heights of its first one, its arrow and its dot."""


def test_signs_of_a_step_are_at_its_first_line(own: App, visit: Visit) -> None:
    visitor = visit(own.url, phone=True)
    visitor.allow_tools()
    long = "17+ and much more than fits into a line of a phone"
    visitor.ask(STEPS.replace('"17+"', f'"{long}"') + " !text Done.")
    expect(steps(visitor)).to_have_count(1)
    found = steps(visitor).evaluate(HEIGHTS)
    assert found.pop("lines") > 1
    assert max(found.values()) - min(found.values()) < 2, found
    visitor.shot("steps-phone")


def test_text_makes_two_timelines(visitor: Visitor) -> None:
    visitor.ask(f"{STEPS} !text Between. {STEPS} !text Done.")
    expect(rows(visitor)).to_have_count(2)
    expect(steps(visitor)).to_have_text([FAILED, FAILED])
    rows(visitor).first.click()
    is_open(rows(visitor).first, True)
    is_open(rows(visitor).last, False)
    expect(steps(visitor)).to_have_count(4)
    visitor.ask("!reasoning Alone. !text Fine.")
    expect(rows(visitor)).to_have_count(2)  # a single step is a row already
    expect(visitor.chat.locator("summary").last).to_contain_text("Reasoning")


def test_timeline_stays_as_visitor_turned_it(visitor: Visitor) -> None:
    visitor.say(f'{STEPS} !tool nap {{"seconds": 2}} !think 40 @20 {LONG_NAP}')
    row = rows(visitor)
    expect(row).to_contain_text("3 tools")
    row.click()
    expect(steps(visitor)).to_have_text([FAILED])
    expect(row).to_contain_text("4 tools")
    is_open(row, False)
    expect(steps(visitor)).to_have_text([FAILED])
    visitor.stop.click()
    visitor.idle()
    visitor.say(f"{STEPS} !tokens 90 @20")
    row = rows(visitor).last
    expect(visitor.chat).to_contain_text("word10")
    is_open(row, False)
    row.click()
    expect(steps(visitor).filter(has_text="Reasoning")).to_have_count(1)
    expect(visitor.chat).to_contain_text("word80")
    is_open(row, True)
    expect(visitor.caption).to_contain_text("tokens/s")
    visitor.idle()
    is_open(row, True)
    expect(steps(visitor).filter(has_text="Reasoning")).to_have_count(1)


def test_two_clicks_show_what_a_tool_returned(visitor: Visitor) -> None:
    visitor.ask(f"{STEPS} !text Done.")
    expect(visitor.chat.locator("pre:visible")).to_have_count(0)
    rows(visitor).click()
    steps(visitor).nth(1).click()
    shown = visitor.chat.locator("pre:visible")
    expect(shown).to_have_count(2)
    expect(shown.nth(0)).to_contain_text("17+25")
    expect(shown.nth(1)).to_contain_text("42")
    is_open(visitor.chat.locator(f"{RESULT} summary").first, True)
    visitor.shot("tool-open")


def test_opened_step_stays_open_at_the_end(visitor: Visitor) -> None:
    """A fold inside another one that was closed stays closed. No fold of an earlier answer is turned in its place."""
    visitor.ask("!reasoning Alone. !text Fine.")
    visitor.say(f"{STEPS} !tokens 80 @20")
    expect(visitor.chat).to_contain_text("word10")
    rows(visitor).click()
    steps(visitor).nth(1).click()
    result = visitor.chat.locator(f"{RESULT} summary").first
    is_open(result, True)
    result.click()
    is_open(result, False)
    expect(visitor.caption).to_contain_text("tokens/s")
    visitor.idle()
    for title in (rows(visitor), steps(visitor).nth(1)):
        is_open(title, True)
    is_open(result, False)
    is_open(visitor.chat.locator("summary").first, False)
    is_open(steps(visitor).first, False)


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


@pytest.mark.parametrize("reason", ["", "Not to Ann."])
def test_refused_call_has_not_failed(visitor: Visitor, reason: str) -> None:
    visitor.say('!tool send {"to": "Ann", "text": "Hi!"} !text Then not.')
    expect(visitor.chat.locator("[data-kind=question]").first).to_be_visible()
    visitor.idle()
    if reason:
        visitor.say(reason)
    else:
        visitor.chat.get_by_role("button", name="Refuse", exact=True).click()
    expect(visitor.bubbles.filter(has_text="Then not.")).to_be_visible()
    visitor.idle()
    title = visitor.chat.locator("[data-kind=tool_call] > details > summary").first
    for _ in range(2):
        expect(title).to_have_text(f"Send · refused: {reason}" if reason else "Send · refused")
        expect(visitor.chat.locator("[data-state=failed]")).to_have_count(0)
        visitor.shot("refused-call")
        visitor.reload()
    title.click()
    expect(visitor.chat.locator(RESULT)).to_contain_text("The user refused this call.")
    expect(visitor.chat.locator("[data-state=failed]")).to_have_count(0)


def test_question_that_failed_says_why(visitor: Visitor) -> None:
    visitor.ask('!tool ask_user {"choices": ["yes"]} !text Then not.')
    for _ in range(2):
        title = visitor.chat.locator("[data-kind=tool_call][data-state=failed] > details > summary")
        expect(title).to_have_text(re.compile("Question · failed: The arguments do not fit: question"))
        expect(visitor.chat.locator("[data-kind=question]")).to_have_count(0)
        visitor.shot("question-failed")
        visitor.reload()
    title.click()
    expect(visitor.chat.locator(f"{RESULT} pre")).to_contain_text("The arguments do not fit")


def test_keyboard_opens_timeline(visitor: Visitor) -> None:
    visitor.ask(f"{STEPS} !text Done.")
    row = visitor.chat.get_by_role("button", name=re.compile("^Thought .* 2 tools"))
    expect(row).to_have_attribute("aria-expanded", "false")
    row.focus()
    for key, state in (("Enter", True), (" ", False), (" ", True)):
        visitor.page.keyboard.press(key)
        is_open(row, state)
        expect(row).to_be_focused()
    visitor.page.keyboard.press("Tab")
    expect(steps(visitor).first).to_be_focused()


def test_focus_in_folded_step_goes_to_row(visitor: Visitor) -> None:
    visitor.say(f'{STEPS} !tool nap {{"seconds": 10}} !tokens 60 @30')
    expect(rows(visitor)).to_contain_text("3 tools")
    steps(visitor).first.focus()
    expect(steps(visitor).first).to_be_focused()
    expect(visitor.chat).to_contain_text("word10")
    expect(rows(visitor)).to_be_focused()
    visitor.idle()


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


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_timeline(own: App, visit: Visit, dark: bool) -> None:
    visitor = visit(own.url, dark=dark, phone=dark)
    visitor.allow_tools()
    visitor.say(f"{STEPS} {LONG_NAP}")
    expect(rows(visitor)).to_contain_text("3 tools")
    assert not violations(visitor.page)
    visitor.stop.click()
    visitor.idle()
    assert not violations(visitor.page)
    rows(visitor).click()
    expect(steps(visitor)).to_have_count(4)
    assert not violations(visitor.page)


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


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
@pytest.mark.parametrize("key", ["", "Enter"], ids=["mouse", "keyboard"])
def test_unfolded_steps_come_into_view(own: App, visit: Visit, key: str, phone: bool) -> None:
    visitor = visit(own.url, phone=phone)
    visitor.allow_tools()
    visitor.ask(f"!text {LINES * 30}")
    more = STEPS.replace("!reasoning Two sums.", "")
    visitor.ask(f'{STEPS} {more} !tool calculate {{"expression": "1+2"}} !text {LINES * 3}')
    row, to_end, last = rows(visitor), visitor.page.locator(".to-end"), steps(visitor).last
    expect(row).to_be_in_viewport()
    expect(to_end).to_be_hidden()
    for step in (row, last):
        unfold(visitor, step, key)
        expect(step).to_be_in_viewport(ratio=1)
        expect(last).to_be_in_viewport(ratio=1)
    result = visitor.chat.locator(".bubble.step:visible .bubble[data-kind=tool_call_result]").last
    expect(result).to_be_in_viewport(ratio=1)
    assert result.evaluate(OVER_BUTTON) >= 0, "the button to the end covers what was unfolded"
    visitor.shot(f"unfolded-{'phone' if phone else 'desktop'}")
    row.click()
    is_open(row, False)
    visitor.chat.hover()
    visitor.page.mouse.wheel(0, 5000)
    expect(to_end).to_be_hidden()


def test_last_line_is_shown_with_unfolded_steps(visitor: Visitor) -> None:
    visitor.ask(f"!text {LINES * 30}")
    visitor.ask(f"{STEPS} !text Done.")
    row = rows(visitor)
    for step in (row, steps(visitor).last):
        unfold(visitor, step, "")
    expect(steps(visitor)).to_have_count(3)
    expect(row).to_be_in_viewport(ratio=1)
    expect(visitor.caption.last).to_be_in_viewport(ratio=1)
    expect(visitor.page.locator(".to-end")).to_be_hidden()
