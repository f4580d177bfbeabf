"""The replicas of a Redis history. Redis does not notice a dead process, so the last sign of life decides alone."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.errors import HistoryError
from agent.history.records import Record, new_id, versions_of
from agent.history.redis_scripts import FORGET_CONVERSATION, Script
from agent.history.redis_server import RedisServer
from agent.history.replicas import (
    SILENT_SECONDS,
    STEADY_GAP_SECONDS,
    WATCHED_SECONDS,
    OwnRun,
    Steadiness,
    dump_sizes,
    sum_of_sizes,
)
from agent.history.run_events import UnfinishedRun

# The scripts. `replicas` is a sorted set: by id, when each was last seen. `reserved` is a hash: by id, the bytes that
# each is about to store, as JSON. Times are the server's own, in seconds. A run's hash has its `replica`, `stopped` if
# a visitor wants it to stop, and when a page that another replica serves last `watched` it.
_LOST = f"""
local function server_time()
    local time = call('TIME')
    return time[1] + time[2] / 1000000
end
local function silence(replica)
    local seen = call('ZSCORE', P .. 'replicas', replica)
    return seen and math.abs(server_time() - tonumber(seen))
end
local function is_gone(writer, replica, is_steady)
    if writer == replica then return false end
    local silent, mine = silence(writer), silence(replica)
    if not silent then return true end
    return silent > {SILENT_SECONDS} and is_steady == '1' and mine and mine < {STEADY_GAP_SECONDS}
end
local function is_lost(run, replica, is_steady)
    local one = call('HMGET', key('run', run), 'conversation', 'ended', 'replica')
    return one[1] and not one[2] and is_gone(one[3] or '', replica, is_steady)
end
local function is_answering(id, replica, is_steady)
    local is_live = live(call('HGET', key('conversation', id), 'expires'))
    for _, run in ipairs(call('SMEMBERS', key('runs', id))) do
        if call('ZSCORE', P .. 'unfinished', run) then
            local of = call('HGET', key('run', run), 'replica') or ''
            if is_live or (of ~= replica and not is_lost(run, replica, is_steady)) then return true end
        end
    end
    return false
