"""Titles, pins, pages of the list, and search, on all stores."""

import sqlite3
from contextlib import aclosing, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from agent.errors import NotFound
from agent.history import HistoryStore, Record
from agent.history.search import EXCERPT_CHARACTERS, fold, hit_in, words_of
from agent.history.sqlite import SqliteStore
from tests.support.history_stores import ALICE, MALLORY, Clock, chain, prompt


async def titled(store: HistoryStore, title: str, *texts: str, owner: str = ALICE) -> Record:
    entries = chain(*map(prompt, texts or ("Hello",)))
    return await store.save(Record(owner=owner, title=title, head_id=entries[-1].id), entries)


async def test_label_keeps_revision_and_place(store: HistoryStore) -> None:
    older, newer = await titled(store, "older"), await titled(store, "newer")
    renamed = await store.label(older.id, owner=ALICE, title="Renamed", pinned=True)
    assert renamed == replace(older, title="Renamed", pinned=True) == await store.get(older.id, owner=ALICE)
    assert await store.list(ALICE) == [newer, renamed]
    assert await store.label(older.id, owner=ALICE, pinned=False) == replace(renamed, pinned=False)


async def test_save_keeps_the_label(store: HistoryStore) -> None:
    record = await titled(store, "first words")
    await store.label(record.id, owner=ALICE, title="Chosen", pinned=True)
    more = chain(prompt("more"), after=record.head_id)
    saved = await store.save(replace(record, head_id=more[-1].id), more)
    assert (saved.title, saved.pinned) == ("Chosen", True)
    assert await store.get(record.id, owner=ALICE) == saved
    untitled = await titled(store, "")
    assert (await store.save(replace(untitled, title="Now it has one"))).title == "Now it has one"


async def test_title_is_replaced_only_if_it_is_the_expected_one(store: HistoryStore) -> None:
    record = await titled(store, "first words")
    assert (await store.label(record.id, owner=ALICE, title="A summary", instead_of="first words")).title == "A summary"
    assert (await store.label(record.id, owner=ALICE, title="Late", instead_of="first words")).title == "A summary"
    assert [hit.record.id for hit in await store.search(ALICE, "summary")] == [record.id]
    assert await store.search(ALICE, "late") == []


async def test_only_owner_labels_and_searches(store: HistoryStore, clock: Clock) -> None:
    record = await titled(store, "A secret title", "A secret message")
    with pytest.raises(NotFound):
        await store.label(record.id, owner=MALLORY, title="Taken")
    assert await store.search(MALLORY, "secret") == []
    assert await store.get(record.id, owner=ALICE) == record
    assert await store.retention.set_expiry(record, clock())
    with pytest.raises(NotFound):
        await store.label(record.id, owner=ALICE, title="Late")
    assert await store.search(ALICE, "secret") == []


