"""A question is shown as it was typed, and code, formulas and links in it are drawn."""

import asyncio
import html
import re
from collections.abc import AsyncIterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from agent.i18n.translator import ENGLISH
from agent.transfer.as_typed import as_typed
from agent.transfer.document import Block
from agent.transfer.html import to_html

RENDERER = MarkdownIt("commonmark", {"html": True, "breaks": True}).enable(["table", "strikethrough"])
PIECES = (
    *("*", "**", "_", "__", "~", "~~", "#", "# ", "> ", "- ", "+ ", "1. ", "1986) ", "=", "===", "---", "|", "|---|"),
    *(
        "\\",
        "\\*",
        "&",
        "&lt;",
        "&#42;",
        "<",
        ">",
        "<b>",
        "<!--",
        "[",
        "]",
        "(",
        ")",
        "[a](b)",
        "![",
        "!",
        "[a]: b",
        ":",
    ),
    *("a", "x y", " ", "    ", "\t", "\n", "\n\n", "\n   \n", "\r\n", "1", ".", "@", "a@b.org", "www.", "$", "é"),
    *("http://a.org/x_y", "https://a.org", "http://", "/", ";", "?a=1&b", "'", '"', "  \n"),
)
CODE = ("`", "``", "```", "~~~", "`a*b`", "\n```\n*a*\n```\n", "- ```", "> ```", "```py\n")
FORMULAS = ("\\(", "\\)", "\\[", "\\]", "$$", "\\(x_1*2*3\\)", "$$\na*b\n$$")
OPENS_FORMULA = re.compile(r"\\[(\[]|\$\$")
texts = st.lists(st.sampled_from(PIECES + CODE + FORMULAS), max_size=14).map("".join)
# The page and documents take formulas out before they read Markdown, so Markdown alone cannot tell what is in them.
with_code = (
    st.lists(st.sampled_from(PIECES + CODE), max_size=14)
    .map("".join)
    .filter(lambda text: not OPENS_FORMULA.search(text))
)
prose = (
    st.lists(st.sampled_from(PIECES), max_size=14)
    .map("".join)
    .filter(lambda text: "~~~" not in text and not OPENS_FORMULA.search(text))
)
_REFERENCE = re.compile("&#x0000([0-9a-f]{2});")


def restored(text: str) -> str:
    """Return what the page's script restores."""
    return _REFERENCE.sub(lambda found: chr(int(found[1], 16)), text)


def seen(text: str) -> str:
    """Return the text that Markdown shows, of which nothing but paragraphs is made."""
    out = list[str]()
    for token in RENDERER.parse(text):
        assert token.type in ("paragraph_open", "inline", "paragraph_close"), token.type
        out += [_of(child) for child in token.children or ()]
    return "".join(out)


def _of(token: Token) -> str:
    assert token.type in ("text", "text_special", "softbreak", "hardbreak"), token.type
    return "\n" if token.type.endswith("break") else token.content


def lines(text: str) -> str:
    """Return the text as it looks: a browser shows no space at the end of a line, nor the lines around a text."""
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.rstrip(" \t") for line in whole.split("\n")).strip("\n")


@settings(max_examples=500)
@given(prose)
@example("2*3*4*5")
@example("# x\n    y\n\n\n\\* and 1986. z")
@example("see http://a.org/x_y?a=1&b=2_ or http://a.org/*.")
def test_any_text_is_seen_as_typed(text: str) -> None:
    assert lines(seen(as_typed(text))) == lines(text)


@settings(max_examples=500)
@given(texts)
def test_any_text_can_be_restored(text: str) -> None:
    assert restored(as_typed(text)) == text


@settings(max_examples=500)
@given(with_code)
def test_only_code_is_drawn(text: str) -> None:
    kinds = {token.type for token in RENDERER.parse(as_typed(text))}
    assert kinds <= {"paragraph_open", "inline", "paragraph_close", "fence"}


async def document(asked: str) -> str:
    """Return what a document shows of a question."""

    async def no_file(_: str) -> AsyncIterator[str]:
        yield ""

    blocks = [Block(type="user", title="You"), Block(type="text", text=asked)]
    page = "".join([piece async for piece in to_html("", "", blocks, no_file, ENGLISH)])
    return page.partition("</h2>\n")[2].partition("</section>")[0]


@given(prose)
@example("<b> 2*3*4*5\n\n  # x")
def test_documents_show_it_as_typed(text: str) -> None:
    written = asyncio.run(document(text))
    shown = html.unescape(re.sub("<[^<>]*>", "", written.replace("<br>", "\n")))
    assert lines(shown.rstrip("\n")) == lines(text).rstrip("\n")


@pytest.mark.parametrize(
    ("text", "kind", "inside"),
    [
        ("so:\n```py\nx * y\n```\n*z*", "fence", "x * y\n"),
        ("so `a*b` and \\`", "code_inline", "a*b"),
        ("1. do:\n   ```\n   x\n   ```", "fence", "x\n"),
    ],
)
def test_code_is_drawn(text: str, kind: str, inside: str) -> None:
    tokens = [one for token in RENDERER.parse(as_typed(text)) for one in (token, *(token.children or ()))]
    assert [one.content for one in tokens if one.type == kind] == [inside]


@pytest.mark.parametrize("text", ["- ```\n  <b>\n  ```\n*z*", "> ```\n> *a*\n> ```\n# z", "    ```\n*a*", "*a\n```b`c"])
def test_code_in_lists_and_quotations_is_text(text: str) -> None:
    assert lines(seen(as_typed(text))) == lines(text)


@pytest.mark.parametrize("formula", ["\\(x_1*2*3\\)", "$$\n# a\n- b_1\n$$", "\\[ a^* \\]"])
def test_formulas_stay(formula: str) -> None:
    assert as_typed(f"*a* {formula} *b*, \\[ and $$.").count(formula) == 1


@pytest.mark.parametrize("code", ["`\\(`", "`echo $$`"])
def test_code_begins_no_formula(code: str) -> None:
    shown = as_typed(f"{code} and $$x$$ and \\(y\\)")
    assert restored(shown).startswith(code)
    assert "`" not in shown
