"""Laws of the events of a run."""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.conformance.laws import allowed, holds, law, refused, same
from agent.history.conformance.samples import ALICE, MALLORY, batch, chain, contents, prompt, started
from agent.history.conformance.trial import Trial
from agent.history.records import Entry, Record, now
from agent.history.run_events import RunEvent, RunEvents


@law("events")
async def events_are_read_from_any_number(trial: Trial) -> None:
    """The events of a run are read in order, from any number on."""
    runs = trial.store.runs
    record, _ = await started(trial.store)
    await runs.append(batch(record, 1, "a", "b", "c"))
    await runs.append(batch(record, 4, "d", "e"))
    every = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    for after in (*range(-3, 7), sys.maxsize):
        found = contents(await runs.events("run", owner=ALICE, after=after))
        same(found, every[max(after, 0) :], f"the events after {after}")


@law("events")
async def events_come_back_byte_for_byte(trial: Trial) -> None:
    """The JSON of an event comes back byte for byte, with NUL, line separators and halves of surrogate pairs."""
    record, _ = await started(trial.store)
    values = [{"z": 1, "a": "\0"}, {"é": "\u2028\u2029\x85\n"}, {"content": "\ud800"}, {"n": [1.0, 2**70, None]}]
    events = [RunEvent.of(number, value) for number, value in enumerate(values, 1)]
    await trial.store.runs.append(RunEvents(run_id="run", conversation_id=record.id, owner=record.owner, events=events))
    same([*await trial.store.runs.events("run", owner=ALICE)], events, "the events")


@law("events")
async def read_events_do_not_change(trial: Trial) -> None:
    """Events that were read do not grow when the run goes on."""
    runs = trial.store.runs
    record, _ = await started(trial.store)
    await runs.append(batch(record, 1, "a"))
    read = await runs.events("run", owner=ALICE)
    await runs.append(batch(record, 2, "b"))
    same(contents(read), [(1, "a")], "the events that were read before")


@law("events")
async def message_and_events_are_stored_together(trial: Trial) -> None:
    """A save stores a message together with the events of its run."""
    store = trial.store
    record, entries = await started(store)
    (answer,) = chain(prompt("answer"), after=entries[-1].id)
    saved = await store.save(replace(record, head_id=answer.id), [answer], batch(record, 1, "a", ended=True))
    same(await store.history(saved), [*entries, answer], "the history")
    with allowed("events of a run that begins with a save"):
        same(contents(await store.runs.events("run", owner=ALICE)), [(1, "a")], "the events")


_Save = tuple[Record, Entry, RunEvents]
FAULTS: dict[str, Callable[[_Save], _Save]] = {
    "a stale record": lambda save: (replace(save[0], revision=7), save[1], save[2]),
    "a broken link": lambda save: (save[0], replace(save[1], parent_id="nothing"), save[2]),
    "a gap in the events": lambda save: (save[0], save[1], batch(save[0], 3, "b", run=save[2].run_id)),
    "another owner's run": lambda save: (save[0], save[1], replace(save[2], run_id="other")),
}


@law("events")
async def refused_save_stores_neither(trial: Trial) -> None:
    """A save with a wrong message or wrong events stores neither."""
    store = trial.store
    other, _ = await started(store, owner=MALLORY)
    await store.runs.append(batch(other, 1, "theirs", run="other"))
    for fault, spoil in FAULTS.items():
        record, entries = await started(store)
        await store.runs.append(batch(record, 1, "a", run=fault))
        (answer,) = chain(prompt("answer"), after=entries[-1].id)
        sent, entry, events = spoil((replace(record, head_id=answer.id), answer, batch(record, 2, "b", run=fault)))
        kind = HistoryError if fault == "a broken link" else Conflict
        with refused(kind, f"a save with {fault}"):
            await store.save(sent, [entry], events)
        same(await store.get(record.id, owner=ALICE), record, f"the record after {fault}")
        same(await store.history(record), entries, f"the history after {fault}")
        same(contents(await store.runs.events(fault, owner=ALICE)), [(1, "a")], f"the events after {fault}")
    same(contents(await store.runs.events("other", owner=MALLORY)), [(1, "theirs")], "the other owner's events")


@law("events")
async def only_owner_reads_and_appends(trial: Trial) -> None:
    """Another owner's run raises `NotFound`, as a missing one does."""
    runs = trial.store.runs
    record, _ = await started(trial.store)
    await runs.append(batch(record, 1, "secret"))
    with refused(NotFound, "events for another owner"):
        await runs.events("run", owner=MALLORY)
    with refused(NotFound, "append by another owner"):
        await runs.append(batch(replace(record, owner=MALLORY), 2, "forged"))
    with refused(NotFound, "events of a missing run"):
        await runs.events("another", owner=ALICE)
    same(contents(await runs.events("run", owner=ALICE)), [(1, "secret")], "the events")


