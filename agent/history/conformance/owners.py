"""Laws of owners: another owner's conversation looks like a missing one, and no id has a meaning."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agent.errors import HistoryError, NotFound
from agent.history.conformance.laws import allowed, holds, law, refused, same
from agent.history.conformance.samples import ALICE, MALLORY, chain, grown, prompt, started
from agent.history.conformance.trial import Trial
from agent.history.contract import HistoryStore
from agent.history.records import Record, new_id

Verb = Callable[[HistoryStore, Record, str], Awaitable[Any]]

VERBS: dict[str, Verb] = {
    "get": lambda store, record, owner: store.get(record.id, owner=owner),
    "history": lambda store, record, owner: store.history(replace(record, owner=owner)),
    "history without head": lambda store, record, owner: store.history(replace(record, owner=owner, head_id=None)),
    "history with limit=0": lambda store, record, owner: store.history(replace(record, owner=owner), limit=0),
    "save": lambda store, record, owner: store.save(replace(record, owner=owner, title="taken")),
    "save of an entry": lambda store, record, owner: grown(store, replace(record, owner=owner), chain(prompt("taken"))),
    "delete": lambda store, record, owner: store.delete(record.id, owner=owner),
}
"""The calls that name an owner and find one conversation."""

STRANGERS = (MALLORY, "", ALICE.upper(), f"{ALICE} ", ALICE[:-1], f"{ALICE}\0", "%", "*", f"../{ALICE}", "\ud800")
ODD = ("", "../x", "/etc/passwd", "a/b", ".", "a\0b", "%", "*", "a:b", "'; --", "\U0001f469", "CON", "x" * 300)


@law("base")
async def foreign_object_looks_missing(trial: Trial) -> None:
    """Another owner's conversation raises the same error as a missing one, and stays as it is."""
    store = trial.store
    record, entries = await started(store, "private")
    await started(store, "their own", owner=MALLORY)
    missing = replace(record, id=new_id())
    for stranger in STRANGERS:
        for name, verb in VERBS.items():
            what = f"{name} by the owner {stranger!a}"
            refusals: list[str] = []
            for target in (record, missing):
                # A save refuses an owner that is no text before any look-up.
                kind = HistoryError if stranger == "\ud800" and name.startswith("save") else NotFound
                with refused(kind, what) as caught:
                    await verb(store, target, stranger)
                refusals.append(str(caught[0]).replace(target.id, "ID"))
            same(refusals[0], refusals[1], f"the error of {what}, against that of a missing conversation")
        holds(record not in await store.list(stranger), f"the list of {stranger!a} has another owner's conversation")
        same(await store.entries(replace(record, owner=stranger)), [], f"all entries for {stranger!a}")
    same(await store.get(record.id, owner=ALICE), record, "the record")
    same(await store.history(record), entries, "the history")


@law("base")
async def owner_has_access(trial: Trial) -> None:
    """The owner may do what strangers may not."""
    for name, verb in VERBS.items():
        record, _ = await started(trial.store)
        with allowed(f"{name} by the owner"):
            await verb(trial.store, record, ALICE)


@law("base")
async def new_conversation_cannot_take_foreign_id(trial: Trial) -> None:
    """A new conversation with the id of another owner's raises `NotFound`."""
    record, _ = await started(trial.store)
    with refused(NotFound, "a first save with a foreign id"):
        await trial.store.save(Record(id=record.id, owner=MALLORY))
    same(await trial.store.get(record.id, owner=ALICE), record, "the record")


@law("base")
async def ids_and_owners_are_opaque(trial: Trial) -> None:
    """Any text can be an id or an owner, also one that means something to a file system or a query."""
    store = trial.store
    for name in ODD:
        with refused(NotFound, f"get of {name!a}"):
            await store.get(name, owner=ALICE)
        with allowed(f"saves with {name!a} as id and owner"):
            _, entries = await started(store, "odd", owner=name)
            record = await store.save(Record(id=name, owner=name, head_id=entries[0].id), entries)
        same(await store.get(name, owner=name), record, f"the record {name!a}")
        same(await store.history(record), entries, f"the history of {name!a}")
        same(len(await store.list(name)), 2, f"the number of conversations of {name!a}")
        await store.delete(name, owner=name)
        same(len(await store.list(name)), 1, f"the number of conversations of {name!a} after a deletion")


@law("base")
async def id_that_is_no_text_is_not_found(trial: Trial) -> None:
    """An id with half a surrogate pair raises `NotFound`."""
    for name, call in (("get", trial.store.get), ("delete", trial.store.delete)):
        with refused(NotFound, name):
            await call("\ud800", owner=ALICE)
