"""Chromium as the tests and the bench start it: the system's where there is one, else Playwright's."""

import shutil
from functools import cache

from playwright.sync_api import Browser, BrowserType

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--use-fake-device-for-media-stream",
]
OFF = "--disable-features="


def program() -> str | None:
    """Where the system's Chromium is."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@cache
def flags(chromium: BrowserType) -> list[str]:
    """`FLAGS`, without the page that Chromium's address bar is made of.

    It loads with each window, seen or not, and takes 1.5 s of a core that the page under test would have had. Of
    several lists of what is off the last one holds, so Playwright's own is asked for and made longer.
    """
    with chromium.launch(executable_path=program(), args=[*FLAGS, "--enable-automation"]) as browser:  # or it is silent
        started = browser.new_browser_cdp_session().send("Browser.getBrowserCommandLine")["arguments"]
    off = [flag for flag in started if flag.startswith(OFF)]
    return [*FLAGS, f"{off[-1] if off else OFF},WebUIOmniboxPopup"]


def launch(chromium: BrowserType, *more: str) -> Browser:
    """A Chromium of one's own, with `more` flags; who launches it closes it."""
    return chromium.launch(executable_path=program(), args=[*flags(chromium), *more])
