"""The scripts that the server runs for a Redis history. Each is one step: all or nothing, and nothing comes between.

They use core commands only. All keys begin with one hash tag, so that a cluster keeps them on one node. Of each
conversation, by its id:

    conversation  hash: owner, revision, head, expires, place, size, record, title, folded (title), pinned, token
    entries, links, texts   hashes by entry id: the entry, "=" and its parent's id or "", the text that is searched
    order         list: the ids of the entries as they were stored
    runs          set: the ids of its runs
    shared        hash by digest: when this link to it expires or "", a space, and the link

Of each run: `run`, a hash, and `events`, a list. Of each owner: `list` and `pinned`, sorted by place, and `ends`,
sorted by expiry. Of the store: `place` (a counter of runs), `owners`, `sizes` (bytes by owner), `expiring`,
`unfinished`, `ended`, `run-of` (conversations by run), and `shared-by` (conversations by digest of a link). The
unfinished runs of an owner are in the set `answering`. A run has `leased`, when its lease ends, `stopped` if a visitor
wants it to stop, and `watched`, until when it counts as watched.
"""

from dataclasses import dataclass, field
from hashlib import sha1

from agent.history.run_events import LEASE_SECONDS, RENEWED_SECONDS, WATCHED_SECONDS

ENDED_RUN_SECONDS = 24 * 3600
"""Seconds that the server keeps the events of an ended run if nobody removes them."""

_PRELUDE = f"""
local P, ENDED_RUN_SECONDS, at = ARGV[1], {ENDED_RUN_SECONDS}, 2
local call = redis.call
local TIME = call('TIME')
local NOW = TIME[1] + TIME[2] / 1000000 + tonumber(ARGV[2])
local function take() at = at + 1; return ARGV[at] end
local function key(kind, id) return P .. kind .. ':' .. id end
local function live(expires) return not expires or expires == '' or tonumber(expires) > NOW end
local function owned(id, owner)
    local found = call('HMGET', key('conversation', id), 'owner', 'expires')
    return found[1] == owner and live(found[2])
end
local function set_end(id, owner, expires)
    call('ZADD', key('ends', owner), expires == '' and '+inf' or expires, id)
    if expires == '' then call('ZREM', P .. 'expiring', id) else call('ZADD', P .. 'expiring', expires, id) end
end
local function add_size(id, owner, bytes)
    call('HINCRBY', key('conversation', id), 'size', bytes)
    call('HINCRBY', P .. 'sizes', owner, bytes)
end
local function forget_link(id, digest)
    call('HDEL', key('shared', id), digest)
    call('HDEL', P .. 'shared-by', digest)
end
local function finish_run(run)
    if call('ZREM', P .. 'unfinished', run) == 0 then return end
    local id = call('HGET', key('run', run), 'conversation')
    local owner = call('HGET', key('conversation', id or ''), 'owner')
    if owner then call('SREM', key('answering', owner), run) end
end
local function is_leased(until_)
    return tonumber(until_ or 0) >= NOW and tonumber(until_ or 0) <= NOW + {LEASE_SECONDS + 1}
end
local function lease(run) call('HSET', key('run', run), 'leased', string.format('%.6f', NOW + {LEASE_SECONDS})) end
local function forget_run(run)
    local id = call('HGET', P .. 'run-of', run)
    finish_run(run)
    if id then call('SREM', key('runs', id), run) end
    call('UNLINK', key('run', run), key('events', run))
    call('ZREM', P .. 'ended', run)
    call('HDEL', P .. 'run-of', run)
end
"""

