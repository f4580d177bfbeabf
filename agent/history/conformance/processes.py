"""Laws of several processes: one wins, the late one is refused, and a killed one loses and spoils nothing.

The functions with a `Trial` that are no laws run in the other processes.
"""

import asyncio
import os
import random
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import count

from agent.errors import Conflict, HistoryError
from agent.history.codec import dump_entries, dump_record
from agent.history.conformance.laws import allowed, holds, law, same
from agent.history.conformance.samples import ALICE, batch, chain, contents, grown, prompt, prompts, started
from agent.history.conformance.trial import Trial
from agent.history.records import Entry, Record, new_id

ROUNDS = 12
TURN = 9
"""Messages and events of one save."""
KILLS = 24
SEED = 20


@law("processes", "base")
async def reopened_store_shows_the_same(trial: Trial) -> None:
    """A save is there when the data is opened again."""
    record, entries = await started(trial.store, "1", "2")
    await trial.reopen()
    same(await trial.store.list(ALICE), [record], "the list")
    same(await trial.store.history(record), entries, "the history")
    await grown(trial.store, record, chain(prompt("3"), after=entries[-1].id))


@law("processes", "base")
async def one_process_wins_a_revision(trial: Trial) -> None:
    """Of two processes that save one revision, exactly one wins and the other gets `Conflict`."""
    record, entries = await started(trial.store, "0")
    racers = [await trial.process(race, record.id, name) for name in "ab"]
    for number in range(ROUNDS):
        same([await racer.read() for racer in racers], ["ready"] * 2, "the two processes")
        for racer in racers:
            racer.write()
        outcomes = [await racer.read() for racer in racers]
        same(sorted(outcomes), ["Conflict", "saved"], f"the outcomes of round {number}")
        stored = await trial.store.get(record.id, owner=ALICE)
        same(stored.revision, record.revision + number + 1, f"the revision after round {number}")
        winner = "ab"[outcomes.index("saved")]
        found = prompts(await trial.store.history(stored))
        same(found[-2:], [f"{winner}.{number}", f"{winner}.{number}, too"], f"the messages of round {number}")
        same(len(found), len(entries) + 2 * (number + 1), f"the number of messages after round {number}")


async def race(trial: Trial, conversation_id: str, name: str) -> None:
    """Save two messages at each line, and print "saved" or the name of the error."""
    async with trial:
        for number in range(ROUNDS):
            record = await trial.store.get(conversation_id, owner=ALICE)
            added = chain(prompt(f"{name}.{number}"), prompt(f"{name}.{number}, too"), after=record.head_id)
            _wait("ready")
            print(await _outcome(trial, record, added), flush=True)


async def _outcome(trial: Trial, record: Record, added: list[Entry]) -> str:
    try:
        await grown(trial.store, record, added)
    except HistoryError as error:
        return type(error).__name__
    return "saved"


@law("processes", "base")
async def processes_lose_nothing(trial: Trial) -> None:
    """Two processes that write at once, each its own conversation and both a shared one, lose nothing."""
    await trial.store.save(Record(id="shared", owner=ALICE))
    writers = [await trial.process(talk, name) for name in "ab"]
    ids = [await writer.read() for writer in writers]
    for writer in writers:
        writer.write()
    same([await writer.read() for writer in writers], ["done"] * 2, "the two processes")
    for name, id_ in zip("ab", ids, strict=True):
        record = await trial.store.get(id_, owner=ALICE)
        found = prompts(await trial.store.history(record))
        same(found, [f"{name}.{turn}" for turn in range(31)], f"the history of process {name}")
    shared = prompts(await trial.store.history(await trial.store.get("shared", owner=ALICE)))
    for name in "ab":
        own = [text for text in shared if text[0] == name]
        same(own, [f"{name}.{turn}" for turn in range(1, 31)], f"the messages of process {name} in the shared one")


async def talk(trial: Trial, name: str) -> None:
    """Save 30 messages in a conversation, and the same in the shared one, with a new try after each `Conflict`."""
    async with trial:
        record, entries = await started(trial.store, f"{name}.0")
        _wait(record.id)
        for turn in range(1, 31):
            entries = chain(prompt(f"{name}.{turn}"), after=entries[-1].id)
            record = await grown(trial.store, record, entries)
            saved = False
            while not saved:
                shared = await trial.store.get("shared", owner=ALICE)
                with suppress(Conflict):
                    await grown(trial.store, shared, chain(prompt(f"{name}.{turn}"), after=shared.head_id))
                    saved = True
        print("done", flush=True)


