"""Laws of branches: retry, edit and undo overwrite nothing."""

from dataclasses import replace

from agent.errors import HistoryError, NotFound
from agent.history.conformance.laws import allowed, law, refused, same
from agent.history.conformance.samples import ALICE, MALLORY, chain, grown, prompt, prompts, started
from agent.history.conformance.trial import Trial
from agent.history.records import Entry, Record, new_id


@law("branches")
async def old_branch_remains(trial: Trial) -> None:
    """After a retry, an edit and an undo, the earlier branches can still be read."""
    store = trial.store
    record, (asked, answered) = await started(store, "question", "answer")
    retried = chain(prompt("retried"), after=asked.id)
    record = await store.save(replace(record, head_id=retried[-1].id, branches=(answered.id,)), retried)
    same(prompts(await store.history(record)), ["question", "retried"], "the history after a retry")

    edited = chain(prompt("edited"), prompt("new answer"))
    branches = (*record.branches, retried[-1].id)
    record = await store.save(replace(record, head_id=edited[-1].id, branches=branches), edited)
    same(prompts(await store.history(record)), ["edited", "new answer"], "the history after an edit")

    record = await store.save(replace(record, head_id=edited[0].id, branches=(*record.branches, edited[-1].id)))
    same(prompts(await store.history(record)), ["edited"], "the history after an undo")
    record = await store.save(replace(record, head_id=None))
    same(await store.history(record), [], "the history after all was undone")

    stored = await store.get(record.id, owner=ALICE)
    found = [prompts(await store.history(replace(stored, head_id=branch))) for branch in stored.branches]
    same(found, [["question", "answer"], ["question", "retried"], ["edited", "new answer"]], "the branches")


@law("branches")
async def entries_include_all_branches(trial: Trial) -> None:
    """`entries` returns the entries of all branches in the order of their storage."""
    store = trial.store
    record, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    record = await store.save(replace(record, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    same(await store.entries(record), [*entries, *branch], "all entries")
    same(await store.history(record), [entries[0], *branch], "the history")


@law("branches")
async def entries_are_found_by_id_and_place(trial: Trial) -> None:
    """`find` returns the entries with some ids and those that follow some others, in the order of their storage."""
    store = trial.store
    record, (first, second) = await started(store, "1", "2")
    third, fourth = chain(prompt("3"), prompt("4"), after=first.id)
    other = chain(prompt("5"))
    record = await grown(store, record, [third, fourth, *other])
    foreign, _ = await started(store, "1", owner=MALLORY)
    same(await store.find(record, ids=[fourth.id]), [fourth], "one entry")
    same(await store.find(record, ids=[fourth.id, first.id, new_id()]), [first, fourth], "some entries")
    same(await store.find(record, after=[first.id]), [second, third], "what follows an entry")
    same(await store.find(record, after=[None]), [first, *other], "the entries with which the conversation begins")
    same(await store.find(record, ids=[second.id], after=[third.id, None]), [first, second, fourth, *other], "both")
    same(await store.find(record), [], "the result without ids and places")
    same(await store.find(foreign, ids=[first.id], after=[first.id]), [], "the entries of another conversation")
    stranger = replace(record, owner=MALLORY)
    same(await store.find(stranger, ids=[first.id], after=[None]), [], "what another owner finds")


@law("branches")
async def following_entries_are_those_of_all_branches(trial: Trial) -> None:
    """`following` returns the ids of an entry and of all after it, in the order of their storage."""
    store = trial.store
    record, (first, second) = await started(store, "1", "2")
    third = chain(prompt("3"), prompt("4"), after=first.id)
    other = chain(prompt("5"))
    last = chain(prompt("6"), after=second.id)
    record = await grown(store, record, [*third, *other, *last])
    ids = [entry.id for entry in (first, second, *third, *last)]
    same(await store.following(record, first.id), ids, "what follows the first message")
    same(await store.following(record, third[0].id), [entry.id for entry in third], "what follows on another branch")
    same(await store.following(record, last[0].id), [last[0].id], "what follows the last message")
    same(await store.following(record, new_id()), [], "what follows a missing entry")
    same(await store.following(replace(record, owner=MALLORY), first.id), [], "what another owner finds")


@law("base")
async def unknown_head_is_not_found(trial: Trial) -> None:
    """A history that ends with an unknown entry raises `NotFound`."""
    record, _ = await started(trial.store)
    with refused(NotFound, "a history with an unknown head"):
        await trial.store.history(replace(record, head_id=new_id()))


@law("base")
async def chain_stays_in_its_conversation(trial: Trial) -> None:
    """No chain of entries leads into another conversation."""
    store = trial.store
    private, entries = await started(store, "private")
    own, _ = await started(store, "own", owner=MALLORY)
    with refused(NotFound, "a history that ends in another conversation"):
        await store.history(replace(own, head_id=entries[-1].id))
    with refused(HistoryError, "a save with a head in another conversation"):
        await store.save(replace(own, head_id=entries[-1].id))
    with refused(HistoryError, "a save of an entry that follows one of another conversation"):
        await grown(store, own, chain(prompt("graft"), after=entries[-1].id))
    same(prompts(await store.history(own)), ["own"], "the own history")
    same(await store.history(private), entries, "the other history")


@law("base")
async def conversations_can_share_entry_ids(trial: Trial) -> None:
    """The ids of entries are unique only within their conversation."""
    store = trial.store

    def numbered(*texts: str) -> list[Entry]:
        first, second = chain(*map(prompt, texts))
        return [replace(first, id="1"), replace(second, id="2", parent_id="1")]

    mine = await grown(store, Record(owner=ALICE), numbered("mine", "my own"))
    with allowed("a save of entries whose ids another conversation has"):
        other = await grown(store, Record(owner=MALLORY), numbered("theirs", "their own"))
    same(prompts(await store.history(mine)), ["mine", "my own"], "the first conversation")
    same(prompts(await store.history(other)), ["theirs", "their own"], "the second conversation")
    await store.delete(other.id, owner=MALLORY)
    same(prompts(await store.history(mine)), ["mine", "my own"], "the first after the second was deleted")
