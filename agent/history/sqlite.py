"""Conversations in one SQLite file. Several processes of one machine can share it."""

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import (
    dumped,
    in_steps,
    load_entries,
    load_records,
    next_revision,
    place_at,
    stored_title,
)
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link, too_many
from agent.history.records import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, now
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun, join_events, split_events
from agent.history.search import SearchHit, fold, hits_as_shown, hits_in, hits_with_branches, words_of
from agent.history.search_sql import SHOWN_HITS
from agent.history.sqlite_database import SqliteDatabase
from agent.history.sqlite_file import LIVE, LOCK_SECONDS, transaction
from agent.history.sqlite_retention import SqliteRetention
from agent.history.sqlite_schema import PUT_TEXT
from agent.history.sqlite_wipe import HIDE

_EVENTS = f"""
SELECT first, events FROM runs JOIN conversations ON conversations.id = conversation_id
LEFT JOIN run_events ON run_id = runs.id AND run_events.last > :after
WHERE runs.id = :id AND owner = :owner AND {LIVE} ORDER BY run_events.last
"""
_UNFINISHED = f"""
SELECT runs.id, conversation_id, owner, saved FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND {LIVE} ORDER BY runs.rowid LIMIT :limit
"""
_REMOVE = "DELETE FROM runs WHERE rowid IN (SELECT rowid FROM runs WHERE ended_at < :before LIMIT :most)"
_MOST_RUNS = 50
"""The most runs that are removed at once."""
_OWNED = f"SELECT 1 FROM conversations WHERE id = :conversation AND owner = :owner AND {LIVE}"
_PUT_RUN = """
INSERT INTO runs (id, conversation_id, last, saved, ended_at)
SELECT :id, :conversation, :last, :saved, :ended_at WHERE :first = 1
ON CONFLICT (id) DO NOTHING
"""
_MOVE_RUN = """
UPDATE runs SET last = :last, saved = max(saved, :saved), ended_at = :ended_at
WHERE id = :id AND conversation_id = :conversation AND last = :first - 1 AND ended_at IS NULL
"""
_PUT_EVENTS = "INSERT INTO run_events (run_id, last, first, events) VALUES (:id, :last, :first, :events)"


