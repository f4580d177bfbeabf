"""The renderer of Markdown: what it draws, and its laws for any text and any way in which it grows."""

import re
from collections.abc import Sequence
from html import unescape
from time import thread_time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline

from agent.rendering import markdown
from agent.rendering.markdown import Blocks, to_blocks
from tests.support.turn_edits import Checked
from tests.tiers import examples

PIECES = (
    *"a b|-=#>*_~`$\\[]()!<:1.x+&\t\r\n",
    *("\n\n", "\n- ", "\n1. ", "\n    ", "\n  ", "\n> ", "\n# ", "\n===", "\n---\n", "- [ ] ", "- [x] t", "word " * 9),
    *(
        *("\n```", "```py\n", '```html title="<b>"\n', "\n~~~", "````", "| a | b |\n", "|---|--:|\n", "| 1 |\n"),
        *("**", "~~", "[^1]", "[^1]: note"),
    ),
    *("[^a]", "\n[^a]: note"),
    *("$$", "\n$$\n", "\\[", "\\]", "\\(x\\)", "$x_1$", "\\begin{align}\n", "\\end{align}"),
    *("<details>\n", "<summary>s</summary>\n", "\n</details>\n", "<br>", "<sub>", "</sub>", "<b>", "<script>"),
    *("[a]: https://a.example\n", "[a]", '[b](https://b.example "t")', "![p](https://c.example/p)"),
    "https://d.example/x_y).",
    *("javascript:alert(1)", "[j](javascript:alert(1))", "&lt;", "&#x6a;", "{\ufdd01 https://e.example\ufdd1"),
    *("注意\uff1a", "**注意\uff1a**请", "é", "\u2028", "\0", "\ud800", "\x0b", "\x0c", "\ufdd3", "# \ufdd3"),
)
texts = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


def grown(text: str, cuts: list[float], *, is_typed: bool = False) -> list[str]:
    """Return the blocks of a text that arrives in pieces."""
    blocks = Blocks(is_typed=is_typed)
    seen = list[str]()
    for cut in sorted(cuts):
        changed = blocks.update(text[: int(cut * len(text))])
        assert blocks.html[:changed] == seen[:changed], "a block has changed before the one that was named"
        seen = [*blocks.html]
    blocks.update(text, is_whole=True)
    return blocks.html


@pytest.mark.parametrize(("window", "most"), [(markdown.WINDOW, markdown.MOST), (24, 160), (50, 60)])
@given(text=texts, cuts=st.lists(st.floats(0, 1), max_size=6), is_typed=st.booleans())
@settings(max_examples=examples(250))
def test_blocks_do_not_depend_on_the_cuts(window: int, most: int, text: str, cuts: list[float], is_typed: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markdown, "WINDOW", window)
        patch.setattr(markdown, "MOST", most)
        assert grown(text, cuts, is_typed=is_typed) == to_blocks(text, is_typed=is_typed)


@pytest.mark.parametrize("window", [markdown.WINDOW, 24])
@given(text=texts)
@settings(max_examples=examples(200))
def test_each_block_has_allowed_and_closed_elements_only(window: int, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markdown, "WINDOW", window)
        for block in [*to_blocks(text), *to_blocks(text, is_typed=True)]:
            Checked(block)


LONG = {
    "paragraph": ("", " {}"),
    "lines": ("", "{}\n"),
    "list": ("", "- {}\n"),
    "loose list": ("", "1. {}\n\n"),
    "nested list": ("- a\n", "  - {}\n"),
    "list in a list in a list": ("1. a\n   - b\n", "     1. {}\n"),
    "table": ("| a | b |\n|---|---|\n", "| {} | x |\n"),
    "quotation": ("", "> {}\n"),
    "paragraphs in a quotation": ("", "> {}\n>\n"),
    "list in a quotation": ("", "> - {}\n"),
    "paragraph in a list": ("- a\n\n ", " {}"),
    "code": ("```py\n", "{}\n"),
    "indented code": ("", "    {}\n"),
    "one word": ("", "{}"),
    "formula": ("$$\n", "{}\n"),
}
CODE = ("code", "indented code", "one word", "formula")
"""They are read as a whole, because this takes little time."""