@law("events")
async def second_writer_gets_conflict(trial: Trial) -> None:
    """Events that repeat a number, leave a gap or follow the end raise `Conflict`."""
    runs = trial.store.runs
    record, _ = await started(trial.store)
    await runs.append(batch(record, 1, "a"))
    for what, late in {"a used number": batch(record, 1, "again"), "a gap": batch(record, 3, "gap")}.items():
        with refused(Conflict, f"append with {what}"):
            await runs.append(late)
    await runs.append(batch(record, 2, "end", ended=True))
    with refused(Conflict, "append after the end"):
        await runs.append(batch(record, 3, "after the end"))
    same(contents(await runs.events("run", owner=ALICE)), [(1, "a"), (2, "end")], "the events")


@law("events")
async def unfinished_runs_say_what_entries_contain(trial: Trial) -> None:
    """`unfinished` returns the runs without an end, and the last event that was saved with an entry."""
    store = trial.store
    record, entries = await started(store)
    await store.runs.append(batch(record, 1, "a", run="lost"))
    (step,) = chain(prompt("step"), after=entries[-1].id)
    record = await store.save(replace(record, head_id=step.id), [step], batch(record, 2, "b", "c", run="lost"))
    await store.runs.append(batch(record, 4, "d", run="lost"))
    await store.runs.append(batch(record, 1, "whole", run="ended", ended=True))
    (found,) = await store.runs.unfinished()
    same((found.run_id, found.conversation_id, found.owner, found.saved), ("lost", record.id, ALICE, 3), "the run")
    same([*await store.runs.unfinished(limit=0)], [], "the runs with limit=0")


@law("events", "retention")
async def deleted_conversation_has_no_events(trial: Trial) -> None:
    """The events of a conversation are deleted with it."""
    store = trial.store
    for way in ("delete", "erase"):
        record, _ = await started(store)
        await store.runs.append(batch(record, 1, "a", run=way))
        await (store.delete(record.id, owner=ALICE) if way == "delete" else store.retention.erase(record))
        with refused(NotFound, f"events after {way}"):
            await store.runs.events(way, owner=ALICE)
        same([*await store.runs.unfinished()], [], f"the unfinished runs after {way}")
        again = await store.save(Record(id=record.id, owner=ALICE))
        with allowed("a new run with the id of a deleted one"):
            await store.runs.append(batch(again, 1, "new", run=way))
        same(contents(await store.runs.events(way, owner=ALICE)), [(1, "new")], "the events of a new run with that id")
        await store.delete(again.id, owner=ALICE)


@law("events")
async def expired_conversation_shows_no_events(trial: Trial) -> None:
    """The runs of an expired conversation are missing, and take no events."""
    store = trial.store
    entry = Entry(parent_id=None, message=prompt())
    record = Record(owner=ALICE, head_id=entry.id, expires_at=now() + timedelta(hours=1))
    record = await store.save(record, [entry], batch(record, 1, "a"))
    trial.clock.go_forward(hours=2)
    with refused(NotFound, "events after the end"):
        await store.runs.events("run", owner=ALICE)
    with refused(NotFound, "append after the end"):
        await store.runs.append(batch(record, 2, "b"))
    same([*await store.runs.unfinished()], [], "the unfinished runs")


@law("events")
async def only_events_of_old_ended_runs_are_removed(trial: Trial) -> None:
    """`remove` removes the events of the runs that ended before a time, and returns their number."""
    runs = trial.store.runs
    record, _ = await started(trial.store)
    await runs.append(batch(record, 1, "a", run="old", ended=True))
    await runs.append(batch(record, 1, "b", run="going on"))
    trial.clock.go_forward(hours=1)
    await runs.append(batch(record, 1, "c", run="new", ended=True))
    before = trial.clock.before(minutes=30)
    same(await runs.remove(before), 1, "the number of removed runs")
    with refused(NotFound, "events of a removed run"):
        await runs.events("old", owner=ALICE)
    for run, text in {"going on": "b", "new": "c"}.items():
        holds(contents(await runs.events(run, owner=ALICE)) == [(1, text)], f"the run {run!r} was changed")
    same(await runs.remove(before), 0, "the number of runs that a second call removes")
