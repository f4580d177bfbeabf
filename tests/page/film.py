"""Films the page for README and takes its pictures: `make pictures PICTURES=tests/page/film.py`, on a quiet machine.

The page and everything that happens on it is real. Only the model is a script, so that the film shows each kind of
bubble in twenty seconds. Chromium sends a picture for each change, with its time; the film keeps these times.
"""

import io
from base64 import b64decode
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.conftest import App, Visitor
from tests.support.scripted_server import Config, Running, running

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
FILM = FOLDER / "film.webp"
WIDTH, HEIGHT = 1000, 640
SHORTEST = 70
"""Milliseconds that a picture is shown at least: two changes that follow each other sooner become one."""
TOOLS = '[agent]\ntools = ["agent.tools.builtin:calculate"]\n'
LIGHT = "How long does light need from Paris to Tokyo?"
SEA = "Write a story about the sea."
PLANETS = "Show me the inner planets on their ways around the sun."
PAGE = """<style>
  body { margin: 0; height: 100vh; display: grid; place-items: center; background: #0b1026; }
  svg { width: min(92vw, 92vh); } text { fill: #cbd5f5; font: 5px sans-serif; text-anchor: middle; }
</style>
<svg viewBox="-100 -100 200 200"></svg>
<script>
  const planets = [["Mercury", 24, 2.5, "#b9a58c", .9], ["Venus", 42, 4, "#e8c27a", 2.6],
    ["Earth", 63, 4.4, "#5aa9e6", 4.1], ["Mars", 86, 3.3, "#e4572e", 5.6]];
  const sun = '<circle r="11" fill="#ffd166"/>';
  document.querySelector("svg").innerHTML = sun + planets.map(([name, r, size, colour, at]) =>
    `<circle r="${r}" fill="none" stroke="#33407a" stroke-width=".5"/>
     <circle cx="${r * Math.cos(at)}" cy="${r * Math.sin(at)}" r="${size}" fill="${colour}"/>
     <text x="${r * Math.cos(at)}" y="${r * Math.sin(at) + size + 6}">${name}</text>`).join("");
</script>"""
SCRIPTS = {
    LIGHT: (
        "!pace 13 !reasoning The way along the surface is about 9,710 km. Light makes 299,792 km in a second. "
        'I divide one by the other. !tool calculate {"expression": "9710 / 299792 * 1000"} '
        "!text Light needs **about 32 milliseconds**.\\n\\n| way | distance | time |\\n|---|---|---|\\n"
        "| along the surface | 9,710 km | 32 ms |\\n| through a glass fibre | 9,710 km | 49 ms |\\n\\n"
        "A fibre is slower, because light is slower in glass."
    ),
    SEA: (
        "!pace 11 !text The boat left before the sun. Nobody spoke, because the fog took every word and gave it back "
        "changed. When the first gull came, the old man put down his oar. He had counted the waves all night, he said, "
        "and one was missing. The others laughed. Then the water before them rose, slowly, like somebody who has been "
        "waiting for a long time, and the bell of the harbour rang, although the harbour was ten miles behind them and "
        "had no bell. The old man took off his hat."
    ),
}


ARTIFACT = f'!text Here they are, not to scale:\n\n```html title="Inner planets"\n{PAGE}\n```'.replace("\n", "\\n")
SCRIPTS[PLANETS] = ARTIFACT


class Camera:
    """Collects the pictures that Chromium sends of a page, with their times in seconds."""

    def __init__(self, page: Page) -> None:
        self._session, self._pictures = page.context.new_cdp_session(page), list[tuple[float, bytes]]()
        self._session.on("Page.screencastFrame", self._add)
        self._session.send("Page.startScreencast", {"format": "png"})

    def _add(self, frame: dict[str, Any]) -> None:
        self._pictures.append((frame["metadata"]["timestamp"], b64decode(frame["data"])))
        self._session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    def save(self, path: Path) -> float:
        """Stop, write the film, and return its length in seconds."""
        self._session.send("Page.stopScreencast")
        kept = self._pictures[:1]
        for picture in self._pictures[1:]:
            if (picture[0] - kept[-1][0]) * 1000 < SHORTEST:
                kept[-1] = (kept[-1][0], picture[1])
            else:
                kept.append(picture)
        times = [*(round((after[0] - before[0]) * 1000) for before, after in pairwise(kept)), 1500]
        images = [Image.open(io.BytesIO(data)).convert("RGB") for _, data in kept]
        images[0].save(
            path,
            save_all=True,
            append_images=images[1:],
            duration=times,
            loop=0,
            lossless=True,  # otherwise traces of earlier pictures stay
            method=4,
            minimize_size=True,
        )
        return sum(times) / 1000


