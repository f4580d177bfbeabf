"""Laws of the events of a run and its lease, and of several processes.

The functions with a `Trial` that are no laws run in the other processes.
"""

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import dump_conversation, dump_entries
from agent.history.contract import HistoryStore
from agent.history.values import LEASE_SECONDS, WATCHED_SECONDS, Conversation, Entry, RunEvent, RunEvents, new_id, now
from tests.support.history_laws import (
    ALICE,
    MALLORY,
    Trial,
    allowed,
    batch,
    chain,
    contents,
    grown,
    holds,
    law,
    prompt,
    prompts,
    refused,
    same,
    started,
)


@law("events")
async def events_are_read_from_any_number(trial: Trial) -> None:
    """The events of a run are read in order, from any number on."""
    runs = trial.store.runs
    conversation, _ = await started(trial.store)
    await runs.append(batch(conversation, 1, "a", "b", "c"))
    await runs.append(batch(conversation, 4, "d", "e"))
    every = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    for after in (*range(-3, 7), sys.maxsize):
        found = contents(await runs.events("run", owner=ALICE, after=after))
        same(found, every[max(after, 0) :], f"the events after {after}")


@law("events")
async def events_come_back_byte_for_byte(trial: Trial) -> None:
    """The JSON of an event comes back byte for byte, with NUL, line separators and halves of surrogate pairs."""
    conversation, _ = await started(trial.store)
    values = [{"z": 1, "a": "\0"}, {"é": "\u2028\u2029\x85\n"}, {"content": "\ud800"}, {"n": [1.0, 2**70, None]}]
    events = [RunEvent.of(number, value) for number, value in enumerate(values, 1)]
    await trial.store.runs.append(
        RunEvents(run_id="run", conversation_id=conversation.id, owner=conversation.owner, events=events)
    )
    same([*await trial.store.runs.events("run", owner=ALICE)], events, "the events")


@law("events")
async def read_events_do_not_change(trial: Trial) -> None:
    """Events that were read do not grow when the run goes on."""
    runs = trial.store.runs
    conversation, _ = await started(trial.store)
    await runs.append(batch(conversation, 1, "a"))
    read = await runs.events("run", owner=ALICE)
    await runs.append(batch(conversation, 2, "b"))
    same(contents(read), [(1, "a")], "the events that were read before")


@law("events")
async def message_and_events_are_stored_together(trial: Trial) -> None:
    """A save stores a message together with the events of its run."""
    store = trial.store
    conversation, entries = await started(store)
    (answer,) = chain(prompt("answer"), after=entries[-1].id)
    saved = await store.save(
        replace(conversation, head_id=answer.id), [answer], batch(conversation, 1, "a", ended=True)
    )
    same(await store.history(saved), [*entries, answer], "the history")
    with allowed("events of a run that begins with a save"):
        same(contents(await store.runs.events("run", owner=ALICE)), [(1, "a")], "the events")


