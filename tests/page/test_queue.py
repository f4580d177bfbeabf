"""The next message can wait for the end of the answer. It is sent once, or it goes back into the composer."""

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.conftest import App, Visit, Visitor
from tests.peers.axe import grave
from tests.support.scripted_server import Running

LONG = "!tokens 4000 @100"
UNSENT = "The queued message was not sent. It is in the box again."


def queued(visitor: Visitor) -> Locator:
    return visitor.page.locator("section#queued")


def requests(server: Running, text: str) -> int:
    """Return how many requests had this text as their last message."""
    return sum(text in str(one["body"]["messages"][-1]["content"]) for one in server.journal() if "body" in one)


def steer(visitor: Visitor, text: str) -> None:
    """Send a message to the answer that is being written, for its next step."""
    visitor.say(text)
    queued(visitor).get_by_role("button", name="Send now").click()
    expect(queued(visitor)).to_contain_text("Sent:")


EVENTS = "**/runs/*/events*"


def hold_back_answer(visitor: Visitor) -> None:
    """Keep the page from getting anything of the next answer, so that for it the answer goes on until `let_end`."""
    visitor.page.route(EVENTS, lambda route: route.abort())


def let_end(visitor: Visitor) -> None:
    """Let the page get the whole answer."""
    visitor.page.unroute(EVENTS)


def answering(visitor: Visitor, script: str = LONG) -> None:
    """Send a message, and wait until its answer is being written."""
    visitor.say(script)
    expect(visitor.stop).to_be_visible()
    expect(visitor.chat).to_contain_text("word9")


def hold_back_failure(visitor: Visitor) -> None:
    """Send a message whose answer fails as soon as `let_end` is called."""
    hold_back_answer(visitor)
    visitor.say("!status 401")
    expect(visitor.stop).to_be_visible()


def attach_notes(visitor: Visitor) -> None:
    """Attach a text file, and wait until it is there."""
    visitor.attach(("notes.txt", b"sea and sand"))
    expect(visitor.page.locator("#composer .open-text")).to_have_count(1)


