"""Nothing that was recorded is dropped: not by Enter, the button of the microphone, or the choice of another model."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

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
        expect(visitor.page.locator("#composer .timestamp")).to_have_text("0:01")
        yield visitor


def test_recorder_covers_the_text_and_can_be_left(browser: Browser, own: App) -> None:
    with browser.new_context(permissions=["microphone"], reduced_motion="reduce") as context:
        visitor = Visitor(context.new_page())
        visitor.open(own.url)
        visitor.box.fill("!text Heard.")
        button, recorder = visitor.page.get_by_test_id("microphone-button"), visitor.page.locator(".recording-overlay")
        button.click()
        expect(recorder).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
        frame, dock = recorder.bounding_box(), visitor.page.locator("#dock").bounding_box()
        assert frame
        assert dock
        assert dock["width"] - frame["width"] <= 2, "only the border is beside it"
        button.click()
        expect(recorder).to_have_count(0)
        expect(visitor.box).to_have_value("!text Heard.")


@pytest.mark.parametrize("is_stopped", [False, True], ids=["records", "stopped"])
def test_enter_sends_what_was_recorded(recording: Visitor, server: Running, is_stopped: bool) -> None:
    if is_stopped:
        recording.page.get_by_role("button", name="Stop recording").click()
        expect(recording.page.get_by_role("button", name="Attach audio")).to_be_visible()
    recording.shot(f"recording-{is_stopped}")
    recording.box.press("Enter")
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
