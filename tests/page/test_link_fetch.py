"""A link to a picture in the composer: the page asks, the guarded server fetches, and the visitor owns the file."""

import asyncio
import base64
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from agent.errors import ConfigError, InputError, Limited
from agent.fetch import Guard
from agent.settings import PublicSettings, load_settings
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor as Asker
from agent.web.message_routes import LinkFetcher
from tests.conftest import App, Visit, Visitor
from tests.support import media_files
from tests.support.scripted_server import Config, Running
from tests.support.small_site import Asked, Site, answer, site, site_apart, to

PNG = media_files.picture("PNG", (60, 40))
SERVER = Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)


class Slow:
    """A picture that is sent when the test allows it, or never. `gone` is set when the reader has left."""

    def __init__(self) -> None:
        self.may, self.asked, self.gone = threading.Event(), threading.Event(), threading.Event()

    async def __call__(self, asked: Asked) -> AsyncIterator[bytes]:
        self.asked.set()
        try:
            yield b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nConnection: close\r\n\r\n"
            while not self.may.is_set():
                await asyncio.sleep(0.02)
                if "never" in asked.target:
                    yield b"."
            yield PNG
        finally:
            self.gone.set()


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """A site with a picture."""
    with site_apart(**{"photo.png": lambda _: answer(PNG, kind="image/png")}) as opened:
        yield opened


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], here: Site, server: Running) -> App:
    return start_app(f'[server]\nfetch_from = ["{here.host}"]\n', VLLM_BASE_URL=server.base_url)


def rows(visitor: Visitor) -> Locator:
    return visitor.page.locator("#links li")


