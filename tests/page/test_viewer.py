"""Pictures of the chat open in a viewer: zoom, moving, the other pictures, saving, keys and touch."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import CONFIG, App, Visitor, becomes
from tests.support import media_files
from tests.support.scripted_server import Config, Running, running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
WIDE, MADE = (1500, 1000), (320, 200)
"""The sizes of the visitor's picture and of the tool's."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(Config(models=("Qwen/Qwen3-VL-8B-Instruct",))) as server:
        yield server


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    config = CONFIG.replace('"tests.support.slow_tools:nap"', '"tests.support.making_tools:make"')
    return start_app(config, VLLM_BASE_URL=server.base_url)


@pytest.fixture
def open_chat(own: App, visit: Visit) -> Callable[..., Visitor]:
    """Open a chat with a picture of the visitor and one of a tool."""

    def open_(**look: bool) -> Visitor:
        visitor = visit(own.url, fresh=True, **look)
        visitor.allow_tools()
        file = {"name": "wide.png", "mimeType": "image/png", "buffer": media_files.picture("PNG", WIDE)}
        visitor.page.locator("#composer input[type=file]").set_input_files(file)  # pyright: ignore[reportArgumentType]
        expect(visitor.page.locator("#attached, #composer .file").last).to_be_visible()
        visitor.ask("!tool make !text Here they are.")
        expect(pictures(visitor.page)).to_have_count(2)
        return visitor

    return open_


def pictures(page: Page) -> Locator:
    return page.locator('#chat .part img[role="button"]')


def viewer(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Picture", exact=True)


def width(page: Page) -> int:
    return round(viewer(page).locator(".stage img").evaluate("image => image.getBoundingClientRect().width"))


def left(page: Page) -> int:
    return round(viewer(page).locator(".stage img").evaluate("image => image.getBoundingClientRect().left"))


def middle(page: Page) -> tuple[float, float]:
    box = viewer(page).locator(".stage").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.gate("A picture of the chat opens in a viewer, and can be enlarged and saved.")
def test_picture_is_enlarged_moved_and_saved(open_chat: Callable[..., Visitor]) -> None:
    page = open_chat().page
    pictures(page).first.click()
    expect(page.locator("dialog[open]")).to_have_count(1)
    room = viewer(page).locator(".stage").evaluate("stage => Math.min(stage.clientWidth, stage.clientHeight * 1.5)")
    becomes(round(room), lambda: width(page))
    page.keyboard.press("1")
    becomes(WIDE[0], lambda: width(page))
    page.keyboard.press("-")
    becomes(WIDE[0] // 1.25, lambda: width(page))
    page.keyboard.press("0")
    becomes(round(room), lambda: width(page))
    viewer(page).get_by_role("button", name="Actual size").click()
    becomes(WIDE[0], lambda: width(page))
    before, (x, y) = left(page), middle(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=3)
    page.mouse.up()
    becomes(before + 100, lambda: left(page))
    page.mouse.wheel(0, -200)
    becomes(True, lambda: width(page) > WIDE[0])
    with page.expect_download() as download:
        viewer(page).get_by_role("button", name="Download the picture").click()
    assert download.value.suggested_filename == "wide.png"
    page.keyboard.press("ArrowRight")
    expect(viewer(page)).to_contain_text("2 of 2")
    becomes(MADE[0], lambda: width(page))  # it is not enlarged by itself
    with page.expect_download() as download:
        viewer(page).get_by_role("button", name="Download the picture").click()
    assert download.value.suggested_filename == "chart.png"
    page.keyboard.press("ArrowRight")
    expect(viewer(page)).to_contain_text("1 of 2")
    page.keyboard.press("Escape")
    expect(viewer(page)).to_have_count(0)
    expect(pictures(page).first).to_be_focused()


def test_two_fingers_enlarge_the_picture(open_chat: Callable[..., Visitor]) -> None:
    page = open_chat(phone=True).page
    pictures(page).first.click()
    expect(viewer(page)).to_be_visible()
    becomes(True, lambda: width(page) > 0)
    before, (x, y), cdp = width(page), middle(page), page.context.new_cdp_session(page)
    cdp.send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
    for kind, far in (("touchStart", 30), ("touchMove", 60), ("touchMove", 90)):
        points = [{"x": x - far, "y": y, "id": 0}, {"x": x + far, "y": y, "id": 1}]
        cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    cdp.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    becomes(True, lambda: abs(width(page) - before * 3) < 4)
    expect(viewer(page)).to_be_visible()


def test_click_beside_the_picture_closes_viewer(open_chat: Callable[..., Visitor]) -> None:
    page = open_chat().page
    for _again in range(2):
        pictures(page).last.click()
        expect(viewer(page)).to_contain_text("2 of 2")
        becomes(MADE[0], lambda: width(page))
        x, y = middle(page)
        page.mouse.click(x, y)
        expect(viewer(page)).to_be_visible()
        page.mouse.click(x - MADE[0], y)
        expect(viewer(page)).to_have_count(0)
        expect(pictures(page).last).to_be_focused()


def test_viewer_is_loaded_when_a_picture_is_opened(open_chat: Callable[..., Visitor]) -> None:
    page = open_chat().page
    loaded = "performance.getEntriesByType('resource').filter(({ name }) => /viewer\\.js/.test(name)).length"
    assert page.evaluate(loaded) == 0
    for _again in range(2):
        pictures(page).first.click()
        expect(viewer(page)).to_be_visible()
        page.keyboard.press("Escape")
        expect(viewer(page)).to_have_count(0)
    assert page.evaluate(loaded) == 1


def test_picture_keeps_its_name(open_chat: Callable[..., Visitor]) -> None:
    """Also in another version of the answer, for which the picture is read from the store."""
    visitor = open_chat()
    mine = visitor.mine.locator("img")
    expect(mine).to_have_attribute("src", re.compile(r"\?name=wide\.png$"))
    visitor.chat.get_by_role("button", name="Retry", exact=True).click()
    expect(visitor.chat.locator(".versions .count")).to_have_text("2/2")
    visitor.idle()
    visitor.reload()
    expect(mine).to_have_attribute("src", re.compile(r"\?name=wide\.png$"))
    expect(mine).to_have_attribute("role", "button")  # live.js opens it from here on
    mine.click()
    with visitor.page.expect_download() as download:
        viewer(visitor.page).get_by_role("button", name="Download the picture").click()
    assert download.value.suggested_filename == "wide.png"
