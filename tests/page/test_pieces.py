"""A growing answer is cut into pieces only between top-level blocks, and never at another place later."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from playwright.sync_api import Browser

from agent.web.ui.page_script import read

pytestmark = pytest.mark.browser

PIECES = f"""(texts) => {{
  const {{ end }} = ({read("pieces.js")})();
  return texts.map((text) => {{
    const all = [];
    for (let length; (length = end(text)); text = text.slice(length)) all.push(text.slice(0, length));
    return [...all, text];
  }});
}}"""
WORDS = "a few words of an answer that goes on for a while, " * 3
CODE = "\n\n".join(f"{name} = {name}[0] * 2\n# text\n- no item\n> no quotation" for name in "abcdef")


def indented(text: str, by: str) -> str:
    return "\n".join(by + line if line else "" for line in text.split("\n"))


BLOCKS = [
    WORDS,
    f"## {WORDS[:30]}",
    "A title\n=======",
    "---",
    f"```python\n{CODE}\n```",
    f"~~~~\n```\n{CODE}\n```\n~~~\n~~~~",
    f"```md\n{CODE}\n   ```",
    f"- {WORDS}\n- {WORDS}",
    f"- {WORDS}\n\n- {WORDS}",
    f"1. {WORDS}\n\n   {WORDS}\n\n2. two",
    f"1. first\n\n   ```sh\n{indented(CODE, '   ')}\n   ```\n\n2. two",
    f"- ```sh\n{indented(CODE, '  ')}\n  ```\n- two",
    f"- never closed\n\n  ```sh\n{indented(CODE, '  ')}",
    f"* a\n  * b\n\n    {WORDS}\n\n* c",
    f"> {WORDS}\n>\n> more",
    f"> ```\n> {WORDS}\n>\n> ```",
    "| a | b |\n|---|---|\n" + "| one | two |\n" * 8,
    f"    {WORDS}\n\n    {WORDS}",
    f"<details>\n<summary>More</summary>\n\n{WORDS}\n\n- one\n\n</details>",
    f"<div>\n\n{WORDS}\n\n</div>",
    f"<!-- {WORDS}\n\n{WORDS} -->",
    f"Use `<div>` and `List<String>`, {WORDS}",
    f"$$\n{WORDS}\n\nx^2\n$$",
    f"\\[\n{WORDS}\n\nx^2\n\\]",
]
TEXTS = st.lists(st.sampled_from(BLOCKS), min_size=6, max_size=20).map("\n\n".join)
EXAMPLES = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def cut(browser: Browser) -> Iterator[Callable[[list[str]], list[list[str]]]]:
    """Return the page's function that cuts texts."""
    page = browser.new_page()
    yield lambda texts: page.evaluate(PIECES, texts)
    page.close()


@EXAMPLES
@given(TEXTS)
def test_cuts_are_between_blocks(cut: Callable[[list[str]], list[list[str]]], text: str) -> None:
    markdown = MarkdownIt("commonmark").enable("table")
    (pieces,) = cut([text])
    assert "".join(pieces) == text
    assert all(len(piece) >= 700 for piece in pieces[:-1])
    assert "".join(markdown.render(piece) for piece in pieces) == markdown.render(text)
    for piece in pieces:
        assert piece.count("$$") % 2 == 0
        assert piece.count("\\[") == piece.count("\\]")
        for tag in ("details", "div"):
            assert piece.count(f"\n<{tag}>") + piece.startswith(f"<{tag}>") == piece.count(f"</{tag}>")
        assert piece.count("<!--") == piece.count("-->")


@EXAMPLES
@given(TEXTS, st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_more_text_moves_no_cut(cut: Callable[[list[str]], list[list[str]]], text: str, shares: list[float]) -> None:
    parts = [text[: int(share * len(text))] for share in shares]
    whole, *others = cut([text, *parts])
    for pieces in others:
        assert pieces[:-1] == whole[: len(pieces) - 1]


def test_long_answer_is_cut_into_small_pieces(cut: Callable[[list[str]], list[list[str]]]) -> None:
    odd = "A price of $$ 5, a generic List<String>, and \\[ alone.\n\n"
    (pieces, odd_pieces) = cut(["\n\n".join([WORDS, f"- {WORDS}", "```\ncode\n```"] * 30), odd + f"{WORDS}\n\n" * 60])
    assert max(map(len, pieces)) < 1500
    assert len(odd_pieces) > 5, "a formula that never ends stops no cuts for good"
