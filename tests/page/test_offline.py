"""The page without a network, and without its server."""

import re
import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit


def test_offline_page_says_so_and_keeps_the_text(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    note = visitor.page.locator("#offline")
    visitor.ask("!text First.")  # the page has loaded everything
    expect(note).to_be_hidden()
    visitor.page.context.set_offline(True)
    expect(note).to_have_text("You are offline. What you type stays here.")
    visitor.shot("offline")
    visitor.say("!text Sent later.")
    expect(note).to_have_text("Not sent, because you are offline. Your message stays here.")
    expect(visitor.box).to_have_value("!text Sent later.")
    visitor.submit.click()
    expect(visitor.box).to_have_value("!text Sent later.")
    expect(visitor.mine).to_have_count(1)
    visitor.page.context.set_offline(False)
    expect(note).to_be_hidden()
    expect(visitor.box).to_have_value("!text Sent later.")


def test_offline_page_does_not_offer_the_queue(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    visitor.ask("!text First.")
    visitor.say("!tokens 2000 @100")
    expect(visitor.stop).to_be_visible()
    visitor.page.context.set_offline(True)
    expect(visitor.page.locator("#offline")).to_have_text("You are offline. What you type stays here.")
    visitor.box.press_sequentially("Later")
    assert not visitor.hint.inner_text()
    visitor.page.context.set_offline(False)
    visitor.stop.click()


def test_other_actions_while_offline_wait_for_the_network(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, note = visitor.page, visitor.page.locator("#offline")
    visitor.ask("!text First.")
    page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    visitor.ask("!text Second.")
    retry = visitor.chat.locator("[data-action=retry]").last
    other = page.locator("#chats li a").last
    for act, is_done in (
        (retry.click, lambda: expect(visitor.chat.locator("[data-action=version]")).not_to_have_count(0)),
        (other.click, lambda: expect(visitor.mine).to_have_text("!text First.")),
    ):
        page.context.set_offline(True)
        expect(note).to_have_text("You are offline. What you type stays here.")
        act()
        expect(note).to_have_text("You are offline. Your last action waits for the network.")
        page.wait_for_timeout(1000)  # Gradio says at once that the connection was lost
        expect(visitor.toast).to_have_count(0)
        expect(visitor.mine).to_have_text("!text Second.")
        visitor.shot("waiting-while-offline")
        page.context.set_offline(False)
        is_done()
        visitor.idle()
        expect(note).to_be_hidden()
    expect(visitor.toast).to_have_count(0)


SILENT = re.compile(r"^The server is not answering\. What you send waits here\.\s*(\d+) s$")


@pytest.mark.gate("A dead server is noticed while it answers, and all goes on once it is back.")
def test_dead_server_is_noticed(start_app: Callable[..., App], visit: Visit) -> None:
    own = start_app()
    visitor = visit(own.url, fresh=True)
    note = visitor.page.locator("#offline")
    visitor.say("!tokens 600 @40")
    expect(visitor.chat).to_contain_text("word20")
    own.stop(signal.SIGKILL)
    expect(note).to_have_text(SILENT)
    seconds = SILENT.match(note.inner_text())
    assert seconds
    expect(note).not_to_contain_text(f"{seconds[1]} s")  # it counts
    visitor.say("!text Sent meanwhile.")
    expect(visitor.page.get_by_role("region", name="Queued")).to_contain_text("!text Sent meanwhile.")
    expect(visitor.box).to_have_value("")
    visitor.shot("server-silent-killed")
    own.start()
    expect(note).to_be_hidden()
    expect(visitor.bubbles.filter(has_text=re.compile("^Sent meanwhile"))).to_be_visible()
    visitor.idle()
    expect(visitor.mine).to_have_text(["!tokens 600 @40", "!text Sent meanwhile."])
    expect(visitor.toast).to_have_count(0)
    expect(note).to_be_hidden()
    expect(visitor.chat).to_contain_text("word599")
