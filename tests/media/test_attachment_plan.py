"""The page says before a send how each attachment is handled. A bad one loses neither the text nor other files."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor
from tests.support import media_files
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.browser

SEES, BLIND = "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-8B"
Visit = Callable[..., Visitor]


SERVER = Config(models=(SEES, BLIND), rate=200.0)


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    return start_app(VLLM_BASE_URL=server.base_url)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A small picture, a large photograph from a phone, and a truncated picture."""
    (tmp_path / "small.png").write_bytes(media_files.picture("PNG"))
    (tmp_path / "photo.heic").write_bytes(media_files.picture("HEIF", (2000, 1500)))
    (tmp_path / "broken.png").write_bytes(media_files.picture("PNG", (300, 300))[:200])
    return [tmp_path / name for name in ("small.png", "photo.heic", "broken.png")]


def attach(visitor: Visitor, *files: Path) -> None:
    visitor.page.locator("#composer input[type=file]").set_input_files(list(files))


@pytest.mark.gate("The page says how each file reaches the model.")
def test_each_file_shows_its_plan(own: App, visit: Visit, server: Running, files: list[Path]) -> None:
    visitor = visit(own.url)
    small, photo, broken = files
    visitor.box.fill("!text Seen. What is this?")
    attach(visitor, small, photo, broken)
    rows = visitor.page.locator("#attached li")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_have_text("small.png")
    expect(rows.nth(1)).to_contain_text("photo.heic: converted to JPEG, 2000 to 1568 px")
    expect(rows.nth(2)).to_contain_text("broken.png")
    expect(rows.nth(2)).to_have_class("refused")
    visitor.shot("attached")
    visitor.box.press("Enter")
    expect(visitor.hint).to_contain_text("The reason is above the box.")
    expect(visitor.box).to_have_value("!text Seen. What is this?")
    expect(visitor.page.locator("#composer .file")).to_have_count(3)
    visitor.page.locator("#composer .file").nth(2).get_by_role("button", name="Remove file").click()
    expect(rows).to_have_count(2)
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Seen.")).to_be_visible()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "image_url"]
    expect(rows).to_have_count(0)
