"""Property tests of what stores keep: any message, any text, any bytes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage

from agent.history import Conversation, Entry, HistoryStore, Note, search
from agent.history.search import EXCERPT_CHARACTERS, fold, hit_in, places_of, words_of
from agent.history.values import RunEvent, join_events, split_events
from agent.system.normal_form import compatible
from tests.support.history_stores import ALICE, chain, grown, prompt
from tests.support.strategies import TEXT, conversations
from tests.tiers import examples

SLOW = settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def fold_whole(text: str) -> str:
    """Fold a text in one piece."""
    return compatible(text).casefold()


WORD = st.text(st.characters(exclude_categories=["Cs", "Zs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6)


@SLOW
@given(messages=conversations())
async def test_any_message_round_trips(store: HistoryStore, messages: list[ModelMessage]) -> None:
    entries = chain(*messages)
    conversation = await grown(store, Conversation(owner=ALICE), entries)
    assert await store.history(conversation) == entries


@SLOW
@given(text=TEXT)
async def test_any_text_round_trips(store: HistoryStore, text: str) -> None:
    entry = Entry(parent_id=None, message=prompt(text), note=Note(detail=text))
    conversation = await store.save(Conversation(owner=ALICE, title=text, head_id=entry.id), [entry])
    assert await store.get(conversation.id, owner=ALICE) == conversation
    assert conversation.title == text
    assert await store.history(conversation) == [entry]


@given(st.lists(st.text(st.characters(codec=None)), min_size=1))
def test_any_event_text_survives(texts: list[str]) -> None:
    events = [RunEvent.of(number, {"content": text}) for number, text in enumerate(texts, 5)]
    assert split_events(join_events(events).encode().decode(), 5) == events
    assert [event.value["content"] for event in events] == texts


@given(st.lists(WORD, min_size=1, max_size=60), st.data())
def test_excerpt_shows_a_word_of_the_query(texts: list[str], data: st.DataObject) -> None:
    text, query = " ".join(texts), data.draw(st.sampled_from(texts))
    words = words_of(query)
    (entry,) = chain(prompt(text))
    hit = hit_in(Conversation(owner=ALICE), entry, words)
    assert 0 <= hit.start <= hit.end <= len(hit.excerpt) <= EXCERPT_CHARACTERS + 10
    if len(fold(text)) == len(text) and words:
        assert fold(hit.excerpt[hit.start : hit.end]) in words


@given(st.text("aßﬁ\u0301中 b", max_size=40), st.text("aßﬁ中b", min_size=1, max_size=3), st.integers(1, 9))
def test_excerpt_does_not_depend_on_the_pieces_of_a_text(text: str, query: str, characters: int) -> None:
    (entry,), words = chain(prompt(text)), words_of(query)
    whole = hit_in(Conversation(owner=ALICE, id="1"), entry, words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SLICE_CHARACTERS", characters)
        patch.setattr(search, "fold", fold_whole)
        hit = hit_in(whole.conversation, entry, words)
    assert hit == whole


@given(st.text(), st.lists(WORD))
def test_words_are_found_as_they_are_folded(text: str, query: list[str]) -> None:
    words = words_of(" ".join(query) + text[:5])
    places = places_of(text, words)
    flat = [at for place in places for at in place]
    assert flat == sorted(flat)
    assert all(0 <= begin < end <= len(text) for begin, end in places)
    assert bool(places) == any(word in fold(text) for word in words)
    ends = [0, *flat, len(text)]
    left = "\n".join(text[end:begin] for end, begin in zip(ends[::2], ends[1::2], strict=True))
    assert not any(word in fold(left) for word in words)
