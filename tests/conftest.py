"""Fixtures for browser tests: a scripted model server, the real app as a process, and real Chromium."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, ViewportSize, expect, sync_playwright

from tests.support.chromium import launch
from tests.support.forked_apps import Forked, Imported, imported
from tests.support.live_folders import files_with
from tests.support.ports import free_port
from tests.support.scripted_server import Config, Running, running

pytest_plugins = ["tests.tiers", "tests.reruns"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores SIGINT in background jobs, and processes that the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

expect.set_options(timeout=30_000)  # the default of 5 s is too short for two cores with a page, an app and a browser

ROOT = Path(__file__).resolve().parent.parent
SHOTS = ROOT / "tests" / "shots"
CONFIG = """
[agent]
run_seconds = 60
tools = ["agent.tools.builtin:calculate", "tests.support.slow_tools:nap", "tests.support.slow_tools:block"]
"""


ADDRESS = re.compile(r"^The page is at http://\S+:(\d+)$", re.MULTILINE)
"""The line in which the app says the address that it has taken."""


def pytest_configure(config: pytest.Config) -> None:
    """Let tests take pictures if they are asked to."""
    Visitor.pictures = config.getoption("pictures")


def becomes(wanted: object, read: Callable[[], object], seconds: float = 30.0) -> None:
    """Read until the value is `wanted`, for up to `seconds`, because the page updates a moment later."""
    end = time.monotonic() + seconds
    while (found := read()) != wanted:
        assert time.monotonic() < end, f"{found!r} is not {wanted!r}"
        time.sleep(0.05)


@dataclass
class App:
    """The app as a process on loopback. `stop` ends it, and `start` starts it again with the same data and port."""

    folder: Path
    env: dict[str, str]
    port: int
    """0 until the first start, if the app chooses."""
    prefix: tuple[str, ...] = ()
    """A command that runs the app, for example with limits."""
    imported: Imported | None = None
    """A process to fork from."""
    process: subprocess.Popen[bytes] | Forked | None = field(default=None)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All output of the app so far."""
        return (self.folder / "app.log").read_text(errors="replace")

    def files_with(self, text: str) -> list[Path]:
        """Return the app's files that contain the text."""
        return files_with(self.folder, text.encode())

    def start(self, seconds: float = 240.0) -> "App":
        """Start the app and return when it answers. Raises `RuntimeError` when it has ended, or after `seconds`."""
        path = self.folder / "app.log"
        path.touch()
        if self.imported and not self.prefix and self.imported.can_start(self.env):
            self.process = self.imported.start(self.env, (os.devnull, path, path))
        else:
            with path.open("ab") as log:
                command = [*self.prefix, sys.executable, "app.py"]
                self.process = subprocess.Popen(
                    command, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            if not self.port and (said := ADDRESS.search(self.log)):
                self.env["GRADIO_SERVER_PORT"], self.port = said[1], int(said[1])
            if self.port:
                with suppress(OSError), urlopen(self.url + "/healthz", timeout=5):
                    return self
            time.sleep(0.05)
        raise RuntimeError("the app does not answer:\n" + self.log[-3000:])

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process = None


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


@contextmanager
def apps(
    folders: pytest.TempPathFactory, model_server: Running, imported_app: Imported
) -> Generator[Callable[..., App]]:
    """Start apps with a data folder each and the scripted server: `start(config, NAME=value)` adds variables."""
    started: list[App] = []

    def start(config: str = CONFIG, *, prefix: tuple[str, ...] = (), **env: str) -> App:
        folder = folders.mktemp("app")
        (folder / "app.toml").write_text(config)
        # Not what a test has left in the environment of this process, because no app could be forked then.
        inherited = {name: value for name, value in imported_app.env.items() if name not in ("MODEL", "LOCAL_MODEL")}
        given = {
            "VLLM_BASE_URL": model_server.base_url,
            # On a Space, the app says the Space's address instead of its own.
            "GRADIO_SERVER_PORT": str(free_port()) if "SPACE_HOST" in env else "0",
            "SWITCHBOARD_DATA": str(folder / "data"),
            "SWITCHBOARD_CONFIG": str(folder / "app.toml"),
            "GRADIO_TEMP_DIR": str(folder / "tmp"),
            "PYTHONPATH": str(ROOT),
            **env,
        }
        app = App(folder, {**inherited, **given}, int(given["GRADIO_SERVER_PORT"]), prefix, imported_app)
        started.append(app)
        return app.start()

    try:
        yield start
    finally:
        for app in started:
            with suppress(subprocess.TimeoutExpired):
                app.stop()


@pytest.fixture(scope="module")
def start_app(
    tmp_path_factory: pytest.TempPathFactory, model_server: Running, imported_app: Imported
) -> Iterator[Callable[..., App]]:
    """Start an app for one test file. It ends with the file, because fifteen idle apps take a third of a core."""
    with apps(tmp_path_factory, model_server, imported_app) as start:
        yield start


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


@dataclass(frozen=True)
class Look:
    """The properties of a visitor's browser."""

    phone: bool = False
    dark: bool = False
    locale: str = "en-US"


MOST_FREE = 3
"""The most pages of one look that are kept for the next tests."""


class Pages:
    """Pages for each look, reused by later tests, because a new page would load Gradio's scripts again.

    Between two tests, cookies, storage, routes, emulated media and additional pages are removed. Listeners and init
    scripts stay, so tests with these ask for a fresh page.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[Look, list[Page]] = {}
        self._lent: list[tuple[Look, Page]] = []
        self._own: list[BrowserContext] = []

    def lend(self, look: Look, *, fresh: bool = False) -> Page:
        """Return an empty page in a context without cookies. The same test never gets a page twice."""
        if not fresh and (free := self._free.get(look)):
            self._lent.append((look, free.pop()))
            return self._lent[-1][1]
        context = self._browser.new_context(
            viewport=_viewport(look),
            color_scheme="dark" if look.dark else "light",
            locale=look.locale,
            permissions=["clipboard-read", "clipboard-write"],
            reduced_motion="reduce",
        )
        context.add_init_script(path=RECORDER)
        page = context.new_page()
        if fresh:
            self._own.append(context)
        else:
            self._lent.append((look, page))
        return page

    def take_back(self, *, reuse: bool) -> None:
        """Clean up after a test. Without `reuse`, for example after a failure, its pages are closed."""
        for context in self._own:
            context.close()
        for look, page in self._lent:
            free = self._free.setdefault(look, [])
            if not reuse or len(free) == MOST_FREE or page.is_closed():
                page.context.close()
                continue
            for other in page.context.pages:
                if other is not page:
                    other.close()
            page.unroute_all(behavior="ignoreErrors")
            page.mouse.move(0, 0)
            page.set_viewport_size(_viewport(look))
            # With "screen", the printed page would be that of the screen, too.
            page.emulate_media(media="null", color_scheme="dark" if look.dark else "light")
            page.goto("about:blank")
            page.context.clear_cookies()
            free.append(page)
        self._own, self._lent = [], []


def _viewport(look: Look) -> ViewportSize:
    return {"width": 390, "height": 844} if look.phone else {"width": 1100, "height": 900}


@pytest.fixture(scope="session")
def shared_pages(browser: Browser) -> Pages:
    """Share pages between tests."""
    return Pages(browser)


FAILED = pytest.StashKey[bool]()
RECORDER = ROOT / "tests/support/page_recorder.js"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure for `visit`, and add the state of each open page to its report."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    browser = cast(Browser | None, getattr(item, "funcargs", {}).get("browser"))
    if report.when == "call" and report.failed and browser is not None:
        pages = [page for context in browser.contexts for page in context.pages if page.url != "about:blank"]
        report.sections += [(f"page {page.url}", _state_of(page)) for page in pages]
    return report


def _state_of(page: Page) -> str:
    """Return what the page shows, and what went wrong in it."""
    try:
        snapshot = page.locator("body").aria_snapshot(timeout=3000)
        wrong = [message.text for message in page.console_messages() if message.type in {"error", "warning"}]
        recorded: list[str] = page.evaluate("window.recorded ?? []")
        return "\n".join([snapshot, *recorded, *wrong, *map(str, page.page_errors())])
    except Error as error:
        return f"cannot be read: {error}"


@pytest.fixture
def visit(shared_pages: Pages, request: pytest.FixtureRequest) -> Iterator[Callable[..., "Visitor"]]:
    """Open the page as a visitor: `visit(url)`. With `like=visitor` it is another page of the same visitor.

    With `elsewhere=visitor` it is a page of the same visitor on another device, where no tab tells it of changes.
    `fresh` gives the page a context of its own, for tests that add listeners or look at caches.
    """

    def open_page(
        url: str,
        *,
        like: "Visitor | None" = None,
        elsewhere: "Visitor | None" = None,
        phone: bool = False,
        dark: bool = False,
        ready: bool = True,
        locale: str = "en-US",
        fresh: bool = False,
    ) -> "Visitor":
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


def in_module(name: str, code: str) -> str:
    """Return a script that runs `code` with a module of the page, as `module`."""
    return f"import(document.querySelector('[href$=\"/modules/{name}.js\"]').href).then((module) => {code})"


LAST_MESSAGE = in_module(
    "live", "module.live.lastMessage()"
)  # its id, because an earlier message can have the same text


class Visitor:
    """A person at the page. Finds elements the way people do."""

    pictures: ClassVar[bool] = False
    """True if `shot` saves pictures, as set by the option `--pictures`."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.chat = page.locator("#chat")
        self.box = page.locator("#composer textarea")
        self.log = self.chat.locator(".transcript")  # what is scrolled
        self.bubbles = self.chat.locator(".answer .bubble")
        self.mine = self.chat.locator(".mine > .bubble")
        self.caption = self.chat.locator(".turn > footer .caption").last
        self.stop = page.locator("#composer").get_by_role("button", name="Stop")
        self.submit = page.locator("#composer .submit-button")
        self.examples = page.locator("#examples .example")
        self.hint = page.locator("#hint")  # above the composer
        self.toast = page.get_by_test_id("toast-body")

    def open(self, url: str, *, ready: bool = True) -> None:
        """Load the page and wait until the composer is enabled and, if `ready`, a model can be chosen."""
        try:
            self.page.goto(url)
        except Error as error:
            # The page reloads itself when its server is back, which can interrupt this navigation.
            if self.page.url == "about:blank" or "ERR_ABORTED" not in error.message:
                raise
            self.page.goto(url)
        self._wait_until_loaded(ready=ready)

    def reload(self) -> None:
        """Load the page again and wait until a message can be sent."""
        self.page.reload()
        self._wait_until_loaded(ready=True)

    def _wait_until_loaded(self, *, ready: bool) -> None:
        expect(self.box).to_be_enabled()
        if ready:
            expect(self.page.locator("#model-button")).not_to_have_text("")
            expect(self.page.locator("html[data-chat]")).to_be_attached()  # the composer does not move from here on

    def forget(self, url: str) -> None:
        """Empty the storage of the page at `url`, as in a new browser."""
        self.page.goto(url.rstrip("/") + "/healthz")
        self.page.evaluate("localStorage.clear(), sessionStorage.clear()")

    def say(self, text: str) -> None:
        """Type a message and press Enter, or on a touch device, where Enter begins a new line, the button."""
        self.box.fill(text)
        if self.page.evaluate("matchMedia('(pointer: coarse)').matches"):
            self.submit.click()
        else:
            self.box.press("Enter")

    def ask(self, text: str) -> None:
        """Send a message and wait until its answer is shown and the next message can be sent."""
        expect(self.page.locator("[data-chat=empty], [data-turn]").first).to_be_attached()  # what is stored is shown
        before = self.page.evaluate(LAST_MESSAGE)
        self.say(text)
        becomes(True, lambda: self.page.evaluate(LAST_MESSAGE) not in (before, "", None))
        turn = self.chat.locator(f'[data-turn="{self.page.evaluate(LAST_MESSAGE)}"]')
        expect(turn.locator(".mine").first).to_be_visible()
        expect(turn.locator("footer .caption, [data-kind=error], [data-kind=question]").first).to_be_visible()
        self.idle()

    def choose(self, model: str) -> None:
        """Type a model's name into the search field of the list and press Enter."""
        search = self.open_models()
        search.fill(model)
        search.press("Enter")
        expect(search).to_be_hidden()

    def open_models(self) -> Locator:
        """Open the list of models. Return its search field."""
        self.page.locator("#model-button").click()
        search = self.page.locator("#models").get_by_role("combobox")
        expect(search).to_be_visible()
        return search

    def open_settings(self) -> None:
        """Open the side bar."""
        self.page.get_by_role("button", name="Open or close the settings").click()
        expect(self.page.get_by_label("System prompt")).to_be_in_viewport()

    def close_settings(self) -> None:
        """Close the side bar."""
        self.page.get_by_role("button", name="Open or close the settings").click()
        expect(self.page.get_by_label("System prompt")).not_to_be_in_viewport()

    def allow_tools(self) -> None:
        """Let the model use tools."""
        self.open_settings()
        self.page.get_by_role("checkbox", name="Tools").check()
        self.close_settings()

    def show_earlier(self) -> None:
        """Press the button above the messages, unless the page has done so.

        The page does it when the reader comes near the button. Playwright's own click scrolls first, so the button can
        be gone before the click.
        """
        self.page.evaluate(in_module("live", "module.live.earlier()"))

    def labels(self) -> list[str | None]:
        """Return the texts of all bubbles, in order."""
        expect(self.chat.locator("footer .caption, [data-kind=error]")).not_to_have_count(0)
        return [element.text_content() for element in self.chat.locator(".bubble").all()]

    def event_begins(self) -> Any:
        """Return a context that ends when the server begins to answer an event of the page."""
        return self.page.expect_response("**/queue/join*")

    def idle(self) -> None:
        """Wait until no answer is being written."""
        expect(self.submit).to_be_visible()
        expect(self.page.locator(":root[data-running]")).to_have_count(0)

    def wait_for_requests(self, held: Sized, count: int = 1) -> None:
        """Wait until a handler of a route has kept `count` requests in `held`.

        Playwright calls handlers only during another call, and the page often shows a thing before it asks for it.
        """
        becomes(True, lambda: self.page.evaluate("true") and len(held) >= count)

    def shot(self, name: str) -> None:
        """Save a screenshot in `SHOTS`, if somebody wants to see it."""
        if self.pictures:
            SHOTS.mkdir(exist_ok=True)
            self.page.screenshot(path=SHOTS / f"{name}.png")