@dataclass(frozen=True, slots=True)
class SqliteRuns:
    """The `RunStore` of a SQLite history."""

    _database: SqliteDatabase

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        await self._database.write(partial(_append, events, self._database.clock()))

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        rows = await self._database.rows(_EVENTS, id=run_id, owner=owner, after=after)
        if not rows:
            raise NotFound(NO_RUN)
        found = [event for row in rows if row[1] is not None for event in split_events(row[1], row[0])]
        return [event for event in found if event.number > after]

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return [_unfinished(row) for row in await self._database.rows(_UNFINISHED, limit=max(limit, 0))]

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`. The text is overwritten in the file."""
        removed = some = await self._database.erase(_REMOVE, before=before.timestamp(), most=_MOST_RUNS)
        while some == _MOST_RUNS:
            removed += (some := await self._database.erase(_REMOVE, before=before.timestamp(), most=_MOST_RUNS))
        return removed


def put_events(connection: sqlite3.Connection, events: RunEvents, at: datetime, *, saved: bool) -> None:
    """Store events within a transaction. With `saved`, the entries contain what they say.

    Raises `Conflict` and `NotFound`.
    """
    values = {
        "id": events.run_id,
        "conversation": events.conversation_id,
        "owner": events.owner,
        "first": events.first,
        "last": events.last,
        "saved": events.last if saved else 0,
        "ended_at": at.timestamp() if events.has_ended else None,
        "events": join_events(events.events),
        "now": at.timestamp(),
    }
    if connection.execute(_OWNED, values).fetchone() is None:
        raise NotFound(NO_RUN)
    for statement in (_PUT_RUN, _MOVE_RUN) if events.first == 1 else (_MOVE_RUN,):
        if connection.execute(statement, values).rowcount == 1:
            connection.execute(_PUT_EVENTS, values)
            return
    raise Conflict(RUN_CONFLICT)


def _append(events: RunEvents, at: datetime, connection: sqlite3.Connection) -> None:
    """Store events in a transaction of their own."""
    with transaction(connection):
        put_events(connection, events, at, saved=False)


def _unfinished(row: sqlite3.Row) -> UnfinishedRun:
    return UnfinishedRun(run_id=row[0], conversation_id=row[1], owner=row[2], saved=row[3])


_LIVE_LINK = f"{LIVE} AND (ends_at IS NULL OR ends_at > :now)"
_OWNED_BY = f"SELECT 1 FROM conversations WHERE id = :conversation AND owner = :owner AND {LIVE}"
_FORGET = "DELETE FROM links WHERE conversation_id = :conversation AND ends_at <= :now"
_COUNT = "SELECT count(*) FROM links WHERE conversation_id = :conversation"
_PUT_LINK = """
INSERT INTO links (digest, conversation_id, ends_at, link) VALUES (:digest, :conversation, :ends_at, :link)
ON CONFLICT (digest) DO NOTHING
"""
_GET_LINK = f"SELECT link FROM links JOIN conversations ON id = conversation_id WHERE digest = :digest AND {_LIVE_LINK}"
_OF = f"""
SELECT link FROM conversations LEFT JOIN links ON conversation_id = id
WHERE id = :conversation AND owner = :owner AND {LIVE}
"""
_REMOVE_LINK = f"""
DELETE FROM links WHERE digest = (
    SELECT digest FROM links JOIN conversations ON id = conversation_id
    WHERE digest = :digest AND owner = :owner AND {_LIVE_LINK}
)
"""


@dataclass(frozen=True, slots=True)
class SqliteLinks:
    """The `LinkStore` of a SQLite history."""

    _database: SqliteDatabase

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        values = {
            "digest": link.digest,
            "conversation": link.conversation_id,
            "owner": link.owner,
            "ends_at": link.expires_at.timestamp() if link.expires_at else None,
            "link": dump_link(link),
            "now": self._database.clock().timestamp(),
        }
        await self._database.write(partial(_put, values, most))

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        texts = await self._database.texts(_GET_LINK, digest=digest)
        if not texts:
            raise NotFound(NO_LINK)
        return self._load(texts)[0]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        rows = await self._database.rows(_OF, conversation=conversation_id, owner=owner)
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return live_links(self._load([row[0] for row in rows if row[0] is not None]), self._database.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`. The digest is overwritten in the file."""
        if not await self._database.erase(_REMOVE_LINK, digest=digest, owner=owner):
            raise NotFound(NO_LINK)

    def _load(self, texts: Sequence[str]) -> list[Link]:
        return self._database.load(lambda texts: [load_link(text) for text in texts], texts)


def _put(values: dict[str, str | float | None], most: int | None, connection: sqlite3.Connection) -> None:
    with transaction(connection):
        if connection.execute(_OWNED_BY, values).fetchone() is None:
            raise NotFound(NO_CONVERSATION)
        connection.execute(_FORGET, values)
        if most is not None:
            (count,) = connection.execute(_COUNT, values).fetchone()
            if count >= most:
                raise too_many(most)
        if connection.execute(_PUT_LINK, values).rowcount != 1:
            raise Conflict(USED_DIGEST)


_GET = f"SELECT record, title, pinned FROM conversations WHERE id = :id AND owner = :owner AND {LIVE}"
_LIST = f"""
SELECT record, title, pinned FROM conversations
WHERE owner = :owner AND {LIVE} AND (:pinned IS NULL OR pinned = :pinned)
ORDER BY place DESC LIMIT :limit OFFSET :offset
"""
_LIST_PINNED = _LIST.replace("(:pinned IS NULL OR pinned = :pinned)", "pinned")  # by the index of pinned ones
_SEARCH = f"""
SELECT record, title, pinned, entry FROM conversations
LEFT JOIN entries ON conversation_id = conversations.id AND entries.id = (
    SELECT entry_id FROM entry_texts WHERE conversation_id = conversations.id AND {{in_text}}
    ORDER BY number DESC LIMIT 1
)
WHERE owner = :owner AND {LIVE} AND (entries.id IS NOT NULL OR {{in_title}}) ORDER BY place DESC LIMIT :limit
"""
_IN_CONVERSATIONS = "conversation_id IN (SELECT value FROM json_each(:ids))"
_LABEL = f"""
UPDATE conversations SET pinned = coalesce(:pinned, pinned),
    (title, folded_title) = (SELECT iif(kept, title, :title), iif(kept, folded_title, :folded)
        FROM (SELECT :title IS NULL OR title <> coalesce(:instead_of, title) AS kept))
