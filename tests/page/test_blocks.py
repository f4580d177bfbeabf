"""A table that is copied as CSV."""

import csv
import re

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from tests.conftest import App, Visit
from tests.tiers import examples

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
