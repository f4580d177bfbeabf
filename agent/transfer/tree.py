"""Checks and builds the trees of entries that conversations with branches are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic_ai.messages import ModelMessage

from agent.history import Entry, Note, new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of another program's tree: the id of its parent, and the messages that it becomes, if any."""

    parent: str | None
    messages: Sequence[tuple[ModelMessage, Note]] = ()


def parents_first(parents: Mapping[str, str | None]) -> dict[str, int]:
    """Return the position of each id in an order in which parents come before their children.

    Raises `ValueError` if a parent is missing, or if ids are their own ancestors.
    """
    children: dict[str | None, list[str]] = {}
    for id_, parent in parents.items():
        if parent is not None and parent not in parents:
            raise ValueError("the parent of an entry is missing")
        children.setdefault(parent, []).append(id_)
    order, waiting = dict[str, int](), list(reversed(children.get(None, [])))
    while waiting:
        id_ = waiting.pop()
        order[id_] = len(order)
        waiting += reversed(children.get(id_, []))
    if len(order) != len(parents):
        raise ValueError("entries are their own ancestors")
    return order


def entry_id(source: str, message: str, number: int = 0) -> str:
    """Return the id of an entry for a message of a chat elsewhere: the same in each import, a new one without `source`.

    `number` counts the entries that the message becomes.
    """
    if not source:
        return new_id()
    return sha256(f"{source}\n{message}\n{number}".encode("utf-8", "replace")).hexdigest()[:32]


def entries_of(
    nodes: Mapping[str, Node], current: str | None, source: str
) -> tuple[list[Entry], str | None, tuple[str, ...]]:
    """Return the entries of a tree, the end of the branch with the node `current`, and the ends of the others.

    A node begins a branch if its parent is missing, or if it would be its own ancestor. Without `current`, the branch
    with the newest message is the first.
    """
    parents = _without_loops({id_: node.parent if node.parent in nodes else None for id_, node in nodes.items()})
    entries, last = list[Entry](), dict[str, str | None]()
    for id_ in parents_first(parents):
        parent = parents[id_]
        before = None if parent is None else last[parent]
        for number, (message, note) in enumerate(nodes[id_].messages):
            new = entry_id(source, id_, number)
            entries.append(Entry(id=new, parent_id=before, message=message, note=note))
            before = entries[-1].id
        last[id_] = before
    inner = {entry.parent_id for entry in entries}
    ends = [entry.id for entry in entries if entry.id not in inner]
    head = last.get(current) if current is not None else None
    if head is None and ends:
        times = {entry.id: entry.note.at for entry in entries}
        head = max(ends, key=lambda end: times[end])
    return entries, head, tuple(end for end in ends if end != head)


def _without_loops(parents: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the parents of nodes, without one in each loop."""
    kept, done = dict(parents), set[str | None]([None])
    for id_ in parents:
        path, at = dict[str | None, None](), id_
        while at not in done and at is not None:
            path[at] = None
            if (parent := kept[at]) in path and parent is not None:
                kept[parent] = None
                break
            at = parent
        done.update(path)
    return kept
