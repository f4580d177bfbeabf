"""Starts Chromium for the tests and the bench: the system's, or Playwright's if there is none."""

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
    """Return the path of the system's Chromium, or None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@cache
def flags(chromium: BrowserType) -> list[str]:
    """Return `FLAGS` plus a flag that turns off the page in Chromium's address bar.

    That page loads with each window, even a hidden one, and costs 1.5 s of CPU time that the page under test needs.
    Chromium obeys only the last `--disable-features` flag, so this extends the one that Playwright sets. It answers
    only with `--enable-automation`.
    """
    with chromium.launch(executable_path=program(), args=[*FLAGS, "--enable-automation"]) as browser:  # or it is silent
        started = browser.new_browser_cdp_session().send("Browser.getBrowserCommandLine")["arguments"]
    off = [flag for flag in started if flag.startswith(OFF)]
    return [*FLAGS, f"{off[-1] if off else OFF},WebUIOmniboxPopup"]


def launch(chromium: BrowserType, *more: str) -> Browser:
    """Launch a Chromium of its own, with `more` flags. The caller closes it."""
    return chromium.launch(executable_path=program(), args=[*flags(chromium), *more])
