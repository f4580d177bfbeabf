"""Turns that are written into the history of a running app, because so many messages would take long."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history import Entry, Note
from agent.history.sql.sqlite import SqliteStore


def seed(folder: Path, title: str, turns: int) -> None:
    """Add stored turns to the conversation of that title of the app in this folder until it has `turns`."""
    with ThreadPoolExecutor(1) as thread:  # this thread runs the browser's event loop
        thread.submit(asyncio.run, _seed(folder / "data" / "history.sqlite", title, turns)).result()


async def _seed(path: Path, title: str, turns: int) -> None:
    with closing(sqlite3.connect(path)) as file:
        found = file.execute("SELECT id, owner FROM conversations WHERE record LIKE ?", (f"%{title}%",))
        [(id_, owner)] = found.fetchall()
    store = await SqliteStore.open(path)
    try:
        record = await store.get(id_, owner=owner)
        new: list[Entry] = []
        for number in range(len(await store.history(record)) // 2 + 1, turns + 1):
            question = ModelRequest(parts=[UserPromptPart(f"question {number}")])
            answer = ModelResponse(parts=[TextPart(f"answer {number}")], finish_reason="stop")
            for message, ended in ((question, None), (answer, "stop")):
                parent = new[-1].id if new else record.head_id
                new.append(Entry(parent_id=parent, message=message, note=Note(run_id=f"run{number}", ended=ended)))
        await store.save(replace(record, head_id=new[-1].id), new)
    finally:
        await store.aclose()
