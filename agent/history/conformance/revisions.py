"""Laws of saves: one writer wins, and a refused or cancelled save leaves everything as it was."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelRequest, TextPart, ToolReturnPart

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.conformance.laws import allowed, holds, law, refused, same
from agent.history.conformance.samples import ALICE, chain, grown, prompt, prompts, started
from agent.history.conformance.trial import Trial
from agent.history.records import Entry, Record, new_id


@law("base")
async def old_revision_conflicts_and_changes_nothing(trial: Trial) -> None:
    """A save of an old revision raises `Conflict` and changes nothing."""
    store = trial.store
    first, entries = await started(store, "1")
    second = await grown(store, first, chain(prompt("2"), after=entries[-1].id))
    stale = chain(prompt("stale"), after=entries[-1].id)
    with refused(Conflict, "a save of revision 1 after revision 2"):
        await grown(store, first, stale)
    same(await store.get(first.id, owner=ALICE), second, "the record")
    same(prompts(await store.history(second)), ["1", "2"], "the history")
    with refused(NotFound, "a history that ends with the refused entry"):
        await store.history(replace(second, head_id=stale[-1].id))


@law("base")
async def only_stored_revision_is_accepted(trial: Trial) -> None:
    """A save must name the stored revision: neither 0, as if it were new, nor a later one."""
    record, _ = await started(trial.store)
    for revision in (0, 2, 7):
        with refused(Conflict, f"a save of revision {revision} where 1 is stored"):
            await trial.store.save(replace(record, revision=revision))
        same(await trial.store.get(record.id, owner=ALICE), record, "the record")


@law("base")
async def one_concurrent_save_wins(trial: Trial) -> None:
    """Of concurrent saves of one revision, exactly one wins and the others raise `Conflict`."""
    store = trial.store
    record, entries = await started(store, "0")
    rivals = [chain(prompt(f"{i}a"), prompt(f"{i}b"), after=entries[-1].id) for i in range(12)]
    outcomes = await asyncio.gather(*(grown(store, record, rival) for rival in rivals), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    losers = [type(outcome) for outcome in outcomes if not isinstance(outcome, Record)]
    same(losers, [Conflict] * 11, "what the other saves raise")
    stored = await store.get(record.id, owner=ALICE)
    same(winners, [stored], "the record of the save that won")
    (kept,) = [rival for rival in rivals if rival[-1].id == stored.head_id]
    same(await store.history(stored), [*entries, *kept], "the history")


@law("base")
async def concurrent_saves_of_conversations_succeed(trial: Trial) -> None:
    """Saves of different conversations do not disturb each other."""
    store = trial.store

    async def talk(i: int) -> None:
        record, entries = await started(store, f"{i}.0", owner=f"visitor:{i % 3}")
        for turn in range(1, 5):
            added = chain(prompt(f"{i}.{turn}"), after=entries[-1].id)
            record = await grown(store, record, added)
            entries += added
            same(await store.history(record), entries, f"the history of conversation {i}")

    with allowed("saves of different conversations at once"):
        await asyncio.gather(*map(talk, range(12)))
    same([len(await store.list(f"visitor:{i}")) for i in range(3)], [4, 4, 4], "the conversations of each owner")


def _spoilt() -> dict[str, Callable[[str], Entry]]:
    """Return functions that make an invalid entry, by its fault. Each entry follows the given id."""
    junk: Any = ["no part"]
    answer: Any = [TextPart("x")]
    circular: dict[str, Any] = {}
    circular["self"] = circular
    return {
        "an unknown parent": lambda _: Entry(parent_id=new_id(), message=prompt()),
        "itself as parent": lambda _: Entry(id="x", parent_id="x", message=prompt()),
        "a used id": lambda after: Entry(id=after, parent_id=None, message=prompt()),
        "no message": lambda after: Entry(parent_id=after, message=junk),
        "no part": lambda after: Entry(parent_id=after, message=ModelRequest(junk)),
        "a part of the other side": lambda after: Entry(parent_id=after, message=ModelRequest(answer)),
        "no JSON": lambda after: Entry(parent_id=after, message=ModelRequest([ToolReturnPart("t", object(), "c")])),
        "a circle": lambda after: Entry(parent_id=after, message=ModelRequest([ToolReturnPart("t", circular, "c")])),
        "an id that is no text": lambda after: Entry(id="\ud800", parent_id=after, message=prompt()),
    }


@law("base")
async def bad_entry_rejects_whole_save(trial: Trial) -> None:
    """A save with one invalid entry raises a plain `HistoryError` and stores nothing; the ids stay free."""
    store = trial.store
    for fault, spoil in _spoilt().items():
        record, entries = await started(store, "kept")
        (good,) = chain(prompt("good"), after=entries[-1].id)
        bad = spoil(good.id)
        with refused(HistoryError, f"a save of an entry with {fault}"):
            await store.save(replace(record, head_id=bad.id, title="changed"), [good, bad])
        same(await store.get(record.id, owner=ALICE), record, f"the record after an entry with {fault}")
        same(await store.history(record), entries, f"the history after an entry with {fault}")
        with refused(NotFound, f"a history that ends with the good entry before one with {fault}"):
            await store.history(replace(record, head_id=good.id))
        with allowed(f"a save of the good entry before one with {fault}"):
            record = await grown(store, record, [good])
        same(prompts(await store.history(record)), ["kept", "good"], "the history after the save without it")


@law("base")
async def head_must_be_own_entry(trial: Trial) -> None:
    """A record that points at an entry of no or another conversation is refused."""
    store = trial.store
    other, entries = await started(store)
    for head in (new_id(), entries[-1].id):
        record = Record(owner=ALICE, head_id=head)
        with refused(HistoryError, "a save with a foreign head"):
            await store.save(record)
        with refused(NotFound, "get after the refused save"):
            await store.get(record.id, owner=ALICE)
    same(await store.list(ALICE), [other], "the list")


@law("base")
async def entry_follows_only_earlier_ones(trial: Trial) -> None:
    """The parent of an entry is stored before it: entries in the wrong order, or in a ring, are refused."""
    store = trial.store
    record, entries = await started(store, "0")
    first, second = chain(prompt("1"), prompt("2"))
    ring = [replace(first, parent_id=second.id), second]
    for added in ([second, replace(first, parent_id=entries[-1].id)], ring):
        with refused(HistoryError, "a save of entries in the wrong order"):
            await store.save(replace(record, head_id=second.id), added)
    same(await store.history(record), entries, "the history")


@law("base")
async def entry_is_never_overwritten(trial: Trial) -> None:
    """A second entry with a used id is refused."""
    record, (entry,) = await started(trial.store, "first")
    with refused(HistoryError, "a save of an entry with a used id"):
        await trial.store.save(record, [replace(entry, message=prompt("second"))])
    same(prompts(await trial.store.history(record)), ["first"], "the history")


@law("base")
async def reader_sees_no_refused_save(trial: Trial) -> None:
    """A reader never sees anything of a save that is then refused."""
    store = trial.store
    record, entries = await started(store, "0")
    bad = [*chain(*map(prompt, "12345"), after=entries[-1].id), *chain(prompt(), after=new_id())]
    for _ in range(20):
        saving = asyncio.create_task(store.save(replace(record, title="taken back"), bad))
        while not saving.done():
            same((await store.get(record.id, owner=ALICE)).title, "", "the title during the save")
            await asyncio.sleep(0)
        with refused(HistoryError, "a save of an entry without parent"):
            await saving


@law("base")
async def cancelled_save_stores_all_or_nothing(trial: Trial) -> None:
    """A save that is cancelled anywhere has stored everything or nothing, and the store works on."""
    store = trial.store
    record, entries = await started(store, "0")
    outcomes: set[bool] = set()
    for ticks in [*range(25), 50, 100, 200, 400, None]:
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
        what = f"after a cancellation {ticks} steps into the save"
        same(stored.revision, record.revision + saved, f"the revision {what}")
        same(await store.history(stored), entries, f"the history {what}")
        outcomes.add(saved)
        record = stored
    holds(outcomes == {True, False}, "no save was cancelled before and none after it was stored")


@law("base")
async def cancelled_read_spoils_no_other_call(trial: Trial) -> None:
    """A read that is cancelled anywhere changes no later answer, however many were cancelled."""
    store = trial.store
    talks = [await started(store, f"{number}") for number in range(4)]
    for ticks in [*range(20), *range(20, 200, 15)]:
        reads = [store.get(talks[0][0].id, owner=ALICE), store.history(talks[1][0]), store.list(ALICE)]
        tasks = [asyncio.ensure_future(read) for read in reads]
        for _ in range(ticks):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        what = f"after a cancellation {ticks} steps into three reads"
        record, entries = talks[ticks % 4]
        same(await store.get(record.id, owner=ALICE), record, f"the record {what}")
        same(await store.history(record), entries, f"the history {what}")
