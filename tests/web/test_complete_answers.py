"""A queued message follows only an answer that is complete, or that the end of the server interrupted."""

from dataclasses import replace

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history import Entry, Note
from agent.web.chat.transcript import to_turns
from agent.web.chat.views import ChatView

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
