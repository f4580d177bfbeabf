"""The laws of a history store: one suite that every backend passes, then the faults that only a file can have."""

import asyncio
import inspect
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import ConfigError, Conflict, HistoryError, NotFound
from agent.history import Entry, HistoryStore, Note, Record, Timings, new_id, now
from agent.history.codec import dump_entries, dump_record
from agent.history.sqlite import SqliteStore
from agent.history.sqlite_schema import MIGRATIONS
from tests.support.history_stores import ALICE, MALLORY, Clock, chain, prompt, started
from tests.support.strategies import TEXT, conversations
from tests.tiers import examples

ROOT = Path(__file__).parents[2]
SLOW = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


async def grown(store: HistoryStore, record: Record, entries: list[Entry]) -> Record:
    return await store.save(replace(record, head_id=entries[-1].id), entries)


def texts(entries: list[Entry]) -> list[Any]:
    return [part.content for entry in entries for part in entry.message.parts if isinstance(part, UserPromptPart)]


# Round trips


async def test_saved_history_is_read_back(store: HistoryStore) -> None:
    timings = Timings(first_token=0.25, total=1.5, output_tokens=3, input_tokens=4, estimated=True)
    note = Note(run_id="r", model="m", ended="error", detail="Why.", timings=timings, cost=0.01, attachments=("a", "b"))
    entry = Entry(parent_id=None, message=prompt(), note=note)
    record = Record(
        owner=ALICE,
        title="A title",
        head_id=entry.id,
        branches=(new_id(),),
        pending=("call",),
        input_tokens=1,
        output_tokens=2,
        cost=0.5,
        expires_at=now() + timedelta(hours=1),
    )
    before = now()
    saved = await store.save(record, [entry])
    assert saved == replace(record, revision=1, updated_at=saved.updated_at)
    assert before <= saved.updated_at <= now()
    assert await store.get(record.id, owner=ALICE) == saved
    assert await store.list(ALICE) == [saved]
    assert await store.history(saved) == [entry]


async def test_entries_come_oldest_first(store: HistoryStore) -> None:
    record, first = await started(store, "1", "2", "3")
    second = chain(prompt("4"), after=first[-1].id)
    record = await grown(store, record, second)
    third = chain(prompt("5"), prompt("6"), after=second[-1].id)
    record = await grown(store, record, third)
    assert await store.history(record) == [*first, *second, *third]
    assert record.revision == 3


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, "12345"), (9, "12345"), (5, "12345"), (2, "45"), (1, "5"), (0, ""), (-1, "")]
)
async def test_limit_keeps_newest(store: HistoryStore, limit: int | None, expected: str) -> None:
    record, _ = await started(store, *"12345")
    assert texts(await store.history(record, limit=limit)) == [*expected]


async def test_conversation_can_be_empty(store: HistoryStore) -> None:
    record = await store.save(Record(owner=ALICE))
    assert await store.history(record) == []


@SLOW
@given(messages=conversations())
async def test_any_message_round_trips(store: HistoryStore, messages: list[ModelMessage]) -> None:
    entries = chain(*messages)
    record = await grown(store, Record(owner=ALICE), entries)
    assert await store.history(record) == entries


@SLOW
@given(text=TEXT)
async def test_any_text_round_trips(store: HistoryStore, text: str) -> None:
    entry = Entry(parent_id=None, message=prompt(text), note=Note(detail=text))
    record = await store.save(Record(owner=ALICE, title=text, head_id=entry.id), [entry])
    assert await store.get(record.id, owner=ALICE) == record
    assert record.title == text
    assert await store.history(record) == [entry]


@SLOW
@given(data=st.binary(max_size=300), kind=st.sampled_from(["image/png", "audio/wav", "application/x-own"]))
async def test_bytes_round_trip(store: HistoryStore, data: bytes, kind: str) -> None:
    media = BinaryContent(data, media_type=kind, identifier="scan")
    message = ModelRequest([UserPromptPart(["See:", media]), ToolReturnPart("tool", [media], "call-1")])
    record = await grown(store, Record(owner=ALICE), chain(message))
    (entry,) = await store.history(record)
    asked, returned = entry.message.parts
    assert isinstance(asked, UserPromptPart)
    assert isinstance(returned, ToolReturnPart)
    for back in (asked.content[1], returned.content[0]):
        assert isinstance(back, BinaryContent)
        assert (back.data, back.media_type, back.identifier) == (data, kind, "scan")