end
local function reserved_elsewhere(mine)
    local all, found = call('HGETALL', P .. 'reserved'), {{}}
    for number = 1, #all, 2 do
        local silent = all[number] ~= mine and silence(all[number])
        if silent and silent < {SILENT_SECONDS} then found[#found + 1] = all[number + 1] end
    end
    return found
end
"""

BEAT = Script(
    _LOST
    + """
call('ZADD', P .. 'replicas', server_time(), take())
call('ZREMRANGEBYSCORE', P .. 'replicas', '-inf', server_time() - 86400)
for _, replica in ipairs(call('HKEYS', P .. 'reserved')) do
    if not silence(replica) then call('HDEL', P .. 'reserved', replica) end
end
local writers, indexed = call('SMEMBERS', P .. 'writers'), 0
for _, replica in ipairs(writers) do indexed = indexed + call('ZCARD', key('writing', replica)) end
if indexed ~= call('ZCARD', P .. 'unfinished') then
    for _, replica in ipairs(writers) do call('UNLINK', key('writing', replica)) end
    call('UNLINK', P .. 'writers')
    local runs = call('ZRANGE', P .. 'unfinished', 0, -1, 'WITHSCORES')
    for number = 1, #runs, 2 do
        local one = call('HMGET', key('run', runs[number]), 'conversation', 'replica')
        index_run(runs[number], one[1] or '', one[2] or '', runs[number + 1])
    end
end
return tostring(server_time())
"""
)
"""It also finds the runs that a version without `writing` and `answering` has begun or ended, and indexes all again."""

LEAVE = Script("""
local replica = take()
call('HDEL', P .. 'reserved', replica)
return call('ZREM', P .. 'replicas', replica)
""")

LOST = Script(
    _LOST
    + """
local replica, is_steady, limit, found = take(), take(), tonumber(take()), {}
for _, writer in ipairs(call('SMEMBERS', P .. 'writers')) do
    local runs = is_gone(writer, replica, is_steady) and call('ZRANGE', key('writing', writer), 0, -1, 'WITHSCORES')
    local left = limit
    for number = 1, runs and #runs or 0, 2 do
        if left == 0 then break end
        local run = runs[number]
        if is_lost(run, replica, is_steady) then
            local one = call('HMGET', key('run', run), 'conversation', 'saved')
            local of = call('HMGET', key('conversation', one[1]), 'owner', 'expires')
            if of[1] and live(of[2]) then
                found[#found + 1] = {run, one[1], of[1], one[2], runs[number + 1]}
                left = left - 1
            end
        end
    end
end
table.sort(found, function(one, other) return tonumber(one[5]) < tonumber(other[5]) end)
for number = #found, limit + 1, -1 do found[number] = nil end
return found
"""
)

TAKE = Script(
    _LOST
    + """
local run, replica, is_steady = take(), take(), take()
if not is_lost(run, replica, is_steady) then return 0 end
local one = call('HMGET', key('run', run), 'conversation', 'replica')
leave_replica(run, one[2] or '')
call('HSET', key('run', run), 'replica', replica)
index_run(run, one[1], replica, call('ZSCORE', P .. 'unfinished', run))
return 1
"""
)

UNFINISHED_RUN = Script("""
local id, owner, newest, place = take(), take(), '', -1
if not owned(id, owner) then return '' end
for _, run in ipairs(call('SMEMBERS', key('runs', id))) do
    local score = tonumber(call('ZSCORE', P .. 'unfinished', run) or '-1')
    if score > place then newest, place = run, score end
end
return newest
""")

IS_ANSWERING = Script(
    _LOST
    + """
local id, replica, is_steady = take(), take(), take()
return is_answering(id, replica, is_steady) and 1 or 0
"""
)

UNFINISHED_OF = Script("""
local owner, found, seen = take(), {}, {}
for _, run in ipairs(call('SMEMBERS', key('answering', owner))) do
    local id = call('ZSCORE', P .. 'unfinished', run) and call('HGET', key('run', run), 'conversation')
    if not id then
        call('SREM', key('answering', owner), run)
    elseif not seen[id] and owned(id, owner) then
        seen[id] = true
        found[#found + 1] = id
    end
end
return found
""")

REQUEST_STOP = Script("""
local run, owner = take(), take()
local one = call('HMGET', key('run', run), 'conversation', 'ended')
if not one[1] or one[2] or not owned(one[1], owner) then return 0 end
call('HSET', key('run', run), 'stopped', 1)
return 1
""")

WATCH = Script(
    _LOST
    + """
local run, owner = take(), take()
local one = call('HMGET', key('run', run), 'conversation', 'ended')
if one[1] and not one[2] and owned(one[1], owner) then call('HSET', key('run', run), 'watched', server_time()) end
return 1
"""
)

OWN = Script(
    _LOST
    + f"""
local replica, found = take(), {{}}
local since = server_time() - {WATCHED_SECONDS}
for _, run in ipairs(call('ZRANGE', key('writing', replica), 0, -1)) do
    local one = call('HMGET', key('run', run), 'replica', 'conversation', 'saved', 'stopped', 'watched')
    local of = one[1] == replica and call('HMGET', key('conversation', one[2]), 'owner', 'expires')
    if of and of[1] and live(of[2]) then
        local watched = one[5] and tonumber(one[5]) > since
        found[#found + 1] = {{run, one[2], of[1], one[3], one[4] and 1 or 0, watched and 1 or 0}}
    end
end
return found
"""
)

RESERVE = Script(
    _LOST
    + """
local replica, sizes = take(), take()
if sizes == '' or not silence(replica) then return call('HDEL', P .. 'reserved', replica) end
return call('HSET', P .. 'reserved', replica, sizes)
"""
)

RESERVED = Script(
    _LOST
    + """
return reserved_elsewhere(take())
"""
)

ERASE_UNUSED = Script(
    _LOST
    + FORGET_CONVERSATION
    + """
local owner, replica, is_steady, count, ids = take(), take(), take(), tonumber(take()), {}
for number = 1, count do
    local of, id, revision, expires = take(), take(), take(), take()
    local one = call('HMGET', key('conversation', id), 'owner', 'revision', 'expires')
    if of ~= owner or one[1] ~= owner or one[2] ~= revision or one[3] ~= expires then return 0 end
    if is_answering(id, replica, is_steady) then return 0 end
    ids[number] = id
end
if count == 0 or call('ZCARD', key('list', owner)) ~= count then return 0 end
for _, text in ipairs(reserved_elsewhere(replica)) do
    local is_read, sizes = pcall(cjson.decode, text)
    if not is_read or sizes[owner] then return 0 end
end
for _, id in ipairs(ids) do forget_conversation(id, owner) end
return 1
"""
)
"""Each record is its owner, id, revision and end. A reservation for an owner that is no text counts for everybody."""

TIME = Script("return string.format('%.6f', NOW)")


log = logging.getLogger(__name__)


class RedisReplicas:
    """The `Replicas` of a Redis history."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._id = ""
        self._steadiness = Steadiness()
        self._beating = asyncio.Lock()

    @property
    def id(self) -> str:
        """Implement `Replicas.id`."""
        return self._id

    async def time(self) -> datetime:
        """Implement `Replicas.time`."""
        return datetime.fromtimestamp(float(await self._server.run(TIME)), UTC)

    async def beat(self) -> None:
        """Implement `Replicas.beat`."""
        async with self._beating:
            id_ = self._id or new_id()
            self._steadiness.add(float(await self._server.run(BEAT, id_)))
            self._id = id_

    async def leave(self) -> None:
        """Implement `Replicas.leave`."""
        try:
            if self._id:
                await self._server.run(LEAVE, self._id)
        except HistoryError as error:
            log.info("the replica could not say that it leaves: %s", error)
        self._id = ""

    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        """Implement `Replicas.lost_runs`."""
        is_steady = int(self._steadiness.is_steady)
        return [_run(one) for one in await self._server.run(LOST, self._id, is_steady, max(limit, 0))]

    async def take(self, run_id: str) -> bool:
        """Implement `Replicas.take`."""
        is_steady = int(self._steadiness.is_steady)
        return bool(await self._server.run(TAKE, run_id, self._id, is_steady, again=False))

    async def unfinished_run(self, conversation_id: str, *, owner: str) -> str | None:
        """Implement `Replicas.unfinished_run`."""
        return (await self._server.run(UNFINISHED_RUN, conversation_id, owner)).decode() or None

    async def is_answering(self, conversation_id: str) -> bool:
        """Implement `Replicas.is_answering`."""
        is_steady = int(self._steadiness.is_steady)
        return bool(await self._server.run(IS_ANSWERING, conversation_id, self._id, is_steady))

    async def unfinished_conversations(self, owner: str) -> Sequence[str]:
        """Implement `Replicas.unfinished_conversations`."""
        return [id_.decode() for id_ in await self._server.run(UNFINISHED_OF, owner)]

    async def request_stop(self, run_id: str, *, owner: str) -> bool:
        """Implement `Replicas.request_stop`."""
        return bool(await self._server.run(REQUEST_STOP, run_id, owner))

    async def watch(self, run_id: str, *, owner: str) -> None:
        """Implement `Replicas.watch`."""
        await self._server.run(WATCH, run_id, owner)

    async def own_runs(self) -> Sequence[OwnRun]:
        """Implement `Replicas.own_runs`."""
        found = await self._server.run(OWN, self._id)
        return [OwnRun(_run(one), is_stopped=bool(one[4]), is_watched=bool(one[5])) for one in found]

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        versions, is_steady = versions_of(records), int(self._steadiness.is_steady)
        values = [value for *version, end in versions for value in (*version, "" if end is None else end)]
        reply = await self._server.run(ERASE_UNUSED, owner, self._id, is_steady, len(versions), *values, again=False)
        return bool(reply)

    async def reserve(self, sizes: Mapping[str, int]) -> None:
        """Implement `Replicas.reserve`."""
        await self._server.run(RESERVE, self._id, dump_sizes(sizes))

    async def reserved(self) -> Mapping[str, int]:
        """Implement `Replicas.reserved`."""
        return sum_of_sizes(text.decode() for text in await self._server.run(RESERVED, self._id))


def _run(found: Sequence[Any]) -> UnfinishedRun:
    run, conversation, owner, saved = found[:4]
    return UnfinishedRun(
        run_id=run.decode(), conversation_id=conversation.decode(), owner=owner.decode(), saved=int(saved)
    )
