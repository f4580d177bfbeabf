"""The list of chats at the side of the page, and the address that names the open chat."""

import re

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.conftest import App, Visit, Visitor, becomes
from tests.support.http_client import marker
from tests.support.scripted_server import Running


def rows(visitor: Visitor) -> Locator:
    return visitor.page.locator("#chats li")


def row(visitor: Visitor, text: str) -> Locator:
    return rows(visitor).filter(has_text=text)


def choose(visitor: Visitor, text: str, entry: str) -> None:
    """Open the menu of a chat and choose an entry."""
    row(visitor, text).hover()
    row(visitor, text).get_by_role("button").click()
    visitor.page.get_by_role("menuitem", name=entry, exact=True).click()


def new_chat(visitor: Visitor, text: str) -> str:
    """Begin a chat with this message. Return its address."""
    visitor.page.keyboard.press("Control+Shift+O")
    expect(visitor.mine).to_have_count(0)
    visitor.ask(text)
    expect(visitor.page).to_have_url(re.compile(r"/c/[0-9a-f]{32}$"))
    return visitor.page.url


@pytest.mark.gate("The address opens the chat.")
def test_address_carries_the_chat(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    expect(page.locator("#chats .none")).to_have_text("No chats yet")
    first, second = new_chat(visitor, "About ships"), new_chat(visitor, "About whales")
    expect(rows(visitor)).to_have_text(["About whales", "About ships"])
    expect(page.locator("#chats h2")).to_have_text(["Today"])
    visitor.box.fill("a draft on whales")
    row(visitor, "ships").get_by_role("link").click()
    expect(visitor.mine).to_have_text(["About ships"])
    expect(page).to_have_url(first)
    expect(page).to_have_title("About ships · Switchboard")
    expect(page.locator("#name")).to_have_text("About ships")
    expect(row(visitor, "ships").get_by_role("link")).to_have_attribute("aria-current", "page")
    expect(visitor.box).to_have_value("")
    page.go_back()
    expect(visitor.mine).to_have_text(["About whales"])
    expect(page).to_have_url(second)
    expect(visitor.box).to_have_value("a draft on whales")
    page.go_forward()
    expect(visitor.mine).to_have_text(["About ships"])
    page.reload()
    expect(visitor.mine).to_have_text(["About ships"])
    row(visitor, "whales").get_by_role("link").click()
    expect(visitor.box).to_have_value("a draft on whales")
    bookmark = visit(first, like=visitor)
    expect(bookmark.mine).to_have_text(["About ships"])
    bookmark.ask("More of them")
    expect(rows(visitor)).to_have_text(["About ships", "About whales"])  # the other tab has told it
    stranger = visit(first, fresh=True)
    expect(stranger.page.locator("#missing")).to_contain_text("This chat does not exist here.")
    expect(stranger.mine).to_have_count(0)
    stranger.ask("My own")
    expect(stranger.page.locator("#missing")).to_be_empty()
    expect(stranger.page).not_to_have_url(first)
    expect(rows(stranger)).to_have_text(["My own"])


@pytest.mark.gate("A chat can be found, renamed, pinned and deleted, and a deletion undone.")
def test_chats_are_found_renamed_pinned_and_deleted(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    new_chat(visitor, "One about ships and the sea")
    new_chat(visitor, "Two about whales")
    third = new_chat(visitor, "Three about bread")
    search = page.get_by_role("searchbox", name="Search chats")
    search.fill("SHIPS said")  # words of the answer, too
    expect(rows(visitor)).to_have_count(1)
    expect(rows(visitor).locator(".excerpt mark")).to_have_text(["said", "ships"])
    search.fill("zebra")
    none, field = page.locator("#chats .none"), search.bounding_box()
    expect(none).to_have_text("No chat has these words.")
    there = none.bounding_box()
    assert there
    assert field
    assert there["y"] - field["y"] < 60, "it is below the words that were searched for"
    search.press("Escape")
    expect(rows(visitor)).to_have_count(3)
    choose(visitor, "ships", "Rename")
    page.get_by_role("textbox", name="Title").fill("Not this")
    page.keyboard.press("Escape")
    expect(row(visitor, "ships").get_by_role("link")).to_be_focused()
    choose(visitor, "ships", "Rename")
    page.get_by_role("textbox", name="Title").fill("Boats <b>& more</b>")
    page.keyboard.press("Enter")
    expect(row(visitor, "Boats <b>& more</b>")).to_have_count(1)
    for query, marked in ("boats", ["Boats"]), ("ships", []):
        search.fill(query)
        expect(rows(visitor).locator(".excerpt mark")).to_have_count(1 - len(marked))
        expect(rows(visitor).locator(".title mark")).to_have_text(marked)
    search.press("Escape")
    choose(visitor, "Boats", "Pin")
    expect(page.locator("#chats h2")).to_have_text(["Pinned", "Today"])
    expect(rows(visitor).first).to_contain_text("Boats")
    row(visitor, "Boats").hover()
    row(visitor, "Boats").get_by_role("button").click()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Unpin")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row(visitor, "Boats").get_by_role("button")).to_be_focused()
    expect(page.locator("#chats h2")).to_have_text(["Today"])
    visitor.box.fill("And butter?")
    choose(visitor, "bread", "Delete")
    expect(rows(visitor)).to_have_count(2)
    expect(visitor.box).to_have_value("And butter?")
    expect(visitor.mine).to_have_count(0)
    expect(page).to_have_url(app.url + "/")
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(row(visitor, "bread")).to_have_count(1)
    expect(visitor.mine).to_have_text(["Three about bread"])
    expect(page).to_have_url(third)
    expect(visitor.box).to_have_value("And butter?")
    held = list[Route]()
    page.route(
        "**/conversations/*",
        lambda route: held.append(route) if route.request.method == "DELETE" else route.continue_(),
    )
    with page.expect_request(lambda request: request.method == "DELETE"):
        choose(visitor, "bread", "Delete")
    row(visitor, "Boats").get_by_role("link").click()
    expect(visitor.mine).to_contain_text(["ships"])
    visitor.box.fill("And sails?")
    held.pop().continue_()
    page.unroute("**/conversations/*")
    expect(rows(visitor)).to_have_count(2)
    expect(visitor.mine).to_contain_text(["ships"])  # a chat that is deleted late takes nobody out of another one
    expect(visitor.box).to_have_value("And sails?")
    page.locator("#chats .offers").get_by_role("button", name="Undo", exact=True).click()
    row(visitor, "bread").get_by_role("link").click()
    expect(visitor.box).to_have_value("And butter?")
    choose(visitor, "whales", "Delete")
    expect(rows(visitor)).to_have_count(2)
    page.reload()
    expect(visitor.mine).to_have_text(["Three about bread"])
    expect(rows(visitor)).to_have_text(["Three about bread", "Boats <b>& more</b>"])
    page.get_by_role("button", name="Open or close the list of chats").click()
    expect(page.locator("#chats")).to_be_hidden()
    page.reload()
    expect(visitor.mine).to_have_count(1)
    expect(page.locator("#chats")).to_be_hidden()


CACHED = (
    "for (const kind of ['pagehide', 'pageshow']) dispatchEvent(new PageTransitionEvent(kind, { persisted: true }))"
)
"""The page is left and shown again as it was, as browsers do for Back."""


def test_text_of_a_page_that_is_shown_again_is_sent_once(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    visitor.box.fill("Once")
    visitor.page.evaluate(CACHED)
    expect(visitor.box).to_have_value("Once")
    visitor.box.press("Enter")
    visitor.idle()
    visitor.page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("")


@pytest.mark.gate("An answer goes on in a chat that the visitor has left, and the list shows it.")
def test_answer_goes_on_in_another_chat(app: App, visit: Visit, model_server: Running) -> None:
    visitor, held = visit(app.url), marker()
    script = f"!tokens 200 hold 20 {held}"
    page = visitor.page
    new_chat(visitor, "Quiet one")
    page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    visitor.say(script)
    expect(visitor.bubbles.last).to_contain_text("word3")
    row(visitor, "Quiet").get_by_role("link").click()
    expect(visitor.mine).to_have_text(["Quiet one"])
    expect(visitor.submit).to_be_visible()
    mark = row(visitor, "!tokens").get_by_role("img", name="The answer is being written")
    expect(mark).to_be_visible()
    row(visitor, "!tokens").get_by_role("link").click()
    expect(visitor.stop).to_be_visible()
    expect(visitor.mine).to_have_text([script])
    row(visitor, "Quiet").get_by_role("link").click()
    expect(visitor.mine).to_have_text(["Quiet one"])
    expect(mark).to_be_visible()
    model_server.release(held)
    expect(mark).to_be_hidden()  # it has ended
    expect(visitor.mine).to_have_text(["Quiet one"])
    row(visitor, "!tokens").get_by_role("link").click()
    expect(visitor.bubbles).to_contain_text("word199")


@pytest.mark.gate("On a phone, the list of chats is a drawer.")
def test_list_is_a_drawer_on_a_phone(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True)
    page = visitor.page
    new_chat(visitor, "About ships")
    new_chat(visitor, "About whales")
    drawer, toggle = page.locator("#chats"), page.get_by_role("button", name="Open or close the list of chats")
    expect(drawer).to_be_hidden()
    toggle.click()
    expect(page.get_by_role("dialog", name="Chats")).to_be_visible()
    for _ in range(8):
        page.keyboard.press("Tab")
        assert page.evaluate("!document.activeElement.closest('gradio-app')")
    page.evaluate("document.activeElement.blur()")  # as Tab does at the end of the drawer
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(toggle).to_be_focused()
    toggle.click()
    row(visitor, "ships").get_by_role("link").click()
    expect(drawer).to_be_hidden()
    expect(visitor.mine).to_have_text(["About ships"])
    toggle.click()
    page.mouse.click(380, 400)  # beside the drawer
    expect(drawer).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hit_opens_at_its_message(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.ask("!text Walrus facts.")
    visitor.chat.get_by_role("button", name="Edit").last.click()
    visitor.chat.locator(".edit textarea").fill("!text Otter facts.")
    visitor.chat.get_by_role("button", name="Send").click()
    expect(visitor.chat).to_contain_text("Otter facts.")
    visitor.idle()
    for number in range(16):
        visitor.ask(f"!text answer {number}")
    new_chat(visitor, "!text Elsewhere.")
    search = page.get_by_role("searchbox", name="Search chats")
    found = visitor.chat.locator("[data-found]")

    search.fill("otter")  # among the older turns
    expect(rows(visitor).locator(".excerpt mark")).to_have_text("Otter")
    rows(visitor).get_by_role("link").click()
    expect(found).to_contain_text("Otter facts.")
    expect(found).to_be_in_viewport()
    assert page.evaluate("[...CSS.highlights.get('found')].join()") == "Otter"
    visitor.shot("hit")
    expect(visitor.chat).to_contain_text("answer 15")
    expect(found).to_have_count(0)
    expect(visitor.bubbles.first).to_be_in_viewport()

    search.fill("FACTS otter")
    expect(rows(visitor).locator(".excerpt mark")).to_have_text(["Otter", "facts"])
    rows(visitor).get_by_role("link").click()
    becomes("Otter facts", lambda: page.evaluate("[...CSS.highlights.get('found') ?? []].join(' ')"))
    visitor.shot("hit-of-two-words")
    search.fill("")
    assert not page.evaluate("CSS.highlights.has('found')")
    expect(found).to_have_count(0)

    search.fill("walrus")  # in another version of the chat that is open
    expect(rows(visitor).locator(".excerpt mark")).to_have_text(["Walrus"])
    rows(visitor).get_by_role("link").click()
    expect(found).to_contain_text("Walrus facts.")
    expect(visitor.chat).not_to_contain_text("Otter facts.")
    expect(page.locator(".to-end")).to_be_hidden()  # the chat is at its end

    new_chat(visitor, "!text Far away.")
    search.fill("facts")  # in both versions, of which the other is newer
    expect(rows(visitor).locator(".excerpt mark")).to_have_text("facts")
    rows(visitor).get_by_role("link").click()
    expect(found).to_contain_text("Walrus facts.")
    expect(visitor.chat).not_to_contain_text("Otter facts.")


WATCH_FOR = """(text) => {
  window.seen = 0;
  const look = () => (window.seen += document.querySelector("#chat").innerText.includes(text));
  const all = { childList: true, subtree: true, characterData: true };
  new MutationObserver(look).observe(document.querySelector("#chat"), all);
}"""


VIEWS = "**/conversations/*?format=blocks"


def test_last_clicked_chat_is_shown(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.ask("!text Alpha.")
    last = new_chat(visitor, "!text Beta.")
    new_chat(visitor, "!text Gamma.")
    expect(rows(visitor)).to_have_count(3)
    page.evaluate(WATCH_FOR, "Alpha")
    # The request of the first click is on its way until the second click.
    held: list[Route] = []
    page.route(VIEWS, lambda route: route.continue_() if held else held.append(route))
    with page.expect_request(VIEWS):
        row(visitor, "Alpha").get_by_role("link").click()
    row(visitor, "Beta").get_by_role("link").click()
    becomes(True, lambda: page.url == last)
    visitor.wait_for_requests(held)
    held[0].continue_()
    expect(visitor.chat).to_contain_text("Beta.")
    expect(page).to_have_url(last)
    expect(visitor.page.locator("#chats [aria-current=page]")).to_contain_text("Beta.")
    assert page.evaluate("window.seen") == 0, "a chat that was left was shown"
    visitor.ask("!text More.")
    expect(visitor.chat).to_contain_text("Beta.")
    expect(page).to_have_url(last)
