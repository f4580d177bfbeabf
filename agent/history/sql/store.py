"""Conversations in a SQL database, with their runs, links, search and expiry. `agent.history.sql.database` explains
the form of the statements."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import (
    dump_conversation,
    dumped,
    in_steps,
    load_conversations,
    load_entries,
    load_undamaged,
    next_revision,
    place_at,
    stored_title,
)
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.search import ConversationHit, fold, groups, hit_in, hits_with_branches, words_of
from agent.history.sql.database import LIVE, Database, Row, Steps, Value, Values, single
from agent.history.values import (
    CHANGED_ELSEWHERE,
    ENTRY_BYTES,
    KEPT_FOLLOWS,
    LEASE_SECONDS,
    NO_CONVERSATION,
    NO_ENTRY,
    NO_LINK,
    NO_RUN,
    RENEWED_SECONDS,
    RUN_CONFLICT,
    USED_DIGEST,
    WATCHED_SECONDS,
    Conversation,
    Entry,
    Link,
    RunEvent,
    RunEvents,
    UnfinishedRun,
    dump_link,
    join_events,
    live_links,
    load_link,
    split_events,
    steady_of,
    too_many,
    versions_of,
)
from agent.system.threads import DECODING

_OWNED = f"SELECT 1 FROM conversations WHERE id = :conversation AND owner = :owner AND {LIVE}"

# Runs

_EVENTS = f"""
SELECT first, events FROM runs JOIN conversations ON conversations.id = conversation_id
LEFT JOIN run_events ON run_id = runs.id AND run_events.last > :number
WHERE runs.id = :id AND owner = :owner AND {LIVE} ORDER BY run_events.last
"""
# A lease from the far future is one from before the clock was set back. One that was released ends at 0.
_IS_LEASED = f"leased_until BETWEEN :now AND :now + {LEASE_SECONDS + 1}"
_LEASED = f"leased_until = :now + {LEASE_SECONDS}"
_STATE = f"""
runs.id, conversation_id, saved, leased_until, NOT {_IS_LEASED}, is_stopped, watched_until > :now
"""
_UNFINISHED = f"""
SELECT {_STATE}, owner FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE ended_at IS NULL AND {LIVE} AND {{which}} ORDER BY runs.rowid LIMIT :limit
"""
_HELD = f"""
SELECT {_STATE}, owner, leased_until BETWEEN :now + {RENEWED_SECONDS} AND :now + {LEASE_SECONDS + 1}
FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE runs.id IN LIST(:ids) AND ended_at IS NULL AND leased_until > 0 AND {LIVE}
"""
_RENEW = f"UPDATE runs SET {_LEASED} WHERE id IN LIST(:ids) AND ended_at IS NULL AND leased_until > 0"
_RELEASE = "UPDATE runs SET leased_until = 0 WHERE id IN LIST(:ids) AND ended_at IS NULL"
_LOOK = f"""
UPDATE runs SET watched_until = :now + {WATCHED_SECONDS}, is_stopped = is_stopped OR :stop
WHERE id = :id AND ended_at IS NULL AND EXISTS (
    SELECT 1 FROM conversations WHERE conversations.id = conversation_id AND owner = :owner AND {LIVE}
) RETURNING {_STATE}
"""
_WOULD_LOSE = f"""
SELECT 1 FROM runs JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id IN LIST(:ids) AND ended_at IS NULL AND ({LIVE} OR {_IS_LEASED}) LIMIT 1
"""
_MOST_RUNS = 50
"""The most runs that are removed at once."""
_REMOVE_RUNS = f"""
DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE ended_at < :before LIMIT {_MOST_RUNS}) RETURNING 1
"""
# The lock keeps the conversation until the run is stored.
_BEGIN_RUN = f"""
INSERT INTO runs (id, conversation_id, last, saved, ended_at, leased_until)
SELECT :id, owned.id, :last, :saved, CASE WHEN :has_ended THEN :now END, :now + {LEASE_SECONDS} FROM (
    SELECT id FROM conversations WHERE id = :conversation AND owner = :owner AND {LIVE} FOR KEY SHARE
) AS owned WHERE 1 = 1 ON CONFLICT (id) DO NOTHING RETURNING 1
"""
_CONTINUE_RUN = f"""
UPDATE runs SET last = :last, saved = greatest(saved, :saved), ended_at = CASE WHEN :has_ended THEN :now END, {_LEASED}
WHERE id = :id AND conversation_id = :conversation AND last = :first - 1 AND ended_at IS NULL
    AND CASE WHEN :of_lost THEN NOT {_IS_LEASED} ELSE leased_until > 0 END AND EXISTS ({_OWNED}) RETURNING 1
