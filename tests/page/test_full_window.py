"""The page shows how full the model's window is, and lets the model summarize the oldest messages."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import App, Visitor, becomes
from tests.support.scripted_server import Config, Running

SERVER = Config(rate=0, max_model_len=4_096)
WORDS = ("apple", "pear", "plum", "fig")


@pytest.fixture(scope="module")
def app(start_app: Callable[..., App], server: Running) -> App:
    return start_app("[agent]\ntools = []\n", VLLM_BASE_URL=server.base_url)


def sent(server: Running) -> str:
    """Return the last request that did not ask for a summary."""
    asked = [line["body"]["messages"] for line in server.journal()]
    return str([messages for messages in asked if "You summarize" not in str(messages[0])][-1])


def fill(visitor: Visitor) -> None:
    """Send as many messages as the model's window nearly holds."""
    for word in (*WORDS, "lime"):
        visitor.ask(f"{word}: {'a few words more ' * 40}")


def assert_agree(figures: str) -> None:
    """The percentage is that of the tokens beside it, and these and those kept free are the whole window."""
    percent, used, room, free = (
        int(number.replace(",", ""))
        for pattern in (r"(\d+)\s?%", r"([\d,]+) of", r"of ([\d,]+) tokens", r"([\d,]+) tokens are kept free")
        for number in re.findall(pattern, figures)[:1]
    )
    assert percent == round(100 * used / room)
    assert room + free == 4_096


@pytest.mark.gate("A chat that fills the model's window is summarized by a click, and sent whole again by another one.")
@pytest.mark.parametrize(
    ("phone", "dark"),
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.full),
        pytest.param(False, True, marks=pytest.mark.full),
    ],
    ids=["light", "phone", "dark"],
)
def test_full_window_is_summarized_and_whole_again(
    app: App, visit: Callable[..., Visitor], server: Running, phone: bool, dark: bool
) -> None:
    visitor = visit(app.url, phone=phone, dark=dark)
    page, name = visitor.page, f"window-{'phone' if phone else 'dark' if dark else 'light'}"
    ring, note, mark = (
        page.locator("#window-button"),
        page.locator("#window-note"),
        page.locator('[data-kind="summary"]'),
    )
    visitor.ask("!text Hello.")
    expect(ring).to_have_count(0)
    for word in WORDS:
        visitor.ask(f"{word}: {'a few words more ' * 40}")
    expect(ring).to_have_attribute("aria-label", re.compile(r"The model's window is [5-8]\d\u2009?% full"))
    expect(note).to_be_empty()
    visitor.ask(f"lime: {'a few words more ' * 40}")
    expect(note).to_contain_text("fills the model's window. Soon its oldest messages")
    ring.click()
    figures = page.get_by_role("dialog", name="The model's window")
    expect(figures).to_contain_text("tokens are used")
    assert_agree(figures.inner_text())
    visitor.shot(f"{name}-1-full")
    page.keyboard.press("Escape")
    expect(figures).to_be_hidden()
    note.get_by_role("button", name="Summarize the oldest messages").click()
    expect(mark).to_have_count(1)
    expect(note).to_be_empty()
    mark.locator("summary").click()
    expect(mark).to_contain_text("questions were answered")
    mark.scroll_into_view_if_needed()
    visitor.shot(f"{name}-2-summary")
    expect(visitor.chat).to_contain_text("apple: a few")
    visitor.ask("!text Next.")
    assert "[Summary of the conversation so far]" in sent(server)
    assert "apple: a few" not in sent(server)
    visitor.reload()
    mark.locator("summary").click()
    mark.get_by_role("button", name="Send the messages themselves").click()
    expect(mark).to_have_count(0)
    visitor.ask("!text Last.")
    assert "[Summary of the conversation so far]" not in sent(server)


def test_figures_close_as_they_open(app: App, visit: Callable[..., Visitor], server: Running) -> None:
    visitor = visit(app.url)
    page = visitor.page
    fill(visitor)
    ring, figures = page.locator("#window-button"), page.get_by_role("dialog", name="The model's window")
    ring.click()
    expect(figures).to_be_visible()
    expect(ring).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Tab")
    expect(figures.get_by_role("button")).to_be_focused()
    ring.click()
    expect(ring).to_have_attribute("aria-expanded", "false")
    expect(figures).to_be_hidden()
    visitor.say("!tokens 40 hold 10 key")
    expect(visitor.chat).to_contain_text("word9")
    ring.click()
    expect(figures).to_be_visible()
    page.keyboard.press("Escape")
    expect(figures).to_be_hidden()
    server.release("key")
    expect(visitor.chat).to_contain_text("word39")  # Escape has not stopped it
    visitor.idle()


def test_refused_summary_can_be_asked_for_again(app: App, visit: Callable[..., Visitor]) -> None:
    visitor = visit(app.url, fresh=True)
    page, note = visitor.page, visitor.page.locator("#window-note")
    fill(visitor)
    refused = 0

    def refuse(route: Route) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            route.fulfill(status=409, json={"detail": "Not now."})
        else:
            route.abort()

    page.route("**/summary", refuse)
    button = note.get_by_role("button", name="Summarize the oldest messages")
    for count in (1, 2):
        button.click()
        becomes(count, lambda: refused)
        expect(button).to_be_enabled()
    page.unroute("**/summary")
    button.click()
    expect(page.locator('[data-kind="summary"]')).to_have_count(1)
    expect(note).to_be_empty()
