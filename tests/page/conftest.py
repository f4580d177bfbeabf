"""A page without the app, for tests of the page's modules alone."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own."""
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"], reduced_motion="reduce") as context:
        yield context.new_page()
