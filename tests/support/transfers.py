"""Histories with branches and attachments to export, and what the tests of export and import compare."""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart, ToolReturnPart, UserPromptPart

from agent.files.references import files_named_in, reference_of, with_references
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore, Note, new_id
from agent.transfer.portable import export_json
from agent.transfer.reading import FoundConversation, ImportFile, ImportLimits, ImportReader
from tests.support.strategies import TEXT, responses, tool_returns, user_prompts

OWNER = "the-owner"
LIMITS = ImportLimits(file_bytes=100_000_000, json_bytes=200_000_000, attachment_bytes=20_000_000)


def opened(data: bytes, folder: Path, limits: ImportLimits = LIMITS) -> ImportFile:
    """Return an uploaded export with these bytes."""
    path = folder / f"{new_id()}.upload"
    path.write_bytes(data)
    with path.open("rb") as file:
        return ImportFile(io.BytesIO(data) if data[:2] == b"PK" else file, folder, limits)


def found_in(value: object, folder: Path, **files: bytes) -> tuple[list[FoundConversation], ImportReader]:
    """Return the conversations in an export with this JSON, which is a ZIP file if it has other files."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    if files:
        data = zipped({"conversations.json": data, **files})
    reader = ImportReader(opened(data, folder), LIMITS.attachment_bytes)
    return [found for found in reader.find() if found is not None], reader


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


async def exported(store: HistoryStore, media: MediaStore, conversations: Sequence[Conversation]) -> bytes:
    return b"".join([piece async for piece in export_json(store, media, conversations)])


@st.composite
def histories(draw: st.DrawFn) -> tuple[Conversation, list[Entry]]:
    """Draw a conversation with branches, whose messages still have the bytes of their files."""
    entries = list[Entry]()
    for message in draw(st.lists(_messages(), max_size=6)):
        parent = draw(st.sampled_from([None, *(entry.id for entry in entries)]))
        note = Note(run_id=draw(st.sampled_from(["", "r1", "r2"])), model=draw(TEXT), ended=draw(st.none() | TEXT))
        entries.append(Entry(parent_id=parent, message=message, note=note))
    ids = [entry.id for entry in entries]
    head = draw(st.sampled_from(ids)) if ids else None
    branches = tuple(draw(st.lists(st.sampled_from(ids), unique=True))) if ids else ()
    conversation = Conversation(
        owner=OWNER, title=draw(TEXT), pinned=draw(st.booleans()), head_id=head, branches=branches
    )
    return conversation, entries


def _messages() -> st.SearchStrategy[ModelMessage]:
    """Messages as the page stores them: without links to other places, which no import keeps."""
    prompts = user_prompts().filter(lambda part: "example.com" not in repr(part))
    requests = st.builds(ModelRequest, st.lists(prompts | tool_returns(), min_size=1, max_size=3))
    return requests | responses()


async def stored(
    store: HistoryStore, media: MediaStore, conversation: Conversation, entries: Sequence[Entry]
) -> Conversation:
    """Store a conversation, with its files in the media store."""
    kept = [
        replace(
            entry,
            message=await with_references(
                media, conversation.owner, entry.message, reference_of(conversation.id, entry.id)
            ),
        )
        for entry in entries
    ]
    return await store.save(conversation, kept)


def shape(conversation: Conversation, entries: Sequence[Entry], files: Mapping[str, bytes]) -> Any:
    """Return all of a conversation except its ids, which are replaced by their order."""
    order = {entry.id: number for number, entry in enumerate(entries)}
    names = {id_: files.get(id_, b"").hex() for id_ in sorted(files_named_in(entry.message for entry in entries))}
    runs = dict[str, int]()

    def plain(text: str) -> str:
        for id_, data in names.items():
            text = text.replace(id_, f"<{data}>")
        return text

    return (
        replace(
            conversation,
            id="",
            owner="",
            revision=0,
            head_id=None,
            branches=(),
            updated_at=conversation.created_at,
            source="",
            imported_at=None,
        ),
        conversation.head_id and order[conversation.head_id],
        [order[branch] for branch in conversation.branches],
        [
            (
                entry.parent_id and order[entry.parent_id],
                plain(repr(entry.message)),
                replace(entry.note, run_id=str(runs.setdefault(entry.note.run_id, len(runs)))),
            )
            for entry in entries
        ],
    )


def texts_of(entries: Sequence[Entry]) -> list[str]:
    """Return the texts of prompts, answers and tool results."""
    found = list[str]()
    for part in (part for entry in entries for part in entry.message.parts):
        if isinstance(part, TextPart):
            found.append(part.content)
        elif isinstance(part, UserPromptPart):
            parts = [part.content] if isinstance(part.content, str) else part.content
            found += [one for one in parts if isinstance(one, str)]
        elif isinstance(part, ToolReturnPart):
            found.append(str(part.content))
    return found


def branch(entries: Sequence[Entry], end: str | None) -> list[Entry]:
    """Return the entries that lead to this one."""
    by_id, found = {entry.id: entry for entry in entries}, list[Entry]()
    while end is not None:
        found.append(by_id[end])
        end = by_id[end].parent_id
    return found[::-1]