def test_queued_message_is_sent_at_the_end(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    hold_back_answer(visitor)
    visitor.say("!text First answer.")
    expect(visitor.stop).to_be_visible()
    attach_notes(visitor)
    visitor.say("!text Second answer.")
    expect(visitor.page.get_by_role("region", name="Queued")).to_contain_text("!text Second answer.")
    expect(queued(visitor)).to_contain_text("notes.txt")
    expect(visitor.box).to_have_value("")
    expect(visitor.box).to_be_focused()
    expect(visitor.page.locator("#composer .file")).to_have_count(0)
    visitor.say("a third one")
    expect(visitor.page.locator("#hint")).to_contain_text("One message is queued already")
    queued(visitor).get_by_role("button", name="Undo").click(trial=True)  # the hint does not cover it
    expect(visitor.box).to_have_value("a third one")
    let_end(visitor)
    expect(visitor.bubbles.filter(has_text="Second answer.")).to_be_visible()
    visitor.idle()
    expect(visitor.mine).to_have_count(2)
    expect(visitor.mine.last).to_contain_text("sea and sand")
    expect(queued(visitor)).to_be_hidden()
    expect(visitor.box).to_have_value("a third one")
    content = model_server.journal()[-1]["body"]["messages"][-1]["content"]
    assert "!text Second answer." in str(content)
    assert "sea and sand" in str(content)
    assert requests(model_server, "!text Second answer.") == 1
    visitor.reload()
    expect(visitor.mine).to_have_count(2)


@pytest.mark.gate("A message can reach the model while it works with its tools.")
def test_queued_message_steers_the_answer(app: App, visit: Visit, model_server: Running) -> None:
    visitor, name, hold = visit(app.url), "steer", "STEER"
    visitor.allow_tools()
    visitor.say(f'!tokens 9 hold 3 {hold} !tool nap {{"seconds": 0}} !text Not this.')
    expect(visitor.stop).to_be_visible()
    visitor.say("!text Steered.")
    now = queued(visitor).get_by_role("button", name="Send now")
    expect(now).to_be_visible()
    assert not grave(visitor.page)
    visitor.shot(f"{name}-1-queued")
    now.click()
    expect(queued(visitor)).to_contain_text("Sent: the model gets it at its next step")
    expect(now).to_be_hidden()
    expect(queued(visitor).get_by_role("button", name="Undo")).to_be_focused()
    visitor.shot(f"{name}-2-sent")
    model_server.release(hold)
    expect(visitor.bubbles.filter(has_text="Steered.").last).to_be_visible()
    expect(queued(visitor)).to_be_hidden()
    visitor.idle()
    assert not grave(visitor.page)
    visitor.shot(f"{name}-3-answered")
    kinds = "[...document.querySelectorAll('#chat .turn .bubble')].map((one) => one.dataset.kind)"
    shown = visitor.page.evaluate(kinds)
    assert [kind for kind in shown if kind in ("user", "tool_call", "output_text")] == (
        ["user", "output_text", "tool_call", "user", "output_text"]
    )
    assert visitor.page.evaluate("document.querySelectorAll('#chat .turn').length") == 1
    visitor.reload()
    expect(visitor.bubbles.filter(has_text="Steered.").last).to_be_visible()
    assert visitor.page.evaluate(kinds) == shown
    expect(visitor.box).to_have_value("")
    expect(visitor.bubbles.filter(has_text="Not this.")).to_have_count(0)


def test_message_that_comes_too_late_is_the_next_one(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.allow_tools()
    visitor.say("!tokens 9 hold 3 LATE")
    expect(visitor.stop).to_be_visible()
    steer(visitor, "!text The next one.")
    model_server.release("LATE")
    expect(visitor.bubbles.filter(has_text="The next one.").last).to_be_visible()
    visitor.idle()
    expect(visitor.page.locator("#chat .turn")).to_have_count(2)
    assert requests(model_server, "!text The next one.") == 1


def test_failed_answer_puts_the_message_back(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    hold_back_failure(visitor)
    visitor.say("after a failure")
    expect(queued(visitor)).to_be_visible()
    let_end(visitor)
    expect(visitor.box).to_have_value("after a failure")
    expect(queued(visitor)).to_be_hidden()
    expect(visitor.page.locator("#hint")).to_contain_text("not sent")
    visitor.idle()
    expect(visitor.mine).to_have_count(1)
    assert requests(model_server, "after a failure") == 0


def test_reload_keeps_the_queued_text(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    files = visitor.page.locator("#composer .file .open-text")
    answering(visitor)
    visitor.attach(("more.txt", b"more"))
    expect(files).to_have_text(["more.txt"])
    visitor.say("my second thought")
    expect(queued(visitor)).to_contain_text("more.txt")
    visitor.box.press_sequentially("and a third")
    visitor.page.reload()
    expect(visitor.box).to_have_value("my second thought\n\nand a third")
    expect(files).to_have_text(["more.txt"])
    expect(visitor.page.locator("#hint")).to_have_text(UNSENT)
    visitor.shot("queued-before-reload")
    expect(visitor.stop).to_be_visible()
    expect(queued(visitor)).to_be_hidden()
    visitor.stop.click()
    visitor.idle()
    expect(visitor.mine).to_have_count(1)
    visitor.reload()
    expect(visitor.box).to_have_value("my second thought\n\nand a third")
    expect(visitor.page.locator("#hint")).to_be_empty()  # once is enough


def test_queued_message_stays_with_its_chat(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    page = visitor.page
    answering(visitor)
    attach_notes(visitor)
    visitor.say("only for the first chat")
    expect(queued(visitor)).to_contain_text("notes.txt")
    first = page.url
    page.locator("#new").click()
    expect(visitor.examples).to_have_count(4)
    expect(queued(visitor)).to_be_hidden()
    expect(visitor.box).to_have_value("")
    expect(page.locator("#hint")).to_be_empty()  # the text is in the box of the first chat
    expect(page.locator("#composer .file")).to_have_count(0)
    visitor.idle()
    visitor.ask("!text Elsewhere.")
    expect(visitor.mine).to_have_count(1)
    page.locator(f"#chats a[href='{first.removeprefix(app.url)}']").click()
    expect(visitor.box).to_have_value("only for the first chat")
    expect(page.locator("#hint")).to_have_text(UNSENT)
    expect(page.locator("#composer .open-text")).to_have_text(["notes.txt"])
    expect(visitor.stop).to_be_visible()
    visitor.stop.click()
    visitor.idle()
    assert requests(model_server, "only for the first chat") == 0


def test_refused_queued_message_stays_with_its_chat(app: App, visit: Visit) -> None:
    """The visitor has opened another chat while the message is on its way."""
    visitor = visit(app.url)
    page, held = visitor.page, list[Route]()
    hold_back_answer(visitor)
    visitor.say("!text First answer.")
    expect(visitor.stop).to_be_visible()
    attach_notes(visitor)
    visitor.say("my second thought")
    expect(queued(visitor)).to_contain_text("notes.txt")
    first = page.url
    page.route("**/messages", lambda route: held.append(route))
    let_end(visitor)
    visitor.wait_for_requests(held)
    page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    visitor.box.fill("about something else")
    held[0].fulfill(status=400, json={"detail": "Not this one."})
    expect(visitor.hint).to_contain_text("Not this one.")
    expect(queued(visitor)).to_be_hidden()
    expect(visitor.box).to_have_value("about something else")
    expect(page.locator("#composer .open-text")).to_have_count(0)
    page.locator(f"#chats a[href='{first.removeprefix(app.url)}']").click()
    expect(visitor.mine).to_have_count(1)
    expect(visitor.box).to_have_value("my second thought")
    expect(page.locator("#composer .open-text")).to_have_text(["notes.txt"])
