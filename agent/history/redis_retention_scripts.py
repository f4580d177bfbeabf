"""The scripts for the expiry and the sizes of conversations in a Redis history. See `agent.history.redis_scripts`."""

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
