"""The scripts that search a Redis history. See `agent.history.redis_scripts`."""

from agent.history.redis_scripts import Script

_HAS = """
local words = {}
local function has(text)
    for _, word in ipairs(words) do
        if not string.find(text, word, 1, true) then return false end
    end
    return true
end
"""
SEARCH = Script(
    _HAS
    + """
local owner, from, half, index, limit = take(), take(), take(), tonumber(take()), tonumber(take())
local budget, found = tonumber(take()), {}
while at < #ARGV do words[#words + 1] = take() end
local ids = call('ZREVRANGEBYSCORE', key('list', owner), from, '-inf', 'WITHSCORES', 'LIMIT', 0, 50)
for number = 1, #ids, 2 do
    local id, place = ids[number], ids[number + 1]
    local one = call('HMGET', key('conversation', id), 'record', 'title', 'pinned', 'expires', 'folded')
    if one[1] and live(one[4]) then
        local entries, hit = call('LRANGE', key('order', id), 0, -1), nil
        local next = id == half and math.min(index, #entries) or #entries
        while next > 0 and not hit do
            if budget < 0 then return {place, id, next, found} end
            local text = call('HGET', key('texts', id), entries[next])
            budget = budget - 100 - string.len(text or '')
            if text and has(text) then hit = entries[next] end
            next = next - 1
        end
        if hit or has(one[5]) then
            found[#found + 1] = {one[1], one[2], one[3], hit and call('HGET', key('entries', id), hit) or ''}
            limit = limit - 1
            if limit == 0 then return {'', '', 0, found} end
        end
    end
    budget = budget - 1000
    if budget < 0 then return {'(' .. place, '', 0, found} end
end
return {#ids == 100 and '(' .. ids[100] or '', '', 0, found}
"""
)

# Each conversation is searched from its newest entry, or from the one where the portion before has ended.
SHOWN = Script(
    _HAS
    + """
local budget, found = tonumber(take()), {}
for number = 1, tonumber(take()) do words[number] = take() end
while at < #ARGV do
    local id, link, hit = take(), take(), ''
    if link == '' then link = call('HGET', key('conversation', id), 'head') or '' end
    while link ~= '' and hit == '' do
        if budget < 0 then return {#found, link, found} end
        local entry = string.sub(link, 2)
        local text = call('HGET', key('texts', id), entry)
        budget = budget - 100 - string.len(text or '')
        if text and has(text) then hit = call('HGET', key('entries', id), entry) end
        link = call('HGET', key('links', id), entry) or ''
    end
    found[#found + 1] = hit
end
return {#found, '', found}
"""
)
