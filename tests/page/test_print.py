"""The printed page: a document with the whole chat, in light colours, without the controls of the page."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect
from pypdfium2 import PdfDocument
from tests.support.seeded_turns import seed

from tests.conftest import App, Visitor, becomes

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
CONFIG = """
[agent]
tools = ["agent.tools.builtin:calculate", "tests.support.making_tools:make"]
"""
WORDS = " ".join(f"word{number}" for number in range(60))
CELLS = " | ".join(f"column_{number} with words" for number in range(9))
ANSWER = "\\n".join(
    [
        "!reasoning Hm. !text # Head\\n",
        f"{WORDS}. See [the site](https://example.org/a?b=c), and https://example.com/plain too.\\n",
        f"| {CELLS} |\\n|{'---|' * 9}\\n| {CELLS} |\\n",
        f"```python\\ndef function({', '.join(f'argument_{n}' for n in range(20))}): pass\\n```",
    ]
)
A4 = {"width": 658, "height": 972}
"""A sheet without its margins, in CSS pixels."""
MARGIN = 51.0
"""The margin at each side of a sheet, in points (18 mm)."""
HIDDEN = (
    "#dock",
    "#about",
    "#chats",
    "#settings",
    "#help",
    "#new",
    ".turn footer button",
    ".versions",
    ".tools",
    ".to-end",
    ".earlier",
)
GROUNDS = """() => [...new Set([...document.querySelectorAll(":has(#chat)")]
  .map((one) => getComputedStyle(one).backgroundColor))]"""
AFTER = "one => getComputedStyle(one, '::after').content"
PAGES = re.compile(rb"/Type /Page\b")


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App]) -> App:
    return start_app(CONFIG)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_printed_chat_is_a_document(own: App, visit: Visit, dark: bool) -> None:
    visitor = visit(own.url, dark=dark, fresh=True)
    page, chat = visitor.page, visitor.chat
    visitor.allow_tools()
    visitor.ask(ANSWER)
    visitor.ask("!tool make !text Made.")
    page.locator("#chats li a").first.wait_for()
    page.emulate_media(media="print", color_scheme="dark" if dark else "light")
    page.set_viewport_size(A4)  # pyright: ignore[reportArgumentType]
    for hidden in HIDDEN:
        expect(page.locator(hidden).locator("visible=true")).to_have_count(0)
    expect(page.get_by_role("heading", level=1).first).to_contain_text("!reasoning")
    for around in (chat, visitor.log):
        assert around.evaluate("one => getComputedStyle(one).overflow") == "visible"
    assert chat.evaluate("chat => chat.scrollHeight - chat.clientHeight") <= 1, "all of it is on the sheets"
    assert page.evaluate("document.documentElement.scrollHeight") > A4["height"]
    expect(chat.locator(".answer p").filter(has_text="word0").first).to_have_css("color", "rgb(0, 0, 0)")
    assert page.evaluate(GROUNDS) == ["rgba(0, 0, 0, 0)"], "the paper is seen"
    expect(visitor.mine.first).to_have_css("border-left-style", "solid")
    named, plain = (chat.locator(f".answer a[href*='{url}']") for url in ("a?b=c", "plain"))
    assert [named.evaluate(AFTER), plain.evaluate(AFTER)] == ['" (https://example.org/a?b=c)"', "none"]
    expect(chat.get_by_text("Hm.", exact=True)).to_be_hidden()
    visitor.shot(f"print-{'dark' if dark else 'light'}")
    assert _in_the_margin(page.pdf(prefer_css_page_size=True)) == []


def _in_the_margin(pdf: bytes) -> list[tuple[float, ...]]:
    """Return the places (left, bottom, right, top, in points) of what is printed beside the text area of its sheet."""
    with PdfDocument(pdf) as document:
        return [
            place
            for sheet in document
            for place in (drawn.get_bounds() for drawn in sheet.get_objects())
            if place[0] < MARGIN - 1 or place[2] > sheet.get_width() - MARGIN + 1
        ]


def test_all_sheets_of_a_chat_are_printed(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.ask("!tokens 3000 @5000")
    expect(visitor.bubbles.last).to_contain_text("word2999")
    assert len(PAGES.findall(visitor.page.pdf(format="A4"))) > 4


def test_print_says_that_older_messages_are_missing(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.ask("first of many to print")
    seed(own.folder, "first of many to print", 20)
    visitor.page.reload()
    expect(visitor.mine.last).to_have_text("question 20")
    note = visitor.page.locator(".earlier")
    assert note.evaluate(AFTER) == "none"
    visitor.page.emulate_media(media="print")
    assert "Earlier messages are not printed here." in note.evaluate(AFTER)
    expect(note).to_be_visible()
    visitor.page.emulate_media(media="screen")
    visitor.show_earlier()
    becomes(20, lambda: visitor.mine.count())
    visitor.page.emulate_media(media="print")
    expect(note).to_be_hidden()
    visitor.page.emulate_media(media="screen")
