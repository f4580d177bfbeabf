"""The normal form of a text is that of `unicodedata`, but costs and grows no more than the text."""

from time import process_time
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.history.search import fold
from agent.system.normal_form import compatible, pieces
from tests.tiers import examples

ODD = st.sampled_from(
    "aA1 .\n\u0301\u0327\u0315\u1100\u1161\u11a8\uac00\u09c7\u09be\uff21\ufdfa\u2026\u212b\ud83d\ude00\U0001f600"
)


@settings(max_examples=examples(100))
@given(st.lists(st.text(ODD, max_size=20), max_size=30), st.integers(1, 60))
def test_form_is_that_of_unicode(words: list[str], times: int) -> None:
    text = " ".join(words * times)
    assert "".join(pieces(text)) == text
    if "\ufdfa" not in text:
        assert compatible(text) == normalize("NFKC", text)


@pytest.mark.parametrize(
    "text", ["a" + "\u0315" * 40_000 + "\u0327" * 40_000, "\ufdfa" * 100_000], ids=["marks", "grows"]
)
def test_text_that_is_costly_stays_bounded(text: str) -> None:
    began = process_time()
    assert len(compatible(text)) <= 4 * len(text) + 10_000
    assert process_time() - began < 2, "10 s for the marks, if they are sorted together"
    assert len(fold(text)) <= 4 * len(text) + 10_000
