"""The laws of the events of a run in a history store, for every backend."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Conflict, HistoryError, NotFound
from agent.history import Entry, HistoryStore, Record, now
from agent.history.memory import MemoryStore
from agent.history.run_events import RunEvent, RunEvents, join_events, split_events
from agent.history.sqlite import SqliteStore
from tests.support.history_stores import ALICE, MALLORY, Clock, chain, prompt, started

ROOT = Path(__file__).parents[2]


def batch(record: Record, first: int, *texts: str, run: str = "run", ended: bool = False) -> RunEvents:
    events = [RunEvent.of(number, {"type": "output_text", "content": text}) for number, text in enumerate(texts, first)]
    return RunEvents(run_id=run, conversation_id=record.id, owner=record.owner, events=events, has_ended=ended)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def contents(events: Sequence[RunEvent]) -> list[tuple[int, str]]:
    return [(event.number, event.value["content"]) for event in events]


async def test_events_are_read_from_any_number(store: HistoryStore) -> None:
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a", "b", "c"))
    await store.runs.append(batch(record, 4, "d", "e"))
    every = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    for after in range(7):
        assert contents(await store.runs.events("run", owner=ALICE, after=after)) == every[after:]
    assert contents(await store.runs.events("run", owner=ALICE, after=-3)) == every


async def test_message_and_events_are_stored_together(store: HistoryStore) -> None:
    record, entries = await started(store)
    (answer,) = chain(prompt("answer"), after=entries[-1].id)
    saved = await store.save(replace(record, head_id=answer.id), [answer], batch(record, 1, "a", ended=True))
    assert [entry.id for entry in await store.history(saved)] == [entries[0].id, answer.id]
    assert contents(await store.runs.events("run", owner=ALICE)) == [(1, "a")]


@pytest.mark.parametrize("fault", ["stale record", "broken link", "gap in events", "another owner's run"])
async def test_refused_save_stores_neither(store: HistoryStore, fault: str) -> None:
    record, entries = await started(store)
    other, _ = await started(store, owner=MALLORY)
    await store.runs.append(batch(other, 1, "theirs", run="other"))
    await store.runs.append(batch(record, 1, "a"))
    (answer,) = chain(prompt("answer"), after=entries[-1].id)
    sent, events = replace(record, head_id=answer.id), batch(record, 2, "b")
    match fault:
        case "stale record":
            sent = replace(sent, revision=7)
        case "broken link":
            answer = replace(answer, parent_id="nothing")
        case "gap in events":
            events = batch(record, 3, "b")
        case _:
            events = replace(events, run_id="other")
    with pytest.raises((Conflict, HistoryError)):
        await store.save(sent, [answer], events)
    assert len(await store.history(await store.get(record.id, owner=ALICE))) == 1
    assert contents(await store.runs.events("run", owner=ALICE)) == [(1, "a")]
    assert contents(await store.runs.events("other", owner=MALLORY)) == [(1, "theirs")]


async def test_only_owner_reads_and_appends(store: HistoryStore) -> None:
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "secret"))
    with pytest.raises(NotFound):
        await store.runs.events("run", owner=MALLORY)
    with pytest.raises(NotFound):
        await store.runs.append(batch(replace(record, owner=MALLORY), 2, "forged"))
    with pytest.raises(NotFound):
        await store.runs.events("another", owner=ALICE)
    assert contents(await store.runs.events("run", owner=ALICE)) == [(1, "secret")]


async def test_second_writer_gets_conflict(store: HistoryStore) -> None:
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a"))
    for late in (batch(record, 1, "again"), batch(record, 3, "gap")):
        with pytest.raises(Conflict):
            await store.runs.append(late)
    await store.runs.append(batch(record, 2, "end", ended=True))
    with pytest.raises(Conflict):
        await store.runs.append(batch(record, 3, "after the end"))
    assert contents(await store.runs.events("run", owner=ALICE)) == [(1, "a"), (2, "end")]


async def test_unfinished_runs_say_what_entries_contain(store: HistoryStore) -> None:
    record, entries = await started(store)
    await store.runs.append(batch(record, 1, "a", run="lost"))
    (step,) = chain(prompt("step"), after=entries[-1].id)
    record = await store.save(replace(record, head_id=step.id), [step], batch(record, 2, "b", "c", run="lost"))
    await store.runs.append(batch(record, 4, "d", run="lost"))
    await store.runs.append(batch(record, 1, "whole", run="ended", ended=True))
    (found,) = await store.runs.unfinished()
    assert (found.run_id, found.conversation_id, found.owner, found.saved) == ("lost", record.id, ALICE, 3)
    assert await store.runs.unfinished(limit=0) == []


@pytest.mark.parametrize("way", ["delete", "erase"])
async def test_deleted_conversation_leaves_no_events(store: HistoryStore, tmp_path: Path, way: str) -> None:
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a secret of the answer"))
    await (store.delete(record.id, owner=ALICE) if way == "delete" else store.retention.erase(record))
    with pytest.raises(NotFound):
        await store.runs.events("run", owner=ALICE)
    assert await store.runs.unfinished() == []
    await store.aclose()
    assert not [file for file in files_in(tmp_path) if b"secret of the" in file.read_bytes()]


async def test_expired_conversation_shows_no_events(store: HistoryStore, clock: Clock) -> None:
    entry = Entry(parent_id=None, message=prompt())
    record = Record(owner=ALICE, head_id=entry.id, expires_at=now() + timedelta(hours=1))
    record = await store.save(record, [entry], batch(record, 1, "a"))
    clock.ahead = timedelta(hours=2)
    with pytest.raises(NotFound):
        await store.runs.events("run", owner=ALICE)
    with pytest.raises(NotFound):
        await store.runs.append(batch(record, 2, "b"))
    assert await store.runs.unfinished() == []


async def test_only_events_of_old_ended_runs_are_removed(store: HistoryStore, clock: Clock) -> None:
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a", run="old", ended=True))
    await store.runs.append(batch(record, 1, "b", run="going on"))
    clock.ahead = timedelta(hours=1)
    await store.runs.append(batch(record, 1, "c", run="new", ended=True))
    assert await store.runs.remove(now() + timedelta(minutes=30)) == 1
    with pytest.raises(NotFound):
        await store.runs.events("old", owner=ALICE)
    assert contents(await store.runs.events("going on", owner=ALICE)) == [(1, "b")]
    assert contents(await store.runs.events("new", owner=ALICE)) == [(1, "c")]
    assert await store.runs.remove(now() + timedelta(minutes=30)) == 0


@given(st.lists(st.text(st.characters(codec=None)), min_size=1))
def test_any_text_survives(texts: list[str]) -> None:
    events = [RunEvent.of(number, {"content": text}) for number, text in enumerate(texts, 5)]
    assert split_events(join_events(events).encode().decode(), 5) == events
    assert [event.value["content"] for event in events] == texts


WRITER = """
import asyncio, sys
from agent.history import Entry, Record
from agent.history.run_events import RunEvent, RunEvents
from agent.history.sqlite import SqliteStore
from pydantic_ai.messages import ModelRequest, UserPromptPart

