"""Conversations in a PostgreSQL database. Any number of processes and machines can share it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from psycopg import AsyncConnection

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import dumped, in_steps, load_entries, next_revision, place_at, stored_title
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.postgres_address import PostgresAddress
from agent.history.postgres_database import LIVE, PostgresDatabase, Value, fetch
from agent.history.postgres_links import PostgresLinks
from agent.history.postgres_replicas import PostgresReplicas
from agent.history.postgres_retention import PostgresRetention
from agent.history.postgres_runs import PostgresRuns, put_events
from agent.history.postgres_search import RECORD, records_in, search
from agent.history.postgres_text import as_jsonb, escape, unescape
from agent.history.records import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, now
from agent.history.replicas import Replicas
from agent.history.run_events import RunEvents
from agent.history.search import SearchHit, fold, words_of

_GET = f"SELECT {RECORD} FROM conversations WHERE id = %(id)s AND owner = %(owner)s AND {LIVE}"
_LIST = f"""
SELECT {RECORD} FROM conversations
WHERE owner = %(owner)s AND {LIVE} {{pinned}} ORDER BY place DESC LIMIT %(limit)s OFFSET %(offset)s
"""
_PINNED = {None: "", True: "AND pinned", False: "AND NOT pinned"}
_LABEL = f"""
UPDATE conversations SET pinned = coalesce(%(pinned)s::boolean, pinned),
    title = CASE WHEN {{kept}} THEN title ELSE %(title)s END,
    folded_title = CASE WHEN {{kept}} THEN folded_title ELSE %(folded)s END
WHERE id = %(id)s AND owner = %(owner)s AND {LIVE} RETURNING {RECORD}
""".format(kept="(%(title)s::text IS NULL OR title <> coalesce(%(instead_of)s, title))")
_DELETE = f"DELETE FROM conversations WHERE id = %(id)s AND owner = %(owner)s AND {LIVE} RETURNING 1"
_ENTRIES = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = %(id)s AND owner = %(owner)s ORDER BY number
"""
_FIND = """
SELECT entry FROM (
    SELECT * FROM entries WHERE conversation_id = %(id)s AND id = ANY(%(ids)s::text[])
    UNION SELECT * FROM entries WHERE conversation_id = %(id)s AND parent_id = ANY(%(after)s::text[])
    UNION SELECT * FROM entries WHERE %(first)s::boolean AND conversation_id = %(id)s AND parent_id IS NULL
) AS found
WHERE EXISTS (SELECT 1 FROM conversations WHERE id = %(id)s AND owner = %(owner)s) ORDER BY number
"""
_FOLLOWING = """
WITH RECURSIVE following AS (
    SELECT entries.id, number FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = %(id)s AND owner = %(owner)s AND entries.id = %(entry)s
    UNION ALL
    SELECT entries.id, entries.number FROM following
    JOIN entries ON conversation_id = %(id)s AND entries.parent_id = following.id
)
SELECT id FROM following ORDER BY number
"""
_CHAIN = f"""
WITH RECURSIVE chain AS (
    SELECT entries.id, parent_id, 1 AS depth FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = %(id)s AND owner = %(owner)s AND {LIVE} AND entries.id = %(head_id)s
    UNION ALL
    SELECT entries.id, entries.parent_id, depth + 1 FROM chain
    JOIN entries ON conversation_id = %(id)s AND entries.id = chain.parent_id
    WHERE depth < coalesce(%(limit)s::bigint, depth + 1)
)
SELECT entry FROM chain JOIN entries ON conversation_id = %(id)s AND entries.id = chain.id ORDER BY depth DESC
"""
_LOCK = f"""
SELECT owner = %(owner)s AND {LIVE}, revision, title, pinned,
    ARRAY(SELECT entries.id FROM entries WHERE conversation_id = %(id)s AND entries.id = ANY(%(ids)s::text[]))
FROM conversations WHERE id = %(id)s FOR UPDATE
"""
_NEXT_PLACE = """
CASE WHEN %(is_old)s::boolean THEN %(place)s::bigint
ELSE greatest(%(place)s::bigint, (SELECT coalesce(max(place), 0) + 1 FROM conversations WHERE owner = %(owner)s)) END
"""
_INSERT = f"""
INSERT INTO conversations (id, owner, place, revision, head_id, expires_at, title, folded_title, pinned,
    size, record_size, record, exact)
VALUES (%(id)s, %(owner)s, {_NEXT_PLACE}, %(revision)s, %(head_id)s, %(expires_at)s, %(title)s,
    %(folded)s, %(pinned)s, %(size)s::bigint + %(added)s, %(size)s, %(record)s::jsonb, %(exact)s)
ON CONFLICT (id) DO NOTHING RETURNING 1
"""
_UPDATE = f"""
UPDATE conversations SET place = CASE %(added)s WHEN 0 THEN place ELSE {_NEXT_PLACE} END,
    revision = %(revision)s, head_id = %(head_id)s, expires_at = %(expires_at)s, title = %(title)s,
    folded_title = %(folded)s, record = %(record)s::jsonb,
    exact = %(exact)s, size = size - record_size + %(size)s::bigint + %(added)s, record_size = %(size)s
WHERE id = %(id)s AND revision = %(revision)s - 1 RETURNING 1
"""
_PUT_ENTRIES = """
WITH texts AS (
    INSERT INTO entry_texts (owner, conversation_id, entry_id, text)
    SELECT %(owner)s, %(id)s, text.id, text.text
    FROM unnest(%(ids)s::text[], %(texts)s::text[]) WITH ORDINALITY AS text (id, text, place)
    WHERE text.text <> '' ORDER BY place
)
INSERT INTO entries (conversation_id, id, parent_id, entry)
SELECT %(id)s, entry.id, entry.parent_id, entry.entry
FROM unnest(%(ids)s::text[], %(parents)s::text[], %(entries)s::text[]) WITH ORDINALITY
    AS entry (id, parent_id, entry, place) ORDER BY place
"""


