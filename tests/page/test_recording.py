"""What is recorded is sent by Enter and dropped by Cancel."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.conftest import App, Visitor
from tests.support.scripted_server import Config, Running

KEEP = """
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (what) => (window.heard = await ask(what));
"""
TRACKS = "window.heard.getTracks().map((track) => track.readyState)"
SERVER = Config(models=("Qwen/Qwen3-Omni-30B-A3B-Instruct",), rate=200.0)


@pytest.fixture
def recording(browser: Browser, own: App) -> Iterator[Visitor]:
    """The page of a visitor who has written something, and whose microphone records."""
    with browser.new_context(permissions=["microphone"], reduced_motion="reduce") as context:
        visitor = Visitor(context.new_page())
        visitor.page.add_init_script(KEEP)
        visitor.open(own.url)
        visitor.box.fill("!text Heard.")
        visitor.page.locator("#composer .microphone-button").click()
        expect(recorder(visitor).get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))
        yield visitor


def recorder(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer").get_by_role("group", name="Record audio")


def files(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer .file")


def test_enter_sends_what_is_recorded(recording: Visitor, server: Running) -> None:
    recording.box.press("Enter")
    expect(recording.caption).to_be_visible()
    recording.idle()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "input_audio"]
    expect(recording.box).to_have_value("")
    expect(files(recording)).to_have_count(0)
    expect(recorder(recording)).to_be_hidden()


@pytest.mark.parametrize("state", ["records", "uploads"])
def test_cancel_drops_what_was_recorded(recording: Visitor, state: str) -> None:
    held = list[Route]()
    if state == "records":
        recorder(recording).get_by_role("button", name="Cancel").click()
    else:
        recording.page.route("**/upload", lambda route: held.append(route))
        recorder(recording).get_by_role("button", name="Attach audio").click()
        recording.wait_for_requests(held)
        files(recording).get_by_role("button", name="Remove file").click()
    expect(recorder(recording)).to_be_hidden()
    expect(files(recording)).to_have_count(0)
    expect(recording.box).to_have_value("!text Heard.")
    expect(recording.box).to_be_focused()
    expect(recording.page.locator("#composer .problem")).to_be_empty()
    assert recording.page.evaluate(TRACKS) == ["ended"], "the microphone is off"