"""
_PUT_EVENTS = "INSERT INTO run_events (run_id, last, first, events) VALUES (:id, :last, :first, :events)"


@dataclass(frozen=True, slots=True)
class SqlRuns:
    """The `RunStore` of a SQL history."""

    _database: Database

    async def append(self, events: RunEvents) -> None:
        await self._database.write(partial(self.put, events, saved=False))

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        rows = await self._database.rows(_EVENTS, id=run_id, owner=owner, number=after)
        if not rows:
            raise NotFound(NO_RUN)
        return await DECODING.run(_events_after, after, rows)

    async def unfinished(
        self, *, owner: str | None = None, conversation_id: str | None = None, limit: int = 1000
    ) -> Sequence[UnfinishedRun]:
        values = {
            name: one for name, one in (("owner", owner), ("conversation_id", conversation_id)) if one is not None
        }
        sql = _UNFINISHED.format(which=" AND ".join(f"{name} = :{name}" for name in values) or "1 = 1")
        return [_unfinished(row, row[7]) for row in await self._database.rows(sql, **values, limit=max(limit, 0))]

    async def hold(self, run_ids: Collection[str], *, release: bool = False) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.hold`. Leases that were renewed a moment ago need no write."""
        if release:
            await self._database.write(single(_RELEASE, ids=[*run_ids]))
            return ()
        rows = await self._database.rows(_HELD, ids=[*run_ids])
        if due := [row[0] for row in rows if not row[8]]:
            await self._database.write(single(_RENEW, ids=due))
        return [_unfinished(row, row[7]) for row in rows]

    async def look(self, run_id: str, *, owner: str, stop: bool = False) -> UnfinishedRun | None:
        rows = await self._database.write(single(_LOOK, id=run_id, owner=owner, stop=stop))
        return _unfinished(rows[0], owner) if rows else None

    async def would_lose(self, conversation: Conversation) -> bool:
        return bool(await self._database.rows(_WOULD_LOSE, ids=[conversation.id]))

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`, in steps, so that other writers get their turn."""
        removed, work = 0, single(_REMOVE_RUNS, before=before.timestamp())
        while some := len(await self._database.erase(work)):
            removed += some
            if some < _MOST_RUNS:
                break
        return removed

    def put(self, events: RunEvents, *, saved: bool) -> Steps[None]:
        """Store events within a transaction. With `saved`, the entries contain what they say.

        Raises `Conflict` and `NotFound`.
        """
        values: dict[str, Value] = {
            "id": events.run_id,
            "conversation": events.conversation_id,
            "owner": events.owner,
            "first": events.first,
            "last": events.last,
            "saved": events.last if saved else 0,
            "has_ended": events.has_ended,
            "of_lost": events.of_lost,
            "events": join_events(events.events),
        }
        if (yield (_BEGIN_RUN if events.first == 1 else _CONTINUE_RUN), values):
            yield _PUT_EVENTS, values
            return
        raise Conflict(RUN_CONFLICT) if (yield _OWNED, values) else NotFound(NO_RUN)


def _events_after(number: int, rows: Sequence[Row]) -> list[RunEvent]:
    found = [event for row in rows if row[1] is not None for event in split_events(row[1], row[0])]
    return [event for event in found if event.number > number]


def _unfinished(row: Row, owner: str) -> UnfinishedRun:
    run, conversation, saved, leased_until, is_lost, is_stopped, is_watched = row[:7]
    return UnfinishedRun(
        run_id=run,
        conversation_id=conversation,
        owner=owner,
        saved=saved,
        leased_until=leased_until,
        is_lost=bool(is_lost),
        is_stopped=bool(is_stopped),
        is_watched=bool(is_watched),
    )


# Links

_LIVE_LINK = f"{LIVE} AND (ends_at IS NULL OR ends_at > :steady)"
# The lock keeps the conversation, and lets one link after the other be counted and stored.
_LOCK_OWNED = f"{_OWNED} FOR NO KEY UPDATE"
_FORGET_LINKS = "DELETE FROM links WHERE conversation_id = :conversation AND ends_at <= :steady"
_COUNT_LINKS = "SELECT count(*) FROM links WHERE conversation_id = :conversation"
_PUT_LINK = """
INSERT INTO links (digest, conversation_id, ends_at, link) VALUES (:digest, :conversation, :ends_at, :link)
ON CONFLICT (digest) DO NOTHING RETURNING 1
"""
_GET_LINK = f"SELECT link FROM links JOIN conversations ON id = conversation_id WHERE digest = :digest AND {_LIVE_LINK}"
_LINKS_OF = f"""
SELECT link FROM conversations LEFT JOIN links ON conversation_id = id
WHERE id = :conversation AND owner = :owner AND {LIVE}
"""
_REMOVE_LINK = f"""
DELETE FROM links WHERE digest = (
    SELECT digest FROM links JOIN conversations ON id = conversation_id
    WHERE digest = :digest AND owner = :owner AND {_LIVE_LINK}
) RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class SqlLinks:
    """The `LinkStore` of a SQL history."""

    _database: Database

    async def put(self, link: Link, *, most: int | None = None) -> None:
        values: dict[str, Value] = {
            "digest": link.digest,
            "conversation": link.conversation_id,
            "owner": link.owner,
            "ends_at": link.expires_at.timestamp() if link.expires_at else None,
            "link": dump_link(link),
        }
        await self._database.write(partial(_put_link, values, most))

    async def get(self, digest: str) -> Link:
        rows = await self._database.rows(_GET_LINK, digest=digest)
        if not rows:
            raise NotFound(NO_LINK)
        return self._load(rows)[0]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        rows = await self._database.rows(_LINKS_OF, conversation=conversation_id, owner=owner)
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return live_links(self._load([row for row in rows if row[0] is not None]), steady_of(self._database.clock)())

    async def remove(self, digest: str, *, owner: str) -> None:
        if not await self._database.erase(single(_REMOVE_LINK, digest=digest, owner=owner)):
            raise NotFound(NO_LINK)

    def _load(self, rows: Sequence[Row]) -> list[Link]:
        return self._database.load(lambda texts: [load_link(text) for text in texts], [row[0] for row in rows])


def _put_link(values: Values, most: int | None) -> Steps[None]:
    if not (yield _LOCK_OWNED, values):
        raise NotFound(NO_CONVERSATION)
    yield _FORGET_LINKS, values
    if most is not None and (yield _COUNT_LINKS, values)[0][0] >= most:
        raise too_many(most)
    if not (yield _PUT_LINK, values):
        raise Conflict(USED_DIGEST)


# Expiry and sizes

_PREFIX = "owner >= :owners AND owner < :beyond"  # an index can find these
_EXPIRING = """
SELECT record, title, pinned, id, owner, revision, head_id, expires_at FROM conversations
WHERE expires_at BETWEEN 0 AND :by AND NOT id IN LIST(:skip) ORDER BY expires_at LIMIT :limit
"""
_EXPIRING_OF = _EXPIRING.replace("WHERE expires_at", f"WHERE {_PREFIX} AND +expires_at")  # by the index of owners
_WITHOUT_EXPIRY = f"""
SELECT id, record FROM conversations WHERE expires_at IS NULL AND {_PREFIX} AND id > :id ORDER BY id LIMIT 500
"""
_FIRST_WITHOUT_EXPIRY = _WITHOUT_EXPIRY.replace("id > :id", "id >= :id")
_SAME = "SELECT record FROM conversations WHERE id = :id AND owner = :owner AND revision = :revision"
_PUT_EXPIRY = """
UPDATE conversations SET expires_at = :ends, record = :record, size = size - octet_length(record) + :bytes
WHERE id = :id AND revision = :revision
"""
_PUT_MISSING_EXPIRY = f"{_PUT_EXPIRY} AND expires_at IS NULL"
_SIZE = f"SELECT CAST(coalesce(sum(size), 0) AS BIGINT) FROM conversations WHERE {_PREFIX}"
_SIZES = f"""
SELECT owner, CAST(sum(size) AS BIGINT) FROM conversations
WHERE {_PREFIX} AND (expires_at IS NULL OR expires_at >= 0) GROUP BY owner ORDER BY max(coalesce(expires_at, 1e300))
"""
_IDS = "SELECT id, size FROM conversations WHERE owner = :owner"
_TEXTS = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id IN LIST(:ids) AND owner = :owner
"""
_ENTRY_SIZES = "SELECT id, octet_length(entry) FROM entries WHERE conversation_id = :conversation"
_TEXTS_OF = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = :conversation AND owner = :owner AND entries.id IN LIST(:ids)
"""
_TEXT_BYTES = 1 << 20
"""The bytes of several conversations, or of several messages of a longer one, that `texts` reads at once."""
_ERASE = """
DELETE FROM conversations
WHERE id = :id AND owner = :owner AND revision = :revision AND expires_at IS NOT DISTINCT FROM :ends RETURNING 1
"""
_LOCK_ALL = "SELECT id, revision, expires_at FROM conversations WHERE owner = :owner ORDER BY id FOR UPDATE"
_ERASE_ALL = "DELETE FROM conversations WHERE id IN LIST(:ids) RETURNING 1"


@dataclass(frozen=True, slots=True)
class SqlRetention:
    """The `RetentionStore` of a SQL history."""

    _database: Database

    async def time(self) -> datetime:
        ((at,),) = await self._database.rows("SELECT :steady")
        return datetime.fromtimestamp(at, UTC)

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Conversation]:
        values: Values = {**_prefix(owners), "by": by.timestamp(), "limit": max(limit, 0), "skip": [*skip]}
        return [_expiring(row) for row in await self._database.rows(_EXPIRING_OF if owners else _EXPIRING, **values)]

    async def set_expiry(self, conversation: Conversation, expires_at: datetime | None) -> bool:
        same = await self._database.rows(
            _SAME, id=conversation.id, owner=conversation.owner, revision=conversation.revision
        )
        stored = load_undamaged(same[0][0]) if same else None
        return stored is not None and bool(await self._put(_PUT_EXPIRY, [replace(stored, expires_at=expires_at)]))

    async def add_expiry(self, until: Callable[[Conversation], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in batches, so that other writers get their turn."""
        added, sql, after = 0, _FIRST_WITHOUT_EXPIRY, ""
        while rows := await self._database.rows(sql, id=after, **_prefix(owners)):
            sql, after = _WITHOUT_EXPIRY, rows[-1][0]
            conversations = [conversation for row in rows if (conversation := load_undamaged(row[1]))]
            ending = [
                replace(conversation, expires_at=end)
                for conversation in conversations
                if (end := until(conversation)) is not None
            ]
            if ending:
                added += await self._put(_PUT_MISSING_EXPIRY, ending)
        return added

    async def size(self, *, owners: str = "") -> int:
        rows = await self._database.rows(_SIZE, **_prefix(owners))
        return rows[0][0] if rows else 0

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self._database.rows(_SIZES, **_prefix(owners))}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads a few messages at a time, and holds no connection between."""
        for ids in _portions(await self._database.rows(_IDS, owner=owner)):
            if len(ids) > 1:
                for row in await self._database.rows(_TEXTS, ids=ids, owner=owner):
                    yield row[0]
                continue
            for page in _portions(await self._database.rows(_ENTRY_SIZES, conversation=ids[0])):
                for row in await self._database.rows(_TEXTS_OF, conversation=ids[0], owner=owner, ids=page):
                    yield row[0]

    async def erase(self, conversation: Conversation) -> bool:
        values: Values = {
            "id": conversation.id,
            "owner": conversation.owner,
            "revision": conversation.revision,
            "ends": _end_of(conversation),
        }
        return bool(await self._database.erase(single(_ERASE, **values)))

    async def erase_unused(self, owner: str, conversations: Sequence[Conversation]) -> bool:
        return await self._database.erase(partial(_erase_unused, owner, conversations))

    async def wipe(self) -> None:
        await self._database.wipe()

    async def _put(self, sql: str, conversations: Sequence[Conversation]) -> int:
        """Store the expiry of each conversation that was not saved in the meantime; return their number."""
        texts = [dump_conversation(conversation) for conversation in conversations]
        values: list[Values] = [
            {
                "id": conversation.id,
                "revision": conversation.revision,
                "ends": _end_of(conversation),
                "record": text,
                "bytes": len(text.encode()),
            }
            for conversation, text in zip(conversations, texts, strict=True)
        ]

        def work() -> Steps[int]:
            return (yield sql, values)[0][0]

        return await self._database.write(work, frees_space=True)


def _erase_unused(owner: str, conversations: Sequence[Conversation]) -> Steps[bool]:
    """Erase what was locked before it was compared: only a new conversation of the owner can be stored meanwhile."""
    stored = yield _LOCK_ALL, {"owner": owner}
    ids = [row[0] for row in stored]
    if not ids or {(owner, *row) for row in stored} != versions_of(conversations) or (yield _WOULD_LOSE, {"ids": ids}):
        return False
    yield _ERASE_ALL, {"ids": ids}
    return True


def _prefix(owners: str) -> Values:
    """Return the parameters of `_PREFIX`."""
    return {"owners": owners, "beyond": owners + "\U0010ffff"}


def _end_of(conversation: Conversation) -> float | None:
    return conversation.expires_at.timestamp() if conversation.expires_at else None


def _portions(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the ids in rows of ids and sizes, in portions of `_TEXT_BYTES` or one id."""
    ids, bytes_ = list[str](), 0
    for id_, size in rows:
        if ids and bytes_ + size > _TEXT_BYTES:
            yield ids
            ids, bytes_ = [], 0
        ids.append(id_)
        bytes_ += size
    if ids:
        yield ids


def _expiring(row: Row) -> Conversation:
    """Return the conversation in a row of `_EXPIRING`, of a damaged text only what the columns have."""
    if conversation := load_undamaged(row[0]):
        return replace(conversation, title=row[1], pinned=bool(row[2]))
    ends = datetime.fromtimestamp(row[7], UTC)
    return Conversation(id=row[3], owner=row[4], revision=row[5], head_id=row[6], expires_at=ends)


# Conversations and their entries

_CONVERSATION = "record, title, pinned"
_GET = f"SELECT {_CONVERSATION} FROM conversations WHERE id = :id AND owner = :owner AND {LIVE}"
_LIST = f"""
SELECT {_CONVERSATION} FROM conversations
WHERE owner = :owner AND {LIVE} {{pinned}} ORDER BY place DESC LIMIT :limit OFFSET :offset
"""
_PINNED = {None: "", True: "AND pinned", False: "AND NOT pinned"}
_LABEL = f"""
UPDATE conversations SET pinned = coalesce(CAST(:pinned AS BOOLEAN), pinned),
    title = CASE WHEN {{kept}} THEN title ELSE :title END,
    folded_title = CASE WHEN {{kept}} THEN folded_title ELSE :folded END
WHERE id = :id AND owner = :owner AND {LIVE} RETURNING {_CONVERSATION}
""".format(kept="(CAST(:title AS TEXT) IS NULL OR title <> coalesce(:instead_of, title))")
_DELETE = f"DELETE FROM conversations WHERE id = :id AND owner = :owner AND {LIVE} RETURNING 1"
_EACH = """
SELECT entries.{column} FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = :id AND owner = :owner ORDER BY entries.rowid
"""
_ENTRY_IDS, _ENTRIES = _EACH.format(column="id"), _EACH.format(column="entry")
_FIND_IDS = """
SELECT id FROM entries WHERE conversation_id = :id AND id IN LIST(:ids)
UNION SELECT id FROM entries WHERE conversation_id = :id AND parent_id IN LIST(:parents)
UNION SELECT id FROM entries WHERE :first AND conversation_id = :id AND parent_id IS NULL
"""
_READ_BYTES = f"(octet_length(entry) + {ENTRY_BYTES})"
_FIRST_IDS = f"""
SELECT id FROM (
    SELECT id, sum({_READ_BYTES}) OVER (ORDER BY rowid) - {_READ_BYTES} AS before FROM entries
    WHERE conversation_id = :id AND id IN ({_FIND_IDS})
) AS found WHERE before < :most
"""
_FIND = """
SELECT entry FROM entries WHERE conversation_id = :id AND id IN ({ids})
    AND EXISTS (SELECT 1 FROM conversations WHERE id = :id AND owner = :owner) ORDER BY rowid
"""
_FOLLOWING = """
WITH RECURSIVE following (number, id) AS (
    SELECT entries.rowid, entries.id FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = :id AND owner = :owner AND entries.id = :entry_id
    UNION ALL
    SELECT entries.rowid, entries.id FROM following
    JOIN entries ON conversation_id = :id AND parent_id = following.id
)
SELECT id FROM following ORDER BY number
"""
_CHAIN = f"""
WITH RECURSIVE chain (id, parent_id, depth, bytes) AS (
    SELECT entries.id, parent_id, 1, {{bytes}} FROM conversations JOIN entries ON conversation_id = conversations.id
    WHERE conversations.id = :id AND owner = :owner AND {LIVE} AND entries.id = :head_id
    UNION ALL
    SELECT entries.id, entries.parent_id, depth + 1, bytes + {{bytes}} FROM chain
    JOIN entries ON conversation_id = :id AND entries.id = chain.parent_id WHERE depth < :limit AND bytes < :most
)
SELECT entry FROM chain JOIN entries ON conversation_id = :id AND entries.id = chain.id ORDER BY depth DESC
"""
_ALL = 1 << 60
"""A limit that is none."""
# It also returns which of the entries that the save needs or adds are stored. `:ends` is that of the new conversation.
# Nobody else changes a locked row, so the revision that it returns is that of the row until the transaction ends.
_LOCK = f"""
SELECT owner = :owner AND ({LIVE} OR CAST(:ends AS DOUBLE PRECISION) <= :steady), revision, title, pinned, entries.id
FROM conversations
LEFT JOIN entries ON conversation_id = conversations.id AND entries.id IN LIST(:ids)
WHERE conversations.id = :id FOR UPDATE OF conversations
"""
_NEXT_PLACE = """
CASE WHEN :is_old THEN CAST(:place AS BIGINT) ELSE greatest(
    CAST(:place AS BIGINT), (SELECT coalesce(max(place), 0) + 1 FROM conversations WHERE owner = :owner)
) END
"""
_INSERT = f"""
INSERT INTO conversations (
    id, owner, place, revision, head_id, expires_at, title, folded_title, pinned, size, record
) VALUES (
    :id, :owner, {_NEXT_PLACE}, :revision, :head_id, :ends, :title, :folded, :pinned, :bytes, :record
) ON CONFLICT (id) DO NOTHING RETURNING 1
"""
_UPDATE = f"""
UPDATE conversations SET place = CASE WHEN :is_place_kept THEN place ELSE {_NEXT_PLACE} END, revision = :revision,
    head_id = :head_id, expires_at = :ends, title = :title, folded_title = :folded,
    size = size - octet_length(record) + :bytes, record = :record
WHERE id = :id
"""
_PUT_ENTRY = (
    "INSERT INTO entries (conversation_id, id, parent_id, entry) VALUES (:conversation, :id, :parent_id, :entry)"
)
_PUT_TEXT = "INSERT INTO entry_texts (conversation_id, entry_id, text) VALUES (:conversation, :id, :text)"
# Erasing single entries. `:ids` are theirs. It returns a row for each link.
_LOCK_TO_REMOVE = f"""
SELECT revision, title, pinned,
    EXISTS (SELECT 1 FROM runs WHERE conversation_id = :id AND ended_at IS NULL) AS is_answering,
    EXISTS (SELECT 1 FROM entries WHERE conversation_id = :id AND id = :head_id) AS has_head,
    EXISTS (
        SELECT 1 FROM entries WHERE conversation_id = :id AND parent_id IN LIST(:ids) AND NOT id IN LIST(:ids)
    ) AS has_orphans,
    (
        SELECT CAST(coalesce(sum(octet_length(entry)), 0) AS BIGINT) FROM entries
        WHERE conversation_id = :id AND id IN LIST(:ids)
    ) AS removed,
    digest, link
FROM conversations LEFT JOIN links ON links.conversation_id = conversations.id
WHERE conversations.id = :id AND owner = :owner AND {LIVE} FOR UPDATE OF conversations
"""
_REMOVE_LINKS = "DELETE FROM links WHERE digest IN LIST(:ids)"
_REMOVE_ENTRIES = (
    "DELETE FROM entry_texts WHERE conversation_id = :id AND entry_id IN LIST(:ids)",
    "DELETE FROM entries WHERE conversation_id = :id AND id IN LIST(:ids)",
    "DELETE FROM runs WHERE conversation_id = :id",
)

# Search

RECENT = 300
"""The conversations in which a search looks first. For a common word, they have enough hits."""
_RECENT_HITS = f"""
SELECT id, place, entry_id FROM (
    SELECT id, place, folded_title, (
        SELECT entry_id FROM entry_texts WHERE conversation_id = conversations.id AND {{in_text}}
        ORDER BY entry_texts.rowid DESC LIMIT 1
    ) AS entry_id FROM conversations WHERE owner = :owner AND {LIVE} ORDER BY place DESC LIMIT {RECENT}
) AS recent WHERE entry_id IS NOT NULL OR {{in_title}}
"""
_OLDER = f"""
owner = :owner AND {LIVE} AND place <= (
    SELECT place FROM conversations WHERE owner = :owner AND {LIVE} ORDER BY place DESC LIMIT 1 OFFSET {RECENT - 1}
)
"""
# The words are looked up first, because an index can find them. SQLite reads the tables of a CROSS JOIN in this order.
_OLDER_HITS = f"""
SELECT id, place, entry_id FROM conversations LEFT JOIN (
    SELECT conversation_id AS found_id, max(entry_texts.rowid) AS newest FROM conversations CROSS JOIN entry_texts
    WHERE {_OLDER} AND conversation_id = conversations.id AND {{in_text}} GROUP BY conversation_id
) AS found ON found_id = id LEFT JOIN entry_texts ON entry_texts.rowid = newest
WHERE {_OLDER} AND (newest IS NOT NULL OR {{in_title}})
"""
_SEARCH = f"""
WITH hits AS MATERIALIZED ({{hits}} ORDER BY place DESC LIMIT :limit)
SELECT {_CONVERSATION}, entry_id, octet_length(entry) FROM hits JOIN conversations ON conversations.id = hits.id
LEFT JOIN entries ON entries.conversation_id = hits.id AND entries.id = hits.entry_id ORDER BY hits.place DESC
"""
# The newest message with all words on the branch that is shown, of each conversation with such a message.
_SHOWN_HITS = """
WITH RECURSIVE matches AS MATERIALIZED (
    SELECT conversation_id, entry_id FROM entry_texts WHERE conversation_id IN LIST(:ids) AND {in_text}
), chain AS (
    SELECT conversations.id AS conversation_id, head_id AS id FROM conversations
    WHERE conversations.id IN (SELECT conversation_id FROM matches)
    UNION ALL
    SELECT conversation_id, parent_id FROM chain JOIN entries USING (conversation_id, id)
    WHERE (conversation_id, id) NOT IN (SELECT conversation_id, entry_id FROM matches)
)
SELECT conversation_id, id, octet_length(entry) FROM chain JOIN entries USING (conversation_id, id)
WHERE (conversation_id, id) IN (SELECT conversation_id, entry_id FROM matches)
"""
_HIT_ENTRIES = """
SELECT conversation_id, id, entry FROM entries WHERE conversation_id IN LIST(:conversations) AND id IN LIST(:ids)
"""


class SqlStore:
    """A `HistoryStore` in a SQL database. It owns the database until `aclose`.

    An acknowledged save is as safe as a commit of the database. A cancelled save has stored everything or nothing.
    """

    is_shared = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = SqlRuns(database)
        self.runs: RunStore = self._runs
        self.links: LinkStore = SqlLinks(database)
        self.retention: RetentionStore = SqlRetention(database)

    async def save(
        self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
    ) -> Conversation:
        texts, searched = await dumped(entries)
        at = self._database.clock()
        saved, text = next_revision(conversation, entries, at)
        _check_order(conversation, entries)
        saving = _Saving(saved, text, entries, texts, searched, is_old=saved.updated_at < at)
        is_end = events is not None and events.has_ended
        work = partial(self._save, saving, events)
        try:
            return await self._database.write(work, is_end=is_end)
        except NotFound:  # a conversation that was deleted a moment ago can still have its id
            if conversation.revision or not await self._database.finish_erasing(conversation.id):
                raise
        return await self._database.write(work, is_end=is_end)

    async def remove(self, conversation: Conversation, entry_ids: Collection[str]) -> Conversation:
        saved, text = next_revision(conversation, (), self._database.clock())
        saving = _Saving(saved, text, (), (), (), is_old=True)
        return await self._database.erase(partial(_remove, saving, [*entry_ids]))

    async def get(self, conversation_id: str, *, owner: str) -> Conversation:
        return await _one(self._database, await self._database.rows(_GET, id=conversation_id, owner=owner))

    async def history(
        self, conversation: Conversation, *, limit: int | None = None, most_bytes: int | None = None
    ) -> list[Entry]:
        if conversation.head_id is None or (limit is not None and limit <= 0):
            await self.get(conversation.id, owner=conversation.owner)
            return []
        key: Values = {"id": conversation.id, "owner": conversation.owner, "head_id": conversation.head_id}
        most: Values = {"limit": _ALL if limit is None else limit, "most": _ALL if most_bytes is None else most_bytes}
        sql = _CHAIN.format(bytes="0" if most_bytes is None else _READ_BYTES)
        rows = await self._database.rows(sql, **key, **most)
        if not rows:
            raise NotFound(NO_ENTRY)
        return await _entries(self._database, rows)

    async def entries(self, conversation: Conversation) -> Sequence[Entry]:
        return await _entries(
            self._database, await self._database.rows(_ENTRIES, id=conversation.id, owner=conversation.owner)
        )

    async def find(
        self,
        conversation: Conversation,
        *,
        ids: Collection[str] = (),
        after: Collection[str | None] = (),
        most_bytes: int | None = None,
    ) -> Sequence[Entry]:
        parents = [one for one in after if one is not None]
        most = None if most_bytes is None else max(1, most_bytes)  # the first entry is found in any case
        wanted: Values = {"ids": [*ids], "parents": parents, "first": None in after, "most": most}
        sql = _FIND.format(ids=_FIND_IDS if most_bytes is None else _FIRST_IDS)
        return await _entries(
            self._database, await self._database.rows(sql, id=conversation.id, owner=conversation.owner, **wanted)
        )

    async def following(self, conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        sql = _ENTRY_IDS if entry_id is None else _FOLLOWING
        rows = await self._database.rows(sql, id=conversation.id, owner=conversation.owner, entry_id=entry_id)
        return [row[0] for row in rows]

    async def list(
        self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None
    ) -> list[Conversation]:
        sql = _LIST.format(pinned=_PINNED[pinned])
        return await _conversations(
            self._database, await self._database.rows(sql, owner=owner, limit=max(limit, 0), offset=max(offset, 0))
        )

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[ConversationHit]:
        """Implement `HistoryStore.search`. Reads all text of the owner, unless the database has an index of words."""
        words, limit = words_of(query), max(limit, 0)
        values = {f"word{number}": word for number, word in enumerate(words)}
        if not words:
            return []
        in_text, in_title = _contains("text", values), _contains("folded_title", values)
        rows = list[Row]()
        for part in (_RECENT_HITS, _OLDER_HITS):  # the last of the recent ones can be in both
            sql = _SEARCH.format(hits=part.format(in_text=in_text, in_title=in_title))
            rows += [
                row for row in await self._database.search(sql, owner=owner, limit=limit, **values) if row not in rows
            ]
            if len(rows) >= limit:
                break
        conversations = await _conversations(self._database, rows[:limit])
        hits = await self._hits([(one, *row[3:]) for one, row in zip(conversations, rows[:limit], strict=True)], words)
        if branched := hits_with_branches(hits.values()):
            rows = await self._database.search(_SHOWN_HITS.format(in_text=in_text), ids=branched, **values)
            hits |= await self._hits([(hits[row[0]].conversation, *row[1:]) for row in rows], words)
        return [*hits.values()]

    async def _hits(
        self, found: Sequence[tuple[Conversation, str | None, int]], words: Sequence[str]
    ) -> dict[str, ConversationHit]:
        """Return the hit in each conversation at the entry with this id and size, or in its title, by its id."""
        hits = dict[str, ConversationHit]()
        for group in groups(found, lambda one: one[2] or 0):
            wanted = {conversation.id: entry for conversation, entry, _size in group if entry is not None}
            among: Values = {"conversations": [*wanted], "ids": [*wanted.values()]}
            read: Sequence[Row] = await self._database.search(_HIT_ENTRIES, **among) if wanted else ()
            rows = [row for row in read if wanted[row[0]] == row[1]]
            entries = await _entries(self._database, [row[2:] for row in rows])
            by_id = dict(zip([row[0] for row in rows], entries, strict=True))
            for conversation, entry, _size in group:
                if entry is None or conversation.id in by_id:  # otherwise it was deleted meanwhile
                    hits[conversation.id] = await DECODING.run(hit_in, conversation, by_id.get(conversation.id), words)
        return hits

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Conversation:
        if title is not None:
            title = stored_title(title)
        values: Values = {"title": title, "folded": fold(title or ""), "pinned": pinned, "instead_of": instead_of}
        return await _one(
            self._database, await self._database.write(single(_LABEL, id=conversation_id, owner=owner, **values))
        )

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        await delete_vectors(self, conversation_id, owner)
        if not await self._database.erase(single(_DELETE, id=conversation_id, owner=owner)):
            raise NotFound(NO_CONVERSATION)

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Writes in progress are finished first."""
        await self._database.aclose()

    def _save(self, saving: "_Saving", events: RunEvents | None) -> Steps[Conversation]:
        """Store it in a transaction that locks the conversation. Return the conversation with its stored label."""
        conversation = saving.conversation
        new = [entry.id for entry in saving.entries]
        ids = [*{*saving.needed, *new}]
        lock: Values = {"id": conversation.id, "owner": conversation.owner, "ends": _end_of(conversation), "ids": ids}
        stored = yield _LOCK, lock
        is_stored = _check(stored, conversation.revision - 1)
        known = {row[4] for row in stored}
        if not known.isdisjoint(new):
            raise HistoryError(_twice(conversation))
        if not saving.needed <= known:
            raise HistoryError(_broken_link(conversation))
        if is_stored:
            conversation = replace(conversation, title=stored[0][2] or conversation.title, pinned=bool(stored[0][3]))
        if is_stored:
            yield _UPDATE, saving.values(conversation)
        elif not (yield _INSERT, saving.values(conversation)):
            _check((yield _LOCK, lock), conversation.revision - 1)  # another process has just made it
            raise Conflict(CHANGED_ELSEWHERE)
        for statement, rows in ((_PUT_ENTRY, saving.entry_rows()), (_PUT_TEXT, saving.text_rows())):
            if rows:
                yield statement, rows
        if events is not None:
            yield from self._runs.put(events, saved=True)
        return conversation


@dataclass(frozen=True, slots=True)
class _Saving:
    """The values of one save: the conversation with its new revision, its JSON, and the entries with theirs.

    `is_old` is True if the messages are older than the save.
    """

    conversation: Conversation
    text: str
    entries: Sequence[Entry]
    texts: Sequence[str]
    searched: Sequence[str]
    is_old: bool

    @property
    def needed(self) -> set[str]:
        """The ids of stored entries that the save points at."""
        points = (self.conversation.head_id, *(entry.parent_id for entry in self.entries))
        return {id_ for id_ in points if id_ is not None} - {entry.id for entry in self.entries}

    def values(self, labelled: Conversation) -> Values:
        """Return the values of the conversation's row, with the label of `labelled`."""
        return {
            "id": labelled.id,
            "owner": labelled.owner,
            "revision": labelled.revision,
            "head_id": labelled.head_id,
            "ends": _end_of(labelled),
            "title": labelled.title,
            "folded": fold(labelled.title),
            "pinned": labelled.pinned,
            "bytes": len(self.text.encode()) + sum(len(text.encode()) for text in self.texts),
            "place": place_at(labelled.updated_at),
            "is_old": self.is_old,
            "is_place_kept": not self.entries,
            "record": self.text,
        }

    def entry_rows(self) -> Sequence[Values]:
        """Return the values of the entries' rows."""
        return [
            {"conversation": self.conversation.id, "id": entry.id, "parent_id": entry.parent_id, "entry": text}
            for entry, text in zip(self.entries, self.texts, strict=True)
        ]

    def text_rows(self) -> Sequence[Values]:
        """Return the values of the rows that are searched."""
        return [
            {"conversation": self.conversation.id, "id": entry.id, "text": text}
            for entry, text in zip(self.entries, self.searched, strict=True)
            if text
        ]


async def _entries(database: Database, rows: Sequence[Row]) -> list[Entry]:
    """Return the entries in rows that begin with one."""
    return await in_steps(partial(database.load, load_entries), [row[0] for row in rows])


async def _conversations(database: Database, rows: Sequence[Row]) -> list[Conversation]:
    """Return the conversations in rows that begin with a conversation and its label."""
    conversations = await in_steps(partial(database.load, load_conversations), [row[0] for row in rows])
    return [
        replace(conversation, title=row[1], pinned=bool(row[2]))
        for conversation, row in zip(conversations, rows, strict=True)
    ]


async def _one(database: Database, rows: Sequence[Row]) -> Conversation:
    """Return the conversation in the only row. Raises `NotFound` if there is none."""
    if not rows:
        raise NotFound(NO_CONVERSATION)
    return (await _conversations(database, rows))[0]


def _remove(saving: _Saving, ids: list[str]) -> Steps[Conversation]:
    """Erase entries and store the conversation, in a transaction that locks the conversation."""
    conversation = saving.conversation
    values: Values = {"id": conversation.id, "owner": conversation.owner, "head_id": conversation.head_id, "ids": ids}
    stored = yield _LOCK_TO_REMOVE, values
    if not stored:
        raise NotFound(NO_CONVERSATION)
    revision, title, pinned, is_answering, has_head, has_orphans, removed, *_ = stored[0]
    if revision != conversation.revision - 1 or is_answering:
        raise Conflict(CHANGED_ELSEWHERE)
    if has_orphans or conversation.head_id in ids or (conversation.head_id is not None and not has_head):
        raise HistoryError(KEPT_FOLLOWS)
    links = [row[7] for row in stored if row[7] is not None and load_link(row[8]).head_id in ids]
    for statement in _REMOVE_ENTRIES:
        yield statement, values
    if links:
        yield _REMOVE_LINKS, {"ids": links}
    conversation = replace(conversation, title=title, pinned=bool(pinned))
    yield _UPDATE, {**saving.values(conversation), "bytes": len(saving.text.encode()) - removed}
    return conversation


def _check_order(conversation: Conversation, entries: Sequence[Entry]) -> None:
    """Raise `HistoryError` if an entry occurs twice or follows a later one."""
    new, seen = {entry.id for entry in entries}, set[str]()
    for entry in entries:
        if entry.id in seen:
            raise HistoryError(_twice(conversation))
        if entry.parent_id in new and entry.parent_id not in seen:
            raise HistoryError(_broken_link(conversation))
        seen.add(entry.id)


def _check(stored: Sequence[Row], revision: int) -> bool:
    """Compare the stored revision with the caller's. Return whether there is one. Raises `NotFound` and `Conflict`."""
    if not stored and revision == 0:
        return False
    if not stored or not stored[0][0]:
        raise NotFound(NO_CONVERSATION)
    if stored[0][1] != revision:
        raise Conflict(CHANGED_ELSEWHERE)
    return True


def _twice(conversation: Conversation) -> str:
    return f"Conversation {conversation.id!r} was not saved: an entry is stored already, and none is ever overwritten."


def _broken_link(conversation: Conversation) -> str:
    return f"Conversation {conversation.id!r} was not saved: it would point at an entry that is not in it."


def _contains(column: str, words: Mapping[str, str]) -> str:
    """Return the condition that the column contains all words, whose parameters have these names."""
    return " AND ".join(f"CONTAINS({column}, :{name})" for name in words)
