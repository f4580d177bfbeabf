"""Laws of deletion: nothing remains, neither for a caller nor in what is stored."""

from dataclasses import replace
from random import Random

from agent.errors import HistoryError, NotFound
from agent.history.conformance.laws import holds, law, refused, same
from agent.history.conformance.owners import VERBS
from agent.history.conformance.samples import ALICE, batch, chain, grown, prompt, started, titled
from agent.history.conformance.trial import Trial
from agent.history.contract import HistoryStore
from agent.history.records import PROGRAM, PROGRAM_VECTORS, Entry, Record, vectors_id

SECRET = "hunter2"


@law("base")
async def delete_leaves_nothing(trial: Trial) -> None:
    """After a deletion, all calls raise `NotFound`, and a new conversation with that id has no old entries."""
    store = trial.store
    record, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    record = await store.save(replace(record, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    kept, kept_entries = await started(store, "kept")
    await store.delete(record.id, owner=ALICE)
    for name, verb in VERBS.items():
        with refused(NotFound, f"{name} after the deletion"):
            await verb(store, record, ALICE)
    same(await store.list(ALICE), [kept], "the list")
    same(await store.history(kept), kept_entries, "the history of another conversation")
    again = await store.save(Record(id=record.id, owner=ALICE))
    for head in (entries[-1].id, branch[-1].id):
        with refused(NotFound, "a history that ends with a deleted entry"):
            await store.history(replace(again, head_id=head))
        with refused(HistoryError, "a save with a deleted entry as head"):
            await store.save(replace(again, head_id=head))


@law("base")
async def delete_takes_the_vectors_of_a_chat(trial: Trial) -> None:
    """The vectors of a program's chat go with it. Those of another chat stay, also if a visitor's chat has its id."""
    store = trial.store
    chats = [(await started(store, "1", owner=PROGRAM))[0] for _ in range(2)]
    vectors = [await store.save(Record(id=vectors_id(chat.id), owner=PROGRAM_VECTORS)) for chat in chats]
    await store.delete(chats[0].id, owner=PROGRAM)
    same(await store.list(PROGRAM_VECTORS), vectors[1:], "the vectors that are stored")
    with refused(NotFound, "a deletion by another owner"):
        await store.delete(chats[1].id, owner=ALICE)
    same(await store.list(PROGRAM_VECTORS), vectors[1:], "the vectors of the chat of another owner")


@law("base")
async def save_does_not_restore_deleted(trial: Trial) -> None:
    """A save of a deleted conversation raises `NotFound`."""
    record, _ = await started(trial.store)
    await trial.store.delete(record.id, owner=ALICE)
    with refused(NotFound, "a save after the deletion"):
        await trial.store.save(record)
    same(await trial.store.list(ALICE), [], "the list")


@law("retention")
async def erasing_removes_branches(trial: Trial) -> None:
    """`erase` removes a conversation with its branches, and no other."""
    store = trial.store
    record, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    record = await store.save(replace(record, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    kept, kept_entries = await started(store, "kept")
    holds(await store.retention.erase(record), "erase returned False")
    same(await store.entries(record), [], "the entries after erase")
    same([text async for text in store.retention.texts(ALICE)][1:], [], "the stored texts of other conversations")
    same(await store.history(kept), kept_entries, "the history of another conversation")


async def _with_secrets(store: HistoryStore) -> Record:
    """Store a conversation that has a secret in each place for text."""
    record = await titled(store, f"{SECRET} title", *(f"{SECRET} {number} " * 900 for number in range(20)))
    branch = chain(prompt(f"{SECRET} branch"))
    record = await store.save(replace(record, head_id=branch[0].id, branches=(record.head_id or "",)), branch)
    await store.runs.append(batch(record, 1, f"{SECRET} event", f"{SECRET} other"))
    more = chain(prompt(f"{SECRET} end"), after=record.head_id)
    return await store.save(replace(record, head_id=more[-1].id), more, batch(record, 3, f"{SECRET} last", ended=True))


@law("raw", "branches", "events", "retention")
async def deleted_text_is_nowhere(trial: Trial) -> None:
    """After `delete` or `erase`, nothing that is stored contains text of the conversation, its title or its runs."""
    for way in ("delete", "erase"):
        store = trial.store
        kept, entries = await started(store, *("kept" * 100 for _ in range(20)))
        record = await _with_secrets(store)
        await trial.reopen()  # what a store writes at its end and its beginning counts, too
        store = trial.store
        holds(SECRET.encode() in await trial.raw(), "the raw content does not show what is stored")
        if way == "delete":
            await store.delete(record.id, owner=ALICE)
        else:
            holds(await store.retention.erase(record), "erase returned False")
        holds(SECRET.encode() not in await trial.raw(), f"{way} leaves text of the conversation in the store")
        same(await store.history(kept), entries, "the history of another conversation")


@law("raw", "events")
async def text_of_removed_runs_is_nowhere(trial: Trial) -> None:
    """After the events of ended runs were removed, nothing that is stored contains their text."""
    store = trial.store
    record, _ = await started(store)
    await store.runs.append(batch(record, 1, f"{SECRET} event", ended=True))
    holds(SECRET.encode() in await trial.raw(), "the raw content does not show what is stored")
    trial.clock.go_forward(hours=2)
    same(await store.runs.remove(trial.clock.before(hours=1)), 1, "the number of removed runs")
    holds(SECRET.encode() not in await trial.raw(), "remove leaves the text of events in the store")


@law("raw", "retention")
async def deleted_text_among_others_is_nowhere(trial: Trial) -> None:
    """After `wipe`, nothing is left of conversations that were deleted while others grew, shrank and came.

    A store that keeps rows in pages has moved them by then, and can have left copies behind. These don't come back when
    the others grow further.
    """
    store, dice = trial.store, Random(5)  # seeds with which a SQLite file keeps copies without `wipe`
    live: dict[str, Record] = {}
    deleted: list[str] = []
    for number in range(150):
        word = f"{SECRET}-{number}-"
        live[word] = await titled(store, word, word * dice.choice((1, 30, 150)))
        for _ in range(2):
            word = dice.choice([*live])
            entries = chain(prompt(word * dice.choice((1, 30, 150))), after=live[word].head_id)
            live[word] = await grown(store, live[word], entries)
        if number % 2:
            deleted.append(dice.choice([*live]))
            holds(await store.retention.erase(live.pop(deleted[-1])), "erase returned False")
    await store.retention.wipe()
    same([word for word in deleted if word.encode() in await trial.raw()], [], "the deleted texts after `wipe`")
    for word, record in live.items():
        live[word] = await grown(store, record, chain(prompt("more"), after=record.head_id))
    await trial.reopen()
    raw = await trial.raw()
    same([word for word in deleted if word.encode() in raw], [], "the deleted texts in the store")
    same([word for word in live if word.encode() not in raw], [], "the kept texts that are missing in the store")


@law("raw")
async def nothing_of_a_refused_save_is_stored(trial: Trial) -> None:
    """Nothing that is stored contains text of a refused save."""
    store = trial.store
    record, _ = await started(store, "kept")
    lost = Entry(parent_id="nothing", message=prompt(SECRET))
    with refused(HistoryError, "a save of an entry without parent"):
        await grown(store, replace(record, title=SECRET), [lost])
    await trial.reopen()
    holds(SECRET.encode() not in await trial.raw(), "the text of a refused save is in the store")