def long_block(name: str, count: int) -> str:
    begins, item = LONG[name]
    return begins + "".join(item.format(f"w{number:05}.") for number in range(count))


@pytest.mark.parametrize("name", LONG)
@pytest.mark.slow
def test_cost_of_an_update_does_not_depend_on_what_came_before(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read = list[int]()
    parse = markdown._MARKDOWN.parse
    monkeypatch.setattr(markdown._MARKDOWN, "parse", lambda text, env: read.append(len(text)) or parse(text, env))
    text, blocks, size = long_block(name, 2_000), Blocks(), 0
    most = 8 * markdown.MOST if name in CODE else 4 * markdown.WINDOW
    while size < 15_000:
        size += 1_500
        read.clear()
        blocks.update(text[:size])
        assert sum(read) <= most


@pytest.mark.parametrize("name", LONG)
def test_long_block_loses_no_word(name: str) -> None:
    blocks = to_blocks(long_block(name, 2_500))
    assert len(blocks) > 1
    words = [f"w{number:05}." for number in range(2_500)]
    assert re.findall(r"w\d{5}\.", re.sub(r"<[^<>]*>|\n", "", "".join(blocks))) == words
    kinds = {re.match(r"<(\w+)", block)[1] for block in blocks}  # type: ignore[index]
    assert len(kinds) == 1


WORDS = ("word", "*it is*", "**so bold**", "`a b`", "$x + y$", "(in it)", "[a b](https://a.example)", "5 * 3", "it_is")
LINES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)


def _nested(items: list[tuple[str, list[str]]]) -> list[str]:
    return [line for text, inside in items for line in (f"1. {text}", *(f"   {one}" for one in inside))]


LISTS = st.recursive(
    st.lists(LINES.map("- {}".format), min_size=1, max_size=5),
    lambda inner: st.lists(st.tuples(LINES, inner), min_size=1, max_size=4).map(_nested),
    max_leaves=4,
)
DOCUMENTS = st.lists(
    st.one_of(
        st.lists(LINES, min_size=1, max_size=9).map(" ".join),
        LISTS.map("\n".join),
        LISTS.map(lambda lines: "\n".join(f"> {line}" for line in lines)),
        st.lists(LINES, min_size=1, max_size=9).map(
            lambda rows: "| a |\n|---|\n" + "".join(f"| {one} |\n" for one in rows)
        ),
    ),
    min_size=1,
    max_size=3,
).map("\n\nand\n\n".join)


@given(text=DOCUMENTS)
@settings(max_examples=examples(100))
def test_long_block_is_drawn_as_if_it_was_read_at_once(text: str) -> None:
    at_once = to_blocks(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markdown, "WINDOW", 400)
        assert to_blocks(text) == at_once


def test_numbers_of_a_long_list_go_on() -> None:
    blocks = to_blocks("1. item of a list\n" * 2_000)
    assert len(blocks) > 1
    items = 1
    for block in blocks:
        assert items == int((re.match(r'<ol[^>]* start="(\d+)"', block) or [0, "1"])[1])
        items += block.count("<li>")


