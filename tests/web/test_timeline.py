"""The row above steps that follow one another, rendered from stored and running turns."""

from dataclasses import replace

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)

from agent.history import Entry, Note, Timings
from agent.i18n.text import decimal
from agent.i18n.translator import ENGLISH, LANGUAGES, Translator
from agent.rendering.bubbles import Bubble
from agent.transfer.document import blocks_of
from agent.transfer.html import data_urls, to_html
from agent.web.chat.transcript import ConversationTurn, to_turns
from agent.web.chat.turns import render_turn
from tests.support.history_stores import prompt

STEPS: list[ModelMessage] = [
    ModelResponse([ThinkingPart("Two sums."), ToolCallPart("add", {}, "1"), ToolCallPart("add", {}, "2")]),
    ModelRequest([ToolReturnPart("add", "3", "1"), ToolReturnPart("add", "No.", "2", outcome="failed")]),
    ModelResponse([ThinkingPart("So.")]),
]
TEXT = ModelResponse([TextPart("It is 3.")])


def entries_of(*messages: ModelMessage, thoughts: tuple[float, ...] = (2.3, 0.5)) -> list[Entry]:
    entries = [Entry(parent_id=None, message=one, note=Note(run_id="r")) for one in (prompt("Add."), *messages)]
    timings = Timings(first_token=0.1, total=5.0, reasoning=thoughts)
    entries[-1] = replace(entries[-1], note=Note(run_id="r", ended="stop", timings=timings))
    return entries


def turn_of(*messages: ModelMessage) -> ConversationTurn:
    return to_turns(entries_of(*messages))[-1]


def rows(turn: ConversationTurn, language: str = "en") -> list[Bubble]:
    return [one for one in render_turn(turn, Translator(language))["bubbles"] if one["kind"] == "steps"]


def title(shown: Bubble) -> str:
    return shown.get("title", "")


def test_row_counts_steps_and_seconds() -> None:
    _asked, row, *steps, text = render_turn(turn_of(*STEPS, TEXT))["bubbles"]
    assert title(row) == "Thought 2.8 s · 2 tools · 1 failed"
    assert (row["kind"], row["state"], row.get("steps")) == ("steps", "failed", len(steps))
    assert [one["kind"] for one in steps if "inside" not in one] == ["reasoning", "tool_call", "tool_call", "reasoning"]
    assert [one["kind"] for one in steps if "inside" in one] == ["tool_call_result"] * 2
    assert text["kind"] == "output_text"


def test_row_is_open_until_something_follows() -> None:
    running = replace(turn_of(*STEPS), note=None, watched_since=9.0)
    running.bubbles[0].began = 4.0
    (row,) = rows(running)
    assert title(row) == "Working · 2 tools · 1 failed"
    assert (row["state"], row.get("seconds")) == ("running", 5.0)
    (row,) = rows(replace(turn_of(*STEPS, TEXT), note=None))
    assert (title(row), row["state"]) == ("Thought 2.8 s · 2 tools · 1 failed", "failed")
    assert "seconds" not in row


async def test_row_has_the_same_seconds_in_a_document() -> None:
    """They are the sum of what is shown of each thought, so that readers of a link can add them up."""
    entries = entries_of(*STEPS, TEXT, thoughts=(1.26, 2.36))
    (row,) = rows(to_turns(entries)[-1])
    assert title(row) == "Thought 3.7 s · 2 tools · 1 failed"
    blocks = [*blocks_of(entries, ENGLISH)]
    page = "".join([piece async for piece in to_html("T", "", blocks, data_urls(no_file), ENGLISH)])
    for shown in (title(row), "Reasoning · 1.3 s", "Reasoning · 2.4 s"):
        assert f"<summary>{shown}</summary>" in page


async def no_file(_: str) -> bytes | None:
    return None


def test_text_ends_a_series() -> None:
    assert len(rows(turn_of(*STEPS, TEXT, *STEPS, TEXT))) == 2


@pytest.mark.parametrize("part", [ThinkingPart("Hm."), ToolCallPart("add", {}, "1")], ids=["thought", "tool"])
def test_single_step_has_no_row(part: ThinkingPart | ToolCallPart) -> None:
    assert rows(turn_of(ModelResponse([part]), TEXT)) == []


@pytest.mark.parametrize(("language", "name"), [("en", "Reasoning · 2.3 s"), ("de", "Nachdenken · 2,3 s")])
def test_single_thought_says_how_long_it_took(language: str, name: str) -> None:
    turn = turn_of(ModelResponse([ThinkingPart("Hm.")]), TEXT)
    _asked, thought, *_ = render_turn(turn, Translator(language))["bubbles"]
    assert title(thought) == name


@pytest.mark.parametrize("language", LANGUAGES)
def test_row_is_translated(language: str) -> None:
    name = title(rows(turn_of(*STEPS, TEXT), language)[0])
    assert Translator(language)(decimal(2.8, 1)) in name
    assert ("Thought" in name) == (language == "en")
