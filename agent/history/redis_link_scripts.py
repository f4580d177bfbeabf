"""The scripts for the read-only links in a Redis history. See `agent.history.redis_scripts`."""

from agent.history.redis_scripts import Script

_LINKS = """
local function end_of(stored) return string.match(stored, '^%S*') end
local function text_of(stored) return string.match(stored, '^%S* (.*)$') end
local function find_link(digest)
    local id = call('HGET', P .. 'shared-by', digest)
    local stored = id and call('HGET', key('shared', id), digest)
    if not stored or not live(end_of(stored)) then return nil end
    local found = call('HMGET', key('conversation', id), 'owner', 'expires')
    if found[1] and live(found[2]) then return id, found[1], stored end
end
"""

PUT_LINK = Script(
    _LINKS
    + """
local digest, id, owner, expires, link, most = take(), take(), take(), take(), take(), take()
if not owned(id, owner) then return 'missing' end
if call('HEXISTS', P .. 'shared-by', digest) == 1 then return 'used' end
local links = call('HGETALL', key('shared', id))
for number = 1, #links, 2 do
    if not live(end_of(links[number + 1])) then forget_link(id, links[number]) end
end
if most ~= '' and call('HLEN', key('shared', id)) >= tonumber(most) then return 'full' end
call('HSET', key('shared', id), digest, expires .. ' ' .. link)
call('HSET', P .. 'shared-by', digest, id)
return 'ok'
"""
)

GET_LINK = Script(
    _LINKS
    + """
local id, _, stored = find_link(take())
return id and text_of(stored)
"""
)

LINKS_OF = Script(
    _LINKS
    + """
local id, owner, found = take(), take(), {1}
if not owned(id, owner) then return {0} end
for _, stored in ipairs(call('HVALS', key('shared', id))) do found[#found + 1] = text_of(stored) end
return found
"""
)

REMOVE_LINK = Script(
    _LINKS
    + """
local digest, owner = take(), take()
local id, found = find_link(digest)
if not id or found ~= owner then return 0 end
forget_link(id, digest)
return 1
"""
)
