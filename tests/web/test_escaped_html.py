"""Text of an answer that would be HTML is shown as it was written, and code, links and formulas stay as they are."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from agent.transfer.formulas import LESS, FormulaMarker

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
LITERAL = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
PIECES = (
    *("<div>", "<b>", "</b>", "<a href='x'>", "<!--", "-->", "<String>", "<?php ?>", "<![CDATA[x]]>", "<", "<textarea"),
    *("`", "``", "```", "~~~", "\n", "\n\n", "    ", "\\", "a", "x y", "- ", "1. ", "# ", "> ", "*", "_", "|"),
    *("<https://a.org>", "<b@c.org>", "[a](b)", "[<b>](c)", "[a](<b c>)", "[", "]", "("),
)
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def escape_html(text: str) -> str:
    """Return what the page gets of an answer."""
    return FormulaMarker(escapes=True).mark(text)


@pytest.mark.parametrize(
    "text",
    [
        "Java has List<String> and Map<K, V>, ok? END",
        "How do I close a <div>? std::vector<int> v; if a <b and c> d",
        "Write to <bob@example.org>, see <https://example.org/a?b=1>, or <your name>.",
        "The <title> tag, <textarea>, <!-- a comment --> and </p>.",
        "In `List<String>` and ``a ` <b>``, but <b> here.",
        "```html\n<div>\n```\n\n<div> after it",
        "> ```\n> <div>\n\n<div> after it",
        "- ```\n  <div>\n  ```\n\n<div> after it",
        "text\n\n    <div> is code\n\n<div> is not",
        "[List<String>](https://example.org) and [a](<b c>)",
        "1 < 2, a <- b, <3",
        "<div>\n\n**bold**\n\n</div>",
        "| a | b |\n|---|---|\n| `<i>` | <i> |",
    ],
)
def test_html_is_shown_as_written(text: str) -> None:
    assert RENDERER.render(escape_html(text)) == LITERAL.render(text)


@settings(max_examples=500)
@given(texts)
def test_no_text_becomes_html(text: str) -> None:
    assert not [token.content for token in _all(RENDERER.parse(escape_html(text))) if token.type.startswith("html")]


def _all(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or ())


@given(texts, st.lists(st.integers(1, 12), max_size=8))
def test_growing_text_is_escaped_as_a_whole_one(text: str, cuts: list[int]) -> None:
    marker, end = FormulaMarker(escapes=True), 0
    for length in [*cuts, len(text)]:
        end = min(end + length, len(text))
        assert marker.mark(text[:end]) == escape_html(text[:end])


@given(texts)
def test_escaped_text_can_be_restored(text: str) -> None:
    assert escape_html(text).replace(LESS, "<") == text


@pytest.mark.parametrize("text", ["$a<b$ and $x<y$", "$$\nx<a & y<b\n$$", "\\(a<b\\) and \\[c<d\\]"])
def test_formulas_keep_their_signs(text: str) -> None:
    assert LESS not in FormulaMarker(escapes=True).mark(text)
