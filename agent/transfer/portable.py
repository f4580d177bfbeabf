"""Our own export format: a JSON array that loses nothing and can be imported again.

The array has an object for the format, and then for each conversation an object with its fields and all its entries,
followed by an object for each attachment. So it can be written and read piece by piece, whatever its size.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any, TypeVar, cast

from pydantic_ai.messages import UserPromptPart
from pydantic_core import to_json

from agent.citations import checked
from agent.errors import NotFound
from agent.files.store import MediaStore
from agent.history import (
    FOLDER_INSTRUCTIONS,
    FOLDER_NAME,
    MOST_MODELS,
    NO_CONVERSATION,
    Conversation,
    Entry,
    Folder,
    HistoryStore,
    Vote,
    folders_of,
    new_id,
    now,
)
from agent.history.codec import dump_conversation, dump_entries, load_conversations, load_entries
from agent.history.search import groups
from agent.responses import fix_surrogates, steered_text
from agent.transfer.document import DOCUMENT_THREADS, ENTRY_BYTES, PAGE, PAGE_BYTES, files_and_size
from agent.transfer.imported import (
    MAX_NAME,
    FileLinks,
    FindFile,
    ImportedConversation,
    check_length,
    entry_id,
    parents_first,
)

VERSION = 1
FORMAT = "switchboard"
"""The key of the format's version in the first object."""
PRIVATE_FIELDS = ("owner", "revision", "expires_at", "imported_at", "updated_at", "folder", "folders")
"""Fields of a conversation that belong to the store it is in. They are not exported, except for `updated_at`.

Its folder is beside it, with its name, instructions and model.
"""
FOLDER_FIELDS = {"name": FOLDER_NAME, "instructions": FOLDER_INSTRUCTIONS, "model": MAX_NAME}
"""The fields of a folder in the file, with their most characters."""
LOADED_CHARACTERS = 100_000
"""Characters of entries that are in memory as text at a time, while they are read."""
MOST_IN_TURN = 2_000
"""The most messages from a message of the visitor to the next one. A page shows a turn as a whole."""
T = TypeVar("T")
_CHUNK = 3 * (1 << 14)
"""Bytes of a file that are encoded at once; base64 encodes three at a time."""


async def export_json(
    store: HistoryStore, media: MediaStore, conversations: Sequence[Conversation]
) -> AsyncGenerator[bytes]:
    """Yield the file with these conversations, piece by piece. Only some messages of one are in memory at a time.

    Of several conversations, one that is deleted meanwhile is left out. Raises `NotFound` if a part of it is written
    already, so that the file does not look complete.
    """
    folders = {one.id: one for one in await folders_of(store, conversations[0].owner)} if conversations else {}
    yield f'[{{"{FORMAT}":{VERSION},"exported_at":{json.dumps(now().isoformat())}}}'.encode()
    for known in conversations:
        try:
            conversation = await store.get(known.id, owner=known.owner)
            ids, files = await all_ids(store, conversation), set[str]()
        except NotFound:
            if len(conversations) == 1:
                raise
            continue
        yield b',\n{"conversation":' + _conversation_text(conversation).encode()
        if (folder := folders.get(conversation.folder)) is not None:
            yield b',"folder":' + to_json({name: getattr(folder, name) for name in FOLDER_FIELDS})
        yield b',"entries":['
        separator = b"\n"
        async for entries, named in entries_of(store, conversation, ids):
            files |= named
            async with aclosing(DOCUMENT_THREADS.steps(_entry_pieces(entries))) as steps:
                async for texts in steps:
                    yield separator + b",\n".join(texts)
                    separator = b",\n"
        yield b"]}"
        for id_ in sorted(files):
            async with aclosing(_file_pieces(store, media, conversation, id_)) as pieces:
                async for piece in pieces:
                    yield piece
    yield b"]\n"


async def all_ids(store: HistoryStore, conversation: Conversation) -> Sequence[str]:
    """Return the ids of all entries of a conversation. Raises `NotFound` if it is deleted meanwhile."""
    ids = await store.following(conversation, None)
    if conversation.head_id is not None and not ids:
        raise NotFound(NO_CONVERSATION)
    return ids


async def entries_of(
    store: HistoryStore, conversation: Conversation, ids: Sequence[str] | None = None
) -> AsyncGenerator[tuple[Sequence[Entry], set[str]]]:
    """Yield these entries of a conversation, or all, page by page, with the ids of the files that they name.

    Raises `NotFound` if it is deleted meanwhile.
    """
    ids, at, most = await all_ids(store, conversation) if ids is None else ids, 0, PAGE
    while page := ids[at : at + most]:
        entries = await store.find(conversation, ids=page, most_bytes=PAGE_BYTES)
        if not entries or [entry.id for entry in entries] != [*page[: len(entries)]]:
            raise NotFound(NO_CONVERSATION)
        files, _ = await DOCUMENT_THREADS.run(files_and_size, [entry.message for entry in entries])
        yield entries, files
        at += len(entries)
        most = min(PAGE, 2 * len(entries))  # the store looks at the size of each that it is asked


