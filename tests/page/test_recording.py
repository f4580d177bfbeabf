"""The recorder is a row in the composer. Only Cancel drops what was recorded, not Enter or another model."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.conftest import App, Visitor
from tests.peers.axe import grave
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.browser

HEARS, READS = "Qwen/Qwen3-Omni-30B-A3B-Instruct", "Qwen/Qwen3-8B"
LOUD = "[...document.querySelectorAll('#composer .level i')].some((one) => one.style.getPropertyValue('--loud') > 0.02)"
KEEP = """
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (what) => (window.heard = await ask(what));
"""
TRACKS = "window.heard.getTracks().map((track) => track.readyState)"
SERVER = Config(models=(HEARS, READS), rate=200.0)


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    return start_app(VLLM_BASE_URL=server.base_url)


@pytest.fixture
def open_page(browser: Browser, own: App) -> Iterator[Callable[..., Visitor]]:
    """Open the page as a visitor who has written something, and allows or denies the microphone."""
    with ExitStack() as contexts:

        def open_one(*, allowed: bool = True, phone: bool = False, dark: bool = False, before: str = "") -> Visitor:
            context = browser.new_context(
                viewport={"width": 390, "height": 844} if phone else {"width": 1100, "height": 900},
                has_touch=phone,
                color_scheme="dark" if dark else "light",
                permissions=["microphone"] if allowed else [],
                reduced_motion="reduce",
            )
            visitor = Visitor(contexts.enter_context(context).new_page())
            if before:
                visitor.page.add_init_script(before)
            visitor.open(own.url)
            visitor.box.fill("!text Heard.")
            return visitor

        yield open_one


@pytest.fixture
def recording(open_page: Callable[..., Visitor]) -> Visitor:
    """The page of a visitor whose microphone records."""
    visitor = open_page(before=KEEP)
    record(visitor)
    return visitor


def recorder(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer").get_by_role("group", name="Record audio")


def files(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer .file")


def record(visitor: Visitor) -> None:
    """Click the microphone, and wait until something is recorded."""
    visitor.page.locator("#composer .microphone-button").click()
    expect(recorder(visitor).get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))


@pytest.mark.parametrize("look", [{}, {"dark": True, "phone": True}], ids=["light", "dark phone"])
def test_recorder_is_a_row_below_the_text(open_page: Callable[..., Visitor], look: dict[str, bool]) -> None:
    visitor = open_page(**look)
    dock = visitor.page.locator("#dock")
    before = dock.bounding_box()
    record(visitor)
    visitor.page.wait_for_function(LOUD)
    visitor.shot(f"recording-{'-'.join(look) or 'light'}")
    row, frame, text = (one.bounding_box() for one in (recorder(visitor), dock, visitor.box))
    assert frame == before, "nothing moves"
    assert row
    assert frame
    assert text
    assert frame["x"] <= row["x"]
    assert row["x"] + row["width"] <= frame["x"] + frame["width"]
    assert text["y"] + text["height"] <= row["y"] + 1
    assert not grave(visitor.page)
    expect(recorder(visitor).get_by_role("button", name="Attach audio")).to_be_focused()
    recorder(visitor).get_by_role("button", name="Attach audio").press("Enter")
    expect(recorder(visitor)).to_be_hidden()
    expect(visitor.box).to_be_focused()
    expect(files(visitor)).to_have_text([re.compile(r"^recording-\d{6}\.webm$")])
    expect(visitor.page.locator("#attached")).to_contain_text("recording-")


def test_enter_sends_what_is_recorded(recording: Visitor, server: Running) -> None:
    recording.box.press("Enter")
    expect(recording.caption).to_be_visible()
    recording.idle()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "input_audio"]
    expect(recording.box).to_have_value("")
    expect(files(recording)).to_have_count(0)
    expect(recorder(recording)).to_be_hidden()


def test_enter_waits_for_the_upload_of_a_recording(recording: Visitor, server: Running) -> None:
    held = list[Route]()
    recording.page.route("**/upload", lambda route: held.append(route))
    recorder(recording).get_by_role("button", name="Attach audio").click()
    recording.wait_for_requests(held)
    recording.box.press("Enter")
    expect(recording.box).to_have_value("!text Heard.")
    held[0].continue_()
    expect(recording.caption).to_be_visible()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "input_audio"]


def test_choice_of_a_deaf_model_keeps_what_was_recorded(recording: Visitor) -> None:
    recording.page.evaluate("document.querySelector('#model-button').click()")  # as "Retry with…" or another tab could
    search = recording.page.locator("#models").get_by_role("combobox")
    search.fill(READS)
    search.press("Enter")
    expect(recording.page.locator("#about")).to_contain_text("Qwen3-8B")
    expect(files(recording)).to_have_count(1)
    expect(recording.page.locator("#attached")).to_contain_text("audio")
    expect(recording.page.locator("#composer .microphone-button")).to_have_count(0)


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


@pytest.mark.parametrize("kind", ["upload", "recording"])
def test_late_file_goes_into_the_draft_of_its_chat(open_page: Callable[..., Visitor], kind: str) -> None:
    visitor, held = open_page(), list[Route]()
    page = visitor.page
    visitor.ask("!text First.")
    visitor.box.fill("With a file.")
    page.route("**/upload", lambda route: held.append(route))
    if kind == "recording":
        record(visitor)
    else:
        one = {"name": "one.txt", "mimeType": "text/plain", "buffer": b"one"}
        page.locator("#composer input[type=file]").set_input_files([one])
        visitor.wait_for_requests(held)
    page.locator("#new").click()
    expect(visitor.box).to_have_value("")
    visitor.wait_for_requests(held)
    expect(files(visitor)).to_have_count(0)
    expect(recorder(visitor)).to_be_hidden()
    with page.expect_response("**/upload"):
        held[0].continue_()
    expect(files(visitor)).to_have_count(0)
    page.locator("#chats li").get_by_role("link").click()
    expect(visitor.box).to_have_value("With a file.")
    expect(files(visitor)).to_have_text([re.compile(r"^one.txt$|^recording-\d{6}\.webm$")])


def test_failed_upload_of_a_recording_is_tried_again(recording: Visitor) -> None:
    problem = recording.page.locator("#composer .problem")
    recording.page.route("**/upload", lambda route: route.abort(), times=1)
    recorder(recording).get_by_role("button", name="Attach audio").click()
    expect(problem).to_contain_text("Check the connection")
    expect(files(recording)).to_have_count(0)
    problem.get_by_role("button", name="Try again").click()
    expect(files(recording)).to_have_text([re.compile(r"^recording-\d{6}\.webm$")])
    expect(problem).to_be_empty()


def test_recording_during_an_answer_is_queued(open_page: Callable[..., Visitor], server: Running) -> None:
    visitor = open_page()
    visitor.say("!tokens 60 hold 20 sound")
    expect(visitor.stop).to_be_visible()
    record(visitor)
    visitor.box.fill("!text Heard.")
    visitor.box.press("Enter")
    queued = visitor.page.locator("#queued")
    expect(queued).to_contain_text("recording-")
    expect(files(visitor)).to_have_count(0)
    server.release("sound")
    expect(visitor.bubbles.filter(has_text="Heard.").last).to_be_visible()
    expect(queued).to_be_hidden()
    visitor.idle()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "input_audio"]


def test_picker_offers_what_the_model_takes(open_page: Callable[..., Visitor]) -> None:
    """A file of another kind can be dropped, and a sentence says what can be done with it."""
    visitor = open_page()
    picker = visitor.page.locator("#composer input[type=file]")
    expect(picker).to_have_attribute("accept", re.compile(r"(^|,)audio/\*,.*text/\*,.*\.pdf,.*\.csv"))
    visitor.choose(READS)
    expect(picker).to_have_attribute("accept", re.compile(r"^text/\*,"))
    picker.set_input_files([{"name": "odd.bin", "mimeType": "application/x-odd", "buffer": bytes(range(256)) * 20}])
    expect(visitor.page.locator("#attached li.refused")).to_contain_text("odd.bin")


def test_removal_by_touch_opens_no_keyboard(open_page: Callable[..., Visitor]) -> None:
    visitor = open_page(phone=True)
    one = {"name": "one.txt", "mimeType": "text/plain", "buffer": b"one"}
    visitor.page.locator("#composer input[type=file]").set_input_files([one])
    expect(files(visitor)).to_have_text(["one.txt"])
    visitor.box.blur()
    files(visitor).get_by_role("button", name="Remove file").tap()
    expect(files(visitor)).to_have_count(0)
    expect(visitor.box).not_to_be_focused()


NO_MICROPHONE = """
navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", "NotFoundError"));
"""


@pytest.mark.parametrize(
    ("before", "sentence"),
    [("", "does not let this page use the microphone"), (NO_MICROPHONE, "No microphone was found.")],
    ids=["denied", "none"],
)
def test_missing_microphone_is_explained(open_page: Callable[..., Visitor], before: str, sentence: str) -> None:
    visitor = open_page(allowed=False, before=before)
    visitor.page.locator("#composer .microphone-button").click()
    expect(recorder(visitor).get_by_role("status")).to_contain_text(sentence)
    expect(recorder(visitor).get_by_role("button", name="Attach audio")).to_be_disabled()
    visitor.shot(f"no-microphone-{'none' if before else 'denied'}")
    visitor.page.get_by_role("button", name="Cancel").click()
    visitor.box.press("Enter")
    expect(visitor.caption).to_be_visible()
