"""A person at the page, and the pages of one Chromium that tests share."""

import re
from collections.abc import Callable, Sized
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path
from typing import Any, ClassVar, cast

from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, ViewportSize, expect

from tests.support.app_process import GUARD_S, ROOT, becomes

expect.set_options(timeout=1000 * GUARD_S)

SHOTS = ROOT / "tests" / "shots"
RECORDER = Path(__file__).with_name("page_recorder.js")


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


def state_of(page: Page) -> str:
    """Return what the page shows, and what went wrong in it."""
    try:
        snapshot = page.locator("body").aria_snapshot(timeout=3000)
        wrong = [message.text for message in page.console_messages() if message.type in {"error", "warning"}]
        recorded: list[str] = page.evaluate("window.recorded ?? []")
        return "\n".join([snapshot, *recorded, *wrong, *map(str, page.page_errors())])
    except Error as error:
        return f"cannot be read: {error}"


def in_module(name: str, code: str) -> str:
    """Return a script that runs `code` with a module of the page, as `module`."""
    return f"import(document.querySelector('[href$=\"/modules/{name}.js\"]').href).then((module) => {code})"


def kind_of(name: str) -> str:
    return guess_type(name)[0] or "application/octet-stream"


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

    def attach(self, *files: Path | tuple[str, bytes]) -> None:
        """Choose files for the next message: paths, or names with their bytes."""
        given = [
            one if isinstance(one, Path) else {"name": one[0], "mimeType": kind_of(one[0]), "buffer": one[1]}
            for one in files
        ]
        self.page.locator("#composer input[type=file]").set_input_files(cast(Any, given))

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
        return self.page.expect_response("**/gradio_api/run/*")

    def setting_is_told(self) -> Any:
        """Return a context that ends when the server begins to answer what was set."""
        return self.page.expect_response(re.compile(r"/settings(\?|$)"))

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


Visit = Callable[..., Visitor]
"""Opens the page as a visitor: the type of the fixture `visit`."""
