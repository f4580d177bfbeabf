"""The scripts for the replicas of a Redis history. `replicas` is a sorted set: by id, when each was last seen.

Times are the server's own, in seconds. A run's hash has its `replica`, `stopped` if a visitor wants it to stop, and
when a page that another replica serves last `watched` it.
"""

from agent.history.redis_scripts import Script
from agent.history.replicas import SILENT_SECONDS, STEADY_GAP_SECONDS, WATCHED_SECONDS

_LOST = f"""
local function server_time()
    local time = call('TIME')
    return time[1] + time[2] / 1000000
end
local function silence(replica)
    local seen = call('ZSCORE', P .. 'replicas', replica)
    return seen and math.abs(server_time() - tonumber(seen))
end
local function is_lost(run, replica, is_steady)
    local one = call('HMGET', key('run', run), 'conversation', 'ended', 'replica')
    if not one[1] or one[2] or (one[3] or '') == replica then return false end
    local silent, mine = silence(one[3] or ''), silence(replica)
    if not silent then return true end
    return silent > {SILENT_SECONDS} and is_steady == '1' and mine and mine < {STEADY_GAP_SECONDS}
end
"""

BEAT = Script(
    _LOST
    + """
call('ZADD', P .. 'replicas', server_time(), take())
call('ZREMRANGEBYSCORE', P .. 'replicas', '-inf', server_time() - 86400)
return tostring(server_time())
"""
)

LEAVE = Script("""
return call('ZREM', P .. 'replicas', take())
""")

LOST = Script(
    _LOST
    + """
local replica, is_steady, limit, found = take(), take(), tonumber(take()), {}
for _, run in ipairs(call('ZRANGE', P .. 'unfinished', 0, -1)) do
    if #found >= limit then break end
    if is_lost(run, replica, is_steady) then
        local one = call('HMGET', key('run', run), 'conversation', 'saved')
        local of = call('HMGET', key('conversation', one[1]), 'owner', 'expires')
        if of[1] and live(of[2]) then found[#found + 1] = {run, one[1], of[1], one[2]} end
    end
end
return found
"""
)

TAKE = Script(
    _LOST
    + """
local run, replica, is_steady = take(), take(), take()
if not is_lost(run, replica, is_steady) then return 0 end
call('HSET', key('run', run), 'replica', replica)
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
local is_live = live(call('HGET', key('conversation', id), 'expires'))
for _, run in ipairs(call('SMEMBERS', key('runs', id))) do
    if call('ZSCORE', P .. 'unfinished', run) then
        local of = call('HGET', key('run', run), 'replica') or ''
        if is_live or (of ~= replica and not is_lost(run, replica, is_steady)) then return 1 end
    end
end
return 0
"""
)

UNFINISHED_OF = Script("""
local owner, found, seen = take(), {}, {}
for _, run in ipairs(call('ZRANGE', P .. 'unfinished', 0, -1)) do
    local id = call('HGET', key('run', run), 'conversation')
    if id and not seen[id] and owned(id, owner) then
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
for _, run in ipairs(call('ZRANGE', P .. 'unfinished', 0, -1)) do
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
