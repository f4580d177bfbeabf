"""Finding formulas among the `$...$` of an answer, as most models write them. Prices and code are no formulas."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.transfer import formulas as formulas_module
from agent.transfer.formulas import LEFT, MARK, RIGHT, FormulaMarker, mark_formulas


def formulas(text: str) -> list[str]:
    """Return the formulas that are marked in a text."""
    return [piece.partition(RIGHT)[0] for piece in mark_formulas(text).split(LEFT)[1:]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Let $x$ be.", ["x"]),
        ("$E = mc^2$, or $y = mx + b$; $PV = nRT$.", ["E = mc^2", "y = mx + b", "PV = nRT"]),
        (r"so $\frac{1}{2}$ and $\text{speed} = \frac{d}{t}$", [r"\frac{1}{2}", r"\text{speed} = \frac{d}{t}"]),
        ("the $n$th of $k$s, the $i$-th, ($a$), **$b$**", ["n", "k", "i", "a", "b"]),
        ("triangle $ABC$, $|x|$, $n!$, $f'$, $5$, $0.5$, $A^+$, $v_{initial}$", 8),
        ("设$x$为正数。$\u03b1+\u03b2$", ["x", "\u03b1+\u03b2"]),
        ("$a<b$ and $c>d$", ["a<b", "c>d"]),
        (r"It costs \$5, and $x$ too; $\$5$.", ["x", r"\$5"]),
        ("- item $a_1$\n\n    more of it $b_1$", ["a_1", "b_1"]),
        ("| $a$ | $b|c$ |", ["a", "b|c"]),
    ],
)
def test_formulas_are_found(text: str, found: list[str] | int) -> None:
    assert (formulas(text) if isinstance(found, list) else len(formulas(text))) == found


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "$5-$10, $5/$10, $5,$10, US$5 and 6$, 5$ to 10$, $5 or 6$, $1,000 plus tax: 20$",
        "between $10 (or 20$) and 30$",
        "$5 million to $6 million, i.e. $5M-$6M",
        "$HOME and $PATH, $HOME/bin:$PATH, $HOME/$USER, ($x,$y), $a-$b",
        "echo $C; cost: 5$",
        "`$x$` and ``a ` $y$`` and ```$z$```",
        "```sh\necho $x$ $y$\n```",
        "- one\n  ```\n  $x$\n  ```",
        "> ~~~~\n> $x$\n> ~~~\n> $y$\n> ~~~~",
        "text\n\n    code $x$\n\n    more $y$",
        "https://example.org/?a=$x$ <https://example.org/$y$> [a $b$](https://example.org/$z$)",
        '<a title="$x$">so</a>',
        "$$a$$ and $$ b $$, \\(c $d$ \\) \\[e $f$\\]",
        "$ x$, $x $, $$, $",
        "a $x\ny$ b",
    ],
)
def test_other_dollars_stay(text: str) -> None:
    assert mark_formulas(text) == text


@given(st.text(alphabet="$x5 \n`\\()[]<>-~a_^{", max_size=60))
def test_only_marks_are_added(text: str) -> None:
    marked = mark_formulas(text)
    assert marked.replace(MARK, "") == text
    assert marked.count(LEFT) == marked.count(RIGHT) == marked.count(MARK) / 2


@given(st.text(alphabet="$x5 \n\r`~\\()->a_^", max_size=60), st.lists(st.integers(1, 12), max_size=8))
def test_growing_text_is_marked_as_a_whole_one(text: str, cuts: list[int]) -> None:
    marker, end = FormulaMarker(), 0
    for length in [*cuts, len(text)]:
        end = min(end + length, len(text))
        assert marker.mark(text[:end]) == mark_formulas(text[:end])


def test_marker_accepts_another_text() -> None:
    marker = FormulaMarker()
    for text in ("```\n$a$\n\n$b$", "$c$\n\n$d$", "", "$e$"):
        assert marker.mark(text) == mark_formulas(text)


def test_growing_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    section = "A cost of $5, and $x^2 + y_1$ in a paragraph.\n\n- a list\n- with $z$\n\n```\ncode\n```\n\n"
    marked, read = list[str](), list[str]()
    mark, is_apart = formulas_module._mark_paragraph, formulas_module._Lines.is_apart

    def mark_counted(text: str, **given: bool) -> str:
        marked.append(text)
        return mark(text, **given)

    def is_apart_counted(lines: Any, line: str) -> bool:
        read.append(line)
        return is_apart(lines, line)

    monkeypatch.setattr(formulas_module, "_mark_paragraph", mark_counted)
    monkeypatch.setattr(formulas_module._Lines, "is_apart", is_apart_counted)
    marker = FormulaMarker()
    for number in range(1, 201):
        marker.mark(section * number)
    for texts in (marked, read):
        assert sum(map(len, texts)) < 2 * len(section * 200)


@pytest.mark.parametrize(
    "piece",
    ["$", "$x", "$x ", "\\(", "`", "$$ ", "[", "[a](", "<a b=", "<a ", "- ", "> ", "$x$ ", "\\", "x" * 50 + " $5 "],
)
def test_time_is_linear(piece: str) -> None:
    def spent(times: int) -> float:
        text = "$a$ " + piece * times
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            mark_formulas(text)
            best = min(best, time.process_time() - began)
        return best

    assert spent(64_000) < 40 * (spent(8_000) + 0.001)


def test_backtick_runs_take_linear_time() -> None:
    text = "$a$ " + " ".join("`" * length for length in range(1, 600)) + " $b$"
    assert formulas(text) == ["a", "b"]
