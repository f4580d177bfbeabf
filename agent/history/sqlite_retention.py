"""Expiry and sizes of the conversations in a SQLite history."""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from agent.history.codec import dump_record, load_undamaged
from agent.history.records import Record, versions_of
from agent.history.sqlite_database import SqliteDatabase
from agent.history.sqlite_file import LIVE, transaction
from agent.history.sqlite_wipe import HIDE

_PREFIX = "owner >= :owners AND owner < :owners || char(0x10FFFF)"  # unlike substr(), this uses an index
_EXPIRING = """
SELECT record, title, pinned, id, owner, revision, head_id, expires_at FROM conversations
WHERE expires_at BETWEEN 0 AND :by AND id NOT IN (SELECT value FROM json_each(:skip)) ORDER BY expires_at LIMIT :limit
"""
_EXPIRING_OF = _EXPIRING.replace("WHERE expires_at", f"WHERE {_PREFIX} AND +expires_at")  # by the index of owners
_WITHOUT_EXPIRY = """
SELECT rowid, record FROM conversations
WHERE expires_at IS NULL AND substr(owner, 1, length(:owners)) = :owners AND rowid > :after ORDER BY rowid LIMIT 500
"""
_SAME = "SELECT record FROM conversations WHERE id = :id AND owner = :owner AND revision = :revision"
_PUT_EXPIRY = """
UPDATE conversations SET expires_at = :expires_at, record = :record,
    size = size - length(CAST(record AS BLOB)) + length(CAST(:record AS BLOB))
WHERE id = :id AND revision = :revision
"""
_PUT_MISSING_EXPIRY = f"{_PUT_EXPIRY} AND expires_at IS NULL"
_SIZE = f"SELECT coalesce(sum(size), 0) FROM conversations WHERE {_PREFIX}"
_SIZES = f"""
SELECT owner, sum(size) FROM conversations WHERE {_PREFIX} AND (expires_at IS NULL OR expires_at >= 0)
GROUP BY owner ORDER BY max(coalesce(expires_at, 9e999))
"""
_IDS = "SELECT id FROM conversations WHERE owner = :owner"
_TEXTS = """
SELECT entry FROM entries JOIN conversations ON conversations.id = conversation_id
WHERE conversation_id = :id AND owner = :owner
"""
_ERASE = f"{HIDE} WHERE id = :id AND owner = :owner AND revision = :revision AND expires_at IS :ends"
_OWNED = f"""
SELECT id, revision, expires_at, {LIVE} AND EXISTS (
    SELECT 1 FROM runs WHERE conversation_id = conversations.id AND ended_at IS NULL
) FROM conversations WHERE owner = :owner
"""
_ERASE_OWNED = f"{HIDE} WHERE owner = :owner"


@dataclass(frozen=True, slots=True)
class SqliteRetention:
    """The `RetentionStore` of a SQLite history."""

    _database: SqliteDatabase

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        sql, skipped = (_EXPIRING_OF if owners else _EXPIRING), json.dumps([*skip])
        rows = await self._database.rows(sql, by=by.timestamp(), owners=owners, limit=max(limit, 0), skip=skipped)
        return [_record(row) for row in rows]

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        same = await self._database.texts(_SAME, id=record.id, owner=record.owner, revision=record.revision)
        stored = load_undamaged(same[0]) if same else None
        if stored is None:
            return False
        return bool(await self._put(_PUT_EXPIRY, [replace(stored, expires_at=expires_at)]))

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in batches, so that other writers get their turn."""
        added, after = 0, 0
        while rows := await self._database.rows(_WITHOUT_EXPIRY, owners=owners, after=after):
            after = rows[-1][0]
            records = [record for row in rows if (record := load_undamaged(row[1]))]
            ending = [replace(record, expires_at=end) for record in records if (end := until(record)) is not None]
            if ending:
                added += await self._put(_PUT_MISSING_EXPIRY, ending)
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        rows = await self._database.rows(_SIZE, owners=owners)
        return rows[0][0] if rows else 0

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""
        return {row[0]: row[1] for row in await self._database.rows(_SIZES, owners=owners)}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads one conversation at a time."""
        for id_ in await self._database.texts(_IDS, owner=owner):
            for text in await self._database.texts(_TEXTS, id=id_, owner=owner):
                yield text

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`. The text is overwritten in the file."""
        ends = record.expires_at.timestamp() if record.expires_at else None
        values = {"id": record.id, "owner": record.owner, "revision": record.revision}
        return bool(await self._database.erase(_ERASE, **values, ends=ends))

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`. The text is overwritten in the file."""
        values = {"owner": owner, "now": self._database.clock().timestamp()}
        unused = partial(_are_unused, values, records)
        return bool(await self._database.erase(_ERASE_OWNED, unused, owner=owner))

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`: look at each page of the file, in steps of 20 ms."""
        await self._database.wipe()

    async def _put(self, sql: str, records: Sequence[Record]) -> int:
        return await self._database.write(partial(_put_expiry, sql, records), frees_space=True)


def _put_expiry(sql: str, records: Sequence[Record], connection: sqlite3.Connection) -> int:
    """Store the expiry of each record that was not saved in the meantime; return their number."""
    stored = 0
    with transaction(connection):
        for record in records:
            ends = record.expires_at.timestamp() if record.expires_at else None
            values = {"id": record.id, "revision": record.revision, "expires_at": ends, "record": dump_record(record)}
            stored += connection.execute(sql, values).rowcount
    return stored


def _are_unused(values: dict[str, str | float], records: Sequence[Record], connection: sqlite3.Connection) -> bool:
    """Return True if these are all conversations of the owner, as they were loaded, and no run would lose one."""
    stored = connection.execute(_OWNED, values).fetchall()
    return {(values["owner"], *row[:3]) for row in stored} == versions_of(records) and not any(row[3] for row in stored)


def _record(row: sqlite3.Row) -> Record:
    """Return the record in a row of `_EXPIRING`. If its text is damaged, the result has only what the columns have."""
    if record := load_undamaged(row[0]):
        return replace(record, title=row[1], pinned=bool(row[2]))
    ends = datetime.fromtimestamp(row[7], UTC)
    return Record(id=row[3], owner=row[4], revision=row[5], head_id=row[6], expires_at=ends)