@pytest.mark.parametrize(
    "message",
    [
        ModelRequest([ToolReturnPart("tool", {"raw": b"\xff\x00"}, "call-1", metadata={"raw": b"\xff\x00"})]),
        ModelResponse([TextPart("x", provider_details={"raw": b"\xff"})], provider_details={"raw": b"\xff"}),
    ],
    ids=["tool", "provider"],
)
async def test_stray_bytes_are_accepted(store: HistoryStore, message: ModelMessage) -> None:
    record = await grown(store, Record(owner=ALICE), chain(message))
    assert "_w==" in repr(await store.history(record)) or "_wA=" in repr(await store.history(record))


async def test_tool_calls_and_signatures_round_trip(store: HistoryStore) -> None:
    thought = ThinkingPart("", id="rs_1", signature="EqQBCkYIBxgC==", provider_name="anthropic")
    thought.provider_details = {"encrypted_content": "gAAAA=", "n": [1, 2]}
    call = ToolCallPart("weather", '{"city": "Zürich"', "call-1", provider_details={"thought_signature": "x=="})
    entries = chain(
        prompt("How warm?"),
        ModelResponse([thought, TextPart("Let me see."), call], provider_details={"logprobs": None}),
        ModelRequest([ToolReturnPart("weather", {"c": 21.5}, "call-1", outcome="failed")]),
    )
    record = await grown(store, Record(owner=ALICE, pending=("call-1",)), entries)
    assert await store.history(record) == entries


async def test_lone_surrogate_loses_no_turn(store: HistoryStore) -> None:
    entry = Entry(parent_id=None, message=prompt("lone \ud83d, joined \ud83d\ude00, NUL \x00"))
    record = await store.save(Record(owner=ALICE, title="\udfff", head_id=entry.id), [entry])
    assert texts(await store.history(record)) == ["lone \ufffd, joined \U0001f600, NUL \x00"]
    assert record.title == "\ufffd"


async def test_large_message_round_trips(store: HistoryStore) -> None:
    text = "0123456789abcdef" * 2**18  # 4 MiB
    record, entries = await started(store, text)
    assert await store.history(record) == entries


async def test_history_loads_in_linear_time(store: HistoryStore) -> None:
    async def seconds(turns: int) -> float:
        messages = [message for i in range(turns) for message in (prompt(f"Why {i}? " * 10), answer)]
        entries = chain(*messages)
        record = await grown(store, Record(owner=ALICE), entries)
        spans: list[float] = []
        for _ in range(5):
            begun = time.process_time()
            assert await store.history(record) == entries
            spans.append(time.process_time() - begun)
        return min(spans)

    answer = ModelResponse([ThinkingPart("Hm. " * 50, signature="s" * 100), TextPart("Because. " * 100)])
    assert await seconds(400) < 30 * await seconds(50)  # about 8 times, and 64 times if each message reads all others


async def test_changed_message_changes_nothing_stored(store: HistoryStore) -> None:
    message = prompt("before")
    record = await grown(store, Record(owner=ALICE), chain(message))
    message.parts[0].content = "after"  # type: ignore[union-attr]
    (loaded,) = await store.history(record)
    assert texts([loaded]) == ["before"]
    loaded.message.parts[0].content = "after"  # type: ignore[union-attr]
    assert texts(await store.history(record)) == ["before"]


# Saves and revisions


async def test_old_revision_conflicts_and_changes_nothing(store: HistoryStore) -> None:
    first, entries = await started(store, "1")
    second = await grown(store, first, chain(prompt("2"), after=entries[-1].id))
    stale = chain(prompt("stale"), after=entries[-1].id)
    with pytest.raises(Conflict):
        await grown(store, first, stale)
    assert await store.get(first.id, owner=ALICE) == second
    assert texts(await store.history(second)) == ["1", "2"]
    with pytest.raises(NotFound):
        await store.history(replace(second, head_id=stale[-1].id))


@pytest.mark.parametrize("revision", [0, 2, 7], ids=["as-if-new", "one-ahead", "far-ahead"])
async def test_only_stored_revision_is_accepted(store: HistoryStore, revision: int) -> None:
    record, _ = await started(store)
    with pytest.raises(Conflict):
        await store.save(replace(record, revision=revision))
    assert await store.get(record.id, owner=ALICE) == record