DRAWN = {
    "a single tilde": ("1~3 and 5~8", "<p>1~3 and 5~8</p>"),
    "two tildes": ("~~gone~~", "<p><s>gone</s></p>"),
    "Chinese": ("**注意\uff1a**请", "<p><strong>注意\uff1a</strong>请</p>"),
    "Japanese": ("これは**「強調」**です", "<p>これは<strong>「強調」</strong>です</p>"),
    "Korean": ("**강조(참고)**는", "<p><strong>강조(참고)</strong>는</p>"),
    "prices": ("$5 and $10", "<p>$5 and $10</p>"),
    "types": ("`a` List<String> <b>", "<p><code>a</code> List&lt;String&gt; &lt;b&gt;</p>"),
    "tags": ("x<sub>2</sub><br>2<sup>n</sup> <KBD>Ctrl</KBD>", "<p>x<sub>2</sub><br>2<sup>n</sup> <kbd>Ctrl</kbd></p>"),
    "an open tag": ("x <sub>2", "<p>x &lt;sub&gt;2</p>"),
    "a tag in an open bracket, before an open tag": ("[<sub>2</sub> <sub>", "<p>[<sub>2</sub> &lt;sub&gt;</p>"),
    "boxes": (
        "- [ ] a\n- [x] b",
        '<ul>\n<li><input type="checkbox" disabled> a</li>\n<li><input type="checkbox" disabled checked> b</li>\n</ul>',
    ),
    "a footnote": ("a[^1] [^b]", '<p>a<sup class="footnote">1</sup> [^b]</p>'),
    "its text": ("[^1]: *b*", '<p class="footnote">\n<sup class="footnote">1</sup><em>b</em></p>'),
    "a named footnote": (
        "a[^b] [^c]\n\n[^b]: d",
        '<p>a<sup class="footnote">b</sup> [^c]</p>\n<p class="footnote">\n<sup class="footnote">b</sup>d</p>',
    ),
    "four ticks": ("````\n```\na\n````", "<pre><code>```\na\n</code></pre>"),
    "open code": ("```\na <b>", "<pre><code>a &lt;b&gt;</code></pre>"),
    "alignment": (
        "| a |\n|--:|\n| b |",
        '<table>\n<thead>\n<tr>\n<th class="at-right">a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n'
        '<td class="at-right">b</td>\n</tr>\n</tbody>\n</table>',
    ),
    "half a character": ("a\ud800\0", "<p>a\ud800\ufffd</p>"),
    "details": (
        "<details><summary>a & b</summary>\n\n- c\n\n</details>",
        "<details><summary>a &amp; b</summary><ul>\n<li>c</li>\n</ul>\n</details>",
    ),
    "a script": (
        "[a](javascript:b) <https://c.example>",
        '<p>[a](javascript:b) <a href="https://c.example" rel="noopener noreferrer">https://c.example</a></p>',
    ),
    "a remote picture": (
        "![a](https://b.example/c.png)",
        '<p><a href="https://b.example/c.png" rel="noopener noreferrer">a</a></p>',
    ),
}


HTML_AS_WRITTEN = (
    "Java has List<String> and Map<K, V>, ok? END",
    "How do I close a <div>? std::vector<int> v; if a <b and c> d",
    "The <title> tag, <textarea>, <!-- a comment --> and </p>.",
    "In `List<String>` and ``a ` <b>``, but <b> here.",
    "1 < 2, a <- b, <3",
)


@pytest.mark.parametrize("text", HTML_AS_WRITTEN)
def test_html_is_shown_as_written(text: str) -> None:
    assert unescape(re.sub("<[^<>]*>", "", "".join(to_blocks(text)))).strip() == re.sub(r"(`+) ?(.+?) ?\1", r"\2", text)


@pytest.mark.parametrize("name", DRAWN)
def test_markdown_is_drawn(name: str) -> None:
    text, html = DRAWN[name]
    assert "".join(to_blocks(text)).strip().replace("<details>\n", "<details>") == html


TYPED = {
    "signs": ("# 2*3*4 _a_ [b](c) &lt; \\*", "<p># 2*3*4 _a_ [b](c) &amp;lt; \\*</p>"),
    "lines and spaces": ("  a  b\n\n\n- c", "<p>  a  b<br><br><br>- c</p>"),
    "code": ("`a*` and\n```\n# b\n```\nc", "<p><code>a*</code> and</p>\n<pre><code># b\n</code></pre>\n<p>c</p>"),
    "prices": ("$5 and $10", "<p>$5 and $10</p>"),
    "a formula": ("\\(x\\)", '<p><math display="inline" alttext="x"><mi>x</mi></math></p>'),
}


PROSE = (
    *(
        "*",
        "**",
        "_",
        "~~",
        "# ",
        "> ",
        "- ",
        "1. ",
        "1986) ",
        "===",
        "---",
        "|",
        "|---|",
        "\\",
        "\\*",
        "&lt;",
        "&#42;",
    ),
    *("<b>", "<!--", "[a](b)", "![", "[a]: b", ":", "a", "x y", " ", "    ", "\n", "\n\n", "\n   \n", "\r\n", "@", "$"),
    *("http://a.org/x_y", "https://a.org", "/", ";", "?a=1&b", "'", '"', "  \n"),
)


