"""Writes an earlier conversation of N turns straight into our app's store, for a given owner."""

from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history import Conversation, Entry, Note
from agent.history.sql.sqlite import SqliteStore
from agent.web.middleware.visitor_cookie import COOKIE, VisitorCookies
from bench.turns import earlier

STORE_FILE = "history.sqlite"


def visitor_cookie(data_dir: Path, owner: str) -> tuple[str, str]:
    """Return name and value of the signed cookie that identifies `owner` to the app with its secret in `data_dir`."""
    return COOKIE, VisitorCookies.in_folder(data_dir).cookie(owner)


async def preload(data_dir: Path, owner: str, turns: int) -> Conversation:
    """Write the conversation in the form the app gives it after `turns` turns."""
    store = await SqliteStore.open(data_dir / STORE_FILE)
    try:
        entries = chain(turns)
        head = entries[-1].id if entries else None
        return await store.save(Conversation(owner=owner, title="The lighthouse", head_id=head), entries)
    finally:
        await store.aclose()


def chain(turns: int) -> list[Entry]:
    """Return the turns as entries, each linked to the previous one."""
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
