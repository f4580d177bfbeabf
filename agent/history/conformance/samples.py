"""Conversations to store."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from agent.history.contract import HistoryStore
from agent.history.records import Entry, Record
from agent.history.run_events import RunEvent, RunEvents

ALICE, MALLORY = "visitor:alice", "visitor:mallory"


def prompt(text: str = "Hello") -> ModelRequest:
    """Return a message of a visitor."""
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


async def titled(store: HistoryStore, title: str, *texts: str, owner: str = ALICE) -> Record:
    """Store a conversation with this title and these prompts."""
    entries = chain(*map(prompt, texts or ("Hello",)))
    return await store.save(Record(owner=owner, title=title, head_id=entries[-1].id), entries)


async def grown(store: HistoryStore, record: Record, entries: Sequence[Entry]) -> Record:
    """Store further entries, of which the last one becomes the newest of the conversation."""
    return await store.save(replace(record, head_id=entries[-1].id), entries)


def prompts(entries: Sequence[Entry]) -> list[Any]:
    """Return what the visitor wrote in these entries."""
    return [part.content for entry in entries for part in entry.message.parts if isinstance(part, UserPromptPart)]


def batch(record: Record, first: int, *texts: str, run: str = "run", ended: bool = False) -> RunEvents:
    """Return events of a run in this conversation with these texts, numbered from `first`."""
    events = [RunEvent.of(number, {"type": "output_text", "content": text}) for number, text in enumerate(texts, first)]
    return RunEvents(run_id=run, conversation_id=record.id, owner=record.owner, events=events, has_ended=ended)


def contents(events: Sequence[RunEvent]) -> list[tuple[int, str]]:
    """Return the number and the text of each event."""
    return [(event.number, event.value["content"]) for event in events]