_Save = tuple[Conversation, Entry, RunEvents]
FAULTS: dict[str, Callable[[_Save], _Save]] = {
    "a stale conversation": lambda save: (replace(save[0], revision=7), save[1], save[2]),
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
        conversation, entries = await started(store)
        await store.runs.append(batch(conversation, 1, "a", run=fault))
        (answer,) = chain(prompt("answer"), after=entries[-1].id)
        sent, entry, events = spoil(
            (replace(conversation, head_id=answer.id), answer, batch(conversation, 2, "b", run=fault))
        )
        kind = HistoryError if fault == "a broken link" else Conflict
        with refused(kind, f"a save with {fault}"):
            await store.save(sent, [entry], events)
        same(await store.get(conversation.id, owner=ALICE), conversation, f"the conversation after {fault}")
        same(await store.history(conversation), entries, f"the history after {fault}")
        same(contents(await store.runs.events(fault, owner=ALICE)), [(1, "a")], f"the events after {fault}")
    same(contents(await store.runs.events("other", owner=MALLORY)), [(1, "theirs")], "the other owner's events")


@law("events")
async def only_owner_reads_and_appends(trial: Trial) -> None:
    """Another owner's run raises `NotFound`, as a missing one does."""
    runs = trial.store.runs
    conversation, _ = await started(trial.store)
    await runs.append(batch(conversation, 1, "secret"))
    with refused(NotFound, "events for another owner"):
        await runs.events("run", owner=MALLORY)
    with refused(NotFound, "append by another owner"):
        await runs.append(batch(replace(conversation, owner=MALLORY), 2, "forged"))
    with refused(NotFound, "events of a missing run"):
        await runs.events("another", owner=ALICE)
    same(contents(await runs.events("run", owner=ALICE)), [(1, "secret")], "the events")


@law("events")
async def second_writer_gets_conflict(trial: Trial) -> None:
    """Events that repeat a number, leave a gap or follow the end raise `Conflict`."""
    runs = trial.store.runs
    conversation, _ = await started(trial.store)
    await runs.append(batch(conversation, 1, "a"))
    for what, late in {
        "a used number": batch(conversation, 1, "again"),
        "a gap": batch(conversation, 3, "gap"),
    }.items():
        with refused(Conflict, f"append with {what}"):
            await runs.append(late)
    await runs.append(batch(conversation, 2, "end", ended=True))
    with refused(Conflict, "append after the end"):
        await runs.append(batch(conversation, 3, "after the end"))
    same(contents(await runs.events("run", owner=ALICE)), [(1, "a"), (2, "end")], "the events")


@law("events")
async def unfinished_runs_say_what_entries_contain(trial: Trial) -> None:
    """`unfinished` returns the runs without an end, and the last event that was saved with an entry."""
    store = trial.store
    conversation, entries = await started(store)
    await store.runs.append(batch(conversation, 1, "a", run="lost"))
    (step,) = chain(prompt("step"), after=entries[-1].id)
    conversation = await store.save(
        replace(conversation, head_id=step.id), [step], batch(conversation, 2, "b", "c", run="lost")
    )
    await store.runs.append(batch(conversation, 4, "d", run="lost"))
    await store.runs.append(batch(conversation, 1, "whole", run="ended", ended=True))
    (found,) = await store.runs.unfinished()
    same(
        (found.run_id, found.conversation_id, found.owner, found.saved), ("lost", conversation.id, ALICE, 3), "the run"
    )
    same([*await store.runs.unfinished(limit=0)], [], "the runs with limit=0")


@law("events", "retention")
async def deleted_conversation_has_no_events(trial: Trial) -> None:
    """The events of a conversation are deleted with it."""
    store = trial.store
    for way in ("delete", "erase"):
        conversation, _ = await started(store)
        await store.runs.append(batch(conversation, 1, "a", run=way))
        await (store.delete(conversation.id, owner=ALICE) if way == "delete" else store.retention.erase(conversation))
        with refused(NotFound, f"events after {way}"):
            await store.runs.events(way, owner=ALICE)
        same([*await store.runs.unfinished()], [], f"the unfinished runs after {way}")
        again = await store.save(Conversation(id=conversation.id, owner=ALICE))
        with allowed("a new run with the id of a deleted one"):
            await store.runs.append(batch(again, 1, "new", run=way))
        same(contents(await store.runs.events(way, owner=ALICE)), [(1, "new")], "the events of a new run with that id")
        await store.delete(again.id, owner=ALICE)


@law("events")
async def expired_conversation_shows_no_events(trial: Trial) -> None:
    """The runs of an expired conversation are missing, and take no events."""
    store = trial.store
    entry = Entry(parent_id=None, message=prompt())
    conversation = Conversation(owner=ALICE, head_id=entry.id, expires_at=now() + timedelta(hours=1))
    conversation = await store.save(conversation, [entry], batch(conversation, 1, "a"))
    trial.clock.go_forward(hours=2)
    with refused(NotFound, "events after the end"):
        await store.runs.events("run", owner=ALICE)
    with refused(NotFound, "append after the end"):
        await store.runs.append(batch(conversation, 2, "b"))
    same([*await store.runs.unfinished()], [], "the unfinished runs")


@law("events")
async def only_events_of_old_ended_runs_are_removed(trial: Trial) -> None:
    """`remove` removes the events of the runs that ended before a time, and returns their number."""
    runs = trial.store.runs
    conversation, _ = await started(trial.store)
    await runs.append(batch(conversation, 1, "a", run="old", ended=True))
    await runs.append(batch(conversation, 1, "b", run="going on"))
    trial.clock.go_forward(hours=1)
    await runs.append(batch(conversation, 1, "c", run="new", ended=True))
    before = trial.clock.before(minutes=30)
    same(await runs.remove(before), 1, "the number of removed runs")
    with refused(NotFound, "events of a removed run"):
        await runs.events("old", owner=ALICE)
    for run, text in {"going on": "b", "new": "c"}.items():
        holds(contents(await runs.events(run, owner=ALICE)) == [(1, text)], f"the run {run!r} was changed")
    same(await runs.remove(before), 0, "the number of runs that a second call removes")


ROUNDS = 12
TURN = 9
"""Messages and events of one save."""
KILLS = 24
SEED = 20


@law("processes", "base")
async def reopened_store_shows_the_same(trial: Trial) -> None:
    """A save is there when the data is opened again."""
    conversation, entries = await started(trial.store, "1", "2")
    await trial.reopen()
    same(await trial.store.list(ALICE), [conversation], "the list")
    same(await trial.store.history(conversation), entries, "the history")
    await grown(trial.store, conversation, chain(prompt("3"), after=entries[-1].id))


@law("processes", "base")
async def one_process_wins_a_revision(trial: Trial) -> None:
    """Of two processes that save one revision, exactly one wins and the other gets `Conflict`."""
    conversation, entries = await started(trial.store, "0")
    racers = [await trial.process(race, conversation.id, name) for name in "ab"]
    for number in range(ROUNDS):
        same([await racer.read() for racer in racers], ["ready"] * 2, "the two processes")
        for racer in racers:
            racer.write()
        outcomes = [await racer.read() for racer in racers]
        same(sorted(outcomes), ["Conflict", "saved"], f"the outcomes of round {number}")
        stored = await trial.store.get(conversation.id, owner=ALICE)
        same(stored.revision, conversation.revision + number + 1, f"the revision after round {number}")
        winner = "ab"[outcomes.index("saved")]
        found = prompts(await trial.store.history(stored))
        same(found[-2:], [f"{winner}.{number}", f"{winner}.{number}, too"], f"the messages of round {number}")
        same(len(found), len(entries) + 2 * (number + 1), f"the number of messages after round {number}")


async def race(trial: Trial, conversation_id: str, name: str) -> None:
    """Save two messages at each line, and print "saved" or the name of the error."""
    async with trial:
        for number in range(ROUNDS):
            conversation = await trial.store.get(conversation_id, owner=ALICE)
            added = chain(prompt(f"{name}.{number}"), prompt(f"{name}.{number}, too"), after=conversation.head_id)
            _wait("ready")
            print(await _outcome(trial, conversation, added), flush=True)


async def _outcome(trial: Trial, conversation: Conversation, added: list[Entry]) -> str:
    try:
        await grown(trial.store, conversation, added)
    except HistoryError as error:
        return type(error).__name__
    return "saved"


@law("processes", "base")
async def processes_lose_nothing(trial: Trial) -> None:
    """Two processes that write at once, each its own conversation and both a shared one, lose nothing."""
    await trial.store.save(Conversation(id="shared", owner=ALICE))
    writers = [await trial.process(talk, name) for name in "ab"]
    ids = [await writer.read() for writer in writers]
    for writer in writers:
        writer.write()
    same([await writer.read() for writer in writers], ["done"] * 2, "the two processes")
    for name, id_ in zip("ab", ids, strict=True):
        conversation = await trial.store.get(id_, owner=ALICE)
        found = prompts(await trial.store.history(conversation))
        same(found, [f"{name}.{turn}" for turn in range(31)], f"the history of process {name}")
    shared = prompts(await trial.store.history(await trial.store.get("shared", owner=ALICE)))
    for name in "ab":
        own = [text for text in shared if text[0] == name]
        same(own, [f"{name}.{turn}" for turn in range(1, 31)], f"the messages of process {name} in the shared one")


async def talk(trial: Trial, name: str) -> None:
    """Save 30 messages in a conversation, and the same in the shared one, with a new try after each `Conflict`."""
    async with trial:
        conversation, entries = await started(trial.store, f"{name}.0")
        _wait(conversation.id)
        for turn in range(1, 31):
            entries = chain(prompt(f"{name}.{turn}"), after=entries[-1].id)
            conversation = await grown(trial.store, conversation, entries)
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
    conversation, entries = await started(store, "question")
    deleted, _ = await started(store, "question")
    zombies = [await trial.process(write_late, id_) for id_ in (conversation.id, deleted.id)]
    for zombie in zombies:
        same(await zombie.read(), "writing", "the process that writes the answer")
        zombie.send_signal(signal.SIGSTOP)
    conversation = await store.get(conversation.id, owner=ALICE)
    answer = chain(prompt("taken over"), after=entries[-1].id)
    end = batch(conversation, 2, "interrupted", run=conversation.id, ended=True)
    conversation = await store.save(replace(conversation, head_id=answer[-1].id), answer, end)
    await store.delete(deleted.id, owner=ALICE)
    for zombie, expected in zip(zombies, ("Conflict", "NotFound"), strict=True):
        zombie.send_signal(signal.SIGCONT)
        zombie.write()
        for what in ("append", "save", "save with events"):
            same(await zombie.read(), expected, f"what {what} raises in the process that stood still")
    same(await store.list(ALICE), [conversation], "the list")
    same(await store.history(conversation), [*entries, *answer], "the history")
    events = contents(await store.runs.events(conversation.id, owner=ALICE))
    same(events, [(1, "a"), (2, "interrupted")], "the events")


async def write_late(trial: Trial, conversation_id: str) -> None:
    """Begin an answer, wait, try to store more of it in three ways, and print what each raises."""
    async with trial:
        store = trial.store
        conversation = await store.get(conversation_id, owner=ALICE)
        await store.runs.append(batch(conversation, 1, "a", run=conversation.id))
        more = batch(conversation, 2, "late", run=conversation.id)
        entries = chain(prompt("late"), after=conversation.head_id)
        _wait("writing")
        late = replace(conversation, head_id=entries[-1].id)
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
        conversation = await trial.store.save(Conversation(id=conversation_id, owner=ALICE))
        while True:
            conversation = await _save_turn(trial, conversation)
            print(conversation.revision - 1, flush=True)


@law("processes", "events", "retention", "search")
async def kill_in_mid_save_stores_all_or_nothing(trial: Trial) -> None:
    """A process that is killed at any place of a save has stored everything or nothing, and the next save works."""
    store = trial.store
    await store.save(Conversation(id="talk", owner=ALICE))
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
        conversation = await store.get("talk", owner=ALICE)
        entries = await store.entries(conversation)
        same(len(entries), TURN * turns, f"the number of all entries after {what}")
        size = len("".join([dump_conversation(conversation), *dump_entries(entries)]).encode())
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
        conversation = await trial.store.get(conversation_id, owner=ALICE)
        sys.setprofile(look)
        saving = True
        await _save_turn(trial, conversation)
        saving = False
        sys.setprofile(None)
        if not place:
            print(next(calls), flush=True)


async def _save_turn(trial: Trial, conversation: Conversation) -> Conversation:
    """Save the messages and the events of one turn."""
    turn = conversation.revision - 1
    texts = [f"turn-{turn}.{i}" for i in range(TURN)]
    entries = chain(*map(prompt, texts), after=conversation.head_id)
    events = batch(conversation, turn * TURN + 1, *texts, run=conversation.id)
    return await trial.store.save(replace(conversation, head_id=entries[-1].id), entries, events)


async def _whole_turns(trial: Trial, conversation_id: str) -> int:
    """Return the number of turns that are stored. Raises `Broken` if one is stored in part."""
    with allowed("the conversation after a kill"):
        conversation = await trial.store.get(conversation_id, owner=ALICE)
        entries = await trial.store.history(conversation)
    texts = [f"turn-{turn}.{i}" for turn in range(conversation.revision - 1) for i in range(TURN)]
    same(prompts(entries), texts, "the messages after a kill")
    if texts:
        with allowed("the events after a kill"):
            found = contents(await trial.store.runs.events(conversation.id, owner=ALICE))
        same(found, [*enumerate(texts, 1)], "the events after a kill")
    return conversation.revision - 1


@law("processes", "events")
async def two_writers_cannot_both_append(trial: Trial) -> None:
    """Of two instances that append the same numbers to a run, one gets `Conflict`."""
    first, second = trial.store, await trial.open()
    conversation, _ = await started(first)
    await first.runs.append(batch(conversation, 1, "a"))
    for number in range(2, 12):
        calls = [one.runs.append(batch(conversation, number, "b")) for one in (first, second)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        same([type(one) for one in done if one is not None], [Conflict], "what the second append raises")


@law("processes", "base")
async def many_can_open_new_data_at_once(trial: Trial) -> None:
    """Several instances can open new data at once, and see what one of them saves."""
    stores = await asyncio.gather(*(trial.open() for _ in range(8)))
    conversation, entries = await started(stores[0])
    for store in stores:
        with allowed("the history in another instance"):
            same(await store.history(conversation), entries, "the history")


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


ENDERS = 5


async def _another(trial: Trial) -> HistoryStore:
    """Return the store as another process has it, or the same one if no other process can share it."""
    return await trial.open() if trial.subject.processes else trial.store


async def _begun(trial: Trial, run: str = "run") -> tuple[HistoryStore, Conversation]:
    """Let a process begin a run in a new conversation."""
    store = await _another(trial)
    conversation, _ = await started(store)
    await store.runs.append(batch(conversation, 1, "a", run=run))
    return store, conversation


async def _states(store: HistoryStore) -> dict[str, bool]:
    """Return whether each unfinished run is lost."""
    return {run.run_id: run.is_lost for run in await store.runs.unfinished()}


def _end(conversation: Conversation, run: str = "run", *, first: int = 2) -> RunEvents:
    """Return the event with which somebody else ends a lost run."""
    return replace(batch(conversation, first, "lost", run=run, ended=True), of_lost=True)


@law("events")
async def run_is_lost_when_nobody_renews_its_lease(trial: Trial) -> None:
    """Events renew the lease of a run, and so does its writer that waits. Otherwise, it is lost in time."""
    store, conversation = await _begun(trial)
    for renew in (lambda: store.runs.append(batch(conversation, 2, "b")), lambda: store.runs.hold(["run"])):
        trial.clock.go_forward(seconds=LEASE_SECONDS - 1)
        same(await _states(trial.store), {"run": False}, "the runs just before the end of the lease")
        await renew()
    trial.clock.go_forward(seconds=LEASE_SECONDS - 1)
    same(await _states(trial.store), {"run": False}, "the runs after a second renewal")
    trial.clock.go_forward(seconds=2)
    same(await _states(trial.store), {"run": True}, "the runs after the end of the lease")


@law("events")
async def lease_from_the_future_counts_for_nothing(trial: Trial) -> None:
    """The clock was set back. A lease from before does not last until it gets there again."""
    trial.clock.go_forward(hours=1)
    await _begun(trial)
    trial.clock.go_forward(hours=-1)
    same(await _states(trial.store), {"run": True}, "the runs")


@law("events")
async def only_lost_run_is_ended_by_others(trial: Trial) -> None:
    """Nobody but its writer ends a run that has a lease. Once it was ended, the late writer is refused."""
    store, conversation = await _begun(trial)
    other = await _another(trial)
    with refused(Conflict, "ending a run with a lease"):
        await other.runs.append(_end(conversation))
    trial.clock.go_forward(seconds=LEASE_SECONDS + 1)
    with allowed("ending a lost run"):
        conversation = await other.save(conversation, (), _end(conversation))
    with refused(Conflict, "appending by the late writer"):
        await store.runs.append(batch(conversation, 2, "late"))
    with refused(Conflict, "saving by the late writer"):
        await store.save(conversation, (), batch(conversation, 3, "late"))
    same([*await store.runs.hold(["run"])], [], "the runs that the late writer still has")
    same(contents(await store.runs.events("run", owner=ALICE)), [(1, "a"), (2, "lost")], "the events")


@law("events")
async def late_writer_that_is_not_too_late_goes_on(trial: Trial) -> None:
    """A lease that has expired is renewed by the writer if nobody has ended the run. Then nobody can."""
    store, conversation = await _begun(trial)
    trial.clock.go_forward(seconds=LEASE_SECONDS + 1)
    with allowed("appending after the end of the lease"):
        await store.runs.append(batch(conversation, 2, "b"))
    with refused(Conflict, "ending with a number that is used"):
        await trial.store.runs.append(_end(conversation))
    with refused(Conflict, "ending a run with a new lease"):
        await trial.store.runs.append(_end(conversation, first=3))


@law("events")
async def one_of_many_enders_wins(trial: Trial) -> None:
    """Of several that end one lost run at once, exactly one succeeds."""
    _, conversation = await _begun(trial)
    trial.clock.go_forward(seconds=LEASE_SECONDS + 1)
    stores = [await _another(trial) for _ in range(ENDERS)]
    found = await asyncio.gather(*(store.runs.append(_end(conversation)) for store in stores), return_exceptions=True)
    same(sorted(type(one).__name__ for one in found), ["Conflict"] * (ENDERS - 1) + ["NoneType"], "the outcomes")


@law("events")
async def released_run_is_lost_at_once(trial: Trial) -> None:
    """A run that was released is lost at once and for ever, and its former writer cannot write it any more."""
    store, conversation = await _begun(trial)
    await store.runs.hold(["run"], release=True)
    (found,) = await trial.store.runs.unfinished()
    same((found.is_lost, found.leased_until), (True, 0), "the run")
    with refused(Conflict, "appending to a released run"):
        await store.runs.append(batch(conversation, 2, "late"))
    same([*await store.runs.hold(["run"])], [], "the runs that the writer still has")
    same(await _states(trial.store), {"run": True}, "the runs after a late renewal")
    with allowed("ending a released run"):
        await trial.store.runs.append(_end(conversation))


@law("events")
async def unfinished_runs_are_found_by_owner(trial: Trial) -> None:
    """The unfinished runs of an owner and of a conversation are found until they end, for their owner only."""
    store, conversation = await _begun(trial)
    other, _ = await started(store)
    await store.runs.append(batch(other, 1, "b", run="other"))
    theirs, _ = await started(store, owner=MALLORY)
    await store.runs.append(batch(theirs, 1, "c", run="theirs"))

    async def found(owner: str, id_: str | None = None) -> list[str]:
        return [run.run_id for run in await trial.store.runs.unfinished(owner=owner, conversation_id=id_)]

    same(await found(ALICE), ["run", "other"], "an owner's runs")
    same(await found(ALICE, conversation.id), ["run"], "a conversation's runs")
    same(await found(MALLORY, conversation.id), [], "a conversation's runs for another owner")
    same(await found("nobody"), [], "the runs of an unknown owner")
    await store.runs.append(batch(conversation, 2, "d", ended=True))
    same(await found(ALICE), ["other"], "an owner's runs after the end of one")
    same(await found(ALICE, conversation.id), [], "a conversation's runs after their end")


@law("events")
async def writer_learns_what_visitors_want(trial: Trial) -> None:
    """That a page watches a run, and that a visitor wants it to stop, is seen by its writer if the owner says so."""
    store, conversation = await _begun(trial)

    async def wishes() -> list[tuple[bool, bool]]:
        return [(run.is_watched, run.is_stopped) for run in await store.runs.hold(["run", "missing"])]

    runs = (await _another(trial)).runs
    same(await runs.look("run", owner=MALLORY, stop=True), None, "what another owner sees")
    same(await wishes(), [(False, False)], "what another owner can wish")
    seen = await runs.look("run", owner=ALICE)
    same(
        seen and (seen.conversation_id, seen.owner, seen.is_lost),
        (conversation.id, ALICE, False),
        "what the owner sees",
    )
    same(await wishes(), [(True, False)], "what the owner watches")
    await runs.look("run", owner=ALICE, stop=True)
    await runs.look("run", owner=ALICE)
    trial.clock.go_forward(seconds=WATCHED_SECONDS + 1)
    same(await wishes(), [(False, True)], "what the owner wished for some time ago")
    await store.runs.append(batch(conversation, 2, "b", ended=True))
    same(await runs.look("run", owner=ALICE, stop=True), None, "what the owner sees after the end")


@law("events", "retention")
async def conversation_with_a_leased_run_is_not_erased(trial: Trial) -> None:
    """A run would lose its conversation: any unfinished one until that expires, and then one with a lease."""
    store, conversation = await _begun(trial)
    idle, _ = await started(store)
    runs = trial.store.runs
    same([await runs.would_lose(one) for one in (conversation, idle)], [True, False], "whether a run would lose it")
    trial.clock.go_forward(seconds=LEASE_SECONDS + 1)
    same(await runs.would_lose(conversation), True, "whether a run that can be continued would")
    await store.runs.hold(["run"])
    end = trial.clock.before(seconds=1)
    for one in (conversation, idle):
        await store.retention.set_expiry(one, end)
    expired = [replace(one, expires_at=end) for one in (conversation, idle)]
    same(await runs.would_lose(conversation), True, "whether a run with a lease would lose an expired one")
    holds(not await store.retention.erase_unused(ALICE, expired), "an expired conversation lost its run")
    trial.clock.go_forward(seconds=LEASE_SECONDS + 1)
    same(await runs.would_lose(conversation), False, "whether a lost run would lose an expired one")
    holds(await store.retention.erase_unused(ALICE, expired), "erase_unused returned False")
    same(await store.entries(conversation), [], "the entries after erase_unused")


@law("retention")
async def all_share_the_clock_of_the_store(trial: Trial) -> None:
    """`time` is the same for all that share a store, and what expires then has expired for all."""
    stores = [await _another(trial) for _ in range(2)]
    conversation, _ = await started(stores[0])
    times = [await store.retention.time() for store in stores * 4]
    same(times, sorted(times), "the times, one after the other")
    end = await stores[1].retention.time()
    await stores[1].retention.set_expiry(conversation, end)
    with refused(NotFound, "what has expired by the clock of another instance"):
        await stores[0].get(conversation.id, owner=ALICE)
    found = await stores[0].retention.expiring(await stores[0].retention.time())
    same([one.id for one in found], [conversation.id], "what has expired")


@law("events")
async def run_of_deleted_conversation_is_gone(trial: Trial) -> None:
    """Nobody is given the run of a deleted conversation."""
    store, conversation = await _begun(trial)
    await store.delete(conversation.id, owner=ALICE)
    runs = trial.store.runs
    same([*await store.runs.hold(["run"])], [], "the runs that the writer still has")
    same(await runs.look("run", owner=ALICE), None, "what the owner sees")
    same([*await runs.unfinished(owner=ALICE, conversation_id=conversation.id)], [], "the runs of the conversation")


@law("events", "processes")
async def dead_and_stopped_writers_lose_their_runs(trial: Trial) -> None:
    """The runs of a killed process and of one that stands still are lost in time, and no others."""
    killed, stopped = await trial.process(begin, "killed"), await trial.process(begin, "stopped")
    same([await killed.read(), await stopped.read()], ["begun"] * 2, "the two processes")
    kept, conversation = await _begun(
        trial, run="living"
    )  # last, because the processes can take longer to start than a lease
    stopped.send_signal(signal.SIGSTOP)
    await killed.kill()
    same(await _states(kept), {"living": False, "killed": False, "stopped": False}, "the runs at first")
    trial.clock.go_forward(seconds=LEASE_SECONDS + 1)
    await kept.runs.append(batch(conversation, 2, "b", run="living"))
    same(await _states(kept), {"living": False, "killed": True, "stopped": True}, "the runs in time")
    (lost,) = [run for run in await kept.runs.unfinished() if run.run_id == "stopped"]
    await kept.runs.append(_end(await kept.get(lost.conversation_id, owner=ALICE), "stopped"))
    stopped.send_signal(signal.SIGCONT)
    stopped.write()
    same(await stopped.read(), "Conflict", "what the process got that woke up late")
    same(contents(await kept.runs.events("stopped", owner=ALICE)), [(1, "a"), (2, "lost")], "the events")


async def begin(trial: Trial, run: str) -> None:
    """Begin a run, print "begun", and at the next line try to go on."""
    async with trial:
        store, conversation = await _begun(trial, run)
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await store.runs.append(batch(conversation, 2, "late", run=run))
        except Conflict:
            print("Conflict", flush=True)
        else:
            print("stored", flush=True)
