"""Laws of the list of conversations, their titles and pins."""

from dataclasses import replace
from datetime import timedelta

from agent.errors import NotFound
from agent.history.conformance.laws import holds, law, refused, same
from agent.history.conformance.samples import ALICE, MALLORY, chain, grown, prompt, started, titled
from agent.history.conformance.trial import Trial
from agent.history.records import Entry, Note, Record


@law("base")
async def list_starts_with_newest_entries(trial: Trial) -> None:
    """The list has the owner's conversations, the one that got entries last first."""
    store = trial.store
    one, two, three = [(await started(store, text))[0] for text in "123"]
    await started(store, "other", owner=MALLORY)
    one = await grown(store, one, chain(prompt("again"), after=one.head_id))
    same(await store.list(ALICE), [one, three, two], "the list")
    same(await store.list(ALICE, limit=2), [one, three], "the list with limit=2")
    for limit in (0, -1):
        same(await store.list(ALICE, limit=limit), [], f"the list with limit={limit}")
    same(await store.list("visitor:nobody"), [], "the list of an unknown owner")


@law("base")
async def save_without_entries_keeps_the_place(trial: Trial) -> None:
    """A save without entries, as for another branch, changes neither the place in the list nor `updated_at`."""
    store = trial.store
    older, newer = [(await started(store, text))[0] for text in "12"]
    saved = await store.save(replace(older, head_id=None))
    same(saved, replace(older, head_id=None, revision=older.revision + 1), "the record that save returns")
    same(await store.list(ALICE), [newer, saved], "the list")
    more = chain(prompt("more"))
    grew = await grown(store, saved, more)
    holds(saved.updated_at <= grew.updated_at <= trial.clock(), "a save with entries did not set updated_at")
    same(await store.list(ALICE), [grew, newer], "the list after a save with entries")


@law("base")
async def list_order_ignores_clocks(trial: Trial) -> None:
    """The list has the order of the saves, also of those in one tick of the clock."""
    saved = [(await started(trial.store, str(i)))[0] for i in range(60)]
    same(await trial.store.list(ALICE, limit=100), saved[::-1], "the list")


@law("base")
async def imported_conversation_stands_at_its_time(trial: Trial) -> None:
    """A record with a source keeps the time of its newest message, also of a later save, and its place in the list."""
    store, at = trial.store, trial.clock()

    async def imported(days: int, record: Record | None = None) -> Record:
        time = at - timedelta(days=days)
        record = record or Record(owner=ALICE, source=f"elsewhere:{days}", imported_at=at, updated_at=time)
        entry = Entry(parent_id=record.head_id, message=prompt(str(days)), note=Note(at=time))
        return await store.save(replace(record, head_id=entry.id), [entry])

    old, new = await imported(300), (await started(store, "new"))[0]
    older, middle = await imported(500), await imported(200)
    holds(old.updated_at == at - timedelta(days=300), "the first save did not keep the time of the messages")
    same(await store.list(ALICE), [new, middle, old, older], "the list")
    older = await imported(100, older)
    holds(older.updated_at == at - timedelta(days=100), "a later save did not set the time of the newest message")
    same(await store.list(ALICE), [new, older, middle, old], "the list after a save of old messages")
    old = await grown(store, old, chain(prompt("more"), after=old.head_id))
    same(await store.list(ALICE), [old, new, older, middle], "the list after a save of new messages")


@law("labels")
async def pages_of_the_list_follow_each_other(trial: Trial) -> None:
    """The pages of the list, also of only the pinned or other ones, have each conversation once."""
    store = trial.store
    records = [await titled(store, str(number)) for number in range(7)][::-1]
    pages = [await store.list(ALICE, limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    same([record for page in pages for record in page], records, "the pages")
    pinned = {(await store.label(records[place].id, owner=ALICE, pinned=True)).id for place in (1, 5)}
    same({record.id for record in await store.list(ALICE, pinned=True)}, pinned, "the pinned ones")
    others = await store.list(ALICE, pinned=False, limit=4)
    same([one.title for one in others], ["6", "4", "3", "2"], "the first four of the others")
    second = await store.list(ALICE, pinned=True, offset=1)
    same([one.title for one in second], ["1"], "the pinned ones after the first")


@law("labels")
async def label_keeps_revision_and_place(trial: Trial) -> None:
    """A new title or pin changes nothing else, not even the revision or the place in the list."""
    store = trial.store
    older, newer = await titled(store, "older"), await titled(store, "newer")
    renamed = await store.label(older.id, owner=ALICE, title="Renamed", pinned=True)
    same(renamed, replace(older, title="Renamed", pinned=True), "the record that label returns")
    same(await store.get(older.id, owner=ALICE), renamed, "the stored record")
    same(await store.list(ALICE), [newer, renamed], "the list")
    unpinned = await store.label(older.id, owner=ALICE, pinned=False)
    same(unpinned, replace(renamed, pinned=False), "the record without the pin")


@law("labels")
async def save_keeps_the_label(trial: Trial) -> None:
    """A save that does not know of a new title or pin keeps both."""
    store = trial.store
    record = await titled(store, "first words")
    await store.label(record.id, owner=ALICE, title="Chosen", pinned=True)
    more = chain(prompt("more"), after=record.head_id)
    saved = await store.save(replace(record, head_id=more[-1].id), more)
    same((saved.title, saved.pinned), ("Chosen", True), "title and pin that save returns")
    same(await store.get(record.id, owner=ALICE), saved, "the stored record")
    untitled = await titled(store, "")
    same((await store.save(replace(untitled, title="First"))).title, "First", "the first title of an untitled one")


@law("labels")
async def title_is_replaced_only_if_it_is_the_expected_one(trial: Trial) -> None:
    """`instead_of` replaces a title only if it is still that one."""
    store = trial.store
    record = await titled(store, "first words")
    for title in ("A summary", "Late"):
        labelled = await store.label(record.id, owner=ALICE, title=title, instead_of="first words")
        same(labelled.title, "A summary", f"the title after {title!r}")
    same((await store.get(record.id, owner=ALICE)).title, "A summary", "the stored title")


@law("labels")
async def only_owner_labels(trial: Trial) -> None:
    """Only the owner can rename a conversation, and only until it expires."""
    store = trial.store
    record = await titled(store, "A secret title")
    with refused(NotFound, "a label by another owner"):
        await store.label(record.id, owner=MALLORY, title="Taken")
    same(await store.get(record.id, owner=ALICE), record, "the record")
    expired = await store.save(replace(record, expires_at=trial.clock()))
    with refused(NotFound, "a label of an expired conversation"):
        await store.label(expired.id, owner=ALICE, title="Late")