_EVENTS = """
local function take_events()
    local count = tonumber(take())
    if count == 0 then return nil end
    local events = {count = count, run = take(), id = take(), owner = take(), of_lost = take() == '1'}
    events.first, events.ended, events.token, events.from = tonumber(take()), take(), take(), at
    at = at + count
    return events
end
local function events_problem(events)
    local run = call('HMGET', key('run', events.run), 'conversation', 'last', 'ended', 'token', 'leased')
    if not run[1] then return events.first ~= 1 and 'run' or nil end
    if run[1] == events.id and run[4] == events.token then return 'stored' end
    local follows = run[1] == events.id and not run[3] and events.first == tonumber(run[2]) + 1
    local may_write = tonumber(run[5] or 0) > 0
    if events.of_lost then may_write = not is_leased(run[5]) end
    return not (follows and may_write) and 'run' or nil
end
local function put_events(events, saved)
    local run, body = key('run', events.run), key('events', events.run)
    local last = events.first + events.count - 1
    for number = 1, events.count do call('RPUSH', body, ARGV[events.from + number]) end
    if events.first == 1 then
        call('HSET', run, 'conversation', events.id, 'saved', 0)
        call('HSET', P .. 'run-of', events.run, events.id)
        call('SADD', key('runs', events.id), events.run)
        local place = call('INCR', P .. 'place')
        call('ZADD', P .. 'unfinished', place, events.run)
        call('SADD', key('answering', events.owner), events.run)
    end
    call('HSET', run, 'last', last, 'token', events.token)
    lease(events.run)
    if saved then call('HSET', run, 'saved', last) end
    if events.ended ~= '' then
        local old = call('ZRANGEBYSCORE', P .. 'ended', '-inf', NOW - ENDED_RUN_SECONDS, 'LIMIT', 0, 20)
        for _, one in ipairs(old) do forget_run(one) end
        call('HSET', run, 'ended', events.ended)
        finish_run(events.run)
        call('ZADD', P .. 'ended', events.ended, events.run)
        call('EXPIRE', run, ENDED_RUN_SECONDS)
        call('EXPIRE', body, ENDED_RUN_SECONDS)
    end
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its prelude. `sha` names it after the server has seen it once."""

    body: str
    text: str = field(init=False)
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        """Put the prelude before it."""
        text = _PRELUDE + self.body
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "sha", sha1(text.encode(), usedforsecurity=False).hexdigest())


SAVE = Script(
    _EVENTS
    + """
local id, owner, revision, token, head, expires = take(), take(), tonumber(take()), take(), take(), take()
local record, title, folded, pinned = take(), take(), take(), take()
local place, is_old, count = tonumber(take()), take() == '1', tonumber(take())
local conversation, links = key('conversation', id), key('links', id)
local old = call('HMGET', conversation, 'owner', 'expires', 'revision', 'token', 'title', 'folded', 'pinned', 'record',
    'place')
if old[1] then
    if old[1] ~= owner or not live(old[2]) then return {'missing'} end
    if old[4] == token then return {'ok', old[5], old[7]} end
    if tonumber(old[3]) ~= revision then return {'conflict'} end
elseif revision ~= 0 then
    return {'missing'}
end
local first, new = at, {}
for number = 0, count - 1 do
    local entry, parent = ARGV[first + 4 * number + 1], ARGV[first + 4 * number + 2]
    if new[entry] or call('HEXISTS', links, entry) == 1 then return {'used', entry} end
    local before = string.sub(parent, 2)
    if parent ~= '' and not new[before] and call('HEXISTS', links, before) == 0 then return {'parent', entry} end
    new[entry] = true
end
at = first + 4 * count
local newest = string.sub(head, 2)
if head ~= '' and not new[newest] and call('HEXISTS', links, newest) == 0 then return {'head'} end
local events = take_events()
if events then
    if events.id ~= id or events.owner ~= owner or events_problem(events) then return {'run'} end
end

if count == 0 and old[9] then place = tonumber(old[9])
elseif is_old then
    while call('ZCOUNT', key('list', owner), place, place) > 0 do place = place + 1 end
else
    local first = call('ZREVRANGE', key('list', owner), 0, 0, 'WITHSCORES')
    place = math.max(place, tonumber(first[2] or 0) + 1)
end
place = string.format('%.0f', place)
local added = string.len(record) - string.len(old[8] or '')
for number = 0, count - 1 do
    local from = first + 4 * number
    local entry, parent, json, text = ARGV[from + 1], ARGV[from + 2], ARGV[from + 3], ARGV[from + 4]
    call('HSET', key('entries', id), entry, json)
    call('HSET', links, entry, parent)
    call('RPUSH', key('order', id), entry)
    if text ~= '' then call('HSET', key('texts', id), entry, text) end
    added = added + string.len(json)
end
if old[1] then
    pinned = old[7]
    if old[5] ~= '' then title, folded = old[5], old[6] end
end
call('HSET', conversation, 'owner', owner, 'revision', revision + 1, 'token', token, 'head', head, 'expires', expires,
    'place', place, 'record', record, 'title', title, 'folded', folded, 'pinned', pinned)
call('ZADD', P .. 'owners', 0, owner)
call('ZADD', key('list', owner), place, id)
if pinned == '1' then call('ZADD', key('pinned', owner), place, id) end
set_end(id, owner, expires)
add_size(id, owner, added)
if events then put_events(events, true) end
return {'ok', title, pinned}
"""
)

