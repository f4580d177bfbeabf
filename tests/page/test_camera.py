"""The composer's sources of pictures (clipboard, mouse, camera) and sound follow the chosen model."""

import base64
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, expect

from tests.conftest import App, Visitor, becomes
from tests.peers.axe import grave
from tests.support import media_files
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.browser

SEES, BLIND, BOTH = "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-Omni-30B-A3B-Instruct"
PNG = media_files.picture("PNG", (60, 40))
PICTURE: Any = {"name": "small.png", "mimeType": "image/png", "buffer": PNG}
Visit = Callable[..., Visitor]
ON = "() => document.querySelector('#camera video').srcObject?.getTracks().map(track => track.readyState) ?? []"


SERVER = Config(models=(SEES, BLIND, BOTH), rate=200.0)


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    return start_app(VLLM_BASE_URL=server.base_url)


@pytest.fixture
def with_camera(browser: Browser, own: App) -> Iterator[Callable[..., Visitor]]:
    """Open the page as a visitor who allows or denies the camera."""
    contexts: list[BrowserContext] = []

    def open_page(*, allowed: bool = True, phone: bool = False, dark: bool = False, before: str = "") -> Visitor:
        contexts.append(
            browser.new_context(
                viewport={"width": 390, "height": 844} if phone else {"width": 1100, "height": 900},
                has_touch=phone,
                color_scheme="dark" if dark else "light",
                permissions=["camera"] if allowed else [],
                reduced_motion="reduce",
            )
        )
        visitor = Visitor(contexts[-1].new_page())
        if before:
            visitor.page.add_init_script(before)
        visitor.open(own.url)
        return visitor

    yield open_page
    for context in contexts:
        context.close()


