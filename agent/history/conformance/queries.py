"""Laws of the number of queries: no operation makes one for each entry or each conversation."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent.history.conformance.laws import holds, law
from agent.history.conformance.samples import batch, chain, grown, prompt
from agent.history.conformance.trial import Trial
from agent.history.contract import HistoryStore
from agent.history.records import Record, now

MOST = 20
"""The most queries of an operation. Four would do, and a transaction has a beginning and an end."""
SPARE = 3
"""Further queries for the large conversation, for a store that reads large results in pieces."""

FAR = datetime(2999, 1, 1, tzinfo=UTC)

Operation = Callable[[HistoryStore, Record], Awaitable[object]]


async def _erase_unused(store: HistoryStore, record: Record) -> None:
    records = await store.list(record.owner, limit=200)
    holds(await store.retention.erase_unused(record.owner, records), "erase_unused returned False")


OPERATIONS: dict[str, tuple[str, Operation]] = {
    "get": ("base", lambda store, record: store.get(record.id, owner=record.owner)),
    "history": ("base", lambda store, record: store.history(record)),
    "history with a limit": ("base", lambda store, record: store.history(record, limit=2)),
    "entries": ("base", lambda store, record: store.entries(record)),
    "find": ("branches", lambda store, record: store.find(record, ids=[record.head_id or ""], after=[None])),
    "following": ("branches", lambda store, record: store.following(record, record.head_id or "")),
    "list": ("base", lambda store, record: store.list(record.owner, limit=200)),
    "save": ("base", lambda store, record: grown(store, record, chain(prompt("more"), after=record.head_id))),
    "label": ("labels", lambda store, record: store.label(record.id, owner=record.owner, title="New", pinned=True)),
    "list of pinned ones": ("labels", lambda store, record: store.list(record.owner, limit=200, pinned=True)),
    "list of the others": ("labels", lambda store, record: store.list(record.owner, limit=200, pinned=False)),
    "search": ("search", lambda store, record: store.search(record.owner, "message", limit=200)),
    "search of titles": ("search", lambda store, record: store.search(record.owner, "conversation", limit=200)),
    "expiring": ("retention", lambda store, record: store.retention.expiring(FAR, owners=record.owner, limit=200)),
    "set_expiry": ("retention", lambda store, record: store.retention.set_expiry(record, record.expires_at)),
    "size": ("retention", lambda store, record: store.retention.size(owners=record.owner)),
    "sizes": ("retention", lambda store, record: store.retention.sizes(owners=record.owner)),
    "links": ("links", lambda store, record: store.links.of(record.id, owner=record.owner)),
    "delete": ("base", lambda store, record: store.delete(record.id, owner=record.owner)),
    "erase": ("retention", lambda store, record: store.retention.erase(record)),
    "erase_unused": ("retention", _erase_unused),
}
"""The operations, by name, and the capability of each."""


@law("queries")
async def queries_do_not_grow(trial: Trial) -> None:
    """The number of queries of each operation is bounded, whatever the number of entries and conversations."""
    for name, (capability, call) in OPERATIONS.items():
        if trial.subject.offers(capability):
            small, large = await _stored(trial, f"{name}, small", 2, 2), await _stored(trial, f"{name}, large", 200, 30)
            await _compare(trial, name, call, small, large)


@law("queries", "events")
async def queries_of_runs_do_not_grow(trial: Trial) -> None:
    """The number of queries for the events of a run does not depend on the number of events and runs."""
    runs = trial.store.runs
    small, large = await _stored(trial, "small", 2, 2), await _stored(trial, "large", 200, 30)
    batches = {small.owner: 2, large.owner: 40}
    for record in (small, large):
        for number in range(batches[record.owner]):
            await runs.append(batch(record, number * 5 + 1, *"abcde", run=record.id))

    def end(store: HistoryStore, record: Record) -> Awaitable[object]:
        last = batch(record, batches[record.owner] * 5 + 1, "end", run=record.id, ended=True)
        return store.runs.append(last)

    await _compare(
        trial, "events", lambda store, record: store.runs.events(record.id, owner=record.owner), small, large
    )
    await _compare(trial, "append", end, small, large)
    for number in range(30):
        await runs.append(batch(small, 1, "a", run=f"run {number}"))
    _judge("unfinished", await trial.queries_of(runs.unfinished))
    for number in range(30):
        await runs.append(batch(small, 2, "end", run=f"run {number}", ended=True))
    _judge("remove", await trial.queries_of(lambda: runs.remove(FAR)))


async def _stored(trial: Trial, owner: str, entries: int, conversations: int) -> Record:
    """Store conversations of an owner, each with a branch, and return one with so many entries."""
    store, expires_at = trial.store, now() + timedelta(days=2)
    for number in range(conversations):
        few, other = chain(prompt(f"message {number}")), chain(prompt(f"other message {number}"))
        shown = Record(owner=owner, title=f"conversation {number}", head_id=few[0].id, expires_at=expires_at)
        await store.save(replace(shown, branches=(other[0].id,)), [*few, *other])
    many = chain(*(prompt(f"message {number}") for number in range(entries)))
    return await store.save(Record(owner=owner, head_id=many[-1].id, expires_at=expires_at), many)


async def _compare(trial: Trial, name: str, call: Operation, small: Record, large: Record) -> None:
    few = await trial.queries_of(lambda: call(trial.store, small))
    many = await trial.queries_of(lambda: call(trial.store, large))
    holds(few, f"no query of {name} was counted")
    _judge(name, many)
    shown = "\n".join(query[:200] for query in many)
    what = f"{name} makes {len(few)} queries for a small conversation and {len(many)} for a large one"
    holds(len(many) <= len(few) + SPARE, f"{what}:\n{shown}")


def _judge(name: str, queries: list[str]) -> None:
    shown = "\n".join(query[:200] for query in queries[:MOST])
    holds(len(queries) <= MOST, f"{name} makes {len(queries)} queries, and {MOST} are enough:\n{shown}")