class PostgresStore:
    """A `HistoryStore` in a database; `open` makes one. It owns its connections until `aclose`.

    An acknowledged save is as safe as a commit of the server. A cancelled save has stored everything or nothing.
    While the server is away, each call raises a `HistoryError` that says so, and works again when it is back.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self.replicas: Replicas = (replicas := PostgresReplicas(database))
        self.runs: RunStore = PostgresRuns(database, replicas)
        self.links: LinkStore = PostgresLinks(database)
        self.retention: RetentionStore = PostgresRetention(database, replicas)

    @classmethod
    async def open(cls, url: str, *, clock: Callable[[], datetime] = now, is_secret: bool = False) -> Self:
        """Begin to connect, and return without waiting for the server. The first contact makes the schema.

        If the URL `is_secret`, errors don't name it. Raises `ConfigError` if the URL cannot be read.
        """
        database = PostgresDatabase(PostgresAddress.of(url, is_secret=is_secret), clock)
        database.begin_contact()
        return cls(database)

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`."""
        texts, searched = await dumped(entries)
        at = self._database.clock()
        saved, text = next_revision(record, entries, at)
        _check_order(record, entries)
        return await self._database.write(
            partial(
                _save,
                _Saving(
                    *(saved, text, entries, texts, searched),
                    *(events, self.replicas.id, self._database.shift, saved.updated_at < at),
                ),
            )
        )

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        rows = await self._database.rows(_GET, id=escape(conversation_id), owner=escape(owner))
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return records_in(self._database, rows)[0]

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        if record.head_id is None or (limit is not None and limit <= 0):
            await self.get(record.id, owner=record.owner)
            return []
        head, owner = escape(record.head_id), escape(record.owner)
        texts = await self._database.texts(_CHAIN, id=escape(record.id), owner=owner, head_id=head, limit=limit)
        if not texts:
            raise NotFound(NO_ENTRY)
        return await in_steps(partial(self._database.load, load_entries), texts)

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        texts = await self._database.texts(_ENTRIES, id=escape(record.id), owner=escape(record.owner))
        return await in_steps(partial(self._database.load, load_entries), texts)

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        texts = await self._database.texts(
            _FIND,
            id=escape(record.id),
            owner=escape(record.owner),
            ids=[escape(one) for one in ids],
            after=[escape(one) for one in after if one is not None],
            first=None in after,
        )
        return await in_steps(partial(self._database.load, load_entries), texts)

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        key = {"id": escape(record.id), "owner": escape(record.owner), "entry": escape(entry_id)}
        return [unescape(id_) for id_ in await self._database.texts(_FOLLOWING, **key)]

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`."""
        sql = _LIST.format(pinned=_PINNED[pinned])
        page = {"limit": max(limit, 0), "offset": max(offset, 0)}
        return [*records_in(self._database, await self._database.rows(sql, owner=escape(owner), **page))]

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`. Without trigrams on the server, it reads all text of the owner."""
        return await search(self._database, owner, words_of(query), limit)

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
        rows = await self._database.change(
            _LABEL,
            id=escape(conversation_id),
            owner=escape(owner),
            pinned=pinned,
            title=None if title is None else escape(title),
            folded=fold(title or ""),
            instead_of=None if instead_of is None else escape(instead_of),
        )
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return records_in(self._database, rows)[0]

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        await delete_vectors(self, conversation_id, owner)
        if not await self._database.change(_DELETE, id=escape(conversation_id), owner=escape(owner)):
            raise NotFound(NO_CONVERSATION)

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Operations in progress are finished first."""
        await self.replicas.leave()
        await self._database.aclose()


