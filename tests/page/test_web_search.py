"""The search in the web on the page: its switch, the rows of what was searched and read, and the sources."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.peers.axe import violations
from tests.support.scripted_server import Config, Running
from tests.support.small_site import Site, answer, as_json, site_apart

SERVER = Config(models=("Qwen/Qwen3-8B",), rate=500.0)
ASK = '!tool web_search {"query": "rain on friday"} !tool read_page {"url": "1"} !text On Friday it rains [1].'


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """A search server, with the page that it finds."""
    with site_apart() as opened:
        found = {"title": "Weather", "url": f"{opened.url}/rain", "content": "Rain on Friday."}
        opened.handlers["/search"] = lambda _: as_json({"results": [found]})
        opened.handlers["/rain"] = lambda _: answer("<title>Weather</title><p>On Friday it rains.", kind="text/html")
        yield opened


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], here: Site, server: Running) -> App:
    config = f'[server]\nfetch_from = ["{here.host}"]\n[agent]\nsearch = "{here.url}"\n'
    return start_app(config, VLLM_BASE_URL=server.base_url)


def web(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("switch", name="Web")


@pytest.mark.gate(
    "A model searches the web only if the visitor wants it; the steps name what it read, and it is cited."
)
def test_web_is_searched_and_cited(own: App, visit: Visit, here: Site, server: Running) -> None:
    visitor = visit(own.url)
    expect(web(visitor)).to_have_attribute("aria-checked", "false")
    visitor.ask("!text No.")
    assert "tools" not in server.journal()[-1]["body"]
    web(visitor).click()
    expect(web(visitor)).to_have_attribute("aria-checked", "true")
    visitor.ask(ASK)
    assert [tool["function"]["name"] for tool in server.journal()[-1]["body"]["tools"]] == ["web_search", "read_page"]
    steps = visitor.page.locator('[data-action="steps"]')
    steps.click()
    titles = visitor.page.locator(".bubble.step .title")
    searched, read = "Searched the web for “rain on friday”: 1 result", "Read 127.0.0.1"
    expect(titles).to_have_text([searched, "Result", read, "Result"])
    expect(visitor.bubbles.get_by_role("link", name="Weather", exact=True)).to_have_attribute(
        "href", f"{here.url}/rain"
    )
    expect(visitor.page.get_by_role("link", name="Source 1: Weather")).to_have_count(1)
    assert [one.target for one in here.asked] == ["/search?q=rain+on+friday&format=json", "/rain"]
    assert not violations(visitor.page)
    visitor.shot("web-steps")
    visitor.page.reload()
    expect(web(visitor)).to_have_attribute("aria-checked", "true")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_switch_and_steps_on_a_phone(own: App, visit: Visit, dark: bool) -> None:
    visitor = visit(own.url, phone=True, dark=dark)
    web(visitor).click()
    visitor.ask(ASK)
    visitor.page.locator('[data-action="steps"]').last.click()
    visitor.shot(f"web-phone-{'dark' if dark else 'light'}")
    assert not violations(visitor.page)


def test_no_switch_without_a_search(start_app: Callable[..., App], visit: Visit, server: Running) -> None:
    visitor = visit(start_app('[agent]\nsearch = "own"\n', VLLM_BASE_URL=server.base_url).url)
    expect(visitor.page.get_by_role("switch", name="Tools")).to_be_visible()
    expect(web(visitor)).to_have_count(0)
    visitor.page.get_by_role("button", name="Open or close the settings").click()
    expect(visitor.page.locator("#tools")).to_be_visible()
    expect(visitor.page.locator("#web")).to_be_hidden()
