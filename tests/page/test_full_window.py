"""The page shows how full the model's window is, and lets the model summarize the oldest messages."""

import re

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit
from tests.support.scripted_server import Config, Running

SERVER = Config(rate=0, max_model_len=4_096)
CONFIG = "[agent]\ntools = []\n"
WORDS = ("apple", "pear", "plum", "fig")


def sent(server: Running) -> str:
    """Return the last request that did not ask for a summary."""
    asked = [line["body"]["messages"] for line in server.journal()]
    return str([messages for messages in asked if "You summarize" not in str(messages[0])][-1])


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
def test_full_window_is_summarized_and_whole_again(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page, ring, note = visitor.page, visitor.page.locator("#window-button"), visitor.page.locator("#window-note")
    mark = page.locator('[data-kind="summary"]')
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
    visitor.shot("window-full")
    page.keyboard.press("Escape")
    expect(figures).to_be_hidden()
    note.get_by_role("button", name="Summarize the oldest messages").click()
    expect(mark).to_have_count(1)
    expect(note).to_be_empty()
    mark.locator("summary").click()
    expect(mark).to_contain_text("questions were answered")
    mark.scroll_into_view_if_needed()
    visitor.shot("window-summary")
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
