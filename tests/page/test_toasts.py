"""Toasts: only the message and a button that closes it, and nothing that the page says already."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor, becomes
from tests.support import media_files

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
UNKNOWN = "No model named 'no-such-model' is known here."
NOT_SENT = "Your message was not sent. The reason is above the box."
CONTROLS = "[role=button], button, [tabindex]"
COVERED = """() => {
  const toast = document.querySelector(".toast-body").getBoundingClientRect();
  const free = document.querySelectorAll("#bar, .settings .toggle, .settings.open, #dock");
  return [...free].filter((one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    return left < toast.right && toast.left < right && top < toast.bottom && toast.top < bottom;
  }).map(({ id, className }) => id || className);
}"""
"""The parts of the header, the open settings and the composer that a toast covers."""


@pytest.mark.parametrize(
    ("locale", "close", "lost"),
    [
        ("en-US", "Close", "The connection to the server is lost. The page loads again as soon as it is back."),
        (
            "de-DE",
            "Schließen",
            "Die Verbindung zum Server ist unterbrochen. Die Seite lädt neu, sobald sie wieder besteht.",
        ),
    ],
    ids=["en", "de"],
)
def test_toast_is_a_message_with_one_button(app: App, visit: Visit, locale: str, close: str, lost: str) -> None:
    visitor = visit(app.url, locale=locale)
    turned = visitor.page.locator("#extract-text input")
    visitor.page.route("**/gradio_api/run/*", lambda route: route.fulfill(status=500, json={"error": None}))
    turned.evaluate("(box) => box.click()")  # an event of Gradio, while the settings are closed
    expect(visitor.hint).not_to_be_empty()
    visitor.page.unroute("**/gradio_api/run/*")
    visitor.page.route(re.compile("/gradio_api/(run/|app_id)"), lambda route: route.abort())
    turned.evaluate("(box) => box.click()")  # an event of Gradio, while the settings are closed
    button = visitor.toast.get_by_role("button", name=close, exact=True)
    expect(button).to_be_visible()
    expect(visitor.toast.locator(CONTROLS)).to_have_count(1)
    expect(visitor.toast.locator(".toast-title-row")).to_be_hidden()
    text = visitor.toast.get_by_text(lost)
    text.click()
    visitor.toast.locator(".toast-icon").click(force=True)
    expect(text).to_be_visible()
    visitor.shot(f"toast-{locale}")
    assert visitor.page.evaluate(COVERED) == []
    if locale == "en-US":
        visitor.open_settings()
        becomes([], lambda: visitor.page.evaluate(COVERED))
        visitor.shot("toast-beside-settings")
        visitor.close_settings()
        visitor.page.set_viewport_size({"width": 390, "height": 844})
        becomes([], lambda: visitor.page.evaluate(COVERED))
    expect(visitor.toast.get_by_text(lost)).to_be_visible()
    expect(visitor.toast.get_by_text("Attempting")).to_be_hidden()
    button.click()
    expect(visitor.toast).to_have_count(0)


@pytest.mark.parametrize(
    ("locale", "sentence"),
    [
        ("en-US", "Nothing was attached. A file can have at most 20 MB, and these are larger: big <1>.txt"),
        ("de-DE", "Nichts wurde angehängt. Eine Datei darf höchstens 20 MB haben, und diese sind größer: big <1>.txt"),
    ],
    ids=["en", "de"],
)
def test_page_says_that_a_file_is_too_large(app: App, visit: Visit, tmp_path: Path, locale: str, sentence: str) -> None:
    visitor = visit(app.url, locale=locale)
    (tmp_path / "big <1>.txt").write_bytes(b"a" * 21_000_000)
    visitor.page.locator("#composer input[type=file]").set_input_files(tmp_path / "big <1>.txt")
    problem = visitor.page.locator("#composer .problem")
    expect(problem).to_have_text(sentence)
    visitor.shot(f"large-{locale}")
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": "small.txt", "mimeType": "text/plain", "buffer": b"words"}]
    )
    expect(problem).to_be_empty()


def test_refusals_leave_with_their_causes(app: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(app.url)
    (tmp_path / "one.png").write_bytes(media_files.picture("PNG"))
    notes = visitor.page.locator("#attached li.refused")
    visitor.page.locator("#composer input[type=file]").set_input_files([tmp_path / "one.png"])
    expect(notes).to_have_count(1)
    visitor.say("!text Hello.")
    expect(visitor.hint).to_have_text(NOT_SENT)
    visitor.page.get_by_role("button", name="Remove file: one.png").click()
    expect(notes).to_have_count(0)
    expect(visitor.hint).to_have_text("", timeout=3_000)  # sooner than by itself
    visitor.choose("no-such-model")
    expect(visitor.hint).to_contain_text(UNKNOWN)
    visitor.choose("openai:gpt-6-luna")
    expect(visitor.hint).to_have_text("", timeout=3_000)
