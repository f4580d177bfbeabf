"""Formulas and code in documents: drawn without a script, and no way in for what models and visitors write."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from html import unescape
from html.parser import HTMLParser
from threading import Thread, Timer, stack_size
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from agent.i18n.translator import ENGLISH
from agent.rendering import code_colors
from agent.rendering.code_colors import LANGUAGES, MAX_CHARACTERS, colored
from agent.rendering.formulas import ATTRIBUTES, ELEMENTS, Formula, to_mathml
from agent.rendering.html import html_mark
from agent.rendering.markdown import Blocks, to_blocks
from agent.transfer.document import blocks_of
from agent.transfer.html import to_html
from tests.support.history_stores import chain, prompt

VOID = ("br", "hr", "img", "meta")


class _Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts. Raises `AssertionError` if one is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found, self.texts, self._open = list[tuple[str, dict[str, str | None]]](), list[str](), list[str]()
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


async def answer_page(text: str, *, asked: str = "Go", thought: str = "Hm.") -> str:
    """Return the part of a document that shows these texts."""

    async def no_file(_: str) -> AsyncIterator[str]:
        return
        yield ""

    entries = chain(prompt(asked), ModelResponse([ThinkingPart(thought), TextPart(text)], model_name="m"))
    blocks = [*blocks_of(entries, ENGLISH, html_mark)]
    page = "".join([piece async for piece in to_html("Title", "", blocks, no_file, ENGLISH)])
    return page[page.index("<section") : page.index("</main>")]


def math(latex: str, *, display: bool = False) -> str:
    return to_mathml(Formula(f"${latex}$", latex, display))


# Formulas

USUAL = r"""
E = mc^2 | \frac{a+b}{2} | \sqrt{x} | \sqrt[3]{x} | x_{i+1}^{2} | \sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}
\int_0^1 x^2 \, dx | \lim_{x \to 0} \frac{\sin x}{x} | \left( \frac{a}{b} \right) | \alpha + \beta \leq \gamma
\mathbb{R}^n \subset \mathbf{V} | \text{if } x > 0 | \hat{y} = \bar{x} | \overline{AB} | \vec{v} \cdot \vec{w}
\begin{pmatrix} a & b \\ c & d \end{pmatrix} | \begin{cases} 1 & x > 0 \\ 0 & \text{else} \end{cases}
\begin{aligned} a &= b + c \\ &= d \end{aligned}
\begin{align} a &= b \end{align} | \boxed{42} | \binom{n}{k}
\operatorname{argmax}_\theta \mathcal{L}(\theta) | \underbrace{a + b}_{c}
\xrightarrow{f} | \neq \approx \infty \partial \nabla
\mathrm{d}x | f'(x) | \|x\| | \lfloor x \rfloor | \ce | \color{red}{x}
\dfrac{1}{2} | \tfrac12 | \widetilde{x} | \ldots
"""


@pytest.mark.parametrize("latex", [one.strip() for line in USUAL.strip().splitlines() for one in line.split(" | ")])
def test_usual_formula_is_drawn(latex: str) -> None:
    drawn = math(latex, display=True)
    assert drawn.startswith('<math display="block" alttext="')
    _Elements(drawn)


async def test_formulas_are_those_of_the_page() -> None:
    text = r"It costs $5 and $10. Let $x_1$ be \(y\), so \[ z \] and $$ w $$. `$a$ \(b\)`"
    shown = _Elements(await answer_page(text, asked=r"Is $q$ \(r\)?", thought="As $t$."))
    drawn = [(attributes["display"], attributes["alttext"]) for tag, attributes in shown.found if tag == "math"]
    assert drawn == [
        ("inline", "r"),
        ("inline", "t"),
        ("inline", "x_1"),
        ("inline", "y"),
        ("block", "z"),
        ("block", "w"),
    ]
    assert "Is $q$ " in shown.text
    assert "It costs $5 and $10. Let " in shown.text
    assert r"$a$ \(b\)" in shown.text


async def test_formula_hides_its_markdown() -> None:
    page = await answer_page(
        "$$\na_1 * b_2 * c\n- d \\\\\n= e\n$$\n\n| a |\n|---|\n| $|x|$ |\n\n**so $n$**\n\n- \\[\n  x\n  \\]"
    )
    assert page.count("<math ") == 4
    assert page.count("<td>") == 1
    assert not re.search("<em>|<h1>|<h2>a|<li>d", page)
    assert "<strong>so <math" in page


async def test_formula_in_code_is_as_it_was_written() -> None:
    code = "echo $$\n\\[ x \\]"
    page = await answer_page(f"```\n{code}\n```\n\nText, $$.\n\n```sh\necho $$\n```\n\n    $$ y $$")
    shown = _Elements(page).text
    assert page.count("<math ") == 0
    assert code in shown
    assert "    $$ y $$".strip() in shown
    assert "\ufdd0" not in page


HOSTILE_MATH = (
    *(r"\text{<script>run()</script>}", r"\href{javascript:run()}{x}", r"\url{https://evil.example}"),
    *(r"\includegraphics{https://evil.example/a.png}", r"\style{background:url(https://evil.example)}{x}"),
    *(r"\class{problem}{x} \cssId{chat}{x}", r"\htmlData{a=b}{x} \htmlStyle{color:red}{x}"),
    *(r"\text{a \textbf{b} \textit{c}}", r"\begin{align} x \label{a} \end{align}\eqref{a}"),
    *(r"\label{x} \ref{x} \tag{<b>} \color{\"><img src=x>}{y}", r"\begin{array}{c\"><img>} x \end{array}"),
    *(r"""x"><img src=x onerror="run()">""", r"&lt;script&gt; &amp;lt;img&amp;gt; \&lt;img\&gt;"),
    *(r"</math></div></main><script>run()</script>"),
    *(r"\unknown<img> \\<svg onload=run()>", "\ufdd0$0\ufdd1 {\ufdd0$1\ufdd1 {\ufdd01 javascript:run()\ufdd1"),
)


