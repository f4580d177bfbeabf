"""Expiry and sizes of the conversations in a PostgreSQL history."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from psycopg import AsyncConnection

from agent.history.codec import dump_record, load_undamaged
from agent.history.postgres_database import PostgresDatabase, fetch
from agent.history.postgres_replicas import PostgresReplicas
from agent.history.postgres_text import as_jsonb, escape, unescape
from agent.history.records import Record, versions_of

PAGE = 500
"""Records that `add_expiry` reads at once."""
TEXTS = 100
"""Entries that `texts` reads at once."""

_PREFIX = "owner >= %(owners)s AND owner < %(owners)s || chr(1114111)"  # an index can find these
_EXPIRING = """
SELECT coalesce(exact, record::text), title, pinned, id, owner, revision, head_id, expires_at FROM conversations
WHERE expires_at <= %(by)s AND id <> ALL(%(skip)s::text[]) {prefix} ORDER BY expires_at LIMIT %(limit)s
"""
_WITHOUT_EXPIRY = """
SELECT id, coalesce(exact, record::text) FROM conversations
WHERE expires_at IS NULL AND starts_with(owner, %(owners)s) AND id > %(after)s ORDER BY id LIMIT %(limit)s
"""
_FIRST = _WITHOUT_EXPIRY.replace("AND id > %(after)s", "")
_SAME = """
SELECT coalesce(exact, record::text) FROM conversations
WHERE id = %(id)s AND owner = %(owner)s AND revision = %(revision)s
"""
_PUT_EXPIRY = """
UPDATE conversations SET expires_at = new.expires_at, record = new.record::jsonb, exact = new.exact,
    size = conversations.size - record_size + new.size, record_size = new.size
FROM unnest(%(ids)s::text[], %(revisions)s::bigint[], %(ends)s::double precision[], %(records)s::text[],
    %(exacts)s::text[], %(sizes)s::bigint[]) AS new (id, revision, expires_at, record, exact, size)
WHERE conversations.id = new.id AND conversations.revision = new.revision {only} RETURNING 1
"""
_SIZE = f"SELECT coalesce(sum(size), 0)::bigint FROM conversations WHERE {_PREFIX}"
_SIZES = f"""
SELECT owner, sum(size)::bigint FROM conversations WHERE {_PREFIX}
GROUP BY owner ORDER BY max(coalesce(expires_at, 'infinity'))
"""
_TEXTS = """
SELECT conversation_id, entries.id, entry FROM conversations JOIN entries ON conversation_id = conversations.id
WHERE owner = %(owner)s {after} ORDER BY conversation_id, entries.id LIMIT %(limit)s
"""
_AFTER = "AND (conversation_id, entries.id) > (%(conversation)s, %(entry)s)"
_ERASE = """
DELETE FROM conversations WHERE id = %(id)s AND owner = %(owner)s AND revision = %(revision)s
    AND expires_at IS NOT DISTINCT FROM %(ends)s::float8 RETURNING 1
"""
_LOCK_OWNED = "SELECT id, revision, expires_at FROM conversations WHERE owner = %(owner)s ORDER BY id FOR UPDATE"
_ERASE_LOCKED = "DELETE FROM conversations WHERE id = ANY(%(ids)s::text[])"


@dataclass(frozen=True, slots=True)
class PostgresRetention:
    """The `RetentionStore` of a PostgreSQL history."""

    _database: PostgresDatabase
    _replicas: PostgresReplicas

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        sql = _EXPIRING.format(prefix=f"AND {_PREFIX}" if owners else "")
        skipped = [escape(id_) for id_ in skip]
        rows = await self._database.rows(
            sql, by=by.timestamp(), owners=escape(owners), limit=max(limit, 0), skip=skipped
        )
        return [_record(row) for row in rows]

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        same = await self._database.texts(
            _SAME, id=escape(record.id), owner=escape(record.owner), revision=record.revision
        )
        stored = load_undamaged(same[0]) if same else None
        if stored is None:
            return False
        return bool(await self._put([replace(stored, expires_at=expires_at)]))

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in batches, so that other writers get their turn."""
        added, sql, after = 0, _FIRST, ""
        while rows := await self._database.rows(sql, owners=escape(owners), after=after, limit=PAGE):
            sql, after = _WITHOUT_EXPIRY, rows[-1][0]
            records = [record for row in rows if (record := load_undamaged(row[1]))]
            ending = [replace(record, expires_at=end) for record in records if (end := until(record)) is not None]
            if ending:
                added += await self._put(ending, "AND conversations.expires_at IS NULL")
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        return (await self._database.rows(_SIZE, owners=escape(owners)))[0][0]

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""
        return {unescape(owner): size for owner, size in await self._database.rows(_SIZES, owners=escape(owners))}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads a page at a time and holds no connection between them."""
        sql, after = _TEXTS.format(after=""), {"conversation": "", "entry": ""}
        while rows := await self._database.rows(sql, owner=escape(owner), limit=TEXTS, **after):
            sql, after = _TEXTS.format(after=_AFTER), {"conversation": rows[-1][0], "entry": rows[-1][1]}
            for row in rows:
                yield row[2]

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""
        values = {"id": escape(record.id), "owner": escape(record.owner)}
        ends = record.expires_at.timestamp() if record.expires_at else None
        return bool(await self._database.change(_ERASE, **values, revision=record.revision, ends=ends))

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        return await self._database.write(partial(_erase_unused, self._replicas, owner, records))

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. The server's autovacuum removes deleted rows."""

    async def _put(self, records: Sequence[Record], only: str = "") -> int:
        """Store the expiry of each record that was not saved in the meantime; return their number."""
        texts = [dump_record(record) for record in records]
        pairs = [as_jsonb(text) for text in texts]
        rows = await self._database.change(
            _PUT_EXPIRY.format(only=only),
            ids=[escape(record.id) for record in records],
            revisions=[record.revision for record in records],
            ends=[record.expires_at.timestamp() if record.expires_at else None for record in records],
            records=[text for text, _ in pairs],
            exacts=[exact for _, exact in pairs],
            sizes=[len(text.encode()) for text in texts],
        )
        return len(rows)


async def _erase_unused(
    replicas: PostgresReplicas, owner: str, records: Sequence[Record], connection: AsyncConnection
) -> bool:
    """Erase what was locked before it was compared: only a new conversation of the owner can be stored meanwhile."""
    stored = await fetch(connection, _LOCK_OWNED, {"owner": escape(owner)})
    ids = [unescape(row[0]) for row in stored]
    is_same = {(owner, unescape(row[0]), row[1], row[2]) for row in stored} == versions_of(records)
    if not ids or not is_same or await replicas.is_in_use(connection, owner, ids):
        return False
    await fetch(connection, _ERASE_LOCKED, {"ids": [escape(id_) for id_ in ids]})
    return True


def _record(row: tuple[Any, ...]) -> Record:
    """Return the record in a row of `_EXPIRING`. If its text is damaged, the result has only what the columns have."""
    if record := load_undamaged(row[0]):
        return replace(record, title=unescape(row[1]), pinned=row[2])
    head = None if row[6] is None else unescape(row[6])
    ends = datetime.fromtimestamp(row[7], UTC)
    return Record(id=unescape(row[3]), owner=unescape(row[4]), revision=row[5], head_id=head, expires_at=ends)