def seen(blocks: Sequence[str]) -> str:
    """Return the text that blocks show, without spaces at the ends of lines and without lines around it."""
    shown = unescape(re.sub("<[^<>]*>", "", "".join(blocks).replace("<br>", "\n")))
    return lines(shown)


def lines(text: str) -> str:
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.rstrip(" \t") for line in whole.split("\n")).strip("\n")


@given(st.lists(st.sampled_from(PROSE), max_size=14).map("".join))
@example("2*3*4*5")
@example("# x\n    y\n\n\n\\* and 1986. z")
@example("see http://a.org/x_y?a=1&b=2_ or http://a.org/*.")
@settings(max_examples=examples(100))
def test_any_typed_prose_is_seen_as_typed(text: str) -> None:
    assert seen(to_blocks(text, is_typed=True)) == lines(text)


@given(text=texts)
@settings(max_examples=examples(100))
def test_only_code_links_and_formulas_of_typed_text_are_drawn(text: str) -> None:
    html = re.sub("<math.*?</math>", "", "".join(to_blocks(text, is_typed=True)), flags=re.DOTALL)
    assert set(re.findall(r"<(\w+)", html)) <= {"p", "br", "a", "code", "pre", "span"}


@pytest.mark.parametrize("name", TYPED)
def test_typed_text_is_shown_as_typed(name: str) -> None:
    text, html = TYPED[name]
    assert "".join(to_blocks(text, is_typed=True)).strip() == html


URLS = {
    "见https://a.example/b。后": "https://a.example/b",
    "(https://a.example/b_(c))\uff0c": "https://a.example/b_(c)",
    "https://a.example/?q=1&r=x.": "https://a.example/?q=1&r=x",
    "https://a.example/x_y_z!": "https://a.example/x_y_z",
}


@pytest.mark.parametrize("text", URLS)
def test_bare_url_ends_where_its_text_ends(text: str) -> None:
    (found,) = re.findall('href="([^"]*)"', to_blocks(text)[0])
    assert unescape(found) == URLS[text]


FORMULAS = {
    "$x_1$ costs $5": ["x_1"],
    "\\(a\\) and \\[b\\]": ["a", "b"],
    "Text:\n$$\na\n- b\n= c\n$$\nand": ["a\n- b\n= c"],
    "\\begin{align}\na &= b \\\\\nc\n\\end{align}": ["\\begin{align}\na &= b \\\\\nc\n\\end{align}"],
    "- \\[\n  x\n  \\]": ["x"],
    "| $|x|$ | b |\n|---|---|\n| 1 | $\\frac{a}{b}|c|$ |": ["|x|", "\\frac{a}{b}|c|"],
    "$$\na\n\nb\n$$": [],
    "`$x$` \\\\(a\\\\)": [],
    "$E = mc^2$, or $y = mx + b$; $PV = nRT$.": ["E = mc^2", "y = mx + b", "PV = nRT"],
    "the $n$th of $k$s, the $i$-th, ($a$), **$b$**": ["n", "k", "i", "a", "b"],
    "$|x|$, $n!$, $f'$, $5$, $0.5$, $A^+$, $v_{initial}$": ["|x|", "n!", "f'", "5", "0.5", "A^+", "v_{initial}"],
    "设$x$为正数。$\u03b1+\u03b2$": ["x", "\u03b1+\u03b2"],
    "$a<b$ and $c>d$": ["a<b", "c>d"],
    "It costs \\$5, and $x$ too; $\\$5$.": ["x", "\\$5"],
    "- item $a_1$\n\n    more of it $b_1$": ["a_1", "b_1"],
    "$5-$10, $5/$10, $5,$10, US$5 and 6$, 5$ to 10$, $5 or 6$, $1,000 plus tax: 20$": [],
    "between $10 (or 20$) and 30$, $5 million to $6 million, i.e. $5M-$6M": [],
    "$HOME and $PATH, $HOME/bin:$PATH, $HOME/$USER, ($x,$y), $a-$b, echo $C; cost: 5$": [],
    "```sh\necho $x$ $y$\n```\n\n> ~~~~\n> $x$\n> ~~~\n> ~~~~": [],
    "<https://example.org/$y$>": [],
    "[ $$a$$ $$": ["a"],
    "![ \\(a\\) \\(": ["a"],
    "$ x$, $x $, $$, $ and a $x\ny$ b": [],
}


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_found(text: str) -> None:
    assert [unescape(one) for one in re.findall('alttext="([^"]*)"', "".join(to_blocks(text)))] == FORMULAS[text]


