"""Conversations in a PostgreSQL database. Any number of processes and machines can share it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from psycopg import AsyncConnection

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import dumped, in_steps, load_entries, load_records, next_revision, place_at, stored_title
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link, too_many
from agent.history.postgres_address import PostgresAddress
from agent.history.postgres_database import LIVE, NOW, PostgresDatabase, Value, fetch
from agent.history.postgres_replicas import PostgresReplicas
from agent.history.postgres_retention import PostgresRetention
from agent.history.postgres_text import as_jsonb, escape, like, unescape
from agent.history.records import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, now
from agent.history.replicas import Replicas
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun, join_events, split_events
from agent.history.search import SearchHit, fold, hits_as_shown, hits_in, hits_with_branches, words_of
from agent.history.search_sql import SHOWN_HITS

_EVENTS = f"""
SELECT first, events FROM runs JOIN conversations ON conversations.id = conversation_id
LEFT JOIN run_events ON run_id = runs.id AND run_events.last > %(after)s
WHERE runs.id = %(id)s AND owner = %(owner)s AND {LIVE} ORDER BY run_events.last
"""
_UNFINISHED = f"""
SELECT runs.id, conversation_id, owner, saved FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND {LIVE} ORDER BY runs.number LIMIT %(limit)s
"""
_REMOVE = """
WITH removed AS (DELETE FROM runs WHERE ended_at < %(before)s RETURNING 1) SELECT count(*) FROM removed
"""
_ENDED_AT = f"CASE WHEN %(has_ended)s THEN {NOW} END"
# The lock keeps the conversation until the events are stored.
_PUT = f"""
WITH owned AS (
    SELECT id FROM conversations WHERE id = %(conversation)s AND owner = %(owner)s AND {LIVE} FOR KEY SHARE
), moved AS ({{move}}), stored AS (
    INSERT INTO run_events (run_id, last, first, events)
    SELECT id, %(last)s, %(first)s, %(events)s FROM moved RETURNING 1
)
SELECT EXISTS (SELECT FROM owned), EXISTS (SELECT FROM stored)
"""
_BEGIN = _PUT.format(
    move=f"""
    INSERT INTO runs (id, conversation_id, last, saved, ended_at, replica)
    SELECT %(id)s, id, %(last)s, %(saved)s, {_ENDED_AT}, %(replica)s FROM owned
    ON CONFLICT (id) DO NOTHING RETURNING id
    """
)
_CONTINUE = _PUT.format(
    move=f"""
    UPDATE runs SET last = %(last)s, saved = greatest(saved, %(saved)s), ended_at = {_ENDED_AT} FROM owned
    WHERE runs.id = %(id)s AND conversation_id = owned.id AND last = %(first)s - 1 AND ended_at IS NULL
        AND replica = %(replica)s
    RETURNING runs.id
    """
)


@dataclass(frozen=True, slots=True)
class PostgresRuns:
    """The `RunStore` of a PostgreSQL history."""

    _database: PostgresDatabase
    _replicas: PostgresReplicas

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        replica, shift = self._replicas.id, self._database.shift
        await self._database.write(lambda connection: put_events(connection, events, replica, shift, saved=False))

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        rows = await self._database.rows(_EVENTS, id=escape(run_id), owner=escape(owner), after=after)
        if not rows:
            raise NotFound(NO_RUN)
        found = [event for row in rows if row[1] is not None for event in split_events(row[1], row[0])]
        return [event for event in found if event.number > after]

    async def unfinished(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return [
            UnfinishedRun(run_id=unescape(id_), conversation_id=unescape(of), owner=unescape(owner), saved=saved)
            for id_, of, owner, saved in await self._database.rows(_UNFINISHED, limit=max(limit, 0))
        ]

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`."""
        return (await self._database.change(_REMOVE, before=before.timestamp()))[0][0]


