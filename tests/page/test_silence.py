"""Empty answers: the page reports them, shows the same after a reload, and offers to try again."""

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit
from tests.support.scripted_server import Running

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