async def main():
    store = await SqliteStore.open(sys.argv[1])
    entry = Entry(parent_id=None, message=ModelRequest([UserPromptPart("Hello")]))
    record = await store.save(Record(id="c", owner="visitor:alice", head_id=entry.id), [entry])
    number = 1
    while True:
        event = RunEvent.of(number, {"content": str(number)})
        await store.runs.append(
            RunEvents(run_id="run", conversation_id="c", owner=record.owner, events=[event])
        )
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.slow
def test_killed_process_loses_no_acknowledged_event(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    child = subprocess.Popen(
        [sys.executable, "-c", dedent(WRITER), str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    for _ in range(40):
        acknowledged = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = child.communicate()[0].split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    found, unfinished = asyncio.run(read_events(path))
    assert [event.number for event in found] == [*range(1, len(found) + 1)]
    assert len(found) >= acknowledged
    assert unfinished == ["run"]


async def read_events(path: Path) -> tuple[Sequence[RunEvent], list[str]]:
    store = await SqliteStore.open(path)
    try:
        return await store.runs.events("run", owner=ALICE), [run.run_id for run in await store.runs.unfinished()]
    finally:
        await store.aclose()


async def test_two_processes_cannot_both_write_a_run(tmp_path: Path) -> None:
    first, second = [await SqliteStore.open(tmp_path / "history.db") for _ in range(2)]
    record, _ = await started(first)
    await first.runs.append(batch(record, 1, "a"))
    done = await asyncio.gather(
        *(one.runs.append(batch(record, 2, "b")) for one in (first, second)), return_exceptions=True
    )
    assert sorted(type(one) for one in done if one is not None) == [Conflict]
    for one in (first, second):
        await one.aclose()


async def test_copy_of_memory_is_not_shared() -> None:
    store = MemoryStore()
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a"))
    read = [*await store.runs.events("run", owner=ALICE)]
    await store.runs.append(batch(record, 2, "b"))
    assert len(read) == 1
