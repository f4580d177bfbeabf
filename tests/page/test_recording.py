"""Only Cancel drops what was recorded: not Enter, Stop, the microphone's button, or the choice of another model."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.conftest import App, Visitor
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.browser

HEARS, READS = "Qwen/Qwen3-Omni-30B-A3B-Instruct", "Qwen/Qwen3-8B"
SERVER = Config(models=(HEARS, READS), rate=200.0)


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    return start_app(VLLM_BASE_URL=server.base_url)


@pytest.fixture
def recording(browser: Browser, own: App) -> Iterator[Visitor]:
    """The page of a visitor whose microphone records."""
    with browser.new_context(permissions=["microphone"], reduced_motion="reduce") as context:
        visitor = Visitor(context.new_page())
        visitor.open(own.url)
        visitor.box.fill("!text Heard.")
        visitor.page.get_by_test_id("microphone-button").click()
        visitor.page.get_by_role("button", name="Start recording").click()
        expect(visitor.page.locator("#composer .timestamp")).to_have_text(re.compile("0:0[1-9]"))
        yield visitor


def test_recorder_is_a_row_below_the_text_and_can_be_left(browser: Browser, own: App) -> None:
    with browser.new_context(permissions=["microphone"], reduced_motion="reduce") as context:
        visitor = Visitor(context.new_page())
        visitor.open(own.url)
        visitor.box.fill("!text Heard.")
        recorder = visitor.page.locator(".recording-overlay")
        visitor.page.get_by_test_id("microphone-button").click()
        expect(recorder).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
        frame, dock, text = (one.bounding_box() for one in (recorder, visitor.page.locator("#dock"), visitor.box))
        assert frame
        assert dock
        assert text
        assert dock["width"] - frame["width"] <= 2, "only the border is beside it"
        assert text["y"] + text["height"] <= frame["y"] + 1
        visitor.page.get_by_role("button", name="Cancel").click()
        expect(recorder).to_have_count(0)
        expect(visitor.box).to_have_value("!text Heard.")


def stop(recording: Visitor, state: str) -> Callable[[], object]:
    """Bring the recorder into a state. Call what is returned after the next key or click.

    It "records", is "stopping", because its upload takes until then, or has "stopped" and shows what it has recorded.
    """
    button, held = recording.page.get_by_role("button", name="Stop recording"), list[Route]()
    if state == "stopping":
        recording.page.route("**/upload", lambda route: held.append(route))
        button.click()
        recording.wait_for_requests(held)
        button.click()  # Gradio would drop the recording
    elif state == "stopped":
        button.click()
        expect(recording.page.get_by_role("button", name="Attach audio")).to_be_visible()
    recording.shot(f"recording-{state}")
    return lambda: None if not held else held[0].continue_()


STATES = ["records", "stopping", "stopped"]


@pytest.mark.parametrize("state", STATES)
def test_enter_sends_what_was_recorded(recording: Visitor, server: Running, state: str) -> None:
    end = stop(recording, state)
    recording.box.press("Enter")
    end()
    expect(recording.caption).to_be_visible()
    recording.idle()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "input_audio"]
    expect(recording.box).to_have_value("")
    expect(recording.page.locator("#composer :is(.thumbnail-item, .recording-overlay)")).to_have_count(0)


def test_button_of_the_microphone_attaches_what_was_recorded(recording: Visitor) -> None:
    recording.page.get_by_test_id("microphone-button").press("Enter")  # the recorder lies over it
    expect(recording.page.locator("#composer .thumbnail-item")).to_have_count(1)
    expect(recording.box).to_have_value("!text Heard.")


def test_choice_of_a_deaf_model_keeps_what_was_recorded(recording: Visitor) -> None:
    recording.page.locator("#model-button").press("Enter")
    search = recording.page.locator("#models").get_by_role("combobox")
    search.fill(READS)
    search.press("Enter")
    expect(recording.page.locator("#about")).to_contain_text("Qwen3-8B")
    expect(recording.page.locator("#composer .thumbnail-item")).to_have_count(1)
    expect(recording.page.locator("#attached")).to_contain_text("audio")


@pytest.mark.parametrize("state", STATES)
def test_cancel_drops_what_was_recorded(recording: Visitor, state: str) -> None:
    end = stop(recording, state)
    recording.page.get_by_role("button", name="Cancel").click()
    end()
    expect(recording.page.locator("#composer .recording-overlay")).to_have_count(0)
    expect(recording.page.locator("#composer .thumbnail-item")).to_have_count(0)
    expect(recording.box).to_have_value("!text Heard.")
    expect(recording.box).to_be_focused()
