"""The page without a network, without its server, and as an installed app."""

import re
import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor
from tests.support.broken_proxies import stubborn_proxy

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


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


ASK = """(isOfTimer) => {
  const { id } = gradio_config.components.find(({ type }) => (type === "timer") === isOfTimer);
  void fetch("/gradio_api/run/predict", { method: "POST", body: JSON.stringify({ trigger_id: id }) });
}"""


def test_event_of_a_timer_is_no_action_of_the_visitor(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, note = visitor.page, visitor.page.locator("#offline")
    visitor.ask("!text First.")
    page.context.set_offline(True)
    visitor.say("!text Sent later.")
    kept = "Not sent, because you are offline. Your message stays here."
    expect(note).to_have_text(kept)
    with page.expect_event("requestfailed"):  # it has looked whether the server can be reached
        page.evaluate(ASK, True)
    page.evaluate("new Promise((done) => setTimeout(done))")
    expect(note).to_have_text(kept)
    assert page.evaluate("navigator.userActivation.isActive")
    page.evaluate(ASK, False)
    expect(note).to_have_text("You are offline. Your last action waits for the network.")


def test_stop_while_offline_waits_for_the_network(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.ask("!text First.")  # the page has loaded everything
    for number, press in enumerate((visitor.stop.click, lambda: page.keyboard.press("Escape")), 1):
        visitor.say("!tokens 4000 @100")
        expect(visitor.mine).to_have_count(number + 1)
        expect(visitor.bubbles.last).to_contain_text("word9")
        page.context.set_offline(True)
        expect(page.locator("#offline")).to_be_visible()
        press()
        page.wait_for_timeout(1000)  # Gradio says at once that the connection was lost
        expect(visitor.toast).to_have_count(0)
        expect(visitor.stop).to_have_attribute("aria-disabled", "true")
        expect(page.locator("#offline")).to_have_text("You are offline. Your last action waits for the network.")
        visitor.shot(f"stop-while-offline-{number}")
        page.context.set_offline(False)
        visitor.idle()
        expect(visitor.chat.locator(".caption").filter(has_text="Stopped")).to_have_count(number)
    expect(visitor.toast).to_have_count(0)


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


def test_messages_of_the_chat_that_was_left_are_hidden(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.ask("!text First.")
    page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    visitor.ask("!text Second.")
    page.context.set_offline(True)
    page.locator("#chats li a").last.click()
    expect(page.locator("#name h1")).to_have_text("!text First.")
    expect(visitor.mine).to_be_hidden()
    visitor.shot("another-chat-while-offline")
    page.context.set_offline(False)
    expect(visitor.mine).to_have_text("!text First.")
    expect(visitor.mine).to_be_visible()


@pytest.mark.parametrize("names", [("retry", "undo"), ("undo", "retry")], ids="-".join)
def test_actions_while_offline_go_in_their_order(app: App, visit: Visit, names: tuple[str, str]) -> None:
    """The first one is done. The second one is refused, because of the running answer or the missing message."""
    visitor = visit(app.url, fresh=True)
    page, script = visitor.page, "!wait 3 !text Second."
    visitor.ask("!text First.")
    visitor.ask(script)
    page.context.set_offline(True)
    for name in names:
        visitor.chat.locator(f"[data-action={name}]").last.click()
        page.wait_for_timeout(300)  # as a person presses them
    page.context.set_offline(False)
    expect(page.locator("#hint")).not_to_be_empty()
    visitor.idle()
    is_undone = names[0] == "undo"
    expect(visitor.mine).to_have_text(["!text First."] if is_undone else ["!text First.", script])
    expect(visitor.box).to_have_value(script if is_undone else "")
    expect(visitor.chat.locator("[data-action=version]")).to_have_count(0 if is_undone else 2)


LOSE_NETWORK = """() => {
  Object.defineProperty(navigator, "onLine", { value: false });
  dispatchEvent(new Event("offline"));
}"""


def test_server_on_the_same_computer_needs_no_network(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, note = visitor.page, visitor.page.locator("#offline")
    with page.expect_response("**/healthz"):
        page.evaluate(LOSE_NETWORK)
    visitor.ask("!text Sent without a network.")
    expect(note).to_be_hidden()
    page.route("**/healthz", lambda route: route.abort())  # and now the server is gone, too
    expect(note).to_have_text("You are offline. What you type stays here.")


def test_server_that_does_not_answer_is_offline(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    visitor.page.route("**/healthz", lambda _: None)  # it never answers
    visitor.page.evaluate(LOSE_NETWORK)
    expect(visitor.page.locator("#offline")).to_have_text("You are offline. What you type stays here.")


SILENT = re.compile(r"^The server is not answering\. What you send waits here\.\s*(\d+) s$")


def survive(visitor: Visitor, die: Callable[[], object], revive: Callable[[], object], name: str) -> None:
    """Let the server be away while an answer is written. The page says so, and goes on with what was sent meanwhile."""
    note = visitor.page.locator("#offline")
    visitor.say("!tokens 600 @40")
    expect(visitor.chat).to_contain_text("word20")
    die()
    expect(note).to_have_text(SILENT)
    seconds = SILENT.match(note.inner_text())
    assert seconds
    expect(note).not_to_contain_text(f"{seconds[1]} s")  # it counts
    visitor.say("!text Sent meanwhile.")
    expect(visitor.page.get_by_role("region", name="Queued")).to_contain_text("!text Sent meanwhile.")
    expect(visitor.box).to_have_value("")
    visitor.shot(f"server-silent-{name}")
    revive()
    expect(note).to_be_hidden()
    expect(visitor.bubbles.filter(has_text=re.compile("^Sent meanwhile"))).to_be_visible()
    visitor.idle()
    expect(visitor.mine).to_have_text(["!tokens 600 @40", "!text Sent meanwhile."])
    expect(visitor.toast).to_have_count(0)
    expect(note).to_be_hidden()


@pytest.mark.gate("A dead server is noticed while it answers, and all goes on once it is back.")
def test_dead_server_is_noticed(start_app: Callable[..., App], visit: Visit) -> None:
    own = start_app()
    visitor = visit(own.url, fresh=True)
    survive(visitor, lambda: own.stop(signal.SIGKILL), own.start, "killed")
    expect(visitor.chat).to_contain_text("word599")


def test_frozen_server_goes_on(start_app: Callable[..., App], visit: Visit) -> None:
    own = start_app()
    visitor = visit(own.url, fresh=True)
    process = own.process
    assert process

    def thaw() -> None:
        process.send_signal(signal.SIGCONT)

    try:
        survive(visitor, lambda: process.send_signal(signal.SIGSTOP), thaw, "frozen")
    finally:
        thaw()
    expect(visitor.chat).to_contain_text("word599")


@pytest.mark.parametrize("action", ["Enter", "Retry"])
def test_server_frozen_before_the_first_view_is_noticed(
    start_app: Callable[..., App], visit: Visit, action: str
) -> None:
    own = start_app()
    visitor = visit(own.url, fresh=True)
    process, note = own.process, visitor.page.locator("#offline")
    assert process
    visitor.ask("!text First.")
    process.send_signal(signal.SIGSTOP)
    try:
        if action == "Enter":
            visitor.say("!text Second.")
        else:
            visitor.chat.locator("[data-action=retry]").last.click()
        expect(note).to_have_text(SILENT)
    finally:
        process.send_signal(signal.SIGCONT)
    expect(note).to_be_hidden()
    visitor.idle()
    expect(visitor.mine).to_have_count(2 if action == "Enter" else 1)
    expect(visitor.bubbles.filter(has_text="Second." if action == "Enter" else "First.")).to_be_visible()
    expect(visitor.toast).to_have_count(0)


def test_proxy_does_not_hide_a_dead_server(start_app: Callable[..., App], visit: Visit) -> None:
    own = start_app()
    with stubborn_proxy(own.port) as url:
        visitor = visit(url, fresh=True)
        survive(visitor, lambda: own.stop(signal.SIGKILL), own.start, "proxied")


def test_page_can_be_installed(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    browser = visitor.page.context.new_cdp_session(visitor.page)
    manifest = browser.send("Page.getAppManifest")
    assert manifest["errors"] == []
    assert manifest["manifest"]["display"] in ("standalone", "kStandalone")  # of older and newer Chromium
    found = [one["errorId"] for one in browser.send("Page.getInstallabilityErrors")["installabilityErrors"]]
    assert [one for one in found if one != "in-incognito"] == []
