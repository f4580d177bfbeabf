"""The buttons of tables and code in answers: tables copied as Markdown and CSV, and code copied and saved as a file."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, expect

from tests.conftest import App, Visitor, becomes
from tests.peers.axe import violations
from tests.tiers import examples

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
ANSWER = "\\n".join(
    [
        "!text Two things:\\n",
        "| Name | What | Cost |",
        "|:--|---|--:|",
        "| **Tea**, `hot` | $x^2$ and a [link](https://example.org) | -1,50 |",
        '| a\\|b | say "hi" | =1+1 |\\n',
        "```python\\nprint(1)\\n```\\n",
        "```\\nplain\\n```\\n",
        "```exe\\nno program\\n```\\n",
        "```mermaid\\ngraph TD\\n```",
    ]
)
MARKDOWN = """| Name | What | Cost |
| :-- | --- | --: |
| **Tea**, `hot` | $x^2$ and a [link](https://example.org) | -1,50 |
| a\\|b | say "hi" | =1+1 |
"""
CSV = "\r\n".join(["Name,What,Cost", '"Tea, hot",x^2 and a link,"-1,50"', 'a|b,"say ""hi""",\'=1+1', ""])
COPIED = "navigator.clipboard.readText()"
LANGUAGES = "all => all.map((pre) => getComputedStyle(pre, '::before').content)"
TOOLS = "#chat .tools"
MIDDLE = """(text) => {
  const range = document.createRange(), whole = text.getBoundingClientRect();
  range.selectNodeContents(text);
  const words = range.getBoundingClientRect();
  return (words.left + words.width / 2 - whole.left) / whole.width;
}"""
"""Returns the place of the middle of a text in its line, between 0 and 1."""


