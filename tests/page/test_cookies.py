"""Another site cannot make a visitor chat as somebody else, in real Chromium: sibling hosts, ports, share links.

The other site is a page of the same proxy under another name, or of another proxy on another port. The browser maps
all names to this machine.
"""

import sqlite3
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from agent.web.middleware.visitor_cookie import COOKIE, CookieJar
from tests.conftest import App, Visitor, becomes
from tests.support import chromium
from tests.support.http_client import HttpVisitor, marker, owner_in
from tests.support.space_proxy import Front, fronted

RULES = "MAP *.example.test 127.0.0.1, MAP *.gradio.live 127.0.0.1"
HOSTS = 'hosts = ["chat.example.test", "abc.gradio.live"]'


@pytest.fixture(scope="module")
def named(browser: Browser) -> Iterator[Browser]:
    """A Chromium that resolves this module's names to this machine, and accepts every certificate."""
    other = chromium.launch(browser.browser_type, f"--host-resolver-rules={RULES}", "--ignore-certificate-errors")
    yield other
    other.close()


def owner_of(app: App, word: str) -> str | None:
    """Return the owner of the conversation that contains this word."""
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        found = db.execute(
            "SELECT owner FROM conversations JOIN entries ON conversation_id = conversations.id WHERE entry LIKE ?",
            (f"%{word}%",),
        ).fetchone()
    db.close()
    return found[0] if found else None


def toss(visitor: Visitor, front: Front, host: str, value: str, names: tuple[str, ...], *scopes: str) -> None:
    """Open a page of `host` in the visitor's browser that sets our cookies in every way it can."""
    front.tossed = tuple(f"{name}={value}; {scope}" for name in names for scope in scopes)
    page = visitor.page.context.new_page()
    page.goto(f"{'https' if front.secure else 'http'}://{host}:{front.port}/toss")
    page.close()


def say(visitor: Visitor, app: App) -> str:
    """Send a message, wait for its answer, and return the owner of its conversation."""
    word = marker()
    visitor.ask(f"!text {word}")
    expect(visitor.chat).to_contain_text(word)
    becomes(True, lambda: owner_of(app, word) is not None)
    return owner_of(app, word) or ""


@pytest.mark.browser
@pytest.mark.parametrize(
    ("host", "evil", "domain"),
    [
        ("chat.example.test", "evil.example.test", "example.test"),
        ("abc.gradio.live", "evil.gradio.live", "gradio.live"),
    ],
)
def test_sibling_host_over_https(
    start_app: Callable[..., App], named: Browser, host: str, evil: str, domain: str
) -> None:
    with fronted(secure=True) as front:
        app = start_app(f"[server]\n{HOSTS}\n")
        front.app = app.port
        attacker = HttpVisitor(app.url)
        names = (CookieJar(secure=True, port=front.port).name, COOKIE, f"{COOKIE}-{front.port}")
        tricks = [f"Domain={domain}; Path={path}; Secure" for path in ("/", "/gradio_api", "/gradio_api/queue")]
        page = named.new_context().new_page()
        visitor = Visitor(page)
        toss(visitor, front, evil, attacker.cookie or "", names, *tricks)
        visitor.open(f"https://{host}:{front.port}")
        first = say(visitor, app)
        assert first != owner_in(attacker.cookie or "")
        toss(visitor, front, evil, attacker.cookie or "", names, *tricks)
        assert say(visitor, app) == first
        visitor.reload()
        assert say(visitor, app) == first
        page.context.close()


@pytest.mark.browser
def test_other_ports_and_siblings_over_http(start_app: Callable[..., App], named: Browser) -> None:
    """Another page's cookies do not affect a page, and an existing visitor continues as before."""
    with fronted(secure=False) as front:
        app, neighbour = start_app(f"[server]\n{HOSTS}\n"), start_app()
        front.app = app.port
        attacker = HttpVisitor(app.url)
        page = named.new_context().new_page()
        visitor = Visitor(page)
        visitor.open(app.url)
        first = say(visitor, app)
        # The same program on another port.
        other = Visitor(page.context.new_page())
        other.open(neighbour.url)
        theirs = say(other, neighbour)
        assert say(visitor, app) == first
        # A hostile server on another port knows the name of the cookie, but not its path.
        name, value = CookieJar(secure=False, port=app.port).name, attacker.cookie or ""
        for path in ("/gradio_api", "/gradio_api/queue", "/gradio_api/queue/join", "/gradio_api/queue/data"):
            toss(visitor, front, "127.0.0.1", value, (name, COOKIE), f"Path={path}")
            assert say(visitor, app) == first
        assert say(other, neighbour) == theirs
        # A sibling host, even before the first visit to the page.
        tricks = [f"Domain=example.test; Path={path}" for path in ("/gradio_api", "/gradio_api/queue")]
        name = CookieJar(secure=False, port=front.port).name
        toss(visitor, front, "evil.example.test", value, (name,), *tricks)
        visitor.open(f"http://chat.example.test:{front.port}")
        second = say(visitor, app)
        assert second != owner_in(value)
        toss(visitor, front, "evil.example.test", value, (name,), *tricks, "Domain=example.test; Path=/")
        visitor.reload()
        assert say(visitor, app) == second
        page.context.close()