def button(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer").get_by_role("button", name="Take a picture")


def dialog(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("dialog", name="Take a picture")


def choose(visitor: Visitor, model: str) -> None:
    visitor.choose(model)
    expect(visitor.page.locator("#about")).to_contain_text(model.partition("/")[2])


def received(server: Running) -> bytes:
    """Return the one picture in the newest message to the model."""
    (part,) = [one for one in server.journal()[-1]["body"]["messages"][-1]["content"] if one["type"] == "image_url"]
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


def send(visitor: Visitor) -> None:
    expect(visitor.page.locator("#attached li")).to_have_count(1)
    visitor.say("!text Seen.")
    expect(visitor.bubbles.filter(has_text="Seen.")).to_be_visible()


@pytest.mark.gate("A picture from the camera reaches the model.")
def test_camera_picture_reaches_model(with_camera: Callable[..., Visitor], server: Running) -> None:
    visitor = with_camera()
    button(visitor).click()
    take = dialog(visitor).get_by_role("button", name="Take a picture")
    expect(take).to_be_enabled()
    expect(take).to_be_focused()
    visitor.shot("camera")
    assert grave(visitor.page) == []
    size: list[int] = visitor.page.locator("#camera video").evaluate("one => [one.videoWidth, one.videoHeight]")
    visitor.page.evaluate("() => { window.light = document.querySelector('#camera video').srcObject }")
    take.press("Enter")
    expect(dialog(visitor)).to_have_count(0)
    becomes(["ended"], lambda: visitor.page.evaluate("() => window.light.getTracks().map(track => track.readyState)"))
    expect(visitor.box).to_be_focused()
    expect(visitor.page.locator("#attached li")).to_contain_text("camera-")
    visitor.shot("camera-attached")
    send(visitor)
    with Image.open(io.BytesIO(received(server))) as picture:
        assert picture.format == "JPEG"
        assert picture.width * size[1] == picture.height * size[0] > 0
        assert len(picture.convert("RGB").resize((64, 64)).getcolors(4096) or []) > 2, "the picture is empty"


def test_leaving_turns_camera_off(with_camera: Callable[..., Visitor]) -> None:
    visitor = with_camera()
    visitor.say("!stall-after 3")
    expect(visitor.chat).to_contain_text("word2")
    button(visitor).focus()
    visitor.page.keyboard.press("Enter")
    expect(dialog(visitor).get_by_role("button", name="Take a picture")).to_be_enabled()
    visitor.page.evaluate("() => { window.light = document.querySelector('#camera video').srcObject }")
    becomes(["live"], lambda: visitor.page.evaluate(ON))
    visitor.page.keyboard.press("Escape")
    expect(dialog(visitor)).to_have_count(0)
    becomes(["ended"], lambda: visitor.page.evaluate("() => window.light.getTracks().map(track => track.readyState)"))
    expect(button(visitor)).to_be_focused()
    expect(visitor.page.locator("#composer .file")).to_have_count(0)
    expect(visitor.stop).to_be_visible()  # Escape closes the camera and does not stop the answer
    visitor.stop.click()


LATE = """
    const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (asked) => {
      await new Promise((go) => (window.go = go));
      return (window.light = await open(asked));
    };
"""


def test_late_permission_turns_camera_off(with_camera: Callable[..., Visitor]) -> None:
    visitor = with_camera(before=LATE)
    button(visitor).click()
    expect(dialog(visitor)).to_contain_text("Waiting for the camera…")
    visitor.page.keyboard.press("Escape")
    expect(dialog(visitor)).to_have_count(0)
    visitor.page.evaluate("() => window.go()")
    visitor.page.wait_for_function("() => window.light?.getTracks().every(track => track.readyState === 'ended')")


NONE = "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', 'NotFoundError') };"


@pytest.mark.parametrize(
    ("before", "sentence"), [("", "does not let this page use the camera"), (NONE, "No camera was found")]
)
def test_missing_picture_is_explained(with_camera: Callable[..., Visitor], before: str, sentence: str) -> None:
    visitor = with_camera(allowed=False, before=before)
    button(visitor).click()
    expect(dialog(visitor)).to_contain_text(sentence)
    expect(dialog(visitor).get_by_role("button", name="Take a picture")).to_be_disabled()
    visitor.shot("camera-refused")
    assert grave(visitor.page) == []
    dialog(visitor).get_by_role("button", name="Cancel").click()
    expect(button(visitor)).to_be_focused()


PLACES = """[...document.querySelectorAll('#composer .buttons > button')]
  .filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().x)"""


def test_sources_follow_model(with_camera: Callable[..., Visitor]) -> None:
    visitor = with_camera()
    microphone = visitor.page.locator("#composer .microphone-button")
    expect(button(visitor)).to_have_count(1)
    expect(microphone).to_have_count(0)
    choose(visitor, BLIND)
    visitor.box.fill("a prompt")  # can be saved, so that a button for it comes before the camera's
    expect(visitor.page.locator("#composer .prompts-button")).to_have_count(1)
    for model, cameras, microphones in ((BLIND, 0, 0), (BOTH, 1, 1), (BLIND, 0, 0), (SEES, 1, 0)):
        choose(visitor, model)
        expect(button(visitor)).to_have_count(cameras)
        expect(microphone).to_have_count(microphones)
        visitor.shot(f"sources-{cameras}{microphones}")
        places = visitor.page.evaluate(PLACES)
        assert len(places) == 3 + cameras + microphones  # and those that attach, save and send
        assert places == sorted(places), "the Tab key follows what is drawn"
    visitor.page.locator("#composer input[type=file]").set_input_files(PICTURE)
    expect(visitor.page.locator("#composer .file")).to_have_count(1)
    for model, cameras in ((BLIND, 0), (SEES, 1)):
        choose(visitor, model)
        expect(button(visitor)).to_have_count(cameras)
    visitor.page.locator("#composer .file .remove-button").click()
    expect(visitor.page.locator("#composer .buttons > .attach-button")).to_have_count(1)
    places = visitor.page.evaluate(PLACES)
    assert len(places) == 4
    assert places == sorted(places)


def test_no_camera_means_no_button(with_camera: Callable[..., Visitor]) -> None:
    visitor = with_camera(before="Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    expect(visitor.page.locator("#about [data-takes*=image]")).to_have_count(1)
    visitor.ask("!text Here.")
    expect(button(visitor)).to_have_count(0)


PASTE = """
    async (data) => {
      const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
      await navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
    }
"""


def test_picture_is_pasted(own: App, visit: Visit, server: Running) -> None:
    visitor, data = visit(own.url), base64.b64encode(PNG).decode()
    visitor.page.evaluate(PASTE, data)
    visitor.box.press("ControlOrMeta+V")
    send(visitor)
    with Image.open(io.BytesIO(received(server))) as picture:
        assert picture.size == (60, 40)


def test_undisplayable_picture_shows_its_type(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    upload = visitor.page.locator("#composer input[type=file]")
    heic: Any = {"name": "photo.heic", "mimeType": "image/heic", "buffer": media_files.picture("HEIF", (400, 300))}
    upload.set_input_files([heic, PICTURE])
    thumbnails = visitor.page.locator("#composer .file")
    expect(thumbnails).to_have_count(2)
    expect(thumbnails.nth(0).locator("[data-kind=HEIC]")).to_be_visible()
    expect(thumbnails.nth(0).locator("img")).to_have_count(0)
    expect(thumbnails.nth(1).locator("img")).to_be_visible()
    visitor.shot("heic")
    thumbnails.nth(0).get_by_role("button").click()
    expect(thumbnails).to_have_count(1)
    expect(thumbnails.locator("img")).to_be_visible()
