"""Laws of the read-only links to conversations."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.errors import Conflict, HistoryError, Limited, NotFound
from agent.history.conformance.deletion import SECRET
from agent.history.conformance.laws import allowed, holds, law, refused, same
from agent.history.conformance.owners import ODD, STRANGERS
from agent.history.conformance.samples import ALICE, MALLORY, chain, grown, prompt, started
from agent.history.conformance.trial import Trial
from agent.history.contract import HistoryStore
from agent.history.links import Link, digest_of, new_token
from agent.history.records import Record, new_id, now


def link_to(record: Record, **fields: Any) -> Link:
    """Return a link to this conversation, with a digest of its own."""
    values: dict[str, Any] = {"digest": digest_of(new_token()), **fields}
    return Link(conversation_id=record.id, owner=record.owner, **values)


@law("links")
async def link_comes_back_by_its_digest(trial: Trial) -> None:
    """`get` returns a link with all its choices, also when its conversation has grown since."""
    store = trial.store
    record, entries = await started(store)
    at = datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    choices: list[dict[str, Any]] = [
        {},
        {"head_id": entries[0].id, "system_prompt": "Be\0 brief.\u2028é\n\U0001f469"},
        {"with_files": True, "created_at": at, "expires_at": now() + timedelta(days=1)},
    ]
    links = [link_to(record, **chosen) for chosen in choices]
    for link in links:
        await store.links.put(link)
    record = await grown(store, record, chain(prompt("more"), after=entries[-1].id))
    record = await store.label(record.id, owner=ALICE, title="New")
    await trial.reopen()
    for link in links:
        same(await trial.store.links.get(link.digest), link, "the link")
    found = [*await trial.store.links.of(record.id, owner=ALICE)]
    same(found, sorted(links, key=lambda link: link.created_at), "the links of the conversation, the oldest first")
    same(await trial.store.get(record.id, owner=ALICE), record, "the record after its links were stored")


@law("links")
async def link_that_would_not_load_is_refused(trial: Trial) -> None:
    """A link with half a surrogate pair raises `HistoryError` and is not stored."""
    record, _ = await started(trial.store)
    with refused(HistoryError, "a link with half a surrogate pair"):
        await trial.store.links.put(link_to(record, system_prompt="\ud800"))
    same([*await trial.store.links.of(record.id, owner=ALICE)], [], "the links")


@law("links")
async def missing_link_is_not_found(trial: Trial) -> None:
    """Any text that is no digest of a stored link raises `NotFound`."""
    record, _ = await started(trial.store)
    link = link_to(record)
    await trial.store.links.put(link)
    for digest in (*ODD, "\ud800", link.digest[:-1], f"{link.digest} ", link.digest.upper(), record.id, digest_of("")):
        with refused(NotFound, f"get of {digest!a}"):
            await trial.store.links.get(digest)
        with refused(NotFound, f"remove of {digest!a}"):
            await trial.store.links.remove(digest, owner=ALICE)
    same(await trial.store.links.get(link.digest), link, "the link")


@law("links")
async def only_owner_has_links(trial: Trial) -> None:
    """Only the owner of a conversation makes, lists and removes its links. Others see it as missing."""
    store = trial.store
    record, _ = await started(store, "private")
    other, _ = await started(store, "their own", owner=MALLORY)
    link = link_to(record)
    await store.links.put(link)
    for stranger in STRANGERS:
        refusals: list[str] = []
        for target in (record, replace(record, id=new_id())):
            with refused(NotFound, f"put by the owner {stranger!a}") as caught:
                await store.links.put(link_to(replace(target, owner="x" if stranger == "\ud800" else stranger)))
            with refused(NotFound, f"of by the owner {stranger!a}") as more:
                await store.links.of(target.id, owner=stranger)
            refusals.append(f"{caught[0]} {more[0]}")
        same(refusals[0], refusals[1], "the errors, against those of a missing conversation")
        with refused(NotFound, f"remove by the owner {stranger!a}"):
            await store.links.remove(link.digest, owner=stranger)
    same([*await store.links.of(record.id, owner=ALICE)], [link], "the owner's links")
    same([*await store.links.of(other.id, owner=MALLORY)], [], "the links of another owner")


@law("links")
async def digest_is_never_stored_twice(trial: Trial) -> None:
    """A link with the digest of a stored one raises `Conflict`, and leaves that as it is."""
    store = trial.store
    record, _ = await started(store)
    theirs, _ = await started(store, owner=MALLORY)
    link = link_to(record)
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
    record, entries = await started(store)
    link, kept = link_to(record), link_to(record)
    for one in (link, kept):
        await store.links.put(one)
    await store.links.remove(link.digest, owner=ALICE)
    await trial.reopen()
    store = trial.store
    with refused(NotFound, "get of a removed link"):
        await store.links.get(link.digest)
    with refused(NotFound, "a second remove"):
        await store.links.remove(link.digest, owner=ALICE)
    same([*await store.links.of(record.id, owner=ALICE)], [kept], "the other links")
    same(await store.get(record.id, owner=ALICE), record, "the record")
    same(await store.history(record), entries, "the history")


@law("links")
async def expired_link_is_missing(trial: Trial) -> None:
    """An expired link looks missing, and the next link to its conversation removes it."""
    store = trial.store
    record, _ = await started(store)
    short, long = (link_to(record, expires_at=now() + timedelta(hours=hours)) for hours in (1, 5))
    for one in (short, long):
        await store.links.put(one)
    trial.clock.go_forward(hours=2)
    with refused(NotFound, "get of an expired link"):
        await store.links.get(short.digest)
    with refused(NotFound, "remove of an expired link"):
        await store.links.remove(short.digest, owner=ALICE)
    same([*await store.links.of(record.id, owner=ALICE)], [long], "the links")
    await store.links.put(link_to(record))
    with allowed("a link with the digest of an expired one that was removed"):
        await store.links.put(replace(short, expires_at=None))


@law("links")
async def links_of_a_chat_are_limited(trial: Trial) -> None:
    """A conversation gets no more links than allowed, also if many are stored at once. Expired ones do not count."""
    stores = [trial.store, await trial.open() if trial.subject.processes else trial.store]
    record, _ = await started(trial.store)
    other, _ = await started(trial.store, "other")
    await trial.store.links.put(link_to(other))
    await trial.store.links.put(link_to(record, expires_at=now() + timedelta(hours=1)))
    trial.clock.go_forward(hours=2)
    [outcome] = await asyncio.gather(trial.store.links.put(link_to(record), most=1), return_exceptions=True)
    same(
        outcome, None, "the outcome of a link to a conversation whose only other one has expired, where one is allowed"
    )
    with refused(Limited, "a link to a conversation that has one, where one is allowed"):
        await stores[1].links.put(link_to(record), most=1)
    await asyncio.gather(*(store.links.of(record.id, owner=ALICE) for store in stores * 10))  # connects them
    puts = [store.links.put(link_to(record), most=3) for store in stores * 10]
    outcomes = [type(outcome) for outcome in await asyncio.gather(*puts, return_exceptions=True)]
    found = await trial.store.links.of(record.id, owner=ALICE)
    same(len(found), 3, "the number of links after many at once, where three are allowed")
    same(sorted(outcomes, key=repr), sorted([Limited] * 18 + [type(None)] * 2, key=repr), "the outcomes")
    with allowed("a link without a limit"):
        await trial.store.links.put(link_to(record))


GONE: dict[str, Callable[[HistoryStore, Record], Awaitable[object]]] = {
    "delete": lambda store, record: store.delete(record.id, owner=record.owner),
    "erase": lambda store, record: store.retention.erase(record),
}


@law("links", "retention")
async def links_go_with_their_conversation(trial: Trial) -> None:
    """A deleted conversation has no links, and a new one with its id gets none of them."""
    store = trial.store
    for way, remove in GONE.items():
        record, _ = await started(store)
        link = link_to(record)
        await store.links.put(link)
        await remove(store, record)
        with refused(NotFound, f"get after {way}"):
            await store.links.get(link.digest)
        with refused(NotFound, f"of after {way}"):
            await store.links.of(record.id, owner=ALICE)
        again = await store.save(Record(id=record.id, owner=ALICE))
        same([*await store.links.of(again.id, owner=ALICE)], [], f"the links of a new conversation after {way}")
        with refused(NotFound, f"get after {way} and a new conversation"):
            await store.links.get(link.digest)
        with allowed("a link with the digest of a removed one"):
            await store.links.put(link)


@law("links")
async def expired_conversation_has_no_links(trial: Trial) -> None:
    """The links to an expired conversation look missing, and it gets no new ones."""
    store = trial.store
    record = await store.save(Record(owner=ALICE, expires_at=now() + timedelta(hours=1)))
    link = link_to(record)
    await store.links.put(link)
    trial.clock.go_forward(hours=2)
    with refused(NotFound, "get after the end"):
        await store.links.get(link.digest)
    with refused(NotFound, "put after the end"):
        await store.links.put(link_to(record))
    with refused(NotFound, "of after the end"):
        await store.links.of(record.id, owner=ALICE)


@law("raw", "links", "retention")
async def removed_link_is_nowhere(trial: Trial) -> None:
    """Nothing that is stored has the digest or the prompt of a removed link, and no store has a token at all."""
    for way in ("remove", *GONE):
        store = trial.store
        record, _ = await started(store)
        token = new_token()
        link = link_to(record, digest=digest_of(token), system_prompt=SECRET)
        await store.links.put(link)
        await trial.reopen()
        store, digest = trial.store, link.digest.encode()
        for text in (digest, SECRET.encode()):
            holds(text in await trial.raw(), "the raw content does not show what is stored")
        holds(token.encode() not in await trial.raw(), "the token of a link is stored")
        await (store.links.remove(link.digest, owner=ALICE) if way == "remove" else GONE[way](store, record))
        for text in (digest, SECRET.encode()):
            holds(text not in await trial.raw(), f"{way} leaves text of a link in the store")
