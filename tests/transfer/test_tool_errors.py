"""Errors of our own tools are in the reader's language where the page shows them, and stay as the model reads them."""

import asyncio
import re
from collections.abc import Callable
from string import Formatter
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart

from agent.i18n.text import LocalizedText
from agent.i18n.translator import LANGUAGES, Translator
from agent.rendering.steps import REASON_LENGTH, SENTENCES, failure_reason, localized_error, short_reason
from agent.settings import ROOT
from agent.tools.arithmetic import evaluate
from agent.tools.builtin import convert_units, current_time
from agent.tools.function_tools import as_tool, cancelled_result, execute

SOURCES = [
    *(path.read_text(encoding="utf-8") for path in (ROOT / "agent").rglob("*.py") if path.name != "steps.py"),
    "math domain error",  # of Python
]
PIECE_END = re.compile(r"[.:] |(?<=The user) |\b(?:page|slide|sheet|section)s?\b")
"""The tools put some sentences together."""
ERRORS: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    *((evaluate, (one,)) for one in ("1/0", "2 +", "9**9**9", "x", "foo(1)", "2^3", "sqrt(1, 2, 3)", "factorial(-1)")),
    *((evaluate, (one,)) for one in ("(-1)**0.5", "True", "'a'", "1" * 501, "sqrt(-1)")),
    (convert_units, (1, "km", "kg")),
    (convert_units, (1, "parsec", "km")),
    (convert_units, (float("inf"), "km", "m")),
    (convert_units, (-1, "K", "C")),
    (current_time, ("Mars",)),
)


@pytest.mark.parametrize(("function", "given"), ERRORS, ids=[f"{one.__name__}{given}"[:40] for one, given in ERRORS])
def test_errors_of_own_tools_are_translated(function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"\w") as raised:
        function(*given)
    reason = failure_reason(f"ValueError: {raised.value}")
    assert isinstance(reason, LocalizedText)
    assert str(raised.value).startswith(reason), "in English it is what the model reads"
    assert len({short_reason(reason, Translator(language)) for language in LANGUAGES}) == len(LANGUAGES)


async def endless() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("name", "arguments", "german"),
    [
        ("nap", {}, "Es gibt kein Werkzeug namens 'nap'. Bekannt sind: endless"),
        ("endless", {"x": 1}, "Die Argumente passen nicht: "),
        ("endless", "[", "Die Argumente sind kein JSON-Objekt: "),
        ("endless", {}, "Das Werkzeug brauchte länger als 0.05 s und wurde aufgegeben"),
    ],
)
async def test_failed_calls_are_explained(name: str, arguments: Any, german: str) -> None:
    call = ToolCallPart(name, arguments)
    result = await execute({"endless": as_tool(endless)}, call, timeout=0.05)
    assert Translator("de")(failure_reason(str(result.content))).startswith(german)
    cancelled = failure_reason(str(cancelled_result(call).content))
    assert Translator("de")(cancelled) == "Abgebrochen, bevor es fertig war"


async def test_call_without_any_tool_is_explained() -> None:
    result = await execute({}, ToolCallPart("nap"), timeout=0.05)
    german = Translator("de")(failure_reason(str(result.content)))
    assert german == "Es gibt kein Werkzeug namens 'nap'. Bekannt sind: keine"


def test_each_sentence_is_one_of_a_tool() -> None:
    """A tool that changes its sentence must change this list, too."""
    for sentence in SENTENCES:
        pieces = [piece.strip() for text, *_ in Formatter().parse(sentence) for piece in PIECE_END.split(text)]
        assert all(any(piece in source for source in SOURCES) for piece in pieces), sentence


def test_error_of_another_tool_stays_as_it_is() -> None:
    other = "KeyError: {nothing} of ours " + "x" * 5000
    assert type(localized_error(other)) is str
    reason = short_reason(failure_reason(other), Translator("de"))
    assert reason.startswith("KeyError: {nothing} of ours")
    assert len(reason) == REASON_LENGTH
    pages = localized_error("report.pdf has no pages 99 to 100: the files are report.pdf (pages 1-41)")
    assert Translator("de")(pages).startswith("report.pdf hat keine Seiten 99 bis 100: vorhanden sind report.pdf")
    inner = localized_error("There is no file '{a}': the files are {b} (2 pages)")
    assert Translator("de")(inner) == "Es gibt keine Datei '{a}': vorhanden sind {b} (2 pages)"