def thumbnails(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer .file")


def paste(visitor: Visitor, text: str) -> None:
    visitor.page.evaluate("text => navigator.clipboard.writeText(text)", text)
    visitor.box.press("End")
    visitor.box.press("ControlOrMeta+V")


@pytest.mark.gate("The page asks before it fetches a picture.")
def test_page_asks_before_fetching_picture(own: App, here: Site, server: Running, visit: Visit) -> None:
    visitor = visit(own.url)
    before = len(here.asked)
    visitor.box.fill("!text Seen. What is this? ")
    link = f"http://ann:secret@{here.host}/photo.png?size=2#top"
    paste(visitor, link)
    expect(rows(visitor)).to_have_count(1)
    expect(rows(visitor).locator("span")).to_have_text(f"Fetch the picture from {here.host} and attach it?")
    expect(visitor.box).to_have_value("!text Seen. What is this? " + link)
    visitor.shot("link-asked")
    assert len(here.asked) == before
    rows(visitor).get_by_role("button", name="Attach the picture").click()
    expect(thumbnails(visitor)).to_have_count(1)
    expect(visitor.box).to_have_value("!text Seen. What is this? ")
    expect(visitor.box).to_be_focused()
    expect(rows(visitor)).to_have_count(0)
    expect(visitor.page.locator("#attached li")).to_have_text("photo.png")
    visitor.shot("link-attached")
    (asked,) = here.asked[before:]
    assert asked.target == "/photo.png?size=2"
    assert "authorization" not in asked.headers
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Seen.")).to_be_visible()
    text, picture = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert text["text"].strip() == "!text Seen. What is this?"
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == PNG


ASKED = {
    "https://example.org/a.PNG": "example.org",
    "https://example.org:8443/a.jpg?x=1#y": "example.org:8443",
    "https://example.org/a.jpg/revision/latest": "example.org",
    "https://example.org/media/F1?format=jpg&name=large": "example.org",
    "https://example.org/_next/image?url=%2Fcat.webp&w=64": "example.org",
    "https://\u0430pple.com/a.png": "xn--pple-43d.com",
    "https://example.org@evil.example/a.png": "evil.example",
    "http://0x7f.1/a.heic": "127.0.0.1",
}
NOT_ASKED = (
    *("https://example.org/", "https://example.org/article?about=png", "https://a.png/", "ftp://example.org/a.png"),
    *("file:///etc/a.png", "javascript:alert(1)//a.png", "https://[/a.png", "https://example.org/a.pngs"),
    *("a.png", "https://example.org/a.png and https://example.org/b.png"),
)


def test_page_names_host_and_ignores_other_text(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    for link, host in ASKED.items():
        visitor.box.fill("")
        expect(rows(visitor)).to_have_count(0)
        paste(visitor, link)
        expect(rows(visitor).locator("b")).to_have_text(host)
    for text in NOT_ASKED:
        visitor.box.fill("")
        paste(visitor, text)
        expect(visitor.box).to_have_value(text)
        expect(rows(visitor)).to_have_count(0)
    visitor.box.fill("")
    visitor.box.press_sequentially("https://example.org/a.png")
    expect(rows(visitor)).to_have_count(1)
    visitor.box.press_sequentially("x")
    expect(rows(visitor)).to_have_count(0)


# Without a browser

ANN, BOB = Asker(owner="ann"), Asker(owner="bob")


@pytest.fixture
def links() -> Callable[..., LinkFetcher]:
    def make(guard: Guard, limits: PublicSettings | None = None) -> LinkFetcher:
        return LinkFetcher(guard, RateLimiter(limits), max_bytes=10_000, seconds=20)

    return make


def open_to(*sites: Site, **more: Any) -> Guard:
    """Return a guard that treats 127.0.0.1 as public, and these sites' ports as web ports."""
    return Guard(public=lambda one: str(one) == "127.0.0.1", ports=frozenset(one.port for one in sites), **more)


async def test_changed_name_resolution_has_no_effect(links: Callable[..., LinkFetcher]) -> None:
    turns = [["127.0.0.1"], ["127.0.0.2"]]

    async def resolve(host: str, port: int) -> list[str]:
        return turns.pop(0)

    async with site(star=lambda _: answer(PNG, kind="image/png")) as here:
        fetching = links(open_to(here, resolve=resolve))
        url = f"http://moving.example:{here.port}/Cat%20%26%20dog.v2.png"
        picture = await fetching.fetch(ANN, url)
        assert (picture.name, picture.media_type, picture.data) == ("Cat-dog.png", "image/png", PNG)
        with pytest.raises(InputError, match="not on the public internet"):
            await fetching.fetch(ANN, url)
    assert len(here.asked) == 1


async def test_redirect_into_private_network_is_refused(links: Callable[..., LinkFetcher]) -> None:
    async with site(star=lambda _: to("http://inside.example/x.png")) as here:

        async def resolve(host: str, port: int) -> list[str]:
            return ["10.0.0.1"] if host == "inside.example" else ["127.0.0.1"]

        guard = open_to(here, resolve=resolve)
        with pytest.raises(InputError, match=r"inside\.example is not on the public internet"):
            await links(replace(guard, ports=guard.ports | {80})).fetch(ANN, here.url + "/x.png")


async def test_path_in_file_name_is_removed(links: Callable[..., LinkFetcher]) -> None:
    async with site(star=lambda _: answer(PNG, kind="image/png")) as here:
        fetching = links(open_to(here))
        for path in ("/..%2f..%2fetc%2fx.html", "/%00%0a.png", "/", "/" + "x" * 300 + ".png", "/c:%5cx.png"):
            picture = await fetching.fetch(ANN, here.url + path)
            assert re.fullmatch(r"[\w-]{1,60}\.png", picture.name)


async def test_public_visitor_has_two_fetches_at_once(links: Callable[..., LinkFetcher]) -> None:
    slow = Slow()
    async with site(star=slow) as here:
        fetching = links(open_to(here), PublicSettings(messages=10, answers=2))
        both = [asyncio.create_task(fetching.fetch(ANN, f"{here.url}/{ask}")) for ask in ("one", "two")]
        await asyncio.sleep(0)
        with pytest.raises(Limited, match="2 pictures are being fetched at this moment, which is the most for each"):
            await fetching.fetch(ANN, here.url + "/3")
        with pytest.raises(Limited, match="2 pictures are being fetched at this moment, which is the most here"):
            await fetching.fetch(BOB, here.url + "/4")
        slow.may.set()
        assert [(await each).data for each in both] == [PNG, PNG]
        assert (await fetching.fetch(BOB, here.url + "/5")).data == PNG


async def test_cancelled_fetch_frees_its_place(links: Callable[..., LinkFetcher]) -> None:
    slow = Slow()
    async with site(star=slow) as here:
        fetching = links(open_to(here), PublicSettings(messages=10, answers=1))
        late = asyncio.create_task(fetching.fetch(ANN, here.url + "/never"))
        while not here.asked:  # noqa: ASYNC110 - the site keeps a list
            await asyncio.sleep(0.01)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        slow.may.set()
        assert (await fetching.fetch(ANN, here.url + "/picture")).data == PNG


@pytest.mark.parametrize("host", ["wiki.intranet", "http://wiki.intranet:80", "*:80", "WIKI:80", "a:80/path"])
def test_impossible_allowed_host_is_named_at_start(tmp_path: Path, host: str) -> None:
    path = tmp_path / "app.toml"
    path.write_text(f'[server]\nfetch_from = ["wiki.intranet:443", "[fd00::1]:8080", "{host}"]\n')
    with pytest.raises(ConfigError, match=r"server\.fetch_from must be a host with its port"):
        load_settings(path, {})