@law("processes", "events")
async def zombie_writer_is_refused(trial: Trial) -> None:
    """A process that stood still while another one took over its answer can store nothing more of it."""
    store = trial.store
    record, entries = await started(store, "question")
    deleted, _ = await started(store, "question")
    zombies = [await trial.process(write_late, id_) for id_ in (record.id, deleted.id)]
    for zombie in zombies:
        same(await zombie.read(), "writing", "the process that writes the answer")
        zombie.send_signal(signal.SIGSTOP)
    record = await store.get(record.id, owner=ALICE)
    answer = chain(prompt("taken over"), after=entries[-1].id)
    end = batch(record, 2, "interrupted", run=record.id, ended=True)
    record = await store.save(replace(record, head_id=answer[-1].id), answer, end)
    await store.delete(deleted.id, owner=ALICE)
    for zombie, expected in zip(zombies, ("Conflict", "NotFound"), strict=True):
        zombie.send_signal(signal.SIGCONT)
        zombie.write()
        for what in ("append", "save", "save with events"):
            same(await zombie.read(), expected, f"what {what} raises in the process that stood still")
    same(await store.list(ALICE), [record], "the list")
    same(await store.history(record), [*entries, *answer], "the history")
    events = contents(await store.runs.events(record.id, owner=ALICE))
    same(events, [(1, "a"), (2, "interrupted")], "the events")


async def write_late(trial: Trial, conversation_id: str) -> None:
    """Begin an answer, wait, try to store more of it in three ways, and print what each raises."""
    async with trial:
        store = trial.store
        record = await store.get(conversation_id, owner=ALICE)
        await store.runs.append(batch(record, 1, "a", run=record.id))
        more = batch(record, 2, "late", run=record.id)
        entries = chain(prompt("late"), after=record.head_id)
        _wait("writing")
        late = replace(record, head_id=entries[-1].id)
        for call in (store.runs.append(more), store.save(late, entries), store.save(late, entries, more)):
            try:
                await call
                print("nothing", flush=True)
            except HistoryError as error:
                print(type(error).__name__, flush=True)


@law("processes", "events")
async def killed_process_loses_no_acknowledged_save(trial: Trial) -> None:
    """A process that is killed at any time loses no save that it was told of, and leaves no half of one."""
    drawn = random.Random(SEED)
    for number in range(3):
        id_ = f"talk {number}"
        writer = await trial.process(write_until_killed, id_)
        acknowledged = 0
        for _ in range(drawn.randrange(1, 12)):
            acknowledged = int(await writer.read())
        await asyncio.sleep(drawn.random() / 20)
        acknowledged = max([acknowledged, *map(int, await writer.kill())])
        turns = await _whole_turns(trial, id_)
        # One save can be stored and not yet acknowledged.
        holds(turns in (acknowledged, acknowledged + 1), f"{turns} saves are stored, {acknowledged} were acknowledged")


async def write_until_killed(trial: Trial, conversation_id: str) -> None:
    """Save turns and print the number of each."""
    async with trial:
        record = await trial.store.save(Record(id=conversation_id, owner=ALICE))
        while True:
            record = await _save_turn(trial, record)
            print(record.revision - 1, flush=True)


@law("processes", "events", "retention", "search")
async def kill_in_mid_save_stores_all_or_nothing(trial: Trial) -> None:
    """A process that is killed at any place of a save has stored everything or nothing, and the next save works."""
    store = trial.store
    await store.save(Record(id="talk", owner=ALICE))
    writer = await trial.process(be_killed, "talk")
    writer.write("0")
    calls = int(await writer.read())
    same(await writer.read(), "0", "the end of a process that is not killed")
    same(await _whole_turns(trial, "talk"), 1, "the number of stored turns without a kill")
    turns = 1
    for place in sorted(random.Random(SEED).sample(range(1, calls), min(KILLS, calls - 1))):
        writer.write(str(place))
        ended = await writer.read()
        what = f"a kill at call {place} of {calls}"
        found = await _whole_turns(trial, "talk")
        stored = (turns, turns + 1) if ended == str(int(signal.SIGKILL)) else (turns + 1,)
        holds(found in stored, f"{found} turns are stored after {what}, {turns} were before")
        turns = found
        record = await store.get("talk", owner=ALICE)
        entries = await store.entries(record)
        same(len(entries), TURN * turns, f"the number of all entries after {what}")
        size = len("".join([dump_record(record), *dump_entries(entries)]).encode())
        same(await store.retention.size(), size, f"the size after {what}")
        same(len(await store.search(ALICE, f"turn-{turns - 1}.8")), 1, f"the number of hits after {what}")
        same(await store.search(ALICE, f"turn-{turns}."), [], f"the hits of what was not stored after {what}")


