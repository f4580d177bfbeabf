"""An answer names its model where another model answered before."""

from collections.abc import Sequence

import pytest

from agent.web.chat.chat_view import with_model_names
from agent.web.chat.transcript import NO_ENDING, Turn


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ([], []),
        (["a", "a"], ["", ""]),
        (["a", "b", "b", "a"], ["", "B", "", "A"]),
        (["a", "", "a", "", "b"], ["", "", "", "", "B"]),
        (["", "b"], ["", ""]),
    ],
)
def test_model_is_named_where_it_changes(models: Sequence[str], named: Sequence[str]) -> None:
    turns = [Turn(user=None, bubbles=(), note=NO_ENDING, model=model) for model in models]
    assert [turn.model_name for turn in with_model_names(turns, str.upper)] == named
