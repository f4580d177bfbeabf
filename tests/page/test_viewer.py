"""Pictures of the chat open in a viewer: zoom, moving, the other pictures, saving and keys."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import App, Visit, Visitor, becomes
from tests.support import media_files
from tests.support.scripted_server import Config

SERVER = Config(models=("Qwen/Qwen3-VL-8B-Instruct",))
CONFIG = '[agent]\ntools = ["tests.support.making_tools:make"]\n'
WIDE, MADE = (1500, 1000), (320, 200)
"""The sizes of the visitor's picture and of the tool's."""


@pytest.fixture
def open_chat(own: App, visit: Visit) -> Callable[..., Visitor]:
    """Open a chat with a picture of the visitor and one of a tool."""

    def open_(**look: bool) -> Visitor:
        visitor = visit(own.url, fresh=True, **look)
        visitor.allow_tools()
        visitor.attach(("wide.png", media_files.picture("PNG", WIDE)))
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
