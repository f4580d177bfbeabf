"""The view of a chat: whether its answer is complete, so that a queued message follows, and the names of its models."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history import Entry, Note
from agent.web.chat.transcript import NO_ENDING, ConversationTurn, to_turns
from agent.web.chat.views import ChatView, with_model_names

QUESTION = Entry(parent_id=None, message=ModelRequest([UserPromptPart("Hi.")]), note=Note(run_id="r"))


@pytest.mark.parametrize(
    ("text", "ended", "is_complete"),
    [
        ("Yes.", "stop", True),
        ("Yes and", "length", True),
        ("", "stop", False),
        ("Yes and", "content_filter", False),
        ("Yes and", "cancelled", False),
        ("Yes and", "limit", False),
        ("Yes and", "error", False),
        ("Yes and", "interrupted", True),
    ],
)
def test_only_an_unbroken_answer_is_complete(text: str, ended: str, is_complete: bool) -> None:
    answer = Entry(
        parent_id=QUESTION.id, message=ModelResponse([TextPart(text)]), note=Note(run_id="r", ended=ended, model="m")
    )
    assert ChatView(turns=to_turns([QUESTION, answer])).is_complete is is_complete


def test_chat_without_an_answer_is_not_complete() -> None:
    assert not ChatView().is_complete
    assert not ChatView(turns=[replace(to_turns([QUESTION])[0], note=None)]).is_complete


@pytest.mark.parametrize(
    ("models", "named"), [([], []), (["a", "a"], ["A", "A"]), (["a", "b", "", "a"], ["A", "B", "", "A"])]
)
def test_each_answer_names_its_model(models: Sequence[str], named: Sequence[str]) -> None:
    turns = [ConversationTurn(user=None, bubbles=(), note=NO_ENDING, model=model) for model in models]
    assert [turn.model_name for turn in with_model_names(turns, str.upper)] == named