def play(visitor: Visitor, url: str) -> Camera:
    """Do what the film shows."""
    page = visitor.page
    visitor.open(url)
    visitor.allow_tools()
    page.mouse.move(WIDTH // 2, HEIGHT // 3)
    camera = Camera(page)
    page.wait_for_timeout(1000)
    visitor.box.press_sequentially(LIGHT, delay=28)
    visitor.box.press("Enter")
    expect(visitor.caption).to_be_visible()
    visitor.idle()
    page.wait_for_timeout(1200)
    visitor.chat.locator("[data-action=steps]").click()
    page.wait_for_timeout(2000)
    page.get_by_role("button", name="New chat").first.click()
    expect(visitor.examples.first).to_be_visible()
    visitor.box.press_sequentially(SEA, delay=28)
    visitor.box.press("Enter")
    expect(visitor.chat).to_contain_text("the old man put down his oar")
    visitor.stop.click()
    visitor.idle()
    page.wait_for_timeout(1200)
    page.locator("#chats li").filter(has_text=LIGHT[:20]).first.click()
    expect(visitor.chat).to_contain_text("about 32 milliseconds")
    page.wait_for_timeout(2500)
    return camera


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(Config(scripts=SCRIPTS)) as server:
        yield server


def test_film(start_app: Callable[..., App], server: Running, browser: Browser) -> None:
    own = start_app(TOOLS, VLLM_BASE_URL=server.base_url)
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
    seconds = play(Visitor(page), own.url).save(FILM)
    page.close()
    print(f"{FILM.name}: {seconds:.1f} s, {FILM.stat().st_size / 1e6:.2f} MB")
    assert 16 < seconds < 24


@pytest.mark.parametrize("name", ["light", "dark", "phone"])
def test_pictures(start_app: Callable[..., App], server: Running, visit: Callable[..., Visitor], name: str) -> None:
    own = start_app(TOOLS, VLLM_BASE_URL=server.base_url)
    visitor = visit(own.url, dark=name == "dark", phone=name == "phone", fresh=True)
    if name != "phone":
        visitor.page.set_viewport_size({"width": WIDTH, "height": HEIGHT + 150})
    visitor.allow_tools()
    visitor.ask(SEA)
    visitor.page.get_by_role("button", name="New chat").first.click()
    visitor.ask(LIGHT)
    visitor.chat.locator("[data-action=steps]").click()
    expect(visitor.chat).to_contain_text("Calculate")
    expect(visitor.chat.locator(".tools.above")).to_be_visible()
    visitor.chat.hover()
    visitor.page.mouse.wheel(0, 5000)
    expect(visitor.page.locator(".to-end")).to_be_hidden()
    expect(visitor.caption).to_be_in_viewport(ratio=1)
    visitor.page.mouse.move(0, 0)
    path = FOLDER / f"{name}.png"
    visitor.page.screenshot(path=path)
    Image.open(path).quantize(256).save(path, optimize=True)


def test_picture_of_an_artifact(start_app: Callable[..., App], server: Running, visit: Callable[..., Visitor]) -> None:
    visitor = visit(start_app(TOOLS, VLLM_BASE_URL=server.base_url).url, fresh=True)
    visitor.page.set_viewport_size({"width": 1280, "height": 720})
    visitor.ask(PLANETS)
    visitor.bubbles.locator("pre").get_by_role("button", name="Preview").click()
    panel = visitor.page.locator(".artifact")
    expect(panel.frame_locator("iframe:not(.next)").get_by_text("Mars")).to_be_visible()
    visitor.page.mouse.move(0, 0)
    path = FOLDER / "artifact.png"
    visitor.page.screenshot(path=path)
    Image.open(path).quantize(256).save(path, optimize=True)