WHERE id = :id AND owner = :owner AND {LIVE}
"""
_DELETE = f"{HIDE} WHERE id = :id AND owner = :owner AND {LIVE}"
_ENTRIES = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = :id AND owner = :owner ORDER BY entries.rowid
"""
_FIND = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE owner = :owner AND entries.rowid IN (
    SELECT rowid FROM entries WHERE conversation_id = :id AND id IN (SELECT value FROM json_each(:ids))
    UNION SELECT rowid FROM entries WHERE conversation_id = :id AND parent_id IN (SELECT value FROM json_each(:after))
    UNION SELECT rowid FROM entries WHERE :first AND conversation_id = :id AND parent_id IS NULL
) ORDER BY entries.rowid
"""
_FOLLOWING = """
WITH RECURSIVE following (row, id) AS (
    SELECT entries.rowid, entries.id FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = :id AND owner = :owner AND entries.id = :entry
    UNION ALL
    SELECT entries.rowid, entries.id FROM following
    JOIN entries ON conversation_id = :id AND parent_id = following.id
)
SELECT id FROM following ORDER BY row
"""
_STORED = f"SELECT owner = :owner AND {LIVE} AS owned, revision, title, pinned FROM conversations WHERE id = :id"
_PUT_RECORD = """
INSERT INTO conversations (id, owner, place, revision, head_id, expires_at, title, folded_title, pinned, record, size)
VALUES (:id, :owner, iif(:is_old, :place, max(:place, (
            SELECT coalesce(max(place), 0) + 1 FROM conversations WHERE owner = :owner))),
        :revision, :head_id, :expires_at, :title, :folded_title, :pinned, :record,
        length(CAST(:record AS BLOB)) + :added)
ON CONFLICT (id) DO UPDATE SET place = CASE WHEN :added = 0 THEN place ELSE excluded.place END,
    revision = excluded.revision, head_id = excluded.head_id, expires_at = excluded.expires_at,
    title = excluded.title, folded_title = excluded.folded_title,
    record = excluded.record, size = conversations.size - length(CAST(conversations.record AS BLOB)) + excluded.size
