"""Laws of the replicas of a shared store: which runs are lost, who may take them, and who may write them.

The functions with a `Trial` that are no laws run in the other processes.
"""

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import replace

from agent.errors import Conflict, NotFound
from agent.history.conformance.laws import allowed, holds, law, refused, same
from agent.history.conformance.samples import ALICE, MALLORY, batch, contents, started
from agent.history.conformance.trial import Trial
from agent.history.contract import HistoryStore
from agent.history.records import Record
from agent.history.replicas import BEAT_SECONDS, SILENT_SECONDS, Replicas, replicas_of

TAKERS = 5


def _replicas(store: HistoryStore) -> Replicas:
    found = replicas_of(store)
    assert found is not None, "the store has no replicas"
    return found


async def _joined(trial: Trial) -> tuple[HistoryStore, Replicas]:
    store = await trial.open()
    await _replicas(store).beat()
    return store, _replicas(store)


async def _begun(trial: Trial, run: str = "run") -> tuple[HistoryStore, Replicas, Record]:
    """Let a replica begin a run in a new conversation."""
    store, replicas = await _joined(trial)
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, "a", run=run))
    return store, replicas, record


@law("replicas")
async def run_of_living_replica_is_not_lost(trial: Trial) -> None:
    """A run whose replica is alive is not lost, and nobody can take it."""
    await _begun(trial)
    _, other = await _joined(trial)
    same([*await other.lost_runs()], [], "the lost runs")
    same(await other.take("run"), False, "whether the run was taken")


@law("replicas")
async def run_of_replica_that_left_is_lost(trial: Trial) -> None:
    """A run without an end is lost as soon as its replica leaves. An ended one never is."""
    store, leaver, record = await _begun(trial)
    ended, _ = await started(store)
    await store.runs.append(batch(ended, 1, "b", run="ended", ended=True))
    _, other = await _joined(trial)
    await leaver.leave()
    found = [(run.run_id, run.conversation_id, run.owner, run.saved) for run in await other.lost_runs()]
    same(found, [("run", record.id, ALICE, 0)], "the lost runs")
    same(await other.take("ended"), False, "whether the ended run was taken")


@law("replicas")
async def one_of_many_takers_wins(trial: Trial) -> None:
    """Of several replicas that take one lost run at once, exactly one gets it."""
    _, leaver, _ = await _begun(trial)
    takers = [(await _joined(trial))[1] for _ in range(TAKERS)]
    await leaver.leave()
    outcomes = await asyncio.gather(*(taker.take("run") for taker in takers))
    same(sum(outcomes), 1, "the number of replicas that got the run")


@law("replicas")
async def only_replica_of_a_run_writes_it(trial: Trial) -> None:
    """When a run was taken, its old replica is refused, and the new one continues the events."""
    store, leaver, record = await _begun(trial)
    other_store, other = await _joined(trial)
    await leaver.leave()
    await leaver.beat()
    await other.take("run")
    with refused(Conflict, "appending by the old replica"):
        await store.runs.append(batch(record, 2, "late"))
    with refused(Conflict, "saving by the old replica"):
        await store.save(record, (), batch(record, 2, "late"))
    with allowed("appending by the new replica"):
        await other_store.runs.append(batch(record, 2, "b"))
    same(contents(await store.runs.events("run", owner=ALICE)), [(1, "a"), (2, "b")], "the events")


@law("replicas")
async def run_of_unjoined_process_is_lost_to_replicas(trial: Trial) -> None:
    """A run that was begun without joining is lost, because nobody says that its process is alive."""
    record, _ = await started(trial.store)
    await trial.store.runs.append(batch(record, 1, "a"))
    _, other = await _joined(trial)
    same([run.run_id for run in await other.lost_runs()], ["run"], "the lost runs")
    same(await other.take("run"), True, "whether the run was taken")