async def test_one_concurrent_save_wins(store: HistoryStore) -> None:
    record, entries = await started(store, "0")
    rivals = [chain(prompt(f"{i}a"), prompt(f"{i}b"), after=entries[-1].id) for i in range(12)]
    outcomes = await asyncio.gather(*(grown(store, record, rival) for rival in rivals), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    assert [type(outcome) for outcome in outcomes if not isinstance(outcome, Record)] == [Conflict] * 11
    stored = await store.get(record.id, owner=ALICE)
    assert winners == [stored]
    (kept,) = [rival for rival in rivals if rival[-1].id == stored.head_id]
    assert await store.history(stored) == [*entries, *kept]


async def test_concurrent_saves_of_conversations_succeed(store: HistoryStore) -> None:
    async def talk(i: int) -> None:
        record, entries = await started(store, f"{i}.0", owner=f"visitor:{i % 3}")
        for turn in range(1, 5):
            added = chain(prompt(f"{i}.{turn}"), after=entries[-1].id)
            record = await grown(store, record, added)
            entries += added
            assert await store.history(record) == entries

    await asyncio.gather(*map(talk, range(12)))
    assert [len(await store.list(f"visitor:{i}")) for i in range(3)] == [4, 4, 4]


def spoilt() -> dict[str, Callable[[str], Entry]]:
    """Return functions that make an invalid entry, by its fault. Each entry follows the given id."""
    junk: Any = ["no part"]
    circular: dict[str, Any] = {}
    circular["self"] = circular
    return {
        "unknown-parent": lambda _: Entry(parent_id=new_id(), message=prompt()),
        "own-parent": lambda _: Entry(id="x", parent_id="x", message=prompt()),
        "used-id": lambda after: Entry(id=after, parent_id=None, message=prompt()),
        "no-message": lambda after: Entry(parent_id=after, message=junk),
        "no-part": lambda after: Entry(parent_id=after, message=ModelRequest(junk)),
        "wrong-side": lambda after: Entry(parent_id=after, message=ModelRequest([TextPart("x")])),  # type: ignore
        "no-json": lambda after: Entry(parent_id=after, message=ModelRequest([ToolReturnPart("t", object(), "c")])),
        "circular": lambda after: Entry(parent_id=after, message=ModelRequest([ToolReturnPart("t", circular, "c")])),
        "no-text-id": lambda after: Entry(id="\ud800", parent_id=after, message=prompt()),
    }


@pytest.mark.parametrize("spoil", spoilt().values(), ids=spoilt())
async def test_bad_entry_rejects_whole_save(store: HistoryStore, spoil: Callable[[str], Entry]) -> None:
    record, entries = await started(store, "kept")
    (good,) = chain(prompt("good"), after=entries[-1].id)
    bad = spoil(good.id)
    with pytest.raises(HistoryError) as caught:
        await store.save(replace(record, head_id=bad.id, title="changed"), [good, bad])
    assert not isinstance(caught.value, NotFound | Conflict)
    assert await store.get(record.id, owner=ALICE) == record
    assert await store.history(record) == entries
    with pytest.raises(NotFound):
        await store.history(replace(record, head_id=good.id))
    # The ids stay free: the same save without the bad entry succeeds.
    record = await grown(store, record, [good])
    assert texts(await store.history(record)) == ["kept", "good"]


async def test_head_must_be_own_entry(store: HistoryStore) -> None:
    other, entries = await started(store)
    for head in (new_id(), entries[-1].id):
        record = Record(owner=ALICE, head_id=head)
        with pytest.raises(HistoryError):
            await store.save(record)
        with pytest.raises(NotFound):
            await store.get(record.id, owner=ALICE)
    assert await store.list(ALICE) == [other]


async def test_entry_follows_only_earlier_ones(store: HistoryStore) -> None:
    record, entries = await started(store, "0")
    first, second = chain(prompt("1"), prompt("2"))
    ring = [replace(first, parent_id=second.id), second]
    for added in ([second, replace(first, parent_id=entries[-1].id)], ring):
        with pytest.raises(HistoryError):
            await store.save(replace(record, head_id=second.id), added)
    assert await store.history(record) == entries


async def test_entry_is_never_overwritten(store: HistoryStore) -> None:
    record, (entry,) = await started(store, "first")
    with pytest.raises(HistoryError):
        await store.save(record, [replace(entry, message=prompt("second"))])
    assert texts(await store.history(record)) == ["first"]


async def test_cancelled_save_stores_all_or_nothing(store: HistoryStore) -> None:
    record, entries = await started(store, "0")
    outcomes: set[bool] = set()
    for ticks in [*range(25), 200, None]:
        added = chain(*(prompt(f"{ticks}.{i}") for i in range(20)), after=entries[-1].id)
        task = asyncio.create_task(grown(store, record, added))
        if ticks is None:
            await task
        for _ in range(ticks or 0):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        stored = await store.get(record.id, owner=ALICE)
        saved = stored.head_id == added[-1].id
        if saved:
            entries += added
        assert (stored.revision == record.revision + 1) is saved
        assert await store.history(stored) == entries
        outcomes.add(saved)
        record = stored
    assert outcomes == {True, False}


# Branches


async def test_old_branch_remains(store: HistoryStore) -> None:
    record, (asked, answered) = await started(store, "question", "answer")
    retried = chain(prompt("retried"), after=asked.id)
    record = await store.save(replace(record, head_id=retried[-1].id, branches=(answered.id,)), retried)
    assert texts(await store.history(record)) == ["question", "retried"]

    edited = chain(prompt("edited"), prompt("new answer"))
    record = await store.save(
        replace(record, head_id=edited[-1].id, branches=(*record.branches, retried[-1].id)), edited
    )
    assert texts(await store.history(record)) == ["edited", "new answer"]

    record = await store.save(replace(record, head_id=edited[0].id, branches=(*record.branches, edited[-1].id)))
    assert texts(await store.history(record)) == ["edited"]
    record = await store.save(replace(record, head_id=None))
    assert await store.history(record) == []

    stored = await store.get(record.id, owner=ALICE)
    branches = [texts(await store.history(replace(stored, head_id=branch))) for branch in stored.branches]
    assert branches == [["question", "answer"], ["question", "retried"], ["edited", "new answer"]]


async def test_unknown_head_is_not_found(store: HistoryStore) -> None:
    record, _ = await started(store)
    with pytest.raises(NotFound):
        await store.history(replace(record, head_id=new_id()))


# Owners

Verb = Callable[[HistoryStore, Record, str], Awaitable[Any]]

VERBS: dict[str, Verb] = {
    "get": lambda store, record, owner: store.get(record.id, owner=owner),
    "history": lambda store, record, owner: store.history(replace(record, owner=owner)),
    "history-empty": lambda store, record, owner: store.history(replace(record, owner=owner, head_id=None)),
    "history-none": lambda store, record, owner: store.history(replace(record, owner=owner), limit=0),
    "save": lambda store, record, owner: store.save(replace(record, owner=owner, title="taken")),
    "save-entry": lambda store, record, owner: grown(store, replace(record, owner=owner), chain(prompt("taken"))),
    "delete": lambda store, record, owner: store.delete(record.id, owner=owner),
}
STRANGERS = [MALLORY, "", ALICE.upper(), ALICE + " ", ALICE[:-1], ALICE + "\x00", "%", "*", "../" + ALICE, "\ud800"]


@pytest.mark.parametrize("stranger", STRANGERS, ids=ascii)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_foreign_object_looks_missing(store: HistoryStore, verb: Verb, stranger: str) -> None:
    record, entries = await started(store, "private")
    await started(store, "their own", owner=MALLORY)
    missing = replace(record, id=new_id())
    refusals: list[str] = []
    for target in (record, missing):
        with pytest.raises(HistoryError) as caught:
            await verb(store, target, stranger)
        # A save refuses a non-text owner before any lookup.
        assert type(caught.value) is NotFound or stranger == "\ud800"
        refusals.append(str(caught.value).replace(target.id, "ID"))
    assert refusals[0] == refusals[1]
    assert record not in await store.list(stranger)
    assert await store.get(record.id, owner=ALICE) == record
    assert await store.history(record) == entries


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_owner_has_access(store: HistoryStore, verb: Verb) -> None:
    record, _ = await started(store)
    await verb(store, record, ALICE)


async def test_new_conversation_cannot_take_foreign_id(store: HistoryStore) -> None:
    record, _ = await started(store)
    with pytest.raises(NotFound):
        await store.save(Record(id=record.id, owner=MALLORY))
    assert await store.get(record.id, owner=ALICE) == record


async def test_chain_stays_in_its_conversation(store: HistoryStore) -> None:
    private, entries = await started(store, "private")
    own, _ = await started(store, "own", owner=MALLORY)
    with pytest.raises(NotFound):
        await store.history(replace(own, head_id=entries[-1].id))
    with pytest.raises(HistoryError):
        await store.save(replace(own, head_id=entries[-1].id))
    with pytest.raises(HistoryError):
        await grown(store, own, chain(prompt("graft"), after=entries[-1].id))
    assert texts(await store.history(own)) == ["own"]
    assert await store.history(private) == entries


async def test_conversations_can_share_entry_ids(store: HistoryStore) -> None:
    def numbered(*prompts: str) -> list[Entry]:
        first, second = chain(*map(prompt, prompts))
        return [replace(first, id="1"), replace(second, id="2", parent_id="1")]

    mine = await grown(store, Record(owner=ALICE), numbered("mine", "my own"))
    other = await grown(store, Record(owner=MALLORY), numbered("theirs", "their own"))
    assert texts(await store.history(mine)) == ["mine", "my own"]
    assert texts(await store.history(other)) == ["theirs", "their own"]
    await store.delete(other.id, owner=MALLORY)
    assert texts(await store.history(mine)) == ["mine", "my own"]


ODD = ["", "../x", "/etc/passwd", "a/b", ".", "a\x00b", "%", "*", "a:b", "'; --", "\U0001f469", "CON", "x" * 300]


@pytest.mark.parametrize("name", ODD, ids=ascii)
async def test_ids_and_owners_are_opaque(store: HistoryStore, name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await store.get(name, owner=ALICE)
    record, entries = await started(store, "odd", owner=name)
    record = await store.save(Record(id=name, owner=name, head_id=entries[0].id), entries)
    assert await store.get(name, owner=name) == record
    assert await store.history(record) == entries
    assert len(await store.list(name)) == 2
    await store.delete(name, owner=name)
    assert len(await store.list(name)) == 1


async def test_non_text_id_is_not_found(store: HistoryStore) -> None:
    for call in (store.get("\ud800", owner=ALICE), store.delete("\ud800", owner=ALICE)):
        with pytest.raises(NotFound):
            await call


# Deleting, listing, expiring


async def test_delete_leaves_nothing(store: HistoryStore) -> None:
    record, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    record = await store.save(replace(record, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    kept, kept_entries = await started(store, "kept")
    await store.delete(record.id, owner=ALICE)
    for verb in VERBS.values():
        with pytest.raises(NotFound):
            await verb(store, record, ALICE)
    assert await store.list(ALICE) == [kept]
    assert await store.history(kept) == kept_entries
    # A new conversation with that id finds none of the old entries.
    again = await store.save(Record(id=record.id, owner=ALICE))
    for head in (entries[-1].id, branch[-1].id):
        with pytest.raises(NotFound):
            await store.history(replace(again, head_id=head))
        with pytest.raises(HistoryError):
            await store.save(replace(again, head_id=head))


async def test_save_does_not_restore_deleted(store: HistoryStore) -> None:
    record, _ = await started(store)
    await store.delete(record.id, owner=ALICE)
    with pytest.raises(NotFound):
        await store.save(record)
    assert await store.list(ALICE) == []


async def test_list_starts_with_last_saved(store: HistoryStore) -> None:
    one, two, three = [(await started(store, text))[0] for text in "123"]
    await started(store, "other", owner=MALLORY)
    one = await store.save(replace(one, title="again"))
    assert await store.list(ALICE) == [one, three, two]
    assert await store.list(ALICE, limit=2) == [one, three]
    assert await store.list(ALICE, limit=0) == []
    assert await store.list(ALICE, limit=-1) == []
    assert await store.list("visitor:nobody") == []


async def test_list_order_ignores_clocks(store: HistoryStore) -> None:
    saved = [(await started(store, str(i)))[0] for i in range(60)]
    assert await store.list(ALICE, limit=100) == saved[::-1]


async def test_expired_record_is_hidden_before_erasure(store: HistoryStore, clock: Clock) -> None:
    live, entries = await started(store, "live")
    live = await store.save(replace(live, expires_at=now() + timedelta(hours=2)))
    old, _ = await started(store, "old")
    old = await store.save(replace(old, expires_at=now() + timedelta(hours=1)))
    assert await store.list(ALICE) == [old, live]
    clock.ahead = timedelta(hours=1.5)
    assert await store.list(ALICE) == [live]
    for verb in VERBS.values():
        with pytest.raises(NotFound):
            await verb(store, old, ALICE)
    assert await store.retention.expiring(clock()) == [old]
    assert texts([*await store.entries(old)]) == ["old"]
    assert await store.retention.erase(old)
    assert await store.retention.expiring(clock()) == []
    assert await store.entries(old) == []
    assert not await store.retention.erase(old)
    assert await store.history(live) == entries


async def test_earliest_expires_first(store: HistoryStore, clock: Clock) -> None:
    records: list[Record] = []
    for hours, owner in ((3, ALICE), (1, MALLORY), (2, ALICE), (4, MALLORY)):
        record, _ = await started(store, owner=owner)
        records.append(await store.save(replace(record, expires_at=now() + timedelta(hours=hours))))
    await started(store, "for ever")
    third, first, second, fourth = records
    far = clock() + timedelta(days=9)
    assert await store.retention.expiring(clock()) == []
    assert await store.retention.expiring(far) == [first, second, third, fourth]
    assert await store.retention.expiring(far, limit=2) == [first, second]
    assert await store.retention.expiring(clock() + timedelta(hours=2.5)) == [first, second]
    assert await store.retention.expiring(far, owners=MALLORY[:-1]) == [first, fourth]
    assert await store.retention.expiring(far, owners="nobody") == []


async def test_erasing_removes_branches(store: HistoryStore) -> None:
    record, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    record = await store.save(replace(record, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    kept, kept_entries = await started(store, "kept")
    assert sorted(texts([*await store.entries(record)])) == ["1", "2", "3"]
    assert await store.retention.erase(record)
    assert await store.entries(record) == []
    assert await store.history(kept) == kept_entries


async def test_erasing_spares_newer_and_foreign_records(store: HistoryStore) -> None:
    record, entries = await started(store)
    newer = await grown(store, record, chain(prompt("2"), after=entries[-1].id))
    assert not await store.retention.erase(record)
    assert not await store.retention.erase(replace(newer, owner=MALLORY))
    assert await store.entries(replace(newer, owner=MALLORY)) == []
    assert texts(await store.history(newer)) == ["Hello", "2"]


async def test_expiry_can_be_extended(store: HistoryStore, clock: Clock) -> None:
    record, _ = await started(store)
    record = await store.save(replace(record, expires_at=now() + timedelta(hours=1)))
    record = await store.save(replace(record, expires_at=None))
    clock.ahead = timedelta(days=1000)
    assert await store.retention.expiring(clock()) == []
    assert await store.list(ALICE) == [record]


async def test_second_close_does_nothing(store: HistoryStore) -> None:
    await store.aclose()
    await store.aclose()


# The file of SQLite


# The child does not import this module, which would load pytest and hypothesis.
CHILD = "\n".join(
    [
        "from __future__ import annotations",
        "import asyncio, sys",
        "from dataclasses import replace",
        "from agent.errors import Conflict",
        "from agent.history import Entry, Record",
        "from agent.history.sqlite import SqliteStore",
        "from pydantic_ai.messages import ModelRequest, UserPromptPart",
        f"ALICE = {ALICE!r}",
        *map(inspect.getsource, (prompt, chain, started, grown)),
    ]
)


def python(script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start another process that runs `script`, which can import the store and this suite's helpers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHILD + script, *arguments]
    return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, **options)


TALK = """
async def main(path, name):
    store = await SqliteStore.open(path)
    record, entries = await started(store, f"{name}.0")
    print(record.id, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for turn in range(1, 61):
        entries = chain(prompt(f"{name}.{turn}"), after=entries[-1].id)
        record = await grown(store, record, entries)
        while True:
            shared = await store.get("shared", owner=ALICE)
            try:
                shared = await grown(store, shared, chain(prompt(f"{name}.{turn}"), after=shared.head_id))
                break
            except Conflict:
                pass
    await store.aclose()
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_concurrent_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        await store.save(Record(id="shared", owner=ALICE))
        writers = [python(TALK, str(path), name, stdin=subprocess.PIPE) for name in "ab"]
        ids = [await asyncio.to_thread(writer.stdout.readline) for writer in writers if writer.stdout]
        await asyncio.gather(*(asyncio.to_thread(writer.communicate, "go\n") for writer in writers))
        assert [writer.returncode for writer in writers] == [0, 0]
        for name, line in zip("ab", ids, strict=True):
            record = await store.get(line.strip(), owner=ALICE)
            assert texts(await store.history(record)) == [f"{name}.{turn}" for turn in range(61)]
        shared = texts(await store.history(await store.get("shared", owner=ALICE)))
        assert len(shared) == 120
        for name in "ab":
            assert [text for text in shared if text[0] == name] == [f"{name}.{turn}" for turn in range(1, 61)]


async def test_many_can_create_the_file_at_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "history.db") for _ in range(8)))
    record, entries = await started(stores[0])
    for store in stores:
        assert await store.history(record) == entries
        await store.aclose()


async def test_new_file_of_another_process_is_awaited(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(SqliteStore.open(path, busy_timeout=30))
        await asyncio.wait({opening}, timeout=0.2)
        assert not opening.done()
        other.execute("COMMIT")
    async with aclosing(await opening) as store:
        await started(store)


ACKNOWLEDGE = """
async def main(path):
    store = await SqliteStore.open(path)
    record = await store.save(Record(id="talk", owner=ALICE))
    turn = 0
    while True:
        record = await grown(store, record, chain(*(prompt(f"{turn}.{i}") for i in range(9)), after=record.head_id))
        print(turn, flush=True)
        turn += 1
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
@pytest.mark.slow
async def test_killed_process_loses_no_acknowledged_save(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "history.db"
    writer = python(ACKNOWLEDGE, str(path))
    assert writer.stdout is not None
    assert await asyncio.to_thread(writer.stdout.readline) == "0\n"
    await asyncio.sleep(delay)
    writer.kill()
    rest, _ = await asyncio.to_thread(writer.communicate)
    assert writer.returncode == -signal.SIGKILL
    acknowledged = 1 + rest.count("\n")
    async with aclosing(await SqliteStore.open(path)) as store:
        kept = texts(await store.history(await store.get("talk", owner=ALICE)))
        turns = len(kept) // 9
        assert turns in (acknowledged, acknowledged + 1)  # One save can be committed but not yet acknowledged.
        assert kept == [f"{turn}.{i}" for turn in range(turns) for i in range(9)]


async def test_reopening_shows_the_same(tmp_path: Path) -> None:
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        record, entries = await started(store, "1", "2")
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        assert await store.list(ALICE) == [record]
        assert await store.history(record) == entries
        await grown(store, record, chain(prompt("3"), after=entries[-1].id))


async def test_close_waits_for_save(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "history.db")
    saving = asyncio.create_task(started(store, "1"))
    await asyncio.sleep(0)
    await store.aclose()
    record, entries = await saving
    with pytest.raises(HistoryError, match="closed"):
        await store.history(record)
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        assert await store.history(record) == entries


@pytest.mark.slow
async def test_script_without_close_still_ends(tmp_path: Path) -> None:
    script = "async def main():\n    await started(await SqliteStore.open(sys.argv[1]))\nasyncio.run(main())"
    process = python(script, str(tmp_path / "history.db"), stderr=subprocess.DEVNULL)
    await asyncio.to_thread(process.communicate, None, 30)
    assert process.returncode == 0


async def test_only_this_user_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.db"
    before = os.umask(0)
    try:
        async with aclosing(await SqliteStore.open(path)) as store:
            await started(store)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
            assert modes == {"history.db": 0o600, "history.db-wal": 0o600, "history.db-shm": 0o600}
    finally:
        os.umask(before)
    path.chmod(0o644)
    await (await SqliteStore.open(path)).aclose()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("way", ["delete", "erase"])
async def test_deleted_text_is_in_no_file(tmp_path: Path, way: str) -> None:
    def found() -> bool:
        return any(b"hunter2" in file.read_bytes() for file in tmp_path.iterdir())

    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        await started(store, *("kept" * 100 for _ in range(20)))
        record, _ = await started(store, *("hunter2 " * 900 for _ in range(20)))
    # Reopen, so that the text moves from the log to the database file.
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        assert found()
        if way == "delete":
            await store.delete(record.id, owner=ALICE)
        else:
            assert await store.retention.erase(await store.save(replace(record, expires_at=now())))
        assert not found()


async def test_deletion_frees_space(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(file)) as store:
        empty = file.stat().st_size
        record, _ = await started(store, *("hunter2 " * 90_000 for _ in range(8)))
    large = file.stat().st_size
    async with aclosing(await SqliteStore.open(file)) as store:
        assert await store.retention.erase(record)
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("SELECT count(*) FROM entries").fetchone() == (0,)
    assert file.stat().st_size < empty + (large - empty) / 10


async def test_reader_sees_no_rolled_back_save(tmp_path: Path) -> None:
    async with aclosing(await SqliteStore.open(tmp_path / "history.db")) as store:
        record, entries = await started(store, "0")
        bad = [*chain(*map(prompt, "12345"), after=entries[-1].id), *chain(prompt(), after=new_id())]
        seen: list[Record] = []
        for _ in range(20):
            saving = asyncio.create_task(store.save(replace(record, title="taken back"), bad))
            while not saving.done():
                seen.append(await store.get(record.id, owner=ALICE))
            with pytest.raises(HistoryError):
                await saving
        assert {kept.title for kept in seen} == {""}


async def test_stores_of_one_file_wait_for_each_other(tmp_path: Path) -> None:
    async def talk(store: HistoryStore) -> None:
        record, _ = await started(store, "0")
        for turn in range(1, 40):
            record = await grown(store, record, chain(prompt(f"{turn}"), after=record.head_id))
        assert texts(await store.history(record)) == [f"{turn}" for turn in range(40)]

    stores = [await SqliteStore.open(tmp_path / "history.db") for _ in range(3)]
    await asyncio.gather(*map(talk, stores))
    for store in stores:
        await store.aclose()


async def test_newer_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    await (await SqliteStore.open(path)).aclose()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(ConfigError, match="newer version") as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)


def ruin(path: Path, how: str) -> None:
    match how:
        case "folder":
            path.mkdir()
        case "text":
            path.write_text("This is not a database. " * 100)
        case "below-a-file":
            path.parent.write_text("")
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("folder", "opened"), ("text", "not a SQLite database"), ("below-a-file", "File exists|Not a directory")],
)
async def test_unusable_file_is_named(tmp_path: Path, how: str, reason: str) -> None:
    path = tmp_path / "data" / "history.db"
    if how != "below-a-file":
        path.parent.mkdir()
    ruin(path, how)
    with pytest.raises(ConfigError, match=reason) as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_read_only_file_is_named() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "history.db")
        await (await SqliteStore.open(path)).aclose()
        os.chmod(path, 0o444)
        root = os.geteuid() == 0
        if root:  # Root ignores file modes, so switch to another user for a moment.
            os.chmod(folder, 0o755)
            os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match=r"cannot be (written|opened)") as caught:
                await SqliteStore.open(path)
        finally:
            if root:
                os.seteuid(0)
        assert str(path) in str(caught.value)


async def test_failing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        record, entries = await started(store, "1")
        await store._database._writer.execute_fetchall("PRAGMA query_only = ON")
        with pytest.raises(HistoryError, match="cannot be written") as caught:
            await started(store, "2")
        assert str(path) in str(caught.value)
        await store._database._writer.execute_fetchall("PRAGMA query_only = OFF")
        assert await store.history(record) == entries
        await store._database._writer.execute_fetchall('UPDATE entries SET entry = \'{"message": "secret"}\'')
        with pytest.raises(HistoryError, match="damaged") as caught:
            await store.history(record)
        assert str(path) in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_locked_file_is_awaited_then_named(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with aclosing(await SqliteStore.open(path, busy_timeout=0.05)) as store:
        record, _ = await started(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match="locked"):
            await store.save(record)
        assert await store.get(record.id, owner=ALICE) == record  # Readers need no lock.
        other.execute("ROLLBACK")
        other.close()
        assert (await store.save(record)).revision == 2


async def test_size_counts_stored_text(store: HistoryStore) -> None:
    record, entries = await started(store, "ä" * 500, owner="guest-1")
    text = "".join([dump_record(record), *dump_entries(entries)])
    assert await store.retention.size(owners="guest-") == await store.retention.size() == len(text.encode())
    more = chain(prompt("more"), after=record.head_id)
    record = await grown(store, replace(record, title="A longer title"), more)
    await store.retention.add_expiry(lambda record: record.updated_at + timedelta(days=1))
    record = await store.get(record.id, owner="guest-1")
    text = "".join([dump_record(record), *dump_entries([*entries, *more])])
    assert await store.retention.size(owners="guest-1") == len(text.encode())
    assert await store.retention.size(owners=ALICE) == 0
    await store.delete(record.id, owner="guest-1")
    assert await store.retention.size() == 0


async def test_sizes_begin_with_the_first_to_expire(store: HistoryStore) -> None:
    at = now() + timedelta(days=1)
    owners = ["guest-b", "guest-a", "ann", "guest-b", "guest-ab"]
    for number, owner in enumerate(owners):
        end = None if owner == "guest-ab" else at + timedelta(hours=number)
        await store.save(Record(owner=owner, expires_at=end))
    sizes = await store.retention.sizes(owners="guest-")
    assert list(sizes) == ["guest-a", "guest-b", "guest-ab"]
    assert sum(sizes.values()) == await store.retention.size(owners="guest-")
    assert sizes["guest-b"] == await store.retention.size(owners="guest-b")
    assert set(await store.retention.sizes()) == set(owners)
    assert await store.retention.sizes(owners="nobody") == {}


async def test_expiring_skips_ids(store: HistoryStore) -> None:
    at = now() + timedelta(days=1)
    records = [await store.save(Record(owner="guest-1", expires_at=at + timedelta(hours=n))) for n in range(3)]
    skip = {records[0].id, "'; --"}
    assert await store.retention.expiring(at + timedelta(days=1), limit=1, skip=skip) == records[1:2]
    assert await store.retention.expiring(at + timedelta(days=1), owners="guest-", skip=skip) == records[1:]


async def test_texts_are_those_of_the_owner(store: HistoryStore, clock: Clock) -> None:
    record, entries = await started(store, "Ünïcode", "2", owner="guest-1")
    await started(store, "other", owner="guest-10")
    await store.save(replace(record, head_id=entries[0].id, expires_at=now()))
    clock.ahead = timedelta(hours=1)
    assert sorted([text async for text in store.retention.texts("guest-1")]) == sorted(dump_entries(entries))
    assert [text async for text in store.retention.texts("guest-")] == []


async def test_missing_expiry_is_added(store: HistoryStore, clock: Clock) -> None:
    without = [(await started(store, str(number)))[0] for number in range(3)]
    guest, _ = await started(store, owner="guest-1")
    dated = await store.save(Record(owner=ALICE, expires_at=now() + timedelta(days=9)))

    def end(record: Record) -> datetime | None:
        return None if record.id == without[2].id else record.updated_at + timedelta(hours=1)

    assert await store.retention.add_expiry(end, owners="guest-") == 1
    assert await store.retention.add_expiry(end) == 2
    assert await store.retention.add_expiry(end) == 0
    assert await store.list(ALICE) == [
        dated,
        without[2],
        *(replace(record, expires_at=end(record)) for record in without[1::-1]),
    ]
    assert (await grown(store, without[0], chain(prompt("more"), after=without[0].head_id))).expires_at is None
    clock.ahead = timedelta(hours=1)
    assert {record.id for record in await store.retention.expiring(clock())} == {guest.id, without[1].id}
    assert {record.id for record in await store.list(ALICE)} == {dated.id, without[0].id, without[2].id}