APPEND = Script(
    _EVENTS
    + """
local events = take_events()
if not owned(events.id, events.owner) then return 'missing' end
local problem = events_problem(events)
if problem == 'stored' then return 'ok' end
if problem then return problem end
put_events(events, false)
return 'ok'
"""
)

GET = Script("""
local id, owner = take(), take()
if not owned(id, owner) then return {} end
return call('HMGET', key('conversation', id), 'record', 'title', 'pinned')
""")

CHAIN = Script("""
local id, owner, entry, limit = take(), take(), take(), tonumber(take())
if not owned(id, owner) then return {'missing'} end
local links, entries, found = key('links', id), key('entries', id), {'ok'}
if call('HEXISTS', links, entry) == 0 then return {'entry'} end
while entry do
    found[#found + 1] = call('HGET', entries, entry)
    local parent = call('HGET', links, entry)
    entry = parent and parent ~= '' and #found <= limit and string.sub(parent, 2)
end
return found
""")

ENTRIES = Script("""
local id, owner, found = take(), take(), {}
if call('HGET', key('conversation', id), 'owner') ~= owner then return found end
for _, entry in ipairs(call('LRANGE', key('order', id), 0, -1)) do
    found[#found + 1] = call('HGET', key('entries', id), entry)
end
return found
""")

WOULD_LOSE = """
local function would_lose(id)
    local is_live = live(call('HGET', key('conversation', id), 'expires'))
    for _, run in ipairs(call('SMEMBERS', key('runs', id))) do
        local one = call('HMGET', key('run', run), 'ended', 'leased')
        if not one[1] and (is_live or is_leased(one[2])) then return true end
    end
    return false
end
"""
"""The Lua function that tells whether a run would lose its conversation."""

FORGET_CONVERSATION = """
local function forget_conversation(id, owner)
    local size = call('HGET', key('conversation', id), 'size')
    for _, run in ipairs(call('SMEMBERS', key('runs', id))) do forget_run(run) end
    for _, digest in ipairs(call('HKEYS', key('shared', id))) do forget_link(id, digest) end
    local kinds = {'conversation', 'entries', 'links', 'texts', 'order', 'runs'}
    for _, kind in ipairs(kinds) do call('UNLINK', key(kind, id)) end
    call('ZREM', key('list', owner), id)
    call('ZREM', key('pinned', owner), id)
    call('ZREM', key('ends', owner), id)
    call('ZREM', P .. 'expiring', id)
    call('HINCRBY', P .. 'sizes', owner, -tonumber(size))
    if call('EXISTS', key('list', owner)) == 0 then
        call('ZREM', P .. 'owners', owner)
        call('HDEL', P .. 'sizes', owner)
    end
end
"""
"""The Lua function that removes all keys of a conversation."""


FIND = Script("""
local id, owner, ids, after, found = take(), take(), {}, {}, {}
if call('HGET', key('conversation', id), 'owner') ~= owner then return found end
for _ = 1, tonumber(take()) do ids[take()] = true end
while at < #ARGV do after[take()] = true end
local one = next(ids)
if one and not next(ids, one) and not next(after) then
    return {call('HGET', key('entries', id), one) or nil}
end
local links = key('links', id)
for _, entry in ipairs(call('LRANGE', key('order', id), 0, -1)) do
    if ids[entry] or (next(after) and after[call('HGET', links, entry)]) then
        found[#found + 1] = call('HGET', key('entries', id), entry)
    end
end
return found
""")
FOLLOWING = Script("""
local id, owner, entry, known, found = take(), take(), take(), {}, {}
if call('HGET', key('conversation', id), 'owner') ~= owner then return found end
for _, one in ipairs(call('LRANGE', key('order', id), 0, -1)) do
    if one == entry or known[string.sub(call('HGET', key('links', id), one), 2)] then
        known[one] = true
        found[#found + 1] = one
    end
end
return found
""")

