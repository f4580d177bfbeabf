"""Gives our app a past: a conversation of N turns, written straight into its store for an owner of our choosing."""

from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history import Entry, Note, Record
from agent.history.sqlite import SqliteStore
from agent.web.middleware.visitor_cookie import COOKIE, VisitorCookies
from bench.turns import earlier

STORE_FILE = "history.sqlite"


def visitor_cookie(data_dir: Path, owner: str) -> tuple[str, str]:
    """Name and value of the signed cookie by which the app, with its secret in `data_dir`, knows `owner`."""
    return COOKIE, VisitorCookies.in_folder(data_dir).cookie(owner)


async def preload(data_dir: Path, owner: str, turns: int) -> Record:
    """Write the conversation, as the app would have after `turns` turns."""
    store = await SqliteStore.open(data_dir / STORE_FILE)
    try:
        entries = chain(turns)
        head = entries[-1].id if entries else None
        return await store.save(Record(owner=owner, title="The lighthouse", head_id=head), entries)
    finally:
        await store.aclose()


def chain(turns: int) -> list[Entry]:
    """The turns as entries, each linked to the one before it."""
    entries: list[Entry] = []
    for question, answer in earlier(turns):
        said: list[tuple[ModelMessage, Note]] = [
            (ModelRequest([UserPromptPart(question)]), Note()),
            (ModelResponse([TextPart(answer)]), Note(ended="stop")),
        ]
        for message, note in said:
            parent = entries[-1].id if entries else None
            entries.append(Entry(parent_id=parent, message=message, note=note))
    return entries
