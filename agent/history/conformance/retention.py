"""Laws of expiry and sizes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from agent.errors import NotFound
from agent.history.codec import dump_entries, dump_record
from agent.history.conformance.laws import holds, law, refused, same
from agent.history.conformance.owners import VERBS
from agent.history.conformance.samples import ALICE, MALLORY, batch, chain, grown, prompt, prompts, started, titled
from agent.history.conformance.trial import Trial
from agent.history.contract import HistoryStore
from agent.history.records import Record, now

T = TypeVar("T")

RACES = 16
"""Races of two calls: each begins up to three turns of the event loop after the other."""


@law("retention")
async def expired_record_is_hidden_before_erasure(trial: Trial) -> None:
    """An expired conversation is missing for its owner, and housekeeping can still read and erase it."""
    store, clock = trial.store, trial.clock
    live, entries = await started(store, "live")
    live = await store.save(replace(live, expires_at=now() + timedelta(hours=2)))
    old, _ = await started(store, "old")
    old = await store.save(replace(old, expires_at=now() + timedelta(hours=1)))
    same(await store.list(ALICE), [old, live], "the list before the end")
    clock.go_forward(hours=1.5)
    same(await store.list(ALICE), [live], "the list after the end")
    for name, verb in VERBS.items():
        with refused(NotFound, f"{name} of an expired conversation"):
            await verb(store, old, ALICE)
    same(await store.retention.expiring(clock()), [old], "the expired conversations")
    same(prompts(await store.entries(old)), ["old"], "the entries of an expired conversation")
    holds(await store.retention.erase(old), "erase of an expired conversation returned False")
    same(await store.retention.expiring(clock()), [], "the expired conversations after erase")
    same(await store.entries(old), [], "the entries after erase")
    holds(not await store.retention.erase(old), "a second erase returned True")
    same(await store.history(live), entries, "the history of another conversation")


@law("retention")
async def earliest_expires_first(trial: Trial) -> None:
    """`expiring` returns the earliest first, of owners that begin with a text, and without the ids to skip."""
    store, clock = trial.store, trial.clock
    records: list[Record] = []
    for hours, owner in ((3, ALICE), (1, MALLORY), (2, ALICE), (4, MALLORY)):
        record, _ = await started(store, owner=owner)
        records.append(await store.save(replace(record, expires_at=now() + timedelta(hours=hours))))
    await started(store, "for ever")
    third, first, second, fourth = records
    far, expiring = clock() + timedelta(days=9), store.retention.expiring
    same(await expiring(clock()), [], "what has expired now")
    same(await expiring(far), [first, second, third, fourth], "what will have expired")
    same(await expiring(far, limit=2), [first, second], "what expires first")
    same(await expiring(far, limit=0), [], "what expires, with limit=0")
    same(await expiring(clock() + timedelta(hours=2.5)), [first, second], "what expires soon")
    same(await expiring(far, owners=MALLORY[:-1]), [first, fourth], "what expires of these owners")
    same(await expiring(far, owners="nobody"), [], "what expires of nobody")
    skip = {first.id, "'; --"}
    same(await expiring(far, limit=1, skip=skip), [second], "what expires first without the skipped ids")
    same(await expiring(far, owners=MALLORY, skip=skip), [fourth], "what expires of an owner without the skipped ids")


@law("retention")
async def erasing_spares_newer_and_foreign_records(trial: Trial) -> None:
    """`erase` removes nothing that was saved since or has another expiry now, and nothing of other owners."""
    store = trial.store
    record, entries = await started(store)
    newer = await grown(store, record, chain(prompt("2"), after=entries[-1].id))
    holds(not await store.retention.erase(record), "erase removed a conversation that was saved since")
    holds(not await store.retention.erase(replace(newer, owner=MALLORY)), "erase removed another owner's conversation")
    end = now() + timedelta(hours=1)
    holds(await store.retention.set_expiry(newer, end), "set_expiry returned False")
    holds(not await store.retention.erase(newer), "erase removed a conversation that was given an expiry since")
    await store.retention.set_expiry(newer, None)
    late = replace(newer, expires_at=end)
    holds(not await store.retention.erase(late), "erase removed a conversation whose expiry was taken back")
    same(prompts(await store.history(newer)), ["Hello", "2"], "the history")


@law("retention")
async def expiry_can_be_extended(trial: Trial) -> None:
    """A save can take an expiry back."""
    store, clock = trial.store, trial.clock
    record, _ = await started(store)
    record = await store.save(replace(record, expires_at=now() + timedelta(hours=1)))
    record = await store.save(replace(record, expires_at=None))
    clock.go_forward(hours=24_000)
    same(await store.retention.expiring(clock()), [], "the expired conversations")
    same(await store.list(ALICE), [record], "the list")


@law("retention")
async def expiry_is_set_and_taken_back(trial: Trial) -> None:
    """`set_expiry` changes nothing but the expiry, not even the revision, of expired conversations too."""
    store, clock = trial.store, trial.clock
    record = await titled(store, "kept")
    retention = store.retention
    holds(await retention.set_expiry(record, clock() - timedelta(seconds=1)), "set_expiry returned False")
    same(await store.list(ALICE), [], "the list")
    (expired,) = await retention.expiring(clock())
    same(expired.revision, record.revision, "the revision")
    holds(await retention.set_expiry(expired, None), "set_expiry of an expired conversation returned False")
    same(await store.get(record.id, owner=ALICE), record, "the record")
    for other in (replace(record, owner=MALLORY), replace(record, revision=7)):
        holds(not await retention.set_expiry(other, clock()), "set_expiry changed a record that was not loaded")


@law("retention")
async def missing_expiry_is_added(trial: Trial) -> None:
    """`add_expiry` sets the expiry of the records without one, and changes nothing else."""
    store, clock = trial.store, trial.clock
    without = [(await started(store, str(number)))[0] for number in range(3)]
    guest, _ = await started(store, owner="guest-1")
    dated = await store.save(Record(owner=ALICE, expires_at=now() + timedelta(days=9)))

    def end(record: Record) -> datetime | None:
        return None if record.id == without[2].id else record.updated_at + timedelta(hours=1)

    same(await store.retention.add_expiry(end, owners="guest-"), 1, "the number of changed records of guests")
    same(await store.retention.add_expiry(end), 2, "the number of changed records")
    same(await store.retention.add_expiry(end), 0, "the number of records that a second call changes")
    changed = [replace(record, expires_at=end(record)) for record in without[1::-1]]
    same(await store.list(ALICE), [dated, without[2], *changed], "the list")
    kept = await grown(store, without[0], chain(prompt("more"), after=without[0].head_id))
    same(kept.expires_at, None, "the expiry after a save without one")
    clock.go_forward(hours=1)
    expired = await store.retention.expiring(clock())
    same({record.id for record in expired}, {guest.id, without[1].id}, "the expired conversations")


@law("retention")
async def size_counts_stored_text(trial: Trial) -> None:
    """`size` is the number of bytes of the texts of record and entries as `codec` writes them."""
    store = trial.store
    size = store.retention.size
    record, entries = await started(store, "ä" * 500, owner="guest-1")
    text = "".join([dump_record(record), *dump_entries(entries)])
    same(await size(owners="guest-"), len(text.encode()), "the size for guests")
    same(await size(), len(text.encode()), "the size")
    more = chain(prompt("more"), after=record.head_id)
    record = await grown(store, replace(record, title="A longer title"), more)
    await store.retention.add_expiry(lambda record: record.updated_at + timedelta(days=1))
    record = await store.get(record.id, owner="guest-1")
    text = "".join([dump_record(record), *dump_entries([*entries, *more])])
    same(await size(owners="guest-1"), len(text.encode()), "the size after a save and a new expiry")
    same(await size(owners=ALICE), 0, "the size for another owner")
    await store.delete(record.id, owner="guest-1")
    same(await size(), 0, "the size after the deletion")


@law("retention")
async def sizes_begin_with_the_first_to_expire(trial: Trial) -> None:
    """`sizes` has each owner's size, sorted by the expiry of the owner's last conversation."""
    store = trial.store
    at = now() + timedelta(days=1)
    owners = ["guest-b", "guest-a", "ann", "guest-b", "guest-ab"]
    for number, owner in enumerate(owners):
        end = None if owner == "guest-ab" else at + timedelta(hours=number)
        await store.save(Record(owner=owner, expires_at=end))
    sizes = await store.retention.sizes(owners="guest-")
    same(list(sizes), ["guest-a", "guest-b", "guest-ab"], "the owners")
    same(sum(sizes.values()), await store.retention.size(owners="guest-"), "the sum of the sizes")
    same(sizes["guest-b"], await store.retention.size(owners="guest-b"), "the size of one owner")
    same(set(await store.retention.sizes()), set(owners), "all owners")
    same(await store.retention.sizes(owners="nobody"), {}, "the sizes of nobody")


@law("retention")
async def texts_are_those_of_the_owner(trial: Trial) -> None:
    """`texts` yields the text of each entry of exactly this owner, also of branches and expired conversations."""
    store = trial.store
    record, entries = await started(store, "Ünïcode", "2", owner="guest-1")
    await started(store, "other", owner="guest-10")
    await store.save(replace(record, head_id=entries[0].id, expires_at=now()))
    trial.clock.go_forward(hours=1)
    found = [text async for text in store.retention.texts("guest-1")]
    same(sorted(found), sorted(dump_entries(entries)), "the texts")
    same([text async for text in store.retention.texts("guest-")], [], "the texts of an unknown owner")


async def _guest(store: HistoryStore, owner: str) -> list[Record]:
    """Store two conversations of a guest, which expire some day."""
    end, entries = now() + timedelta(days=1), [chain(prompt(text)) for text in ("1", "2")]
    return [
        await store.save(Record(owner=owner, head_id=one[-1].id, expires_at=end + timedelta(hours=number)), one)
        for number, one in enumerate(entries)
    ]


async def _kept(store: HistoryStore, owner: str) -> list[Record]:
    found = await store.retention.expiring(now() + timedelta(days=9), owners=owner)
    return [record for record in found if record.owner == owner]


@law("retention")
async def unused_owner_is_erased_as_a_whole(trial: Trial) -> None:
    """`erase_unused` removes all conversations of an owner, and none if they are not as they were loaded."""
    store = trial.store
    erase = store.retention.erase_unused
    records, others = await _guest(store, "guest-1"), await _guest(store, "guest-10")
    first, second = records
    for what, loaded in {
        "one of two": [first],
        "none": [],
        "one more": [*records, others[0]],
        "an old revision": [first, replace(second, revision=0)],
        "another expiry": [first, replace(second, expires_at=first.expires_at)],
        "another owner": [first, replace(second, owner="guest-10")],
    }.items():
        holds(not await erase("guest-1", loaded), f"erase_unused with {what} returned True")
        same(await _kept(store, "guest-1"), records, f"the conversations after erase_unused with {what}")
    holds(not await erase("guest-10", records), "erase_unused with the records of another owner returned True")
    holds(not await erase("guest-", records), "erase_unused with the beginning of an owner returned True")
    holds(await erase("guest-1", records[::-1]), "erase_unused returned False")
    same(await _kept(store, "guest-1"), [], "the conversations after erase_unused")
    same(await _kept(store, "guest-10"), others, "the conversations of another owner")
    for record in records:
        same(await store.entries(record), [], "the entries after erase_unused")
    same(await store.retention.size(owners="guest-1"), await store.retention.size(owners="guest-10"), "the size")
    holds(not await erase("guest-1", records), "a second erase_unused returned True")
    holds(not await erase("guest-1", []), "erase_unused of an owner without conversations returned True")


@law("retention", "events")
async def run_without_an_end_keeps_all_of_its_owner(trial: Trial) -> None:
    """`erase_unused` removes nothing while an answer is being written in one of the conversations."""
    store, owner = trial.store, "guest-1"
    records = await _guest(store, owner)
    await store.runs.append(batch(records[0], 1, "a"))
    holds(not await store.retention.erase_unused(owner, records), "erase_unused took a conversation from its run")
    same(await _kept(store, owner), records, "the conversations")
    await store.runs.append(batch(records[0], 2, "b", ended=True))
    holds(await store.retention.erase_unused(owner, records), "erase_unused returned False after the end of the run")
    same(await _kept(store, owner), [], "the conversations after erase_unused")


async def _races(trial: Trial) -> AsyncIterator[tuple[HistoryStore, str, list[Record], tuple[int, int]]]:
    """Yield the store as another process has it, a guest with conversations, and the turns before each of two calls."""
    other = await trial.open() if trial.subject.processes else trial.store
    for number in range(RACES):
        owner = f"guest-{number}"
        yield other, owner, await _guest(trial.store, owner), (number % 4, number // 4)


@law("retention")
async def owner_that_comes_back_loses_nothing(trial: Trial) -> None:
    """Of a save and an `erase_unused` at once, one comes first: nothing is erased that was saved."""
    store = trial.store
    async for other, owner, records, turns in _races(trial):
        more = chain(prompt("more"), after=records[1].head_id)
        erased, saved = await asyncio.gather(
            _later(turns[0], partial(store.retention.erase_unused, owner, records)),
            _later(turns[1], partial(grown, other, records[1], more)),
            return_exceptions=True,
        )
        holds(isinstance(saved, Record | NotFound), f"a save while its owner is erased raised {saved!r}")
        holds(isinstance(erased, bool), f"erase_unused during a save raised {erased!r}")
        what = "although the owner has saved another message" if isinstance(saved, Record) else "and the save failed"
        expected = [records[0], saved] if isinstance(saved, Record) else []
        same(await _kept(store, owner), expected, f"the conversations: erase_unused returned {erased}, {what}")
        same(erased, not expected, f"what erase_unused returned, {what}")


async def _later(turns: int, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call after so many turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await call()


@law("retention")
async def new_conversation_survives_the_erasure_of_its_owner(trial: Trial) -> None:
    """A conversation that is stored while its owner is erased is whole afterwards."""
    store = trial.store
    async for other, owner, records, turns in _races(trial):
        erased, (new, entries) = await asyncio.gather(
            _later(turns[0], partial(store.retention.erase_unused, owner, records)),
            _later(turns[1], partial(started, other, "new", owner=owner)),
        )
        same(await store.list(owner), [new] if erased else [new, *records[::-1]], "the conversations")
        same(await store.history(new), entries, "the history of the new conversation")