LIST = Script("""
local owner, kind, only, skip, limit = take(), take(), take(), tonumber(take()), tonumber(take())
local start, found, ids = 0, {}, {}
while limit > 0 and (start == 0 or #ids == 100) do
    ids = call('ZREVRANGE', key(kind, owner), start, start + 99)
    for _, id in ipairs(ids) do
        local one = call('HMGET', key('conversation', id), 'record', 'title', 'pinned', 'expires')
        if limit > 0 and one[1] and live(one[4]) and (only == '' or one[3] == only) then
            if skip > 0 then
                skip = skip - 1
            else
                found[#found + 1] = {one[1], one[2], one[3]}
                limit = limit - 1
            end
        end
    end
    start = start + 100
end
return found
""")

LABEL = Script("""
local id, owner, title, folded, pinned, instead_of = take(), take(), take(), take(), take(), take()
local conversation = key('conversation', id)
if not owned(id, owner) then return {} end
local old = call('HMGET', conversation, 'title', 'place')
if title ~= '' and (instead_of == '' or instead_of == '=' .. old[1]) then
    call('HSET', conversation, 'title', string.sub(title, 2), 'folded', folded)
end
if pinned ~= '' then call('HSET', conversation, 'pinned', pinned) end
if pinned == '1' then call('ZADD', key('pinned', owner), old[2], id) end
if pinned == '0' then call('ZREM', key('pinned', owner), id) end
return call('HMGET', conversation, 'record', 'title', 'pinned')
""")

EVENTS = Script("""
local run, owner, after = take(), take(), take()
local id = call('HGET', key('run', run), 'conversation')
if not id or not owned(id, owner) then return {0} end
return {1, call('LRANGE', key('events', run), after, -1)}
""")

_STATE = """
local function state(run)
    local one = call('HMGET', key('run', run), 'conversation', 'ended', 'saved', 'leased', 'stopped', 'watched')
    if not one[1] or one[2] then return nil end
    local of = call('HMGET', key('conversation', one[1]), 'owner', 'expires')
    if not of[1] or not live(of[2]) then return nil end
    local is_watched = tonumber(one[6] or 0) > NOW
    return {run, one[1], of[1], one[3], one[4] or '0', is_leased(one[4]) and 0 or 1, one[5] and 1 or 0,
        is_watched and 1 or 0}
end
"""

UNFINISHED = Script(
    _STATE
    + """
local from, portion, limit, found = take(), tonumber(take()), tonumber(take()), {}
local runs = call('ZRANGEBYSCORE', P .. 'unfinished', from, '+inf', 'WITHSCORES', 'LIMIT', 0, portion)
for number = 1, #runs, 2 do
    if #found == limit then break end
    found[#found + 1] = state(runs[number])
end
return {#runs == 2 * portion and '(' .. runs[#runs] or '', found}
"""
)
"""It looks at `portion` runs, and returns where the next ones begin, or "" after the last."""

UNFINISHED_OF = Script(
    _STATE
    + """
local kind, id, found, places = take(), take(), {}, {}
for _, run in ipairs(call('SMEMBERS', key(kind, id))) do
    places[run] = tonumber(call('ZSCORE', P .. 'unfinished', run) or 0)
    found[#found + 1] = state(run)
end
table.sort(found, function(one, other) return places[one[1]] < places[other[1]] end)
return found
"""
)
"""`kind` is `answering` for the id of an owner, and `runs` for that of a conversation."""

HOLD = Script(
    _STATE
    + f"""
local release, found = take(), {{}}
while at < #ARGV do
    local one = state(take())
    if one and release == '1' then call('HSET', key('run', one[1]), 'leased', 0)
    elseif one and tonumber(one[5]) > 0 then
        found[#found + 1] = one
        local left = tonumber(one[5]) - NOW
        if left < {RENEWED_SECONDS} or left > {LEASE_SECONDS + 1} then lease(one[1]) end
    end
end
return found
"""
)

LOOK = Script(
    _STATE
    + f"""
local run, owner, stop = take(), take(), take()
local one = state(run)
if not one or one[3] ~= owner then return {{}} end
call('HSET', key('run', run), 'watched', string.format('%.6f', NOW + {WATCHED_SECONDS}))
if stop == '1' then call('HSET', key('run', run), 'stopped', 1) end
return state(run)
"""
)

WOULD_LOSE_RUN = Script(
    WOULD_LOSE
    + """
return would_lose(take()) and 1 or 0
"""
)

REMOVE = Script("""
local old = call('ZRANGEBYSCORE', P .. 'ended', '-inf', '(' .. take(), 'LIMIT', 0, tonumber(take()))
for _, run in ipairs(old) do forget_run(run) end
return #old
""")