def _entry_pieces(entries: Sequence[Entry]) -> Iterator[bytes]:
    for entry in entries:
        yield dump_entries([entry])[0].encode()


async def _file_pieces(
    store: HistoryStore, media: MediaStore, conversation: Conversation, id_: str
) -> AsyncGenerator[bytes]:
    try:
        data = (await media.read(conversation.owner, id_)).data
    except NotFound:  # deleted; the entries still name it
        await store.get(conversation.id, owner=conversation.owner)  # raises if its conversation was deleted, too
        return
    yield b',\n{"file":' + json.dumps(id_).encode() + b',"data":"'
    for at in range(0, len(data), _CHUNK):
        yield b64encode(data[at : at + _CHUNK])
    yield b'"}'


def _conversation_text(conversation: Conversation) -> str:
    fields: dict[str, Any] = json.loads(dump_conversation(conversation))
    kept = {name: value for name, value in fields.items() if name not in PRIVATE_FIELDS}
    return json.dumps(kept | {"updated_at": fields["updated_at"]}, ensure_ascii=False)


def decode_file(element: Mapping[str, Any]) -> bytes:
    """Return the bytes of an attachment's object. Raises `ValueError`."""
    data = element.get("data")
    if not isinstance(data, str):
        raise ValueError("the file has no data")
    pieces = [b64decode(data[at : at + _CHUNK * 4 // 3], validate=True) for at in range(0, len(data), _CHUNK * 4 // 3)]
    if any(len(piece) < _CHUNK for piece in pieces[:-1]):
        raise ValueError("the file has data after its end")
    return b"".join(pieces)


def read_conversation(element: Mapping[str, Any], find: FindFile, source: str = "") -> ImportedConversation:
    """Return the conversation in an object of the file. All its ids are new, and its links are kept.

    With `source`, its entries get the same ids in each import. `find` returns the attachments by their ids in the file.
    Raises `ValueError` or `HistoryError` if it is damaged.
    """
    given, raw = element.get("conversation"), element.get("entries")
    if not isinstance(given, dict) or not isinstance(raw, list):
        raise ValueError("no conversation")
    entries = cast("list[Any]", raw)
    ids = {id_: entry_id(source, id_) for id_ in (_text(entry, "id") for entry in entries)}
    if len(ids) != len(entries):
        raise ValueError("two entries have one id")
    parents = {id_: _parent(entry) for id_, entry in zip(ids, entries, strict=True)}
    order = parents_first(parents)
    links, runs = FileLinks(find), dict[str, str]()
    new_ids: Mapping[str | None, str | None] = {None: None, **ids}
    for entry in entries:
        check_length(entry)
    texts = (
        to_json({**_compared(entry, ids), "id": ids[id_], "parent_id": new_ids[parents[id_]]}).decode()
        for id_, entry in _taken(sorted(zip(ids, entries, strict=True), key=lambda pair: order[pair[0]], reverse=True))
    )
    entries.clear()
    parts = groups(texts, len, LOADED_CHARACTERS)
    loaded = [_renewed(entry, links, runs) for some in parts for entry in load_entries(some)]
    conversation = _conversation(cast("dict[str, Any]", given), ids)
    votes = _votes(conversation.votes, ids, loaded)
    conversation = replace(conversation, votes=votes, source=source, imported_at=now() if source else None)
    dump_conversation(conversation)  # raises if a store could not keep it
    originals = {new: id_ for id_, new in ids.items()}
    return ImportedConversation(
        conversation=conversation,
        entries=loaded,
        ids=originals,
        files=links.files,
        left_out=links.left_out,
        folder=_folder(element.get("folder")),
    )


def _folder(given: object) -> Folder | None:
    """Return the folder in the object of a conversation, or None if it has none, or one that could not be made here."""
    if not isinstance(given, dict):
        return None
    fields = cast("dict[str, Any]", given)
    texts = {name: one for name in FOLDER_FIELDS if isinstance(one := fields.get(name), str)}
    texts["name"] = " ".join(texts.get("name", "").split())
    is_short = all(len(one) <= FOLDER_FIELDS[name] for name, one in texts.items())
    return Folder(**{name: fix_surrogates(one) for name, one in texts.items()}) if texts["name"] and is_short else None


def _compared(entry: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry with the new ids of the messages that are one message to several models."""
    note = entry.get("note")
    given = cast("dict[str, Any]", note).get("compared") if isinstance(note, dict) else None
    if given is None:
        return entry
    named = cast("list[Any]", given) if isinstance(given, list) and len(cast("list[Any]", given)) <= MOST_MODELS else []
    compared = [*dict.fromkeys(ids[id_] for id_ in named if isinstance(id_, str) and id_ in ids)]
    if ids.get(_text(entry, "id")) not in compared:
        compared = []
    return {**entry, "note": {**cast("dict[str, Any]", note), "compared": compared}}


def _taken(items: list[T]) -> Iterator[T]:
    """Yield the items from the last to the first, and free each one."""
    while items:
        yield items.pop()


def source_of_ours(element: Mapping[str, Any]) -> str:
    """Return `Conversation.source` of an object of the file: that of the conversation, or its own id."""
    given = element.get("conversation")
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    source, id_ = fields.get("source"), fields.get("id")
    if isinstance(source, str) and source:
        return source
    return f"{FORMAT}:{id_}" if isinstance(id_, str) and id_ else ""


def renewed(branch: Iterable[Entry], links: FileLinks) -> Iterator[Entry]:
    """Yield the entries of a branch, the oldest first, as if they were exported and read again: with new ids."""
    parent, runs = None, dict[str, str]()
    for entry in branch:
        alone = replace(entry.note, compared=())
        new = _renewed(replace(entry, id=new_id(), parent_id=parent, note=alone), links, runs)
        yield new
        parent = new.id


def check_turns(entries: Iterable[Entry]) -> None:
    """Raise `ValueError` if a turn has more than `MOST_IN_TURN` messages. Parents come before what follows them."""
    numbers = dict[str | None, int]()
    for entry in entries:
        is_said = any(isinstance(part, UserPromptPart) for part in entry.message.parts)
        is_begin = is_said and steered_text(entry.message) is None
        numbers[entry.id] = 1 if is_begin else numbers.get(entry.parent_id, 0) + 1
        if numbers[entry.id] > MOST_IN_TURN:
            raise ValueError("a turn has too many messages")


def stored_size(entries: Sequence[Entry], most: float = inf, votes: Sequence[Vote] = ()) -> int:
    """Return the bytes that a store needs for the entries and votes. One entry is in memory as text at a time.

    Raises `HistoryError` if a store could not keep them, and `ValueError` if they need more than `most`.
    """
    size = len(to_json(votes)) if votes else 0
    for entry in entries:
        check_length(*(getattr(part, name, None) for part in entry.message.parts for name in ("content", "args")))
        size += len(dump_entries([entry])[0].encode()) + ENTRY_BYTES
        if size > most:
            raise ValueError("the conversation needs too much room")
    return size


def _conversation(given: Mapping[str, Any], ids: Mapping[str, str]) -> Conversation:
    head, branches = given.get("head_id"), cast("list[Any]", given.get("branches") or [])
    if head is not None and head not in ids:
        raise ValueError("the end of the conversation is missing")
    kept = {name: value for name, value in given.items() if name not in PRIVATE_FIELDS}
    updated = {"updated_at": given["updated_at"]} if "updated_at" in given else {}
    new = {
        "id": new_id(),
        "owner": "",
        "head_id": None if head is None else ids[head],
        "branches": [ids[branch] for branch in branches],
    }
    (conversation,) = load_conversations([json.dumps({**kept, **updated, **new})])
    if (summary := conversation.summary) is not None:
        message = ids.get(summary.message)
        conversation = replace(conversation, summary=replace(summary, message=message) if message else None)
    times = {"created_at": _past(conversation.created_at), "updated_at": _past(conversation.updated_at)}
    return replace(conversation, cost=max(conversation.cost, 0.0), **times)


def _votes(votes: Iterable[Vote], ids: Mapping[str, str], entries: Iterable[Entry]) -> tuple[Vote, ...]:
    """Return the first vote on each message to several models that exists, with new ids."""
    compared = {entry.id: frozenset(entry.note.compared) for entry in entries if len(entry.note.compared) > 1}
    kept = dict[frozenset[str], Vote]()
    for vote in votes:
        if together := compared.get(ids.get(vote.message, "")):
            kept.setdefault(together, replace(vote, message=ids[vote.message], at=_past(vote.at)))
    return tuple(kept.values())


def _renewed(entry: Entry, links: FileLinks, runs: dict[str, str]) -> Entry:
    """Return the entry with new ids of its run and files, and without a cost that no run could have."""
    note = entry.note
    note = replace(
        note,
        run_id=runs.setdefault(note.run_id, new_id()) if note.run_id else "",
        cost=None if note.cost is not None and note.cost < 0 else note.cost,
        at=_past(note.at),
        suspension="",  # it says what a run below can do
    )
    return links.renewed_entry(replace(entry, message=checked(entry.message), note=note))


def _past(time: datetime) -> datetime:
    """Return a time with a time zone that is not in the future."""
    return min(time if time.tzinfo else time.replace(tzinfo=UTC), now())


def _text(entry: Any, name: str) -> str:
    value = cast("dict[str, Any]", entry).get(name) if isinstance(entry, dict) else None
    if not isinstance(value, str):
        raise ValueError(f"an entry has no {name}")
    return value


def _parent(entry: dict[str, Any]) -> str | None:
    return None if entry.get("parent_id") is None else _text(entry, "parent_id")