"""
_PUT_ENTRY = "INSERT INTO entries (conversation_id, id, parent_id, entry) VALUES (?, ?, ?, ?)"
_CHAIN = f"""
WITH RECURSIVE chain (row, parent_id, depth) AS (
    SELECT entries.rowid, parent_id, 1 FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = :id AND owner = :owner AND {LIVE} AND entries.id = :head_id
    UNION ALL
    SELECT entries.rowid, entries.parent_id, depth + 1 FROM chain
    JOIN entries ON conversation_id = :id AND entries.id = chain.parent_id
    LIMIT :limit
)
SELECT entry FROM chain JOIN entries ON entries.rowid = chain.row ORDER BY depth DESC
"""


class SqliteStore:
    """A `HistoryStore` in a file; `open` makes one. It owns its connections until `aclose`.

    A killed process loses no acknowledged save. A power cut can lose the last moments, but never consistency. A
    cancelled save has stored everything or nothing: a transaction that has begun is always completed.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.runs: RunStore = SqliteRuns(database)
        self.links: LinkStore = SqliteLinks(database)
        self.retention: RetentionStore = SqliteRetention(database)

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, busy_timeout: float = LOCK_SECONDS, clock: Callable[[], datetime] = now
    ) -> Self:
        """Open the file, or create it for this user alone. `busy_timeout` is the number of seconds to wait for a lock.

        Raises `ConfigError` if the file cannot be used or was written by a newer version.
        """
        return cls(await SqliteDatabase.open(Path(path), busy_timeout, clock))

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`."""
        texts, folded = await dumped(entries)
        at = self._database.clock()
        saved, text = next_revision(record, entries, at)
        rows = [(record.id, entry.id, entry.parent_id, json) for entry, json in zip(entries, texts, strict=True)]
        searched = [(record.id, entry.id, found) for entry, found in zip(entries, folded, strict=True) if found]
        return await self._database.write(partial(_save, saved, text, rows, searched, events, at))

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        rows = await self._database.rows(_GET, id=conversation_id, owner=owner)
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return self._records(rows)[0]

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        if record.head_id is None or (limit is not None and limit <= 0):
            await self.get(record.id, owner=record.owner)
            return []
        most = -1 if limit is None else limit
        texts = await self._database.texts(_CHAIN, id=record.id, owner=record.owner, head_id=record.head_id, limit=most)
        if not texts:
            raise NotFound(NO_ENTRY)
        return await in_steps(partial(self._database.load, load_entries), texts)

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        texts = await self._database.texts(_ENTRIES, id=record.id, owner=record.owner)
        return await in_steps(partial(self._database.load, load_entries), texts)

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        values = {"ids": json.dumps([*ids]), "after": json.dumps([one for one in after if one is not None])}
        texts = await self._database.texts(_FIND, id=record.id, owner=record.owner, first=None in after, **values)
        return await in_steps(partial(self._database.load, load_entries), texts)

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        return await self._database.texts(_FOLLOWING, id=record.id, owner=record.owner, entry=entry_id)

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`."""
        page = {"limit": max(limit, 0), "offset": max(offset, 0)}
        return [
            *self._records(
                await self._database.rows(_LIST_PINNED if pinned else _LIST, owner=owner, pinned=pinned, **page)
            )
        ]

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`. Reads all text of the owner, which takes 1.2 ms for each megabyte."""
        words = {f"word{number}": word for number, word in enumerate(words_of(query))}
        if not words:
            return []
        in_text, texts = _contains("text", words), [*words.values()]
        sql = _SEARCH.format(in_text=in_text, in_title=_contains("folded_title", words))
        rows = await self._database.search(sql, owner=owner, limit=max(limit, 0), **words)
        load = partial(self._database.load, load_entries)
        entries = iter(await in_steps(load, [row[3] for row in rows if row[3] is not None]))
        found = [None if row[3] is None else next(entries) for row in rows]
        hits = await hits_in(zip(self._records(rows), found, strict=True), texts)
        branched, shown = hits_with_branches(hits), dict[str, Entry]()
        if branched:
            sql = SHOWN_HITS.format(in_conversations=_IN_CONVERSATIONS, in_text=in_text)
            rows = await self._database.search(sql, ids=json.dumps(branched), **words)
            shown = dict(zip([row[0] for row in rows], await in_steps(load, [row[1] for row in rows]), strict=True))
        return await hits_as_shown(hits, shown, texts)

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Record:
        """Implement `HistoryStore.label`."""
        if title is not None:
            title = stored_title(title)
        values = {"id": conversation_id, "owner": owner, "pinned": pinned, "instead_of": instead_of}
        values |= {"title": title, "folded": fold(title or ""), "now": self._database.clock().timestamp()}
        if not await self._database.write(partial(_label, values)):
            raise NotFound(NO_CONVERSATION)
        return await self.get(conversation_id, owner=owner)

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`. The text is overwritten in the file."""
        await delete_vectors(self, conversation_id, owner)
        if not await self._database.erase(_DELETE, id=conversation_id, owner=owner):
            raise NotFound(NO_CONVERSATION)

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Saves in progress are finished first."""
        await self._database.aclose()

    def _records(self, rows: Sequence[sqlite3.Row]) -> Sequence[Record]:
        """Return the records in rows that begin with a record and its label."""
        records = self._database.load(load_records, [row[0] for row in rows])
        return [replace(record, title=row[1], pinned=bool(row[2])) for record, row in zip(records, rows, strict=True)]


def _save(
    record: Record,
    text: str,
    rows: Sequence[tuple[str, str, str | None, str]],
    searched: Sequence[tuple[str, str, str]],
    events: RunEvents | None,
    at: datetime,
    connection: sqlite3.Connection,
) -> Record:
    """Store `text`, which is `record` with its new revision, the entries' rows and texts, and the events, at this time.

    Return the record with its stored label.
    """
    expires_at = record.expires_at.timestamp() if record.expires_at else None
    values = {"id": record.id, "owner": record.owner, "revision": record.revision, "head_id": record.head_id}
    try:
        with transaction(connection):
            stored = connection.execute(_STORED, {**values, "now": at.timestamp()}).fetchone()
            if found := _check(stored, record.revision - 1):
                record = replace(record, title=found[2] or record.title, pinned=bool(found[3]))
            label = {"title": record.title, "folded_title": fold(record.title), "pinned": record.pinned}
            added = sum(len(row[3].encode()) for row in rows)
            place = {"place": place_at(record.updated_at), "is_old": record.updated_at < at}
            put = {**values, **label, **place, "expires_at": expires_at, "record": text, "added": added}
            connection.execute(_PUT_RECORD, put)
            connection.executemany(_PUT_ENTRY, rows)
            connection.executemany(PUT_TEXT, searched)
            if events is not None:
                put_events(connection, events, at, saved=True)
    except sqlite3.IntegrityError as error:
        raise HistoryError(_broken_link(error, record)) from error
    return record


def _check(stored: sqlite3.Row | None, revision: int) -> sqlite3.Row | None:
    """Compare the stored revision with the caller's and return the stored row. Raises `NotFound` and `Conflict`."""
    if stored is None and revision == 0:
        return None
    if stored is None or not stored[0]:
        raise NotFound(NO_CONVERSATION)
    if stored[1] != revision:
        raise Conflict(CHANGED_ELSEWHERE)
    return stored


def _label(values: dict[str, str | float | bool | None], connection: sqlite3.Connection) -> int:
    """Set the label, and return the number of conversations that have it: 1, or 0 if the owner has no such one."""
    try:
        with transaction(connection):
            return connection.execute(_LABEL, values).rowcount
    except UnicodeEncodeError:  # The id or owner is not valid text, so nothing has that name.
        return 0


def _contains(column: str, words: dict[str, str]) -> str:
    """Return the condition that the column contains all words, whose parameters have these names."""
    return " AND ".join(f"instr({column}, :{name}) > 0" for name in words)


def _broken_link(error: sqlite3.IntegrityError, record: Record) -> str:
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
        return f"Conversation {record.id!r} was not saved: an entry is stored already, and none is ever overwritten."
    return f"Conversation {record.id!r} was not saved: it would point at an entry that is not in it."
