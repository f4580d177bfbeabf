"""The camera of the composer: its picture reaches the model, and it is off as soon as its dialog is left."""

import base64
import io
from collections.abc import Callable, Iterator

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, expect

from tests.conftest import App, Visitor, becomes
from tests.peers.axe import grave
from tests.support.scripted_server import Config, Running

ON = "() => document.querySelector('#camera video').srcObject?.getTracks().map(track => track.readyState) ?? []"


SERVER = Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)


@pytest.fixture
def with_camera(browser: Browser, own: App) -> Iterator[Callable[..., Visitor]]:
    """Open the page as a visitor who allows the camera."""
    with browser.new_context(permissions=["camera"], reduced_motion="reduce") as context:

        def open_page(before: str = "") -> Visitor:
            visitor = Visitor(context.new_page())
            visitor.page.add_init_script(before)
            visitor.open(own.url)
            return visitor

        yield open_page


def button(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer").get_by_role("button", name="Take a picture")


def dialog(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("dialog", name="Take a picture")


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