def be_killed(trial: Trial, conversation_id: str) -> None:
    """For each line, save a turn in a forked process that kills itself at that call, and print the signal it got.

    A call is one of any Python or C function in the save, in any thread. At 0, it prints the number of all calls.
    """
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(_save_and_die(trial, conversation_id, int(line)))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


async def _save_and_die(trial: Trial, conversation_id: str, place: int) -> None:
    calls, saving = count(1), False

    def look(*_: object) -> None:
        if saving and next(calls) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(look)
    async with trial:
        record = await trial.store.get(conversation_id, owner=ALICE)
        sys.setprofile(look)
        saving = True
        await _save_turn(trial, record)
        saving = False
        sys.setprofile(None)
        if not place:
            print(next(calls), flush=True)


async def _save_turn(trial: Trial, record: Record) -> Record:
    """Save the messages and the events of one turn."""
    turn = record.revision - 1
    texts = [f"turn-{turn}.{i}" for i in range(TURN)]
    entries = chain(*map(prompt, texts), after=record.head_id)
    events = batch(record, turn * TURN + 1, *texts, run=record.id)
    return await trial.store.save(replace(record, head_id=entries[-1].id), entries, events)


async def _whole_turns(trial: Trial, conversation_id: str) -> int:
    """Return the number of turns that are stored. Raises `Broken` if one is stored in part."""
    with allowed("the conversation after a kill"):
        record = await trial.store.get(conversation_id, owner=ALICE)
        entries = await trial.store.history(record)
    texts = [f"turn-{turn}.{i}" for turn in range(record.revision - 1) for i in range(TURN)]
    same(prompts(entries), texts, "the messages after a kill")
    if texts:
        with allowed("the events after a kill"):
            found = contents(await trial.store.runs.events(record.id, owner=ALICE))
        same(found, [*enumerate(texts, 1)], "the events after a kill")
    return record.revision - 1


@law("processes", "events")
async def two_writers_cannot_both_append(trial: Trial) -> None:
    """Of two instances that append the same numbers to a run, one gets `Conflict`."""
    first, second = trial.store, await trial.open()
    record, _ = await started(first)
    await first.runs.append(batch(record, 1, "a"))
    for number in range(2, 12):
        calls = [one.runs.append(batch(record, number, "b")) for one in (first, second)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        same([type(one) for one in done if one is not None], [Conflict], "what the second append raises")


@law("processes", "base")
async def many_can_open_new_data_at_once(trial: Trial) -> None:
    """Several instances can open new data at once, and see what one of them saves."""
    stores = await asyncio.gather(*(trial.open() for _ in range(8)))
    record, entries = await started(stores[0])
    for store in stores:
        with allowed("the history in another instance"):
            same(await store.history(record), entries, "the history")


@law("ledger", "processes")
async def ledger_knows_earlier_uses(trial: Trial) -> None:
    """A ledger that is opened again knows the ids that were used before."""
    id_ = new_id()
    same([await trial.ledger().use(id_, None) for _ in range(3)], [True, False, False], "uses of an id")


@law("ledger", "processes")
async def two_processes_never_both_use_an_id(trial: Trial) -> None:
    """Of two processes that use an id, exactly one is the first."""
    ids = [new_id() for _ in range(60)]
    racers = [await trial.process(use_ids, *ids) for _ in range(2)]
    same([await racer.read() for racer in racers], ["ready"] * 2, "the two processes")
    for racer in racers:
        racer.write()
    used = [id_ for racer in racers for id_ in (await racer.read()).split()]
    same(sorted(used), sorted(ids), "the ids that were used for the first time")


async def use_ids(trial: Trial, *ids: str) -> None:
    """Use the ids and print those that were not used before."""
    ledger = trial.ledger()
    _wait("ready")
    print(*[id_ for id_ in ids if await ledger.use(id_, None)], flush=True)


def _wait(line: str) -> None:
    """Print a line, and wait for one."""
    print(line, flush=True)
    sys.stdin.readline()
