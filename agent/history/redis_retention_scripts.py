"""The scripts for the expiry, sizes and deletion of conversations in a Redis history. See `redis_scripts`."""

from agent.history.redis_scripts import Script

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