def test_blocks_can_be_copied_and_saved(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.ask(ANSWER)
    code = visitor.bubbles.locator("pre")
    visitor.shot("blocks")
    for name, text in (("Copy the table as Markdown", MARKDOWN), ("Copy the table as CSV", CSV)):
        button = visitor.bubbles.get_by_role("button", name=name, exact=True)
        button.focus()
        page.keyboard.press("Enter")
        becomes(text, lambda: page.evaluate(COPIED))
    shown = [one.removesuffix(' / ""') for one in code.evaluate_all(LANGUAGES)]
    assert shown == ['"python"', '""', '"exe"', '"mermaid"']
    files = (
        ("code.py", "print(1)\n"),
        ("code.txt", "plain\n"),
        ("code.txt", "no program\n"),
        ("code.mmd", "graph TD\n"),
    )
    for block, (name, text) in zip(code.all(), files, strict=True):
        block.get_by_role("button", name="Copy the code").click()
        becomes(text.strip(), lambda: page.evaluate(COPIED).strip())
        with page.expect_download() as download:
            block.get_by_role("button", name=f"Save as {name}").click()
        assert download.value.suggested_filename == name
        assert Path(download.value.path()).read_text() == text
    assert not violations(page)


OTHER_SIGNS = "\uff1d\uff20\uff0b\uff0d\ufe66\ufe62\ufe63\ufe6b\u2212"
FORMULA_SIGNS = r"=+\-@" + OTHER_SIGNS
SEPARATORS = ",;\t"
CELLS = st.lists(
    st.one_of(
        st.sampled_from(("-5", "+3.2", "-1,50", "- 7 %", "-2e-3", "-€ 5", "a; -5")),
        st.text(st.sampled_from("=+-@" + OTHER_SIGNS + ";,\t\r\n\"' 5a(\u200b\xa0"), max_size=8),
        st.text(max_size=8),
    ).map(lambda text: text.replace("\0", "")),
    min_size=6,
    max_size=6,
)
FILL = """async (table, texts) => {
  [...table.rows].forEach((row, r) => [...row.cells].forEach((cell, c) => cell.textContent = texts[r][c]));
  const copied = new Promise((done) => { navigator.clipboard.writeText = done; });
  table.previousElementSibling.lastElementChild.click();
  return [await copied, [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))];
}"""


@pytest.mark.full
def test_spreadsheet_runs_no_cell(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    visitor.ask("!text | a | b | c |\\n|---|---|---|\\n| 1 | 2 | 3 |")
    table = visitor.bubbles.locator(".tools + table")
    expect(table).to_be_visible()

    @hypothesis_settings(max_examples=examples(150))
    @given(CELLS)
    @example(["-", "+", "-5", "-5", "-5", "-;"])
    def no_cell_runs(texts: list[str]) -> None:
        copied, shown = table.evaluate(FILL, [texts[:3], texts[3:]])
        for separator in SEPARATORS:
            for row in csv.reader(re.split(r"(?<=[\r\n])", copied), delimiter=separator):
                for cell in row:
                    is_number = re.fullmatch(r'\s*[+\-\u2212][\d.\s"€$%e+-]*', cell.split(",")[0]) is not None
                    is_formula = re.match(rf"[\s\u200b]*[{FORMULA_SIGNS}]", cell) is not None
                    assert is_number or not is_formula, (separator, cell, copied)
        rows = list(csv.reader(re.split(r"(?<=\r\n)", copied), lineterminator="\r\n"))
        assert [[cell.replace("'", "") for cell in row] for row in rows if row] == [
            [cell.replace("'", "") for cell in row] for row in shown
        ]

    no_cell_runs()


def test_arabic_runs_from_right_to_left(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!text مرحبا:\\n\\n1. أولا\\n\\n```python\\nprint(1)\\n```\\n\\nIn English.")
    answer = visitor.chat.locator(".turn").first.locator(".answer")
    item, code = answer.locator("li"), answer.locator("pre")
    for question in ("", "!text Hello."):
        if question:
            visitor.ask(question)
        expect(item).to_have_css("direction", "rtl")
        expect(code).to_have_css("direction", "ltr")
        assert answer.locator("p").first.evaluate(MIDDLE) > 0.9
        assert answer.locator("p").last.evaluate(MIDDLE) < 0.1
        visitor.shot("arabic")
    expect(visitor.bubbles.filter(has_text="Hello.").locator("p").first).to_have_css("direction", "ltr")
    visitor.box.fill("مرحبا بكم.\nIn English.")
    expect(visitor.box).to_have_css("unicode-bidi", "plaintext")
    expect(visitor.box).to_have_css("text-align", "start")
    visitor.shot("arabic-typed")


def test_buttons_are_there_from_the_first_row_and_move_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page, height = visitor.page, "document.querySelector('#chat .part:has(table)').getBoundingClientRect().height"
    visitor.say("!pace 40 !text | a | b |\\n|---|---|\\n| 1 | 2 |\\n\\nAnd " + " ".join(f"word{n}" for n in range(60)))
    expect(visitor.bubbles.filter(has_text="word20")).to_be_visible()
    before = page.evaluate(height)
    expect(page.locator(TOOLS)).to_have_count(1)
    expect(visitor.stop).to_be_visible()
    visitor.idle()
    assert page.evaluate(height) == before
    page.reload()
    expect(page.locator(TOOLS)).to_have_count(1)
    assert page.evaluate(height) == before


RECTANGLES = """(buttons) => buttons.map((button) => {
  const { left, right } = button.getBoundingClientRect();
  return [left, right];
})"""


def test_button_to_the_end_covers_no_button(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True)
    long = "\\n".join(f"print({number})" for number in range(60))
    visitor.ask(f"!text ```python\\n{long}\\n```\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n```python\\n{long}\\n```")
    to_end, copies = visitor.page.locator(".to-end"), visitor.chat.locator("[data-action=code]")
    expect(visitor.chat.locator(".answer .tools")).to_have_count(3)
    visitor.chat.hover()
    visitor.page.mouse.wheel(0, -80)
    expect(to_end).to_be_visible()
    # The button of the code is as high as the one to the end.
    apart = "(copy) => copy.getBoundingClientRect().top - document.querySelector('.to-end').getBoundingClientRect().top"
    visitor.page.mouse.wheel(0, copies.last.evaluate(apart))
    becomes(True, lambda: abs(copies.last.evaluate(apart)) < 8)
    visitor.shot("to-end")
    [[left, right]] = to_end.evaluate_all(RECTANGLES)
    others = visitor.chat.locator(":is(.tools, footer) button:visible").evaluate_all(RECTANGLES)
    assert len(others) > 8
    assert [one for one in others if one[1] > left and one[0] < right] == []


def test_buttons_are_large_without_a_mouse(app: App, browser: Browser) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as context:
        visitor = Visitor(context.new_page())
        visitor.open(app.url)
        visitor.ask(ANSWER)
        for button in visitor.page.locator(f"{TOOLS} button").all():
            expect(button).to_be_visible()
            box = button.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 44
