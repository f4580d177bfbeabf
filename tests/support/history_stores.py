"""The history stores that the conformance suite tests, and conversations to store in them.

A new backend is one line in `STORES`: a function of an empty folder and a clock that opens the store, once per test.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from agent.history import Entry, HistoryStore, Record, now
from agent.history.memory import MemoryStore
from agent.history.sqlite import SqliteStore

ALICE, MALLORY = "visitor:alice", "visitor:mallory"


class Clock:
    """A clock that runs, and can be set forward."""

    ahead = timedelta()

    def __call__(self) -> datetime:
        return now() + self.ahead


async def memory(_: Path, clock: Clock) -> HistoryStore:
    return MemoryStore(clock)


async def sqlite(folder: Path, clock: Clock) -> HistoryStore:
    return await SqliteStore.open(folder / "history.db", clock=clock)


STORES: dict[str, Callable[[Path, Clock], Awaitable[HistoryStore]]] = {
    "memory": memory,
    "sqlite": sqlite,
}


def prompt(text: str = "Hello") -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def chain(*messages: ModelMessage, after: str | None = None) -> list[Entry]:
    """Return one entry per message, each linked to the one before it."""
    entries: list[Entry] = []
    for message in messages:
        entries.append(Entry(parent_id=after, message=message))
        after = entries[-1].id
    return entries


async def started(store: HistoryStore, *texts: str, owner: str = ALICE) -> tuple[Record, list[Entry]]:
    """Store a conversation with these prompts."""
    entries = chain(*map(prompt, texts or ("Hello",)))
    return await store.save(Record(owner=owner, head_id=entries[-1].id), entries), entries