async def put_events(
    connection: AsyncConnection, events: RunEvents, replica: str, shift: float, *, saved: bool
) -> None:
    """Store events within a transaction, as this replica. With `saved`, the entries contain what they say.
    `shift` is the parameter of `NOW`.

    Raises `Conflict` and `NotFound`.
    """
    values: dict[str, Value] = {
        "id": escape(events.run_id),
        "conversation": escape(events.conversation_id),
        "owner": escape(events.owner),
        "first": events.first,
        "last": events.last,
        "saved": events.last if saved else 0,
        "has_ended": events.has_ended,
        "events": join_events(events.events),
        "replica": replica,
        "shift": shift,
    }
    ((is_owned, is_stored),) = await fetch(connection, _BEGIN if events.first == 1 else _CONTINUE, values)
    if not is_owned:
        raise NotFound(NO_RUN)
    if not is_stored:
        raise Conflict(RUN_CONFLICT)


_LIVE_LINK = f"{LIVE} AND (ends_at IS NULL OR ends_at > {NOW})"
# The lock keeps the conversation until the link is stored, and lets one link after the other be counted and stored. The
# next statement must be another one: a statement does not see what was committed while it waited for its own lock.
_LOCK_LINK = f"""
SELECT 1 FROM conversations WHERE id = %(conversation)s AND owner = %(owner)s AND {LIVE} FOR NO KEY UPDATE
"""
_PUT_LINK = f"""
WITH expired AS (
    DELETE FROM links WHERE conversation_id = %(conversation)s AND ends_at <= {NOW} AND digest <> %(digest)s
), counted AS (
    SELECT count(*) >= %(most)s::int AS is_full FROM links
    WHERE conversation_id = %(conversation)s AND (ends_at IS NULL OR ends_at > {NOW})
), stored AS (
    INSERT INTO links (digest, conversation_id, ends_at, link)
    SELECT %(digest)s, %(conversation)s, %(ends_at)s, %(link)s FROM counted WHERE is_full IS NOT TRUE
    ON CONFLICT (digest) DO NOTHING RETURNING 1
)
SELECT is_full IS TRUE, EXISTS (SELECT FROM stored) FROM counted
"""
_GET_LINK = (
    f"SELECT link FROM links JOIN conversations ON id = conversation_id WHERE digest = %(digest)s AND {_LIVE_LINK}"
)
_OF = f"""
SELECT link FROM conversations LEFT JOIN links ON conversation_id = id
WHERE id = %(conversation)s AND owner = %(owner)s AND {LIVE}
"""
_REMOVE_LINK = f"""
DELETE FROM links USING conversations
WHERE id = conversation_id AND digest = %(digest)s AND owner = %(owner)s AND {_LIVE_LINK} RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class PostgresLinks:
    """The `LinkStore` of a PostgreSQL history."""

    _database: PostgresDatabase

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        values: dict[str, Value] = {
            "digest": escape(link.digest),
            "conversation": escape(link.conversation_id),
            "owner": escape(link.owner),
            "ends_at": link.expires_at.timestamp() if link.expires_at else None,
            "link": dump_link(link),
            "most": most,
            "shift": self._database.shift,
        }
        is_full, is_stored = await self._database.write(partial(_put, values))
        if is_full and most is not None:
            raise too_many(most)
        if not is_stored:
            raise Conflict(USED_DIGEST)

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        texts = await self._database.texts(_GET_LINK, digest=escape(digest))
        if not texts:
            raise NotFound(NO_LINK)
        return self._load(texts)[0]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        rows = await self._database.rows(_OF, conversation=escape(conversation_id), owner=escape(owner))
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return live_links(self._load([row[0] for row in rows if row[0] is not None]), self._database.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        if not await self._database.change(_REMOVE_LINK, digest=escape(digest), owner=escape(owner)):
            raise NotFound(NO_LINK)

    def _load(self, texts: Sequence[str]) -> list[Link]:
        return self._database.load(lambda texts: [load_link(text) for text in texts], texts)


async def _put(values: dict[str, Value], connection: AsyncConnection) -> tuple[bool, bool]:
    """Store a link. Return whether there are too many, and whether it is stored. Raises `NotFound`."""
    if not await fetch(connection, _LOCK_LINK, values):
        raise NotFound(NO_CONVERSATION)
    ((is_full, is_stored),) = await fetch(connection, _PUT_LINK, values)
    return is_full, is_stored


RECORD = "coalesce(exact, record::text), title, pinned"
"""The columns of a record. A search and a list read them."""
RECENT = 300
"""The conversations in which a search looks first. For a common word, they have enough hits."""
_RECENT_HITS = f"""
SELECT id, place, entry_id FROM (
    SELECT * FROM conversations WHERE owner = %(owner)s AND {LIVE} ORDER BY place DESC LIMIT {RECENT}
) AS recent LEFT JOIN LATERAL (
    SELECT entry_id FROM entry_texts WHERE conversation_id = recent.id AND {{in_text}} ORDER BY number DESC LIMIT 1
) AS found ON TRUE WHERE entry_id IS NOT NULL OR {{in_title}}
"""
_ALL_HITS = f"""
SELECT id, place, entry_id FROM conversations LEFT JOIN (
    SELECT DISTINCT ON (conversation_id) conversation_id, entry_id FROM entry_texts
    WHERE owner = %(owner)s AND {{in_text}} ORDER BY conversation_id, number DESC
) AS found ON conversation_id = id
WHERE owner = %(owner)s AND {LIVE} AND (entry_id IS NOT NULL OR {{in_title}})
"""
# The hits are chosen before the records are read, because turning a record to text costs more than finding it.
_SEARCH = f"""
WITH hits AS MATERIALIZED ({{hits}} ORDER BY place DESC LIMIT %(limit)s)
SELECT {RECORD}, entry FROM hits JOIN conversations ON conversations.id = hits.id
LEFT JOIN entries ON entries.conversation_id = hits.id AND entries.id = hits.entry_id ORDER BY hits.place DESC
"""
_IN_CONVERSATIONS = "conversation_id = ANY(%(ids)s::text[])"


async def search(database: PostgresDatabase, owner: str, words: Sequence[str], limit: int) -> Sequence[SearchHit]:
    """Return the owner's conversations with all words. Without trigrams on the server, it reads all their text."""
    if not words:
        return []
    patterns = {f"word{number}": like(word) for number, word in enumerate(words)}
    conditions = {"in_text": _contains("text", patterns), "in_title": _contains("folded_title", patterns)}
    rows: Sequence[Any] = ()
    for hits in (_RECENT_HITS, _ALL_HITS):
        sql = _SEARCH.format(hits=hits.format(**conditions))
        rows = await database.rows(sql, owner=escape(owner), limit=max(limit, 0), **patterns)
        if len(rows) >= limit:
            break
    load = partial(database.load, load_entries)
    entries = iter(await in_steps(load, [row[3] for row in rows if row[3] is not None]))
    found = [None if row[3] is None else next(entries) for row in rows]
    hits = await hits_in(zip(records_in(database, rows), found, strict=True), words)
    branched, shown = {escape(id_): id_ for id_ in hits_with_branches(hits)}, dict[str, Entry]()
    if branched:
        sql = SHOWN_HITS.format(in_conversations=_IN_CONVERSATIONS, in_text=conditions["in_text"])
        rows = await database.rows(sql, ids=[*branched], **patterns)
        texts = [row[1] for row in rows]
        shown = dict(zip([branched[row[0]] for row in rows], await in_steps(load, texts), strict=True))
    return await hits_as_shown(hits, shown, words)


def records_in(database: PostgresDatabase, rows: Sequence[tuple[Any, ...]]) -> Sequence[Record]:
    """Return the records in rows that begin with `RECORD`."""
    records = database.load(load_records, [row[0] for row in rows])
    return [replace(record, title=unescape(row[1]), pinned=row[2]) for record, row in zip(records, rows, strict=True)]


def _contains(column: str, patterns: dict[str, str]) -> str:
    """Return the condition that the column contains all words, whose parameters have these names."""
    return " AND ".join(f"{column} LIKE %({name})s" for name in patterns)


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