NEAR_MISSES = (":\n", "\\[\n", "> \\[\n", "||\n|-|-|\n", "|a\n|-\n", "<sub>", "![", "[a](", "**a ", "\\begin{align}\n")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["", "\\] x", "\n\n\\]"])
@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_repeated_near_misses_take_little_time(near_miss: str, ends: str) -> None:
    began = thread_time()
    to_blocks((near_miss * markdown.MOST)[: markdown.MOST - len(ends)] + ends)
    assert thread_time() - began < 2


@pytest.mark.parametrize("piece", ["[", "![", "[a ", "[[]", "![[a] ", "[`a` "])
@pytest.mark.parametrize("end", ["", "]", "](x)", "]" * 600])
def test_open_brackets_are_read_a_few_times(piece: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def skip(parser: ParserInline, state: StateInline, skip: Any = ParserInline.skipToken) -> None:
        nonlocal looks
        looks += 1
        skip(parser, state)

    monkeypatch.setattr(ParserInline, "skipToken", skip)
    text = (piece * markdown.WINDOW)[: markdown.WINDOW - len(end) - 1] + end
    to_blocks(text)
    assert looks <= 8 * len(text)


def test_code_can_have_a_title_behind_its_language() -> None:
    assert to_blocks('```csv title="A <b> clock" x\n<p>') == [
        '<pre><code class="language-csv" data-title="A &lt;b&gt; clock">&lt;p&gt;</code></pre>\n'
    ]
    for info in ('title="', 'title=""', f'title="{"a" * 81}"', "title=x", 'subtitle="a"'):
        assert "data-title" not in "".join(to_blocks(f"```html {info}\nx\n```"))


def test_code_has_its_colours_once_its_fence_is_closed() -> None:
    blocks, text = Blocks(), ""
    for piece in ("```python\n", "return", " 1", "\n", "\n", "``"):
        text += piece
        blocks.update(text)
        assert "<span" not in blocks.html[0]
    blocks.update(text + "`")
    assert '<span class="k">return</span>' in blocks.html[0]


ADDRESS = "https://a.example/(b)?c"
NAMES = {
    f"See [the **page**]({ADDRESS})": "See the page",
    f"![one](<{ADDRESS}>)": "one",
    f"- a\n- [one]({ADDRESS})": "one",
    f'> a\n> [one]({ADDRESS} "a title")': "one",
    f"| a |\n|---|\n| [one]({ADDRESS})": "one",
    f"[![one]({ADDRESS})]({ADDRESS})": "one",
    "[one](data:image/png;base64,AAAA)": "one",
    "[one](mailto:a@a.example)": "one",
}


@pytest.mark.parametrize("text", NAMES)
def test_address_of_a_link_is_not_seen_while_it_is_written(text: str) -> None:
    blocks = Blocks()
    for end in range(text.rindex("](") + 2, len(text)):
        blocks.update(text[:end])
        seen = re.sub(r"<[^<>]++>", "", blocks.html[-1].replace("<br>", "\n")).strip()
        assert seen.splitlines()[-1].removeprefix("[") == NAMES[text], text[:end]
    blocks.update(text, is_whole=True)
    assert blocks.html == to_blocks(text)


@pytest.mark.parametrize(
    "text", ["`x[0](http", "x[0](a", "x[0](1 + 2", "[a](https://a.example) (", "[a](https://[)", "```\n[a](http"]
)
def test_what_is_no_link_is_seen_while_it_is_written(text: str) -> None:
    blocks = Blocks()
    blocks.update(text)
    assert blocks.html == to_blocks(text)
    blocks.update(f"{text}\n\nNext\n\n[a](http")
    assert blocks.html[:-1] == to_blocks(f"{text}\n\nNext") or text.startswith("```")


def test_link_that_is_defined_after_a_long_text_is_one() -> None:
    text = "See [x][1].\n\n" + (("word " * 40) + "\n\n") * 60 + "[1]: https://a.example\n"
    assert '<a href="https://a.example"' in to_blocks(text)[0]
