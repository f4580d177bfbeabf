"""Expiry and sizes of the conversations in a Redis history."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from agent.history import redis_retention_scripts as scripts
from agent.history.codec import dump_record, load_undamaged
from agent.history.records import Record
from agent.history.redis_replicas import RedisReplicas
from agent.history.redis_scripts import ENTRIES
from agent.history.redis_server import RedisServer

PORTION = 200
"""Owners or records that one script reads."""


@dataclass(frozen=True, slots=True)
class RedisRetention:
    """The `RetentionStore` of a Redis history."""

    _server: RedisServer
    _replicas: RedisReplicas

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        found = await self._server.run(scripts.EXPIRING, by.timestamp(), owners, max(limit, 0), *skip)
        return [_record(one) for one in found]

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        text = await self._server.run(scripts.STORED, record.id, record.owner, record.revision)
        stored = load_undamaged(text.decode()) if text else None
        return stored is not None and await self._set_expiry(stored, expires_at)

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in portions, so that other calls get their turn."""
        added = 0
        for owner in await self.sizes(owners=owners):
            kept = 0
            while texts := await self._server.run(scripts.ENDLESS, owner, kept, PORTION):
                for record in map(load_undamaged, [text.decode() if text else "" for text in texts]):
                    end = until(record) if record else None
                    if record and end is not None and await self._set_expiry(record, end, only_missing=True):
                        added += 1
                    else:
                        kept += 1
        return added

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        return sum((await self.sizes(owners=owners)).values())

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""
        begin = owners.encode("utf-8", "surrogatepass")
        found: list[tuple[float, str, int]] = []
        start, last = b"[" + begin, b"[" + begin + b"\xff"
        while start:
            portion = await self._server.run(scripts.SIZES, start, last, PORTION)
            found += [(float(end), owner.decode(), int(size)) for owner, size, end in portion]
            start = b"(" + portion[-1][0] if len(portion) == PORTION else b""
        return {owner: size for _, owner, size in sorted(found, key=lambda one: one[0])}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads one conversation at a time."""
        for id_ in await self._server.run(scripts.IDS, owner):
            for text in await self._server.run(ENTRIES, id_, owner):
                yield text.decode()

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""
        ends = record.expires_at.timestamp() if record.expires_at else ""
        return bool(await self._server.run(scripts.DELETE, record.id, record.owner, record.revision, ends, again=False))

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        return await self._replicas.erase_unused(owner, records)

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. Nothing is left."""

    async def _set_expiry(self, record: Record, expires_at: datetime | None, *, only_missing: bool = False) -> bool:
        ends = expires_at.timestamp() if expires_at else ""
        text = dump_record(replace(record, expires_at=expires_at))
        values = (record.id, record.owner, record.revision, ends, text, int(only_missing))
        return bool(await self._server.run(scripts.SET_EXPIRY, *values))


def labelled(record: Record, stored: Sequence[Any]) -> Record:
    """Return the record with the title and the pin of a reply, which begins with the record's text."""
    return replace(record, title=stored[1].decode(), pinned=stored[2] == b"1")


def _record(stored: Sequence[Any]) -> Record:
    """Return the record of a reply. If its text is damaged, the result has only what the server knows besides it."""
    text, _, _, id_, owner, revision, head, expires = stored
    if record := load_undamaged(text.decode()):
        return labelled(record, stored)
    head_id = head[1:].decode() if head else None
    ends = datetime.fromtimestamp(float(expires), UTC)
    return Record(id=id_.decode(), owner=owner.decode(), revision=int(revision), head_id=head_id, expires_at=ends)
