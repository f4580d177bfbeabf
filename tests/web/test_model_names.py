"""Each answer names its model."""

from collections.abc import Sequence

import pytest

from agent.web.chat.transcript import NO_ENDING, ConversationTurn
from agent.web.chat.views import with_model_names


@pytest.mark.parametrize(
    ("models", "named"), [([], []), (["a", "a"], ["A", "A"]), (["a", "b", "", "a"], ["A", "B", "", "A"])]
)
def test_each_answer_names_its_model(models: Sequence[str], named: Sequence[str]) -> None:
    turns = [ConversationTurn(user=None, bubbles=(), note=NO_ENDING, model=model) for model in models]
    assert [turn.model_name for turn in with_model_names(turns, str.upper)] == named
