"""The fixtures that tests share: a scripted model server, the real app as a process, and pages in real Chromium.

`support/app_process.py` has the app and `support/visitor.py` what a person does at the page. `tiers.py` decides which
tests `make` runs, and `reports.py` what happens to failed and skipped ones.
"""

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.app_process import ADDRESS, CONFIG, ROOT, App, apps, becomes
from tests.support.chromium import launch
from tests.support.forked_apps import Imported, imported
from tests.support.scripted_server import Config, Running, running
from tests.support.visitor import RECORDER, SHOTS, Look, Pages, Visit, Visitor, in_module, state_of

__all__ = ["ADDRESS", "CONFIG", "RECORDER", "ROOT", "SHOTS", "App", "Visit", "Visitor", "apps", "becomes", "in_module"]

pytest_plugins = ["tests.tiers", "tests.reports"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores SIGINT in background jobs, and processes that the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if any(
    os.environ.get(name) for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())
):
    # The apps and servers of the tests are on this machine, and its proxy would not find them.
    kept = os.environ.pop("no_proxy", "") or os.environ.get("NO_PROXY", "")
    os.environ["NO_PROXY"] = f"{kept},127.0.0.1,localhost,::1".lstrip(",")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests take pictures if they are asked to."""
    Visitor.pictures = config.getoption("pictures")


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """Free what a file's tests have made, and let the collections of later files pass over what stays of it."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model_server() -> Iterator[Running]:
    """The scripted model server. Its answers follow from what a test types on the page."""
    with running(Config(rate=200.0)) as server:
        yield server


@pytest.fixture(scope="session")
def imported_app() -> Iterator[Imported]:
    """The process from which apps are forked."""
    with imported() as process:
        yield process


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A scripted model server of the test file's own, with the file's `SERVER` as its settings, or without delays."""
    with running(getattr(request.module, "SERVER", Config(rate=0))) as server:
        yield server


@pytest.fixture(scope="module")
def start_app(
    tmp_path_factory: pytest.TempPathFactory, model_server: Running, imported_app: Imported
) -> Iterator[Callable[..., App]]:
    """Start an app for one test file. It ends with the file, because fifteen idle apps take a third of a core."""
    with apps(tmp_path_factory, model_server, imported_app) as start:
        yield start


@pytest.fixture(scope="module")
def own(request: pytest.FixtureRequest, start_app: Callable[..., App], server: Running) -> App:
    """An app of the test file's own, with the file's `CONFIG` and `server`."""
    return start_app(getattr(request.module, "CONFIG", CONFIG), VLLM_BASE_URL=server.base_url)


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory, model_server: Running, imported_app: Imported) -> Iterator[App]:
    """The app that most tests share. Each test is a different visitor."""
    with apps(tmp_path_factory, model_server, imported_app) as start:
        yield start()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests. Each visitor has a separate context."""
    with sync_playwright() as playwright:
        browser = launch(playwright.chromium)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_pages(browser: Browser) -> Pages:
    """Share pages between tests."""
    return Pages(browser)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure for `visit`, and add the state of each open page to its report."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    browser = cast(Browser | None, getattr(item, "funcargs", {}).get("browser"))
    if report.when == "call" and report.failed and browser is not None:
        pages = [page for context in browser.contexts for page in context.pages if page.url != "about:blank"]
        report.sections += [(f"page {page.url}", state_of(page)) for page in pages]
    return report


@pytest.fixture
def visit(shared_pages: Pages, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Open the page as a visitor: `visit(url)`. With `like=visitor` it is another page of the same visitor.

    With `elsewhere=visitor` it is a page of the same visitor on another device, where no tab tells it of changes.
    `fresh` gives the page a context of its own, for tests that add listeners or look at caches.
    """

    def open_page(
        url: str,
        *,
        like: Visitor | None = None,
        elsewhere: Visitor | None = None,
        phone: bool = False,
        dark: bool = False,
        ready: bool = True,
        locale: str = "en-US",
        fresh: bool = False,
    ) -> Visitor:
        if like is not None:
            visitor = Visitor(like.page.context.new_page())
        elif elsewhere is not None:
            visitor = Visitor(shared_pages.lend(Look(phone, dark, locale), fresh=True))
            visitor.page.context.add_cookies(cast(Any, elsewhere.page.context.cookies()))
        else:
            visitor = Visitor(shared_pages.lend(Look(phone, dark, locale), fresh=fresh))
            if not fresh:
                visitor.forget(url)
        visitor.open(url, ready=ready)
        return visitor

    yield open_page
    shared_pages.take_back(reuse=not request.node.stash.get(FAILED, False))
