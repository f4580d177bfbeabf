"""Expiry and sizes of the conversations in a Redis history."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from agent.history.codec import dump_record, load_undamaged
from agent.history.records import Record, versions_of
from agent.history.redis_scripts import ENTRIES, FORGET_CONVERSATION, WOULD_LOSE, Script
from agent.history.redis_server import RedisServer

EXPIRING = Script("""
local by, owners, limit, skip, found, start, ids = take(), take(), tonumber(take()), {}, {}, 0, {}
while at < #ARGV do skip[take()] = true end
while #found < limit and (start == 0 or #ids == 100) do
    ids = call('ZRANGEBYSCORE', P .. 'expiring', '-inf', by, 'LIMIT', start, 100)
    for _, id in ipairs(ids) do
        local owner = call('HGET', key('conversation', id), 'owner')
        if #found < limit and not skip[id] and owner and string.sub(owner, 1, string.len(owners)) == owners then
            local conversation = key('conversation', id)
            local one = call('HMGET', conversation, 'record', 'title', 'pinned', 'revision', 'head', 'expires')
            found[#found + 1] = {one[1], one[2], one[3], id, owner, one[4], one[5], one[6]}
        end
    end
    start = start + 100
end
return found
""")

SIZES = Script("""
local from, to, found = take(), take(), {}
for _, owner in ipairs(call('ZRANGEBYLEX', P .. 'owners', from, to, 'LIMIT', 0, tonumber(take()))) do
    local last = call('ZREVRANGE', key('ends', owner), 0, 0, 'WITHSCORES')
    found[#found + 1] = {owner, call('HGET', P .. 'sizes', owner), last[2]}
end
return found
""")

ENDLESS = Script("""
local owner, start, found = take(), tonumber(take()), {}
for _, id in ipairs(call('ZRANGEBYSCORE', key('ends', owner), '+inf', '+inf', 'LIMIT', start, tonumber(take()))) do
    found[#found + 1] = call('HGET', key('conversation', id), 'record')
end
return found
""")

STORED = Script("""
local id, owner, revision = take(), take(), take()
local one = call('HMGET', key('conversation', id), 'owner', 'revision', 'record')
return one[1] == owner and one[2] == revision and one[3]
""")

SET_EXPIRY = Script("""
local id, owner, revision, expires, record, only_missing = take(), take(), take(), take(), take(), take()
local conversation = key('conversation', id)
local old = call('HMGET', conversation, 'owner', 'revision', 'record', 'expires')
if old[1] ~= owner or old[2] ~= revision or (only_missing == '1' and old[4] ~= '') then return 0 end
add_size(id, owner, string.len(record) - string.len(old[3]))
call('HSET', conversation, 'record', record, 'expires', expires)
set_end(id, owner, expires)
return 1
""")

IDS = Script("""
return call('ZRANGE', key('list', take()), 0, -1)
""")

DELETE = Script(
    FORGET_CONVERSATION
    + """
local id, owner, revision = take(), take(), take()
local old = call('HMGET', key('conversation', id), 'owner', 'expires', 'revision')
if old[1] ~= owner then return 0 end
if revision == '' and not live(old[2]) then return 0 end
if revision ~= '' and (revision ~= old[3] or take() ~= old[2]) then return 0 end
forget_conversation(id, owner)
return 1
"""
)

ERASE_UNUSED = Script(
    WOULD_LOSE
    + FORGET_CONVERSATION
    + """
local owner, count, ids = take(), tonumber(take()), {}
for number = 1, count do
    local of, id, revision, expires = take(), take(), take(), take()
    local one = call('HMGET', key('conversation', id), 'owner', 'revision', 'expires')
    if of ~= owner or one[1] ~= owner or one[2] ~= revision or one[3] ~= expires then return 0 end
    if would_lose(id) then return 0 end
    ids[number] = id
end
if count == 0 or call('ZCARD', key('list', owner)) ~= count then return 0 end
for _, id in ipairs(ids) do forget_conversation(id, owner) end
return 1
"""
)
"""Each record is its owner, id, revision and end."""

TIME = Script("return string.format('%.6f', NOW)")

PORTION = 200
"""Owners or records that one script reads."""


@dataclass(frozen=True, slots=True)
class RedisRetention:
    """The `RetentionStore` of a Redis history."""

    _server: RedisServer

    async def time(self) -> datetime:
        """Implement `RetentionStore.time`."""
        return datetime.fromtimestamp(float(await self._server.run(TIME)), UTC)

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        found = await self._server.run(EXPIRING, by.timestamp(), owners, max(limit, 0), *skip)
        return [_record(one) for one in found]

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        text = await self._server.run(STORED, record.id, record.owner, record.revision)
        stored = load_undamaged(text.decode()) if text else None
        return stored is not None and await self._set_expiry(stored, expires_at)

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`, in portions, so that other calls get their turn."""
        added = 0
        for owner in await self.sizes(owners=owners):
            kept = 0
            while texts := await self._server.run(ENDLESS, owner, kept, PORTION):
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
            portion = await self._server.run(SIZES, start, last, PORTION)
            found += [(float(end), owner.decode(), int(size)) for owner, size, end in portion]
            start = b"(" + portion[-1][0] if len(portion) == PORTION else b""
        return {owner: size for _, owner, size in sorted(found, key=lambda one: one[0])}

    async def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`. Reads one conversation at a time."""
        for id_ in await self._server.run(IDS, owner):
            for text in await self._server.run(ENTRIES, id_, owner):
                yield text.decode()

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""
        ends = record.expires_at.timestamp() if record.expires_at else ""
        return bool(await self._server.run(DELETE, record.id, record.owner, record.revision, ends, again=False))

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        versions = versions_of(records)
        values = [value for *version, end in versions for value in (*version, "" if end is None else end)]
        return bool(await self._server.run(ERASE_UNUSED, owner, len(versions), *values, again=False))

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`. Nothing is left."""

    async def _set_expiry(self, record: Record, expires_at: datetime | None, *, only_missing: bool = False) -> bool:
        ends = expires_at.timestamp() if expires_at else ""
        text = dump_record(replace(record, expires_at=expires_at))
        values = (record.id, record.owner, record.revision, ends, text, int(only_missing))
        return bool(await self._server.run(SET_EXPIRY, *values))


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
