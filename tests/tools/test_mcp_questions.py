"""Names of MCP servers and their tools, and what people answer to a server's questions, without a server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import InputError, ToolError
from agent.tools.function_tools import Question
from agent.tools.mcp import LONGEST_NAME, McpServer, fit_name
from agent.tools.mcp_questions import Exchange


@given(
    st.lists(st.one_of(st.text(min_size=1, max_size=90), st.sampled_from(["a.b", "a_b", "a b", "x" * 70])), unique=True)
)
def test_names_fit_every_provider_and_differ(names: list[str]) -> None:
    fit = [fit_name("things", name) for name in names]
    assert len(set(fit)) == len(names)
    for name in fit:
        assert len(name) <= LONGEST_NAME
        assert name.isascii()
        assert name.replace("-", "").replace("_", "").isalnum()
        assert name.startswith("things-")


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "x" * 33])
def test_server_name_must_fit(name: str) -> None:
    with pytest.raises(InputError, match="name is at most 32"):
        McpServer.stdio("true", name=name)


def replies_to(fields: dict[str, Any], **answers: str | bool) -> tuple[dict[str, Any] | None, list[Question]]:
    """Return the answer to a form of which each field is required, and the questions that are asked (again)."""
    asked = {"message": "M", "requestedSchema": {"type": "object", "properties": fields, "required": list(fields)}}
    caller: Any = SimpleNamespace(kept=None, replies={})
    exchange = Exchange("things", caller, {})
    with pytest.raises(ToolError):
        asyncio.run(exchange.elicit(asked))
    caller.replies = {one.key: answers[one.key.split(".")[-1]] for one in exchange.questions}
    exchange = Exchange("things", caller, {})
    try:
        return asyncio.run(exchange.elicit(asked)), exchange.questions
    except ToolError:
        return None, exchange.questions


def test_form_without_a_required_field_asks_nothing_again() -> None:
    fields = {"count": {"type": "number"}, "name": {"type": "string"}}
    assert replies_to(fields, count="bad", name=False) == ({"action": "decline"}, [])


@pytest.mark.parametrize("answer", ["nan", "inf", "0", "6", "x"])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_number_outside_of_its_limits_is_asked_again(kind: str, answer: str) -> None:
    made, (question,) = replies_to({"count": {"type": kind, "minimum": 1, "maximum": 5}}, count=answer)
    assert made is None
    assert question.text.endswith(f"number from 1 up to 5, not {answer!r}.")
    assert replies_to({"count": {"type": "number"}}, count="inf")[0] is None
    assert replies_to({"count": {"type": kind, "minimum": 1}}, count="7") == (
        {"action": "accept", "content": {"count": 7}},
        [],
    )


def test_choices_of_a_list_are_offered() -> None:
    fields = {"days": {"type": "array", "items": {"type": "string", "enum": ["Monday", "Friday"]}}}
    assert replies_to(fields, days="Sunday")[1][0].choices == ("Monday", "Friday")
    made, _ = replies_to(fields, days="Monday, Friday")
    assert made == {"action": "accept", "content": {"days": ["Monday", "Friday"]}}


FITTING = {
    "email": ("ann@example.org", "ann@home", "an address such as ann@example.org"),
    "uri": ("https://example.org/a", "example", "a URL such as https://example.org"),
    "date": ("2026-11-30", "30.11.2026", "a date such as 2026-11-30"),
    "date-time": ("2026-11-30T18:30:00Z", "2026-11-30T18:30", "2026-11-30T18:30:00Z"),
}


@pytest.mark.parametrize(("name", "good", "bad", "wanted"), [(name, *one) for name, one in FITTING.items()])
def test_text_of_a_format_is_checked(name: str, good: str, bad: str, wanted: str) -> None:
    field = {"at": {"type": "string", "format": name}}
    assert replies_to(field, at=f" {good} ")[0] == {"action": "accept", "content": {"at": good}}
    made, (question,) = replies_to(field, at=bad)
    assert made is None
    assert question.text.endswith(f"{wanted}, not {bad!r}.")


@pytest.mark.parametrize(
    ("limits", "unfit", "wanted"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 4}, "a", "It takes at least 2 and at most 4 characters"),
        ({"type": "string", "maxLength": 4}, "abcde", "It takes at most 4 characters"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, "a", "at least 2 values with commas"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, "a, b", "at most 1 values with commas"),
    ],
)
def test_too_short_and_too_long_answers_are_asked_again(limits: dict[str, Any], unfit: str, wanted: str) -> None:
    made, (question,) = replies_to({"at": limits}, at=unfit)
    assert made is None
    assert wanted in question.text


def test_question_that_takes_yes_or_no_offers_both() -> None:
    field = {"sure": {"type": "boolean"}}
    assert replies_to(field, sure="perhaps")[1][0].choices == ("Yes", "No")
    assert replies_to(field, sure="No")[0] == {"action": "accept", "content": {"sure": False}}


async def test_equal_questions_of_a_call_are_answered_apart() -> None:
    caller: Any = SimpleNamespace(kept=None, replies={})
    exchange = Exchange("things", caller, {})
    for _ in range(2):
        with pytest.raises(ToolError):
            await exchange.elicit({"message": "Sure?"})
    assert len({one.key for one in exchange.questions}) == 2


async def test_model_gets_the_text_that_people_have_changed() -> None:
    written = list[Any]()

    async def write(*given: Any) -> str:
        written.append(given)
        return "Warm."

    caller: Any = SimpleNamespace(kept=None, replies={}, write=write)
    asked = {"messages": [{"role": "user", "content": {"type": "text", "text": "Tea?"}}], "maxTokens": 9}
    first = Exchange("things", caller, {})
    with pytest.raises(ToolError):
        await first.sample(asked)
    caller.replies = {first.questions[0].key: {"txt": "redacted"}}
    again = Exchange("things", caller, {})
    with pytest.raises(ToolError):
        await again.sample(asked)
    assert "It takes the texts instructions and text" in again.questions[0].text
    assert again.questions[0].arguments == first.questions[0].arguments
    caller.replies = {first.questions[0].key: {"text": "redacted"}}
    answer = await Exchange("things", caller, {}).sample(asked)
    assert (answer["content"]["text"], written) == ("Warm.", [("", "redacted", 9)])
