"""Empty answers and long waits: the page reports them, and shows the same after a reload."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visitor
from tests.support.scripted_server import Running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
EMPTY = {
    "nothing": '!json [{"finish": "stop"}]',
    "white-space": '!json [{"content": " \\n "}, {"finish": "stop"}]',
    "reasoning-alone": "!reasoning I shall say nothing.",
}


@pytest.mark.gate("An empty answer is reported.")
def test_empty_answer_is_reported_and_can_be_retried(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    problems = visitor.chat.locator("[data-kind=error]")
    for number, script in enumerate(EMPTY.values(), 1):
        visitor.ask(script)
        expect(problems).to_have_count(number)
        expect(problems.last).to_have_text("The model returned an empty answer.")
        expect(visitor.chat.locator(".turn")).to_have_count(number)
        expect(visitor.chat.locator(".answer")).to_have_count(number)
    seen = visitor.labels()
    visitor.shot("empty-answer")
    visitor.page.reload()
    expect(visitor.mine).to_have_count(len(EMPTY))
    assert visitor.labels() == seen
    before = len(model_server.journal())
    asked = visitor.chat.locator(".turn").last
    id_ = str(asked.get_attribute("data-turn"))
    visitor.chat.locator("[data-action=choose]:visible").click()
    model_server.wait_for(lambda journal: len(journal) > before and journal[-1]["ended"])
    expect(asked).not_to_have_attribute("data-turn", id_)
    expect(visitor.chat.locator("[data-action=choose]:visible")).to_have_text("Try again")
    expect(problems).to_have_count(len(EMPTY))
    visitor.idle()
    said = [one["content"] for one in model_server.journal()[-1]["body"]["messages"] if one["role"] == "user"]
    assert said == list(EMPTY.values())
    visitor.ask("!text Now I speak.")
    expect(visitor.chat.locator("[data-action=choose]:visible")).to_have_count(0)
    expect(visitor.bubbles.filter(has_text="Now I speak.")).to_be_visible()


def seconds_waited(dots: Locator) -> int:
    """Wait until the page counts the seconds of a wait, and return their number."""
    time = dots.locator(".time")
    expect(time).to_have_text(re.compile(r"^Waiting for the model · \d+ s$"))
    return int(re.sub(r"\D", "", time.inner_text()))


def test_wait_is_counted(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.allow_tools()
    answer, dots = visitor.chat.locator(".answer").last, visitor.chat.locator(".waiting:visible")
    visitor.say("!wait 25 !text Here I am.")
    expect(dots).to_be_visible()
    expect(dots.get_by_role("img", name="waiting for the model")).to_be_attached()
    expect(dots.locator(".time")).to_have_text("")  # a short wait is not counted
    assert seconds_waited(dots) >= 3
    expect(dots.locator(".time")).to_have_text(re.compile(r"· (?:[6-9]|[12]\d) s$"))
    visitor.page.reload()
    assert seconds_waited(dots) >= 6  # the reload did not begin the count again
    visitor.shot("waiting")
    expect(visitor.bubbles.first).to_have_text("Here I am.")
    expect(dots).to_have_count(0)
    visitor.idle()
    # Between two steps and in the middle of a text
    visitor.say('!tool calculate {"expression": "6*7"} !wait 10 !tokens 30 @5 !wait 15 !text That is all.')
    expect(answer).to_contain_text("Calculate")
    assert seconds_waited(dots) >= 3
    expect(answer).to_contain_text("word2")
    expect(dots).to_have_count(0)
    expect(answer).to_contain_text("word29")
    assert 3 <= seconds_waited(dots) < 10  # the second wait has a count of its own
    expect(answer).to_contain_text("That is all.")
    expect(dots).to_have_count(0)