@pytest.mark.parametrize("latex", HOSTILE_MATH)
async def test_nothing_in_a_formula_becomes_markup(latex: str) -> None:
    usual = {tag for tag, _ in _Elements(await answer_page("Text `code`")).found}
    page = await answer_page(f"\\({latex}\\)\n\n$${latex}$$\n\nText")
    for tag, attributes in _Elements(page).found:
        assert tag in usual | ELEMENTS | {"code"}, tag
        if tag in ELEMENTS - {"math"}:
            assert attributes.keys() <= ATTRIBUTES | {"class"}
            assert attributes.get("class") in (None, "at-left", "at-right")
        assert not any(name.startswith("on") or name in ("style", "href", "src", "id") for name in attributes)


ALPHABET = st.sampled_from(
    (
        *"{}[]&^_<>\"'%#~|$ax1() \n\x00\ud7ff\ud800",
        r"\\",
        r"\frac",
        r"\sqrt",
        r"\left",
        r"\right",
        r"\text{",
        "&lt;",
        r"\lt",
        r"\begin{cases}",
        r"\end{cases}",
        r"\href{",
        r"\color{",
        r"\newcommand",
        r"\def",
        r"\hat",
        r"\sum",
    )
)


@given(st.lists(ALPHABET, max_size=40).map("".join), st.booleans())
def test_any_text_is_a_formula_or_stays_as_it_is(latex: str, display: bool) -> None:
    found = _Elements(math(latex, display=display))
    assert {tag for tag, _ in found.found} <= ELEMENTS | {"code"}
    if found.found[0][0] == "code":
        assert found.text == f"${latex}$"


TOO_LARGE = {
    "groups": "{" * 900 + "}" * 900,
    "left": r"\left(" * 300 + r"\right)" * 300,
    "environments": r"\begin{cases}" * 100 + r"\end{cases}" * 100,
    "long": "x+" * 10_000,
    "roots": r"\sqrt" * 700 + "x",
    "fractions": r"\frac1" * 600 + "x",
    "indices": r"\sqrt[" * 600,
    "scripts": "x^{" * 900 + "}" * 900,
    "scripts without end": "x_{" * 1300,
    "accents": r"\hat " * 700 + "x",
    "lines": r"x\\" * 1_300,
    "cells": "&" * 3_900,
}


