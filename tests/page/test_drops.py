"""Files dropped anywhere on the page are attached. A drop never makes the browser leave the page."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.support import media_files
from tests.support.scripted_server import Config

SERVER = Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)
COPY = 1


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A picture, a text without an ending, and a program without one."""
    (tmp_path / "shot.png").write_bytes(media_files.picture("PNG"))
    (tmp_path / "Makefile").write_text("all: it")
    (tmp_path / "tool").write_bytes(b"\x7fELF\2\1\0")
    return [str(tmp_path / name) for name in ("shot.png", "Makefile", "tool")]


class Mouse:
    """Drags something into the browser, as the operating system does. The browser handles what the page does not."""

    def __init__(self, visitor: Visitor) -> None:
        self._cdp: Any = visitor.page.context.new_cdp_session(visitor.page)

    def move(self, over: Locator, *, files: list[str]) -> None:
        box = over.bounding_box()
        assert box
        data = {"items": [], "files": files, "dragOperationsMask": COPY}
        self._at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "data": data}
        for kind in ("dragEnter", "dragOver"):
            self._cdp.send("Input.dispatchDragEvent", {"type": kind, **self._at})

    def drop(self, over: Locator, files: list[str]) -> None:
        self.move(over, files=files)
        self._cdp.send("Input.dispatchDragEvent", {"type": "drop", **self._at})

    def leave(self) -> None:
        self._cdp.send("Input.dispatchDragEvent", {"type": "dragCancel", **self._at})


def thumbnails(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer").locator(".file")


@pytest.mark.gate("Files can be dropped anywhere.")
def test_files_dropped_anywhere_are_attached(own: App, visit: Visit, files: list[str]) -> None:
    visitor, (picture, text, other) = visit(own.url, fresh=True), files
    page, mouse = visitor.page, Mouse(visitor)
    overlay, greeting = page.get_by_text("Drop files here"), page.locator("#greeting")
    mouse.move(greeting, files=[picture])
    expect(overlay).to_be_visible()
    mouse.leave()
    expect(overlay).to_be_hidden()
    mouse.drop(greeting, files=[picture])
    expect(overlay).to_be_hidden()
    expect(thumbnails(visitor)).to_have_count(1)
    expect(page.locator("#attached li")).to_contain_text("shot.png")
    mouse.drop(greeting, files=[other])
    expect(page.locator("#attached li.refused")).to_have_text(
        "tool can't be opened. It may be damaged, or not supported."
    )
    thumbnails(visitor).last.get_by_role("button", name="Remove file").click()
    expect(thumbnails(visitor)).to_have_count(1)
    mouse.drop(visitor.box, files=[text])
    expect(thumbnails(visitor)).to_have_count(2)
    expect(page.locator("#attached li").last).to_have_text("Makefile: will be sent as text")
    visitor.shot("dropped-makefile")
    visitor.open_settings()
    mouse.drop(page.get_by_label("System prompt"), files=[text])
    expect(thumbnails(visitor)).to_have_count(3)
    visitor.close_settings()
    page.keyboard.press("Control+/")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    mouse.move(dialog, files=[picture])
    expect(overlay).to_be_visible()
    mouse.drop(dialog, files=[picture])
    expect(thumbnails(visitor)).to_have_count(4)
    page.keyboard.press("Escape")
    visitor.say("!tokens 4000 @50")
    expect(visitor.stop).to_be_visible()
    mouse.drop(visitor.bubbles.last, files=[picture])
    expect(thumbnails(visitor)).to_have_count(1)
    visitor.stop.click()
    visitor.idle()
    expect(visitor.mine.locator("img")).to_have_count(2)
    assert page.url.startswith(f"{own.url}/c/")  # no dropped file replaces the page
