"""The preview of a link to the page, its icons and its loading screen are ours, not Gradio's."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from io import BytesIO
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from agent.i18n.translator import Translator
from agent.web.ui.page_files import page_files
from agent.web.ui.page_head import MARK, with_our_head
from tests.conftest import CONFIG, App

TITLE = 'Ann\'s <b>"chat"</b> & more'


class Head(HTMLParser):
    """Collects the metas by name, the links by relation, and the title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.metas: list[tuple[str, str]] = []
        self.links: dict[str, list[str]] = {}
        self.title, self._in_title = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_title = tag == "title"
        if tag == "meta":
            self.metas.append((given.get("property") or given.get("name", ""), given.get("content", "")))
        if tag == "link":
            self.links.setdefault(given["rel"], []).append(given["href"])

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False


@pytest.fixture(scope="module")
def titled(start_app: Callable[..., App]) -> App:
    """Start a page with a title that needs escaping. A proxy serves it below a path."""
    title = TITLE.replace('"', '\\"')
    settings = f'[server]\ntitle = "{title}"\nhosts = ["x.gradio.live"]\n'
    return start_app(CONFIG + settings, GRADIO_ROOT_PATH="/chat")


@pytest.mark.parametrize(
    ("headers", "root"),
    [
        ({}, "http://{host}/chat"),
        ({"x-forwarded-host": "x.gradio.live", "x-forwarded-proto": "https"}, "https://x.gradio.live/chat"),
        ({"host": '"><script>'}, None),
    ],
    ids=["own", "shared", "hostile"],
)
def test_link_preview_is_customised(titled: App, headers: dict[str, str], root: str | None) -> None:
    answer = httpx.get(titled.url, headers=headers)
    if root is None:
        assert '"><script>' not in answer.text
        return
    root = root.format(host=urlsplit(titled.url).netloc)
    head = Head(answer.text.partition("</head>")[0])
    metas = dict(head.metas)
    assert head.title == metas["og:title"] == metas["twitter:title"] == TITLE
    assert metas["og:url"] == f"{root}/"
    assert metas["og:image"] == metas["twitter:image"] == f"{root}/preview.png"
    assert (
        metas["og:description"]
        == metas["description"]
        == "Chat with the model of your choice, with pictures, sound and tools."
    )
    assert "theme-color" in metas
    [viewport] = [content for name, content in head.metas if name == "viewport"]
    assert "interactive-widget=resizes-content" in viewport
    shared = [name for name, _ in head.metas if name.startswith(("og:", "twitter:"))]
    assert len(shared) == len(set(shared)), "a meta of Gradio's is left"
    assert not [value for _, value in head.metas if "gradio" in value.lower().replace("x.gradio.live", "")]
    assert head.links["manifest"] == ["/chat/manifest.json"]
    for path in [*head.links["icon"], *head.links["apple-touch-icon"], metas["og:image"]]:
        if path == MARK:  # in the page itself
            continue
        picture = httpx.get(titled.url + urlsplit(path).path.removeprefix("/chat"))
        assert picture.status_code == 200, path
        size = Image.open(BytesIO(picture.content)).size
        assert size == {"preview.png": (1200, 630), "favicon.ico": (48, 48)}.get(path.rsplit("/")[-1], (180, 180))
    manifest = httpx.get(f"{titled.url}/manifest.json").json()
    assert manifest["name"] == TITLE
    assert [icon["src"] for icon in manifest["icons"]] == ["/chat/mark.svg", "/chat/icon-180.png", "/chat/icon-512.png"]


def test_llms_text_names_routes_that_exist(titled: App) -> None:
    answer = httpx.get(f"{titled.url}/llms.txt")
    assert httpx.get(f"{titled.url}/agents.md").text == answer.text
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text.startswith(f"# {TITLE}\n")
    assert len(answer.text) < 2_000
    root = re.escape(f"http://{urlsplit(titled.url).netloc}/chat")
    named = re.findall(rf"`(GET|POST) {root}(/[^`?]*)", answer.text)
    assert len(named) > 8
    for method, path in named:
        found = httpx.request(method, titled.url + path.replace("RUN", "0" * 32).replace("ID", "0" * 32))
        assert found.status_code in (200, 400, 401, 404), path
        is_ours = "detail" in found.text or path.startswith(("/runs/", "/export/"))  # they tell a stranger no more
        assert found.status_code != 404 or is_ours, path
    assert set(re.findall(r"\{\w*\}", answer.text)) == set()


def test_page_without_metas_keeps_its_scripts() -> None:
    """Only the head of Gradio's template changes, even if a new version changes the template."""
    script = '<script>let a = \'<meta property="og:title" content="x">\';</script>'
    html = f"<html><head><meta charset='utf-8'>{script}</head></html>"
    page = with_our_head(html, "T", "http://h", Translator(), page_files())
    assert script in page
    assert page.count("<title>T</title>") == 1