@pytest.mark.parametrize("latex", TOO_LARGE.values(), ids=TOO_LARGE)
def test_large_formula_needs_little_stack(latex: str) -> None:
    """A formula that is read too deep would end the process. Here it has an eighth of the usual stack of a thread."""
    drawn = list[str]()
    before = stack_size(1 << 20)
    try:
        thread = Thread(target=lambda: drawn.append(math(latex, display=True)))
        thread.start()
    finally:
        stack_size(before)
    thread.join()
    [found] = drawn
    assert found.startswith(("<math ", "<code "))
    if found.startswith("<code "):
        assert latex in unescape(found)


@pytest.mark.parametrize("name", ["groups", "left", "environments", "long", "roots", "scripts", "accents"])
def test_formula_that_is_too_large_is_shown_as_written(name: str) -> None:
    assert math(TOO_LARGE[name]).startswith('<code class="formula inline">$')


def test_own_command_of_a_formula_cannot_fill_the_page() -> None:
    bomb = r"\newcommand{\a}{" + "x" * 1_500 + "}" + r"\a" * 600
    assert len(math(bomb)) < 100_000
    chained = "".join(
        rf"\newcommand{{\{one}}}{{\{then}\{then}}}" for one, then in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert len(math(chained + r"\newcommand{\h}{xxxxxxxxxx}\a")) < 100_000


# Code


@pytest.mark.parametrize(
    ("language", "code", "marked"),
    [
        (
            "python",
            'def f(x):  # why\n    return "a" + 1\n',
            ["k>def", "f>f", "c># why", "k>return", "s>&quot;a&quot;", "n>1"],
        ),
        ("js", "const x = `a`; // why", ["k>const", "s>`a`", "c>// why"]),
        ("html", '<p class="x">a</p>', ["k>p", "f>class", "s>&quot;x&quot;"]),
        ("diff", "-old\n+new\n", ["d>-old", "s>+new"]),
        ("json", '{"a": true}', ["k>&quot;a&quot;", "n>true"]),
        ("JSON", "[1]", ["n>1"]),
    ],
)
async def test_code_has_colours(language: str, code: str, marked: list[str]) -> None:
    page = await answer_page(f"```{language}\n{code}\n```")
    for one in marked:
        kind, text = one.split(">", maxsplit=1)
        assert f'<span class="{kind}">{text}' in page, one
    assert code.strip() in _Elements(page).text


@given(st.sampled_from(sorted(LANGUAGES)), st.text(alphabet="<>&\"'`/*#{}()=;:-+$\\ \n\r\tax1é", max_size=80))
def test_colours_change_no_character(language: str, code: str) -> None:
    written = _Elements(colored(code, language) or "")
    assert {(tag, *attributes) for tag, attributes in written.found} <= {("span", "class")}
    assert written.text == ("" if "\r" in code else code)  # Pygments would make a line break of it


@pytest.mark.parametrize("language", ["", "text", "nolang", "../python", "PythonLexer", "<b>", "py\x00"])
def test_unknown_language_has_no_colours(language: str) -> None:
    assert colored("def f(): pass", language) == ""


def test_each_language_is_known() -> None:
    for language in LANGUAGES:
        found = colored("x", language)
        assert found == "x" or (found and '<span class="' in found), language


def test_long_code_has_no_colours() -> None:
    assert colored("x = 1\n" * (MAX_CHARACTERS // 6 + 1), "python") == ""
    assert "<span" in _colors("x = 1\n" * (MAX_CHARACTERS // 6), "python")


@pytest.mark.parametrize("text", ["(" * 40, "[" * 40, "{" + "(" * 40 + "}" + ")" * 40, "( {)} " * 40, "\\langle " * 40])
def test_formula_with_many_open_brackets_is_shown_as_written(text: str) -> None:
    """Each would double the time of the converter, which lets no other thread run."""
    assert "<math" not in to_mathml(Formula(text, text, is_display=True))
    assert "<math" in to_mathml(Formula("", r"f(x) \in [0, 1) \left( a \right]", is_display=True))


SLOW_CODE = {
    "comments that go on": ("c", "int a " + "//\\\n" * 40 + "b"),
    "spaces": ("c++", "include" + " " * 9_000),
    "an open text": ("bash", "<<" + "a" * 9_000),
}
"""Code for which patterns of Pygments take from seconds to centuries, and let no other thread run meanwhile."""


@pytest.mark.parametrize("name", SLOW_CODE)
@pytest.mark.slow
def test_code_that_is_slow_to_read_has_no_colours(name: str) -> None:
    language, code = SLOW_CODE[name]
    before = thread_time()
    assert colored(code, language) is None
    assert thread_time() - before < 0.1
    assert "<span" in _colors("x = 1", "python")


def _colors(code: str, language: str) -> str:
    return colored(code, language) or ""


@pytest.mark.slow
def test_text_has_no_colours_after_code_that_is_slow_to_read() -> None:
    language, code = SLOW_CODE["spaces"]
    fences = {"slow": f"```{language}\n{code}\n```\n", "quick": "```python\nx = 1\n```\n"}
    growing = Blocks()
    for text in (fences["quick"] + fences["slow"], fences["quick"] + fences["slow"] + fences["quick"]):
        growing.update(text)
    growing.update(text, is_whole=True)
    for blocks in (growing.html, to_blocks(text), to_blocks(f"{text}\n[a]: https://example.org\n")):
        assert ["<span" in block for block in blocks] == [True, False, False]


class _Interrupt(BaseException):
    """Stops a call from outside."""


@pytest.fixture
def stopped_reader(monkeypatch: pytest.MonkeyPatch) -> "code_colors._Reader":  # pyright: ignore[reportPrivateUsage]
    """The reader, with a process that does not answer."""
    assert colored("x = 1", "python")
    reader = code_colors._reader(os.getpid())  # pyright: ignore[reportPrivateUsage]
    assert reader._process  # pyright: ignore[reportPrivateUsage]
    os.kill(reader._process.pid, signal.SIGSTOP)  # pyright: ignore[reportPrivateUsage]
    return reader


@pytest.mark.usefixtures("stopped_reader")
@pytest.mark.slow
def test_code_has_no_colours_if_the_process_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(code_colors, "LONGEST_WAIT_SECONDS", 0.2)
        assert colored("x = 1\n" * 3_000, "python") is None
    assert "<span" in _colors("x = 1", "python")


def test_code_has_no_colours_if_others_wait_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_colors, "LONGEST_WAIT_SECONDS", 0.2)
    with code_colors._reader(os.getpid())._lock:  # pyright: ignore[reportPrivateUsage]
        assert colored("x = 1", "python") is None


@pytest.mark.slow
def test_interrupted_reading_gives_nobody_the_code_of_another(
    stopped_reader: "code_colors._Reader",  # pyright: ignore[reportPrivateUsage]
) -> None:
    def interrupt(*_: object) -> None:
        raise _Interrupt

    process = stopped_reader._process  # pyright: ignore[reportPrivateUsage]
    assert process
    before = signal.signal(signal.SIGUSR2, interrupt)
    Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    try:
        with pytest.raises(_Interrupt):
            colored("first", "python")
    finally:
        signal.signal(signal.SIGUSR2, before)
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
    assert "second" in _colors("second", "python")


@pytest.mark.slow
def test_process_that_colours_ends_with_its_parent() -> None:
    """It has none of the parent's open files."""
    ends, inherited = os.pipe()
    code = (
        "import os; from agent.rendering.code_colors import colored\n"
        f"assert colored('x = 1', 'python'); os.set_inheritable({inherited}, True); os._exit(7)"
    )
    parent = subprocess.run([sys.executable, "-c", code], pass_fds=[inherited], check=False)
    os.close(inherited)
    assert parent.returncode == 7
    assert os.read(ends, 1) == b""
    os.close(ends)


async def test_hostile_code_becomes_no_markup() -> None:
    code = "</code></pre><script>run()</script><img src=x onerror=run()>\n\"'&lt;b&gt;"
    for language in ("html", "js", "php", "python", 'html" onload="run()', "unknown"):
        page = await answer_page(f"```{language}\n{code}\n```")
        assert not {tag for tag, _ in _Elements(page).found} & {"script", "img", "b"}
        assert "onload=" not in re.sub(r'class="[^"]*"', "", page).replace("onload=&quot;", "")
        assert code in _Elements(page).text