@law("replicas")
async def every_replica_finds_unfinished_runs(trial: Trial) -> None:
    """Any replica finds the run that is being written in a conversation, for its owner only, until it ends."""
    store, _, record = await _begun(trial)
    _, other = await _joined(trial)
    same(await other.unfinished_run(record.id, owner=ALICE), "run", "the run")
    same(await other.unfinished_run(record.id, owner=MALLORY), None, "the run for another owner")
    same([*await other.unfinished_conversations(ALICE)], [record.id], "the conversations")
    same([*await other.unfinished_conversations(MALLORY)], [], "the conversations of another owner")
    await store.runs.append(batch(record, 2, "b", ended=True))
    same(await other.unfinished_run(record.id, owner=ALICE), None, "the run after its end")
    same([*await other.unfinished_conversations(ALICE)], [], "the conversations after its end")


@law("replicas", "retention")
async def replicas_know_what_must_not_be_deleted(trial: Trial) -> None:
    """Any replica knows that a run would lose its conversation, and that nobody goes on with one that has expired."""
    store, mine, record = await _begun(trial)
    idle, _ = await started(store)
    other_store, other = await _joined(trial)
    same([await one.is_answering(record.id) for one in (mine, other)], [True, True], "whether it is answered")
    same(await other.is_answering(idle.id), False, "whether a conversation without a run is answered")
    await store.retention.set_expiry(record, trial.clock.before(seconds=1))
    same(await other.is_answering(record.id), True, "whether an expired one is answered by a living replica")
    same(await mine.is_answering(record.id), False, "whether an expired one is, as its own replica sees it")
    await mine.leave()
    same(await other.is_answering(record.id), False, "whether an expired one is answered by a replica that is gone")
    await store.retention.set_expiry(record, None)
    same(await other.is_answering(record.id), True, "whether a run that can be taken counts")
    await other.take("run")
    same(await other.is_answering(record.id), True, "whether a run that was taken counts")
    await other_store.runs.append(batch(record, 2, "b", ended=True))
    same(await other.is_answering(record.id), False, "whether an ended run counts")


@law("replicas")
async def stop_reaches_the_replica_of_a_run(trial: Trial) -> None:
    """A stop that another replica was asked for is seen by the replica of the run, if its owner asks."""
    store, mine, record = await _begun(trial)
    _, other = await _joined(trial)
    same(await other.request_stop("run", owner=MALLORY), False, "whether another owner can stop it")
    same(await _stops(mine), [], "the stops that another owner asked for")
    same(await other.request_stop("run", owner=ALICE), True, "whether its owner can stop it")
    same(await _stops(mine), ["run"], "the stops")
    same(await _stops(other), [], "the stops of another replica")
    await store.runs.append(batch(record, 2, "b", ended=True))
    same(await _stops(mine), [], "the stops after the end")
    same(await other.request_stop("run", owner=ALICE), False, "whether an ended run can be stopped")


@law("replicas")
async def watching_reaches_the_replica_of_a_run(trial: Trial) -> None:
    """That a page of another replica watches a run is seen by the replica of the run, if its owner watches."""
    _, mine, record = await _begun(trial)
    _, other = await _joined(trial)
    await other.watch("run", owner=MALLORY)
    own = await mine.own_runs()
    same([(one.run.run_id, one.run.conversation_id, one.run.owner) for one in own], [("run", record.id, ALICE)], "own")
    same([one.is_watched for one in own], [False], "whether another owner can watch")
    await other.watch("run", owner=ALICE)
    same([one.is_watched for one in await mine.own_runs()], [True], "whether its owner can watch")
    same([*await other.own_runs()], [], "the runs of another replica")


@law("replicas")
async def reservations_are_seen_by_other_replicas(trial: Trial) -> None:
    """Each replica sees what the others are about to store, until they have stored it or are gone."""
    odd = "\0'é\ud800"
    (_, one), (_, other), (_, third) = [await _joined(trial) for _ in range(3)]
    same(dict(await third.reserved()), {}, "the bytes before any was reserved")
    await one.reserve({ALICE: 5, odd: 1})
    await other.reserve({ALICE: 2, MALLORY: 1})
    same(dict(await third.reserved()), {ALICE: 7, MALLORY: 1, odd: 1}, "the bytes of two others")
    same(dict(await one.reserved()), {ALICE: 2, MALLORY: 1}, "the bytes of another, for a replica with its own")
    await one.reserve({odd: 3})
    same(dict(await third.reserved()), {ALICE: 2, MALLORY: 1, odd: 3}, "the bytes after a change")
    await one.reserve({})
    await other.leave()
    same(dict(await third.reserved()), {}, "the bytes after one has stored them and the other is gone")