async def test_pages_of_the_list_follow_each_other(store: HistoryStore) -> None:
    records = [await titled(store, str(number)) for number in range(7)][::-1]
    pages = [await store.list(ALICE, limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [record for page in pages for record in page] == records
    pinned = {(await store.label(records[place].id, owner=ALICE, pinned=True)).id for place in (1, 5)}
    assert {record.id for record in await store.list(ALICE, pinned=True)} == pinned
    assert [one.title for one in await store.list(ALICE, pinned=False, limit=4)] == ["6", "4", "3", "2"]
    assert [one.title for one in await store.list(ALICE, pinned=True, offset=1)] == ["1"]


async def test_search_finds_titles_prompts_and_answers(store: HistoryStore) -> None:
    by_title = await titled(store, "Grüße aus Köln")
    answer = ModelResponse(parts=[ThinkingPart("Sydney?"), TextPart("Canberra is the capital of Australia.")])
    entries = chain(prompt("Which city?"), answer)
    by_answer = await store.save(Record(owner=ALICE, title="Geo", head_id=entries[-1].id), entries)
    by_prompt = await titled(store, "", "東京タワーの高さ")

    async def found(query: str) -> list[tuple[str, str | None]]:
        return [(hit.record.id, hit.entry_id) for hit in await store.search(ALICE, query)]

    assert await found("KÖLN grüsse") == [(by_title.id, None)]
    assert await found("capital AUSTRALIA") == [(by_answer.id, entries[1].id)]
    assert await found("東京") == [(by_prompt.id, by_prompt.head_id)]
    assert await found("タワー 高さ") == [(by_prompt.id, by_prompt.head_id)]
    assert await found("apit") == [(by_answer.id, entries[1].id)]
    for nothing in ("sydney", "capital köln", "", "  ", "%", "_", "'", '"', "\0", "\ud800", "output_text"):
        assert await found(nothing) == []


async def test_search_returns_last_saved_first_and_newest_message(store: HistoryStore) -> None:
    first = await titled(store, "", "apple one", "pear", "apple two", "plum")
    second = await titled(store, "apple", "pear")
    hits = await store.search(ALICE, "apple")
    assert [hit.record.id for hit in hits] == [second.id, first.id]
    assert [hit.excerpt for hit in hits] == ["apple", "apple two"]
    assert [hit.record.id for hit in await store.search(ALICE, "apple", limit=1)] == [second.id]
    await store.delete(second.id, owner=ALICE)
    assert [hit.record.id for hit in await store.search(ALICE, "apple")] == [first.id]


async def test_branch_is_found_too(store: HistoryStore) -> None:
    record = await titled(store, "", "question about otters")
    other = chain(prompt("question about badgers"))
    await store.save(replace(record, head_id=other[0].id, branches=(record.head_id or "",)), other)
    assert [hit.entry_id for hit in await store.search(ALICE, "otters")] == [record.head_id]


async def test_expiry_is_set_and_taken_back(store: HistoryStore, clock: Clock) -> None:
    record = await titled(store, "kept")
    assert await store.retention.set_expiry(record, clock() - timedelta(seconds=1))
    assert await store.list(ALICE) == []
    (expired,) = await store.retention.expiring(clock())
    assert expired.revision == record.revision
    assert await store.retention.set_expiry(expired, None)
    assert await store.get(record.id, owner=ALICE) == record
    assert not await store.retention.set_expiry(replace(record, owner=MALLORY), clock())
    assert not await store.retention.set_expiry(replace(record, revision=7), clock())


WORD = st.text(st.characters(exclude_categories=["Cs", "Zs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6)


@given(st.lists(WORD, min_size=1, max_size=60), st.data())
def test_excerpt_shows_a_word_of_the_query(texts: list[str], data: st.DataObject) -> None:
    text, query = " ".join(texts), data.draw(st.sampled_from(texts))
    words = words_of(query)
    (entry,) = chain(prompt(text))
    hit = hit_in(Record(owner=ALICE), entry, words)
    assert 0 <= hit.start <= hit.end <= len(hit.excerpt) <= EXCERPT_CHARACTERS + 10
    if len(fold(text)) == len(text) and words:
        assert fold(hit.excerpt[hit.start : hit.end]) in words


async def test_older_file_can_be_searched(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        record = await titled(store, "An old title", *(f"message {number}" for number in range(1200)))
        damaged = await titled(store, "Damaged", "whole", "broken")
    with closing(sqlite3.connect(path)) as file:  # as a process of the version before leaves it
        file.execute("UPDATE conversations SET title = '', folded_title = NULL")
        file.execute("DELETE FROM entry_texts")
        file.execute("UPDATE entries SET entry = '{}' WHERE id = ?", (damaged.head_id,))
        file.commit()
    async with aclosing(await SqliteStore.open(path)) as store:
        assert [hit.record for hit in await store.search(ALICE, "message 1199")] == [record]
        assert [hit.record for hit in await store.search(ALICE, "old")] == [record]
        assert [hit.record.title for hit in await store.search(ALICE, "whole")] == ["Damaged"]
        assert await store.search(ALICE, "broken") == []
