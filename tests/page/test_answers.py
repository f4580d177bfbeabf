"""The look of answers: tables, task lists, formulas, code and refused pictures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor, becomes
from tests.support.media_files import PNG
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.browser

SERVER = Config(models=("Unheard-Of",), rate=0)
CONFIG = """
[agent]
tools = ["agent.tools.builtin:calculate", "agent.tools:ask_user", "tests.support.making_tools:make"]
"""
LONG = ", ".join(f"argument_{number}" for number in range(12))
ANSWER = "\\n".join(
    [
        "!text Tasks:\\n",
        "- [x] done **well**",
        "- [ ] to do\\n",
        r"Inline $E = mc^2$ and $\frac{a}{b}$; it costs $5 and $10; `$x$`.\n",
        "| Algorithm | What it does and when it is of use | Best case | Cost |",
        "|:--|:--:|---|--:|",
        "| Quicksort | Divides and conquers, in place | $O(n)$ | 1,234.50 |",
        "| Mergesort | Stable, needs as much memory again | $O(n)$ | 7.00 |\\n",
        f"```python\\ndef function({LONG}): pass\\n```",
    ]
)
SCROLLS = "(table) => table.closest('.part').scrollWidth > table.closest('.part').clientWidth"
LINES = """cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
}"""


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App]) -> App:
    return start_app(CONFIG)


def ticks(visitor: Visitor) -> list[bool]:
    """Return for each task box if it shows a tick."""
    style = "boxes => boxes.map(box => getComputedStyle(box, '::before').content !== 'none')"
    return visitor.bubbles.locator("input[type=checkbox]").evaluate_all(style)


def test_answer_layout(own: App, visit: Callable[..., Visitor]) -> None:
    visitor = visit(own.url, phone=True)
    visitor.ask(ANSWER)

    def look() -> None:
        answer = visitor.bubbles.filter(has=visitor.page.locator("table"))
        table = answer.locator("table")
        for name in ("Algorithm", "Quicksort", "Mergesort", "1,234.50"):
            assert table.get_by_text(name, exact=True).evaluate(LINES) == 1, "words do not break"
        assert table.evaluate(SCROLLS), "the table scrolls"
        assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for number, place in enumerate(("left", "center", "start", "right")):
            expect(table.locator("th").nth(number)).to_have_css("text-align", place)
            expect(table.locator("td").nth(number)).to_have_css("text-align", place)
        expect(table.locator("td").first).to_have_css("border-left-width", "0px")
        assert ticks(visitor) == [True, False]
        expect(answer.locator("math")).to_have_count(4)
        expect(answer).to_contain_text("it costs $5 and $10;")
        expect(answer.locator("p code")).to_have_text("$x$")

    look()
    visitor.page.reload()
    expect(visitor.caption).to_be_visible()
    expect(visitor.bubbles.locator("math")).to_have_count(4)
    look()
    visitor.chat.get_by_role("button", name="Copy message").last.click()
    copied = "navigator.clipboard.readText()"
    becomes(True, lambda: r"Inline $E = mc^2$ and $\frac{a}{b}$; it costs $5" in visitor.page.evaluate(copied))


def test_refused_pictures_are_named_in_the_caption(
    start_app: Callable[..., App], server: Running, visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    picture = tmp_path / "red.png"
    picture.write_bytes(PNG)
    visitor = visit(start_app(VLLM_BASE_URL=server.base_url).url)
    visitor.page.locator("#composer input[type=file]").set_input_files(picture)
    visitor.ask("!blind !text I see nothing.")
    expect(visitor.chat).to_contain_text("I see nothing.")
    expect(visitor.caption).to_contain_text("takes no pictures for Unheard-Of, so they are left out")
    visitor.page.reload()
    expect(visitor.caption).to_contain_text("takes no pictures for Unheard-Of, so they are left out")