@law("replicas", "retention")
async def owner_in_use_elsewhere_is_not_erased(trial: Trial) -> None:
    """`erase_unused` removes nothing of an owner for whom another replica has reserved room or writes an answer."""
    store, mine, record = await _begun(trial)
    other_store, other = await _joined(trial)
    await store.runs.append(batch(record, 2, "b", ended=True))
    await mine.reserve({ALICE: 5})
    holds(not await other_store.retention.erase_unused(ALICE, [record]), "an owner with a reservation was erased")
    await mine.reserve({MALLORY: 5})
    await store.runs.append(batch(record, 1, "a", run="next"))
    end = trial.clock.before(seconds=1)
    await store.retention.set_expiry(record, end)
    expired = replace(record, expires_at=end)
    holds(not await other_store.retention.erase_unused(ALICE, [expired]), "an expired conversation lost its run")
    same(len(await store.entries(record)), 1, "the number of entries")
    await mine.leave()
    await other.reserve({ALICE: 5})
    holds(await other_store.retention.erase_unused(ALICE, [expired]), "erase_unused returned False")
    same(await store.entries(record), [], "the entries after erase_unused")


@law("replicas", "retention")
async def replicas_share_one_clock(trial: Trial) -> None:
    """`time` is the same for all replicas, and what expires then has expired for all."""
    (store, one), (other_store, other) = [await _joined(trial) for _ in range(2)]
    record, _ = await started(store)
    times = [await replicas.time() for replicas in (one, other) * 4]
    same(times, sorted(times), "the times, one after the other")
    end = await other.time()
    await other_store.retention.set_expiry(record, end)
    with refused(NotFound, "what has expired by the clock of another replica"):
        await store.get(record.id, owner=ALICE)
    same([found.id for found in await store.retention.expiring(await one.time())], [record.id], "what has expired")


async def _stops(replicas: Replicas) -> list[str]:
    return [one.run.run_id for one in await replicas.own_runs() if one.is_stopped]


@law("replicas")
async def runs_of_deleted_conversation_are_not_lost(trial: Trial) -> None:
    """Nobody is given the run of a deleted conversation."""
    store, leaver, record = await _begun(trial)
    _, other = await _joined(trial)
    await leaver.leave()
    await store.delete(record.id, owner=ALICE)
    same([*await other.lost_runs()], [], "the lost runs")
    same(await other.take("run"), False, "whether the run was taken")
    with suppress(NotFound):
        same(await other.unfinished_run(record.id, owner=ALICE), None, "the run")


@law("replicas", "processes")
async def dead_and_stopped_replicas_lose_their_runs(trial: Trial) -> None:
    """The runs of a killed process and of one that stands still are lost in time, and no others."""
    kept, living, _ = await _begun(trial, run="living")
    killed, stopped = await trial.process(begin, "killed"), await trial.process(begin, "stopped")
    same([await killed.read(), await stopped.read()], ["begun"] * 2, "the two processes")
    same([*await living.lost_runs()], [], "the lost runs at first")
    stopped.send_signal(signal.SIGSTOP)
    await killed.kill()
    found = set[str]()
    for _ in range(int(SILENT_SECONDS / BEAT_SECONDS) + 2):
        await asyncio.sleep(BEAT_SECONDS)
        await living.beat()
        found = {run.run_id for run in await living.lost_runs()}
        if len(found) == 2:
            break
    same(sorted(found), ["killed", "stopped"], "the lost runs")
    same(await living.take("stopped"), True, "whether the run was taken")
    stopped.send_signal(signal.SIGCONT)
    stopped.write()
    same(await stopped.read(), "Conflict", "what the process got that woke up late")
    holds(contents(await kept.runs.events("stopped", owner=ALICE)) == [(1, "a")], "The late process stored an event.")


async def begin(trial: Trial, run: str) -> None:
    """Begin a run, print "begun", and at the next line try to go on."""
    async with trial:
        store, _, record = await _begun(trial, run)
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await store.runs.append(batch(record, 2, "late", run=run))
        except Conflict:
            print("Conflict", flush=True)
        else:
            print("stored", flush=True)
