"""Laws of expiry, of sizes, and of the read-only links to conversations."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from agent.errors import Conflict, HistoryError, Limited, NotFound
from agent.history.codec import dump_conversation, dump_entries
from agent.history.contract import HistoryStore
from agent.history.values import Conversation, Link, digest_of, new_id, new_token, now
from tests.history.conversation_laws import ODD, SECRET, STRANGERS, VERBS
from tests.support.history_laws import (
    ALICE,
    MALLORY,
    Trial,
    allowed,
    batch,
    chain,
    grown,
    holds,
    law,
    prompt,
    prompts,
    refused,
    same,
    started,
    titled,
)

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
    kept = replace(old, expires_at=clock() + timedelta(hours=1))
    for name, verb in VERBS.items():
        with refused(NotFound, f"{name} of an expired conversation"):
            await verb(store, kept, ALICE)
    same(await store.retention.expiring(clock()), [old], "the expired conversations")
    same(prompts(await store.entries(old)), ["old"], "the entries of an expired conversation")
    holds(await store.retention.erase(old), "erase of an expired conversation returned False")
    same(await store.retention.expiring(clock()), [], "the expired conversations after erase")
    same(await store.entries(old), [], "the entries after erase")
    holds(not await store.retention.erase(old), "a second erase returned True")
    same(await store.history(live), entries, "the history of another conversation")


@law("retention")
async def expired_conversation_grows_unseen(trial: Trial) -> None:
    """A conversation that is stored as an expired one takes more messages. Nobody sees it until `set_expiry`."""
    store, first = trial.store, chain(prompt("apple"))
    ends = trial.clock() - timedelta(days=200)
    conversation = await store.save(Conversation(owner=ALICE, head_id=first[-1].id, expires_at=ends), first)
    conversation = await grown(store, conversation, chain(prompt("pear"), after=first[-1].id))
    same(await store.list(ALICE), [], "the list")
    same([*await store.search(ALICE, "apple")], [], "the hits of a search")
    with refused(NotFound, "get of a conversation that nobody sees"):
        await store.get(conversation.id, owner=ALICE)
    with refused(NotFound, "a save that would show it"):
        await store.save(replace(conversation, expires_at=None))
    with refused(Conflict, "a save that comes second"):
        await store.save(replace(conversation, revision=1))
    same(await store.retention.expiring(trial.clock()), [conversation], "what housekeeping can erase")
    holds(await store.retention.set_expiry(conversation, None), "set_expiry returned False")
    same(prompts(await store.history(await store.get(conversation.id, owner=ALICE))), ["apple", "pear"], "the history")


@law("retention")
async def earliest_expires_first(trial: Trial) -> None:
    """`expiring` returns the earliest first, of owners that begin with a text, and without the ids to skip."""
    store, clock = trial.store, trial.clock
    conversations: list[Conversation] = []
    for hours, owner in ((3, ALICE), (1, MALLORY), (2, ALICE), (4, MALLORY)):
        conversation, _ = await started(store, owner=owner)
        conversations.append(await store.save(replace(conversation, expires_at=now() + timedelta(hours=hours))))
    await started(store, "for ever")
    third, first, second, fourth = conversations
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
    conversation, entries = await started(store)
    newer = await grown(store, conversation, chain(prompt("2"), after=entries[-1].id))
    holds(not await store.retention.erase(conversation), "erase removed a conversation that was saved since")
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
    conversation, _ = await started(store)
    conversation = await store.save(replace(conversation, expires_at=now() + timedelta(hours=1)))
    conversation = await store.save(replace(conversation, expires_at=None))
    clock.go_forward(hours=24_000)
    same(await store.retention.expiring(clock()), [], "the expired conversations")
    same(await store.list(ALICE), [conversation], "the list")


@law("retention")
async def expiry_is_set_and_taken_back(trial: Trial) -> None:
    """`set_expiry` changes nothing but the expiry, not even the revision, of expired conversations too."""
    store, clock = trial.store, trial.clock
    conversation = await titled(store, "kept")
    retention = store.retention
    holds(await retention.set_expiry(conversation, clock() - timedelta(seconds=1)), "set_expiry returned False")
    same(await store.list(ALICE), [], "the list")
    (expired,) = await retention.expiring(clock())
    same(expired.revision, conversation.revision, "the revision")
    holds(await retention.set_expiry(expired, None), "set_expiry of an expired conversation returned False")
    same(await store.get(conversation.id, owner=ALICE), conversation, "the conversation")
    for other in (replace(conversation, owner=MALLORY), replace(conversation, revision=7)):
        holds(not await retention.set_expiry(other, clock()), "set_expiry changed a conversation that was not loaded")


@law("retention")
async def missing_expiry_is_added(trial: Trial) -> None:
    """`add_expiry` sets the expiry of the conversations without one, and changes nothing else."""
    store, clock = trial.store, trial.clock
    without = [(await started(store, str(number)))[0] for number in range(3)]
    guest, _ = await started(store, owner="guest-1")
    dated = await store.save(Conversation(owner=ALICE, expires_at=now() + timedelta(days=9)))

    def end(conversation: Conversation) -> datetime | None:
        return None if conversation.id == without[2].id else conversation.updated_at + timedelta(hours=1)

    same(await store.retention.add_expiry(end, owners="guest-"), 1, "the number of changed conversations of guests")
    same(await store.retention.add_expiry(end), 2, "the number of changed conversations")
    same(await store.retention.add_expiry(end), 0, "the number of conversations that a second call changes")
    changed = [replace(conversation, expires_at=end(conversation)) for conversation in without[1::-1]]
    same(await store.list(ALICE), [dated, without[2], *changed], "the list")
    kept = await grown(store, without[0], chain(prompt("more"), after=without[0].head_id))
    same(kept.expires_at, None, "the expiry after a save without one")
    clock.go_forward(hours=1)
    expired = await store.retention.expiring(clock())
    same({conversation.id for conversation in expired}, {guest.id, without[1].id}, "the expired conversations")


@law("retention")
async def size_counts_stored_text(trial: Trial) -> None:
    """`size` is the number of bytes of the texts of conversation and entries as `codec` writes them."""
    store = trial.store
    size = store.retention.size
    conversation, entries = await started(store, "ä" * 500, owner="guest-1")
    text = "".join([dump_conversation(conversation), *dump_entries(entries)])
    same(await size(owners="guest-"), len(text.encode()), "the size for guests")
    same(await size(), len(text.encode()), "the size")
    more = chain(prompt("more"), after=conversation.head_id)
    conversation = await grown(store, replace(conversation, title="A longer title"), more)
    await store.retention.add_expiry(lambda conversation: conversation.updated_at + timedelta(days=1))
    conversation = await store.get(conversation.id, owner="guest-1")
    text = "".join([dump_conversation(conversation), *dump_entries([*entries, *more])])
    same(await size(owners="guest-1"), len(text.encode()), "the size after a save and a new expiry")
    same(await size(owners=ALICE), 0, "the size for another owner")
    await store.delete(conversation.id, owner="guest-1")
    same(await size(), 0, "the size after the deletion")


@law("retention")
async def sizes_begin_with_the_first_to_expire(trial: Trial) -> None:
    """`sizes` has each owner's size, sorted by the expiry of the owner's last conversation."""
    store = trial.store
    at = now() + timedelta(days=1)
    owners = ["guest-b", "guest-a", "ann", "guest-b", "guest-ab"]
    for number, owner in enumerate(owners):
        end = None if owner == "guest-ab" else at + timedelta(hours=number)
        await store.save(Conversation(owner=owner, expires_at=end))
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
    conversation, entries = await started(store, "Ünïcode", "2", owner="guest-1")
    await started(store, "other", owner="guest-10")
    await store.save(replace(conversation, head_id=entries[0].id, expires_at=now()))
    trial.clock.go_forward(hours=1)
    found = [text async for text in store.retention.texts("guest-1")]
    same(sorted(found), sorted(dump_entries(entries)), "the texts")
    _, long = await started(store, *(f"{number}" * 300_000 for number in range(5)), owner="guest-2")
    found = [text async for text in store.retention.texts("guest-2")]
    same(sorted(found), sorted(dump_entries(long)), "the texts of a long conversation")
    same([text async for text in store.retention.texts("guest-")], [], "the texts of an unknown owner")


async def _guest(store: HistoryStore, owner: str) -> list[Conversation]:
    """Store two conversations of a guest, which expire some day."""
    end, entries = now() + timedelta(days=1), [chain(prompt(text)) for text in ("1", "2")]
    return [
        await store.save(Conversation(owner=owner, head_id=one[-1].id, expires_at=end + timedelta(hours=number)), one)
        for number, one in enumerate(entries)
    ]


async def _kept(store: HistoryStore, owner: str) -> list[Conversation]:
    found = await store.retention.expiring(now() + timedelta(days=9), owners=owner)
    return [conversation for conversation in found if conversation.owner == owner]


@law("retention")
async def unused_owner_is_erased_as_a_whole(trial: Trial) -> None:
    """`erase_unused` removes all conversations of an owner, and none if they are not as they were loaded."""
    store = trial.store
    erase = store.retention.erase_unused
    conversations, others = await _guest(store, "guest-1"), await _guest(store, "guest-10")
    first, second = conversations
    for what, loaded in {
        "one of two": [first],
        "none": [],
        "one more": [*conversations, others[0]],
        "an old revision": [first, replace(second, revision=0)],
        "another expiry": [first, replace(second, expires_at=first.expires_at)],
        "another owner": [first, replace(second, owner="guest-10")],
    }.items():
        holds(not await erase("guest-1", loaded), f"erase_unused with {what} returned True")
        same(await _kept(store, "guest-1"), conversations, f"the conversations after erase_unused with {what}")
    holds(
        not await erase("guest-10", conversations), "erase_unused with the conversations of another owner returned True"
    )
    holds(not await erase("guest-", conversations), "erase_unused with the beginning of an owner returned True")
    holds(await erase("guest-1", conversations[::-1]), "erase_unused returned False")
    same(await _kept(store, "guest-1"), [], "the conversations after erase_unused")
    same(await _kept(store, "guest-10"), others, "the conversations of another owner")
    for conversation in conversations:
        same(await store.entries(conversation), [], "the entries after erase_unused")
    same(await store.retention.size(owners="guest-1"), await store.retention.size(owners="guest-10"), "the size")
    holds(not await erase("guest-1", conversations), "a second erase_unused returned True")
    holds(not await erase("guest-1", []), "erase_unused of an owner without conversations returned True")


@law("retention", "events")
async def run_without_an_end_keeps_all_of_its_owner(trial: Trial) -> None:
    """`erase_unused` removes nothing while an answer is being written in one of the conversations."""
    store, owner = trial.store, "guest-1"
    conversations = await _guest(store, owner)
    await store.runs.append(batch(conversations[0], 1, "a"))
    holds(not await store.retention.erase_unused(owner, conversations), "erase_unused took a conversation from its run")
    same(await _kept(store, owner), conversations, "the conversations")
    await store.runs.append(batch(conversations[0], 2, "b", ended=True))
    holds(
        await store.retention.erase_unused(owner, conversations), "erase_unused returned False after the end of the run"
    )
    same(await _kept(store, owner), [], "the conversations after erase_unused")


async def _races(trial: Trial) -> AsyncIterator[tuple[HistoryStore, str, list[Conversation], tuple[int, int]]]:
    """Yield the store as another process has it, a guest with conversations, and the turns before each of two calls."""
    other = await trial.open() if trial.subject.processes else trial.store
    for number in range(RACES):
        owner = f"guest-{number}"
        yield other, owner, await _guest(trial.store, owner), (number % 4, number // 4)


@law("retention")
async def owner_that_comes_back_loses_nothing(trial: Trial) -> None:
    """Of a save and an `erase_unused` at once, one comes first: nothing is erased that was saved."""
    store = trial.store
    async for other, owner, conversations, turns in _races(trial):
        more = chain(prompt("more"), after=conversations[1].head_id)
        erased, saved = await asyncio.gather(
            _later(turns[0], partial(store.retention.erase_unused, owner, conversations)),
            _later(turns[1], partial(grown, other, conversations[1], more)),
            return_exceptions=True,
        )
        holds(isinstance(saved, Conversation | NotFound), f"a save while its owner is erased raised {saved!r}")
        holds(isinstance(erased, bool), f"erase_unused during a save raised {erased!r}")
        what = (
            "although the owner has saved another message" if isinstance(saved, Conversation) else "and the save failed"
        )
        expected = [conversations[0], saved] if isinstance(saved, Conversation) else []
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
    async for other, owner, conversations, turns in _races(trial):
        erased, (new, entries) = await asyncio.gather(
            _later(turns[0], partial(store.retention.erase_unused, owner, conversations)),
            _later(turns[1], partial(started, other, "new", owner=owner)),
        )
        same(await store.list(owner), [new] if erased else [new, *conversations[::-1]], "the conversations")
        same(await store.history(new), entries, "the history of the new conversation")


def link_to(conversation: Conversation, **fields: Any) -> Link:
    """Return a link to this conversation, with a digest of its own."""
    values: dict[str, Any] = {"digest": digest_of(new_token()), **fields}
    return Link(conversation_id=conversation.id, owner=conversation.owner, **values)


@law("links")
async def link_comes_back_by_its_digest(trial: Trial) -> None:
    """`get` returns a link with all its choices, also when its conversation has grown since."""
    store = trial.store
    conversation, entries = await started(store)
    at = datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    choices: list[dict[str, Any]] = [
        {},
        {"head_id": entries[0].id, "system_prompt": "Be\0 brief.\u2028é\n\U0001f469"},
        {"with_files": True, "created_at": at, "expires_at": now() + timedelta(days=1)},
    ]
    links = [link_to(conversation, **chosen) for chosen in choices]
    for link in links:
        await store.links.put(link)
    conversation = await grown(store, conversation, chain(prompt("more"), after=entries[-1].id))
    conversation = await store.label(conversation.id, owner=ALICE, title="New")
    await trial.reopen()
    for link in links:
        same(await trial.store.links.get(link.digest), link, "the link")
    found = [*await trial.store.links.of(conversation.id, owner=ALICE)]
    same(found, sorted(links, key=lambda link: link.created_at), "the links of the conversation, the oldest first")
    same(
        await trial.store.get(conversation.id, owner=ALICE),
        conversation,
        "the conversation after its links were stored",
    )


@law("links")
async def link_that_would_not_load_is_refused(trial: Trial) -> None:
    """A link with half a surrogate pair raises `HistoryError` and is not stored."""
    conversation, _ = await started(trial.store)
    with refused(HistoryError, "a link with half a surrogate pair"):
        await trial.store.links.put(link_to(conversation, system_prompt="\ud800"))
    same([*await trial.store.links.of(conversation.id, owner=ALICE)], [], "the links")


@law("links")
async def missing_link_is_not_found(trial: Trial) -> None:
    """Any text that is no digest of a stored link raises `NotFound`."""
    conversation, _ = await started(trial.store)
    link = link_to(conversation)
    await trial.store.links.put(link)
    for digest in (
        *ODD,
        "\ud800",
        link.digest[:-1],
        f"{link.digest} ",
        link.digest.upper(),
        conversation.id,
        digest_of(""),
    ):
        with refused(NotFound, f"get of {digest!a}"):
            await trial.store.links.get(digest)
        with refused(NotFound, f"remove of {digest!a}"):
            await trial.store.links.remove(digest, owner=ALICE)
    same(await trial.store.links.get(link.digest), link, "the link")


@law("links")
async def only_owner_has_links(trial: Trial) -> None:
    """Only the owner of a conversation makes, lists and removes its links. Others see it as missing."""
    store = trial.store
    conversation, _ = await started(store, "private")
    other, _ = await started(store, "their own", owner=MALLORY)
    link = link_to(conversation)
    await store.links.put(link)
    for stranger in STRANGERS:
        refusals: list[str] = []
        for target in (conversation, replace(conversation, id=new_id())):
            with refused(NotFound, f"put by the owner {stranger!a}") as caught:
                await store.links.put(link_to(replace(target, owner="x" if stranger == "\ud800" else stranger)))
            with refused(NotFound, f"of by the owner {stranger!a}") as more:
                await store.links.of(target.id, owner=stranger)
            refusals.append(f"{caught[0]} {more[0]}")
        same(refusals[0], refusals[1], "the errors, against those of a missing conversation")
        with refused(NotFound, f"remove by the owner {stranger!a}"):
            await store.links.remove(link.digest, owner=stranger)
    same([*await store.links.of(conversation.id, owner=ALICE)], [link], "the owner's links")
    same([*await store.links.of(other.id, owner=MALLORY)], [], "the links of another owner")


@law("links")
async def digest_is_never_stored_twice(trial: Trial) -> None:
    """A link with the digest of a stored one raises `Conflict`, and leaves that as it is."""
    store = trial.store
    conversation, _ = await started(store)
    theirs, _ = await started(store, owner=MALLORY)
    link = link_to(conversation)
    await store.links.put(link)
    for second in (replace(link, system_prompt="other"), link_to(theirs, digest=link.digest)):
        with refused(Conflict, "a second link with the digest of the first"):
            await store.links.put(second)
    same(await store.links.get(link.digest), link, "the link")
    same([*await store.links.of(theirs.id, owner=MALLORY)], [], "the links of another owner")


@law("links")
async def removed_link_is_missing(trial: Trial) -> None:
    """`remove` removes one link, and leaves the others and the conversation as they are."""
    store = trial.store
    conversation, entries = await started(store)
    link, kept = link_to(conversation), link_to(conversation)
    for one in (link, kept):
        await store.links.put(one)
    await store.links.remove(link.digest, owner=ALICE)
    await trial.reopen()
    store = trial.store
    with refused(NotFound, "get of a removed link"):
        await store.links.get(link.digest)
    with refused(NotFound, "a second remove"):
        await store.links.remove(link.digest, owner=ALICE)
    same([*await store.links.of(conversation.id, owner=ALICE)], [kept], "the other links")
    same(await store.get(conversation.id, owner=ALICE), conversation, "the conversation")
    same(await store.history(conversation), entries, "the history")


@law("links")
async def expired_link_is_missing(trial: Trial) -> None:
    """An expired link looks missing, and the next link to its conversation removes it."""
    store = trial.store
    conversation, _ = await started(store)
    short, long = (link_to(conversation, expires_at=now() + timedelta(hours=hours)) for hours in (1, 5))
    for one in (short, long):
        await store.links.put(one)
    trial.clock.go_forward(hours=2)
    with refused(NotFound, "get of an expired link"):
        await store.links.get(short.digest)
    with refused(NotFound, "remove of an expired link"):
        await store.links.remove(short.digest, owner=ALICE)
    same([*await store.links.of(conversation.id, owner=ALICE)], [long], "the links")
    await store.links.put(link_to(conversation))
    with allowed("a link with the digest of an expired one that was removed"):
        await store.links.put(replace(short, expires_at=None))


@law("links")
async def links_of_a_chat_are_limited(trial: Trial) -> None:
    """A conversation gets no more links than allowed, also if many are stored at once. Expired ones do not count."""
    stores = [trial.store, await trial.open() if trial.subject.processes else trial.store]
    conversation, _ = await started(trial.store)
    other, _ = await started(trial.store, "other")
    await trial.store.links.put(link_to(other))
    await trial.store.links.put(link_to(conversation, expires_at=now() + timedelta(hours=1)))
    trial.clock.go_forward(hours=2)
    [outcome] = await asyncio.gather(trial.store.links.put(link_to(conversation), most=1), return_exceptions=True)
    same(
        outcome, None, "the outcome of a link to a conversation whose only other one has expired, where one is allowed"
    )
    with refused(Limited, "a link to a conversation that has one, where one is allowed"):
        await stores[1].links.put(link_to(conversation), most=1)
    await asyncio.gather(*(store.links.of(conversation.id, owner=ALICE) for store in stores * 10))  # connects them
    puts = [store.links.put(link_to(conversation), most=3) for store in stores * 10]
    outcomes = [type(outcome) for outcome in await asyncio.gather(*puts, return_exceptions=True)]
    found = await trial.store.links.of(conversation.id, owner=ALICE)
    same(len(found), 3, "the number of links after many at once, where three are allowed")
    same(sorted(outcomes, key=repr), sorted([Limited] * 18 + [type(None)] * 2, key=repr), "the outcomes")
    with allowed("a link without a limit"):
        await trial.store.links.put(link_to(conversation))


GONE: dict[str, Callable[[HistoryStore, Conversation], Awaitable[object]]] = {
    "delete": lambda store, conversation: store.delete(conversation.id, owner=conversation.owner),
    "erase": lambda store, conversation: store.retention.erase(conversation),
}


@law("links", "retention")
async def links_go_with_their_conversation(trial: Trial) -> None:
    """A deleted conversation has no links, and a new one with its id gets none of them."""
    store = trial.store
    for way, remove in GONE.items():
        conversation, _ = await started(store)
        link = link_to(conversation)
        await store.links.put(link)
        await remove(store, conversation)
        with refused(NotFound, f"get after {way}"):
            await store.links.get(link.digest)
        with refused(NotFound, f"of after {way}"):
            await store.links.of(conversation.id, owner=ALICE)
        again = await store.save(Conversation(id=conversation.id, owner=ALICE))
        same([*await store.links.of(again.id, owner=ALICE)], [], f"the links of a new conversation after {way}")
        with refused(NotFound, f"get after {way} and a new conversation"):
            await store.links.get(link.digest)
        with allowed("a link with the digest of a removed one"):
            await store.links.put(link)


@law("links")
async def expired_conversation_has_no_links(trial: Trial) -> None:
    """The links to an expired conversation look missing, and it gets no new ones."""
    store = trial.store
    conversation = await store.save(Conversation(owner=ALICE, expires_at=now() + timedelta(hours=1)))
    link = link_to(conversation)
    await store.links.put(link)
    trial.clock.go_forward(hours=2)
    with refused(NotFound, "get after the end"):
        await store.links.get(link.digest)
    with refused(NotFound, "put after the end"):
        await store.links.put(link_to(conversation))
    with refused(NotFound, "of after the end"):
        await store.links.of(conversation.id, owner=ALICE)


@law("raw", "links", "retention")
async def removed_link_is_nowhere(trial: Trial) -> None:
    """Nothing that is stored has the digest or the prompt of a removed link, and no store has a token at all."""
    for way in ("remove", *GONE):
        store = trial.store
        conversation, _ = await started(store)
        token = new_token()
        link = link_to(conversation, digest=digest_of(token), system_prompt=SECRET)
        await store.links.put(link)
        await trial.reopen()
        store, digest = trial.store, link.digest.encode()
        for text in (digest, SECRET.encode()):
            holds(text in await trial.raw(), "the raw content does not show what is stored")
        holds(token.encode() not in await trial.raw(), "the token of a link is stored")
        await (store.links.remove(link.digest, owner=ALICE) if way == "remove" else GONE[way](store, conversation))
        for text in (digest, SECRET.encode()):
            holds(text not in await trial.raw(), f"{way} leaves text of a link in the store")


@law("raw", "branches", "events", "retention", "links", "search")
async def removed_entries_are_nowhere(trial: Trial) -> None:
    """After `remove`, nothing that is stored has text of the entries or of a run, and all the rest is as it was."""
    store = trial.store
    other, others = await started(store, "kept" * 100)
    conversation, kept = await started(store, *("kept" * 100 for _ in range(20)))
    end = kept[-1].id
    gone = chain(*(prompt(f"{SECRET} {number} " * 900) for number in range(20)), after=kept[9].id)
    conversation = await store.save(replace(conversation, head_id=gone[-1].id, branches=(end,), title="Kept"), gone)
    branch = chain(prompt(f"{SECRET} branch"), after=gone[2].id)
    conversation = await store.save(replace(conversation, head_id=branch[-1].id, branches=(end, gone[-1].id)), branch)
    await store.runs.append(batch(conversation, 1, f"{SECRET} event"))
    conversation = await store.save(conversation, (), batch(conversation, 2, f"{SECRET} last", ended=True))
    lost, left = (link_to(conversation, head_id=head) for head in (gone[-1].id, kept[-1].id))
    for link in (lost, left):
        await store.links.put(link)
    conversation = await store.label(conversation.id, owner=ALICE, pinned=True)
    before = await store.retention.size(owners=ALICE), [one.id for one in await store.list(ALICE)]
    await trial.reopen()
    store = trial.store
    holds(SECRET.encode() in await trial.raw(), "the raw content does not show what is stored")
    ids = await store.following(conversation, gone[0].id)
    saved = await store.remove(replace(conversation, head_id=end, branches=()), ids)
    await store.retention.wipe()
    holds(SECRET.encode() not in await trial.raw(), "remove leaves text of the entries in the store")
    same(saved, replace(conversation, head_id=end, branches=(), revision=conversation.revision + 1), "the conversation")
    for again in (False, True):
        if again:
            await trial.reopen()
            store = trial.store
        same(await store.get(conversation.id, owner=ALICE), saved, "the stored conversation")
        same(await store.entries(saved), kept, "all entries")
        same(await store.history(saved), kept, "the history")
        same(await store.following(saved, kept[9].id), [one.id for one in kept[9:]], "what follows")
        same(await store.search(ALICE, SECRET), [], "the hits")
        same([link.digest for link in await store.links.of(conversation.id, owner=ALICE)], [left.digest], "the links")
        same([one.id for one in await store.list(ALICE)], before[1], "the list")
        same(await store.history(other), others, "another conversation")
    with refused(NotFound, "the events of a run"):
        await store.runs.events("run", owner=ALICE)
    texts = [text async for text in store.retention.texts(ALICE)]
    removed = sum(len(text.encode()) for text in dump_entries([*gone, *branch]))
    less = before[0] - removed - await store.retention.size(owners=ALICE)
    same((len(texts), 0 < less < 200), (21, True), "the texts, and the bytes less of the conversation")
    more = chain(prompt("more"), after=end)
    await grown(store, saved, more)
    same(await store.entries(saved), [*kept, *more], "all entries after another save")


@law("branches", "events")
async def refused_removal_changes_nothing(trial: Trial) -> None:
    """`remove` refuses what leaves an entry without the one before it, an old conversation and a running answer."""
    store = trial.store
    conversation, entries = await started(store, "1", "2", "3")
    ids = [one.id for one in entries]
    first = replace(conversation, head_id=ids[0])
    with refused(HistoryError, "a removal before an entry that stays"):
        await store.remove(first, [ids[1]])
    with refused(HistoryError, "a removal of the head"):
        await store.remove(conversation, ids[1:])
    with refused(HistoryError, "a head that is not there"):
        await store.remove(replace(conversation, head_id=new_id()), ids[1:])
    with refused(Conflict, "an old conversation"):
        await store.remove(replace(first, revision=0), ids[1:])
    with refused(NotFound, "another owner"):
        await store.remove(replace(first, owner=MALLORY), ids[1:])
    await store.runs.append(batch(conversation, 1, "event"))
    with refused(Conflict, "a conversation with a running answer"):
        await store.remove(first, ids[1:])
    same(await store.get(conversation.id, owner=ALICE), conversation, "the conversation")
    same(await store.entries(conversation), entries, "all entries")
    same(len(await store.runs.events("run", owner=ALICE)), 1, "the events")
    await store.runs.append(batch(conversation, 2, "end", ended=True))
    saved = await store.remove(replace(conversation, head_id=None), ids)
    same(await store.entries(saved), [], "the entries after all were removed")
    same(await store.history(saved), [], "the history after all were removed")
    again = chain(prompt("again"))
    same(await store.history(await grown(store, saved, again)), again, "the history after another message")