@dataclass(frozen=True, slots=True)
class _Saving:
    """The values of one save: the record with its new revision, its JSON, the entries with theirs, and who saves.

    `shift` is the parameter of `NOW`. `is_old` is True if the messages are older than the save.
    """

    record: Record
    text: str
    entries: Sequence[Entry]
    texts: Sequence[str]
    searched: Sequence[str]
    events: RunEvents | None
    replica: str
    shift: float
    is_old: bool

    @property
    def needed(self) -> set[str]:
        """The ids of stored entries that the save points at."""
        new = {entry.id for entry in self.entries}
        points = (self.record.head_id, *(entry.parent_id for entry in self.entries))
        return {id_ for id_ in points if id_ is not None} - new

    def values(self, stored: Record) -> dict[str, Value]:
        """Return the values of the record's row, with the label of `stored`."""
        text, exact = as_jsonb(self.text)
        return {
            "id": escape(stored.id),
            "owner": escape(stored.owner),
            "revision": stored.revision,
            "head_id": None if stored.head_id is None else escape(stored.head_id),
            "expires_at": stored.expires_at.timestamp() if stored.expires_at else None,
            "title": escape(stored.title),
            "folded": fold(stored.title),
            "pinned": stored.pinned,
            "size": len(self.text.encode()),
            "added": sum(len(text.encode()) for text in self.texts),
            "place": place_at(stored.updated_at),
            "is_old": self.is_old,
            "record": text,
            "exact": exact,
        }

    def rows(self) -> dict[str, Value]:
        """Return the values of the entries' rows."""
        return {
            "ids": [escape(entry.id) for entry in self.entries],
            "parents": [None if entry.parent_id is None else escape(entry.parent_id) for entry in self.entries],
            "entries": self.texts,
            "texts": self.searched,
        }


def _check_order(record: Record, entries: Sequence[Entry]) -> None:
    """Raise `HistoryError` if an entry occurs twice or follows a later one."""
    new, seen = {entry.id for entry in entries}, set[str]()
    for entry in entries:
        if entry.id in seen:
            raise HistoryError(_twice(record))
        if entry.parent_id in new and entry.parent_id not in seen:
            raise HistoryError(_broken_link(record))
        seen.add(entry.id)


async def _save(saving: _Saving, connection: AsyncConnection) -> Record:
    """Store it in a transaction that locks the conversation. Return the record with its stored label."""
    record = saving.record
    key: dict[str, Value] = {"id": escape(record.id), "owner": escape(record.owner)}
    ids = [escape(id_) for id_ in {*saving.needed, *(entry.id for entry in saving.entries)}]
    lock: dict[str, Value] = {**key, "ids": ids, "shift": saving.shift}
    stored = _check(await fetch(connection, _LOCK, lock), record.revision - 1)
    known = {unescape(id_) for id_ in stored[4]} if stored else set[str]()
    if not known.isdisjoint(entry.id for entry in saving.entries):
        raise HistoryError(_twice(record))
    if not saving.needed <= known:
        raise HistoryError(_broken_link(record))
    if stored:
        record = replace(record, title=unescape(stored[2]) or record.title, pinned=stored[3])
    values = saving.values(record)
    if not await fetch(connection, _UPDATE if stored else _INSERT, values):
        _check(await fetch(connection, _LOCK, lock), record.revision - 1)  # another process has just made it
        raise Conflict(CHANGED_ELSEWHERE)
    if saving.entries:
        await fetch(connection, _PUT_ENTRIES, {**key, **saving.rows()})
    if saving.events is not None:
        await put_events(connection, saving.events, saving.replica, saving.shift, saved=True)
    return record


def _check(stored: Sequence[tuple[Any, ...]], revision: int) -> tuple[Any, ...] | None:
    """Compare the stored revision with the caller's and return the stored row. Raises `NotFound` and `Conflict`."""
    if not stored and revision == 0:
        return None
    if not stored or not stored[0][0]:
        raise NotFound(NO_CONVERSATION)
    if stored[0][1] != revision:
        raise Conflict(CHANGED_ELSEWHERE)
    return stored[0]


def _twice(record: Record) -> str:
    return f"Conversation {record.id!r} was not saved: an entry is stored already, and none is ever overwritten."


def _broken_link(record: Record) -> str:
    return f"Conversation {record.id!r} was not saved: it would point at an entry that is not in it."
