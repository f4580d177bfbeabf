"""Conversations on a Redis server, or one of its successors. Any number of processes and machines can share them.

Each call is one script on the server. It is as durable as the server is set to be, see docs/configuration.md.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

from agent.errors import Conflict, HistoryError, NotFound
from agent.history import redis_scripts as scripts
from agent.history.codec import (
    dumped,
    in_steps,
    load_entries,
    load_records,
    next_revision,
    place_at,
    stored_title,
)
from agent.history.contract import LinkStore, RetentionStore, RunStore, delete_vectors
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link, too_many
from agent.history.records import CHANGED_ELSEWHERE, NO_CONVERSATION, NO_ENTRY, Entry, Record, new_id, now
from agent.history.redis_retention import DELETE, RedisRetention, labelled
from agent.history.redis_scripts import Script
from agent.history.redis_server import Argument, RedisServer
from agent.history.run_events import NO_RUN, RUN_CONFLICT, RunEvent, RunEvents, UnfinishedRun
from agent.history.search import SearchHit, fold, hits_as_shown, hits_in, hits_with_branches, words_of

REMOVED_RUNS = 100
"""Runs that one script removes."""
UNFINISHED_RUNS = 200
"""Runs that one script looks at, to find those without an end."""


@dataclass(frozen=True, slots=True)
class RedisRuns:
    """The `RunStore` of a Redis history."""

    _server: RedisServer

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`."""
        arguments = event_arguments(events, self._server.clock())
        match await self._server.run(scripts.APPEND, *arguments):
            case b"missing":
                raise NotFound(NO_RUN)
            case b"run":
                raise Conflict(RUN_CONFLICT)
            case _:
                pass

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        found, *events = await self._server.run(scripts.EVENTS, run_id, owner, max(after, 0))
        if not found:
            raise NotFound(NO_RUN)
        return [RunEvent(number, text.decode()) for number, text in enumerate(events[0], max(after, 0) + 1)]

    async def unfinished(
        self, *, owner: str | None = None, conversation_id: str | None = None, limit: int = 1000
    ) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`, in portions, so that other calls get their turn."""
        if owner is not None:
            which = ("answering", owner) if conversation_id is None else ("runs", conversation_id)
            runs = [_unfinished(one) for one in await self._server.run(scripts.UNFINISHED_OF, *which)]
            return [run for run in runs if run.owner == owner][: max(limit, 0)]
        start, runs = b"-inf", list[UnfinishedRun]()
        while start and len(runs) < limit:
            left = limit - len(runs)
            start, found = await self._server.run(scripts.UNFINISHED, start, UNFINISHED_RUNS, left)
            runs += map(_unfinished, found)
        return runs

    async def hold(self, run_ids: Collection[str], *, release: bool = False) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.hold`."""
        return [_unfinished(one) for one in await self._server.run(scripts.HOLD, int(release), *run_ids)]

    async def look(self, run_id: str, *, owner: str, stop: bool = False) -> UnfinishedRun | None:
        """Implement `RunStore.look`."""
        found = await self._server.run(scripts.LOOK, run_id, owner, int(stop))
        return _unfinished(found) if found else None

    async def would_lose(self, record: Record) -> bool:
        """Implement `RunStore.would_lose`."""
        return bool(await self._server.run(scripts.WOULD_LOSE_RUN, record.id))

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`, in portions, so that other calls get their turn."""
        removed = 0
        while True:
            count = await self._server.run(scripts.REMOVE, before.timestamp(), REMOVED_RUNS)
            removed += count
            if count < REMOVED_RUNS:
                return removed


def _unfinished(found: Sequence[Any]) -> UnfinishedRun:
    run, conversation, owner, saved, leased_until, is_lost, is_stopped, is_watched = found
    return UnfinishedRun(
        run_id=run.decode(),
        conversation_id=conversation.decode(),
        owner=owner.decode(),
        saved=int(saved),
        leased_until=float(leased_until),
        is_lost=bool(is_lost),
        is_stopped=bool(is_stopped),
        is_watched=bool(is_watched),
    )


def event_arguments(events: RunEvents | None, at: datetime) -> list[Argument]:
    """Return the arguments of a script for a run's events, with a name by which it recognises its repetition."""
    if events is None:
        return [0]
    ended = at.timestamp() if events.has_ended else ""
    head: list[Argument] = [
        len(events.events),
        events.run_id,
        events.conversation_id,
        events.owner,
        int(events.of_lost),
    ]
    return [*head, events.first, ended, new_id(), *(event.json for event in events.events)]


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


@dataclass(frozen=True, slots=True)
class RedisLinks:
    """The `LinkStore` of a Redis history."""

    _server: RedisServer

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        expires = link.expires_at.timestamp() if link.expires_at else ""
        values = (link.digest, link.conversation_id, link.owner, expires, dump_link(link))
        match await self._server.run(PUT_LINK, *values, "" if most is None else most, again=False):
            case b"missing":
                raise NotFound(NO_CONVERSATION)
            case b"used":
                raise Conflict(USED_DIGEST)
            case b"full" if most is not None:
                raise too_many(most)
            case _:
                pass

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        text = await self._server.run(GET_LINK, digest)
        if not text:
            raise NotFound(NO_LINK)
        return load_link(text.decode())

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        found, *texts = await self._server.run(LINKS_OF, conversation_id, owner)
        if not found:
            raise NotFound(NO_CONVERSATION)
        return live_links((load_link(text.decode()) for text in texts), self._server.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        if not await self._server.run(REMOVE_LINK, digest, owner, again=False):
            raise NotFound(NO_LINK)


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


SEARCH_BYTES = 1_000_000
"""About the bytes of text that one script searches before other calls get their turn, some milliseconds."""


class RedisStore:
    """A `HistoryStore` on a server. It owns its connections until `aclose`.

    A cancelled save has stored everything or nothing. If the connection breaks, a save is repeated and stored once. If
    the URL `is_secret`, errors don't name it.
    """

    is_shared = True

    def __init__(self, url: str, *, clock: Callable[[], datetime] = now, is_secret: bool = False) -> None:
        self.server = RedisServer(url, clock, is_secret=is_secret)
        self.runs: RunStore = RedisRuns(self.server)
        self.links: LinkStore = RedisLinks(self.server)
        self.retention: RetentionStore = RedisRetention(self.server)

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`. `events` must be of a run of this conversation."""
        texts, searched = await dumped(entries)
        at = self.server.clock()
        saved, text = next_revision(record, entries, at)
        arguments: list[Argument] = [record.id, record.owner, record.revision, new_id()]
        arguments += [_link(record.head_id), saved.expires_at.timestamp() if saved.expires_at else "", text]
        arguments += [saved.title, fold(saved.title), int(saved.pinned)]
        arguments += [place_at(saved.updated_at), int(saved.updated_at < at), len(entries)]
        for entry, json, found in zip(entries, texts, searched, strict=True):
            arguments += [entry.id, _link(entry.parent_id), json, found]
        arguments += event_arguments(events, at)
        reply = await self.server.run(scripts.SAVE, *arguments)
        match reply:
            case [b"ok", title, pinned]:
                return replace(saved, title=title.decode(), pinned=pinned == b"1")
            case [b"missing"]:
                raise NotFound(NO_CONVERSATION)
            case [b"conflict"]:
                raise Conflict(CHANGED_ELSEWHERE)
            case [b"run"]:
                raise Conflict(RUN_CONFLICT)
            case _:
                raise HistoryError(_broken_link(reply, record))

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        return self._record(await self.server.run(scripts.GET, conversation_id, owner))

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        if record.head_id is None or (limit is not None and limit <= 0):
            await self.get(record.id, owner=record.owner)
            return []
        most = 2**53 if limit is None else limit
        status, *texts = await self.server.run(scripts.CHAIN, record.id, record.owner, record.head_id, most)
        if status != b"ok":
            raise NotFound(NO_CONVERSATION if status == b"missing" else NO_ENTRY)
        return await in_steps(load_entries, [_text(one) for one in reversed(texts)])

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        texts = await self.server.run(scripts.ENTRIES, record.id, record.owner)
        return await in_steps(load_entries, [*map(_text, texts)])

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        values = [len(ids), *ids, *map(_link, after)]
        texts = await self.server.run(scripts.FIND, record.id, record.owner, *values)
        return await in_steps(load_entries, [*map(_text, texts)])

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        found = await self.server.run(scripts.FOLLOWING, record.id, record.owner, entry_id)
        return [id_.decode("utf-8", "surrogatepass") for id_ in found]

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`."""
        kind, only = ("pinned" if pinned else "list"), ("0" if pinned is False else "")
        found = await self.server.run(scripts.LIST, owner, kind, only, max(offset, 0), max(limit, 0))
        return [self._record(one) for one in found]

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`. Reads all text of the owner on the server, in portions."""
        words, hits = words_of(query), list[SearchHit]()
        place, half, index = b"+inf", b"", 0
        while words and place and len(hits) < limit:
            place, half, index, found = await self.server.run(
                SEARCH, owner, place, half, index, limit - len(hits), SEARCH_BYTES, *words
            )
            for *stored, entry in found:
                (hit,) = await in_steps(load_entries, [_text(entry)]) if entry else [None]
                hits += await hits_in([(self._record(stored), hit)], words)
        return await hits_as_shown(hits, await self._shown(hits_with_branches(hits), words), words)

    async def _shown(self, branched: Collection[str], words: Sequence[str]) -> dict[str, Entry]:
        """Return the newest message with all words on the branch that is shown, of each conversation with one."""
        shown, rest = dict[str, Entry](), list[tuple[str, str | bytes]]((id_, "") for id_ in branched)
        while rest:
            arguments: list[Argument] = [SEARCH_BYTES, len(words), *words, *chain.from_iterable(rest)]
            done, entry, found = await self.server.run(SHOWN, *arguments)
            for (id_, _), text in zip(rest, found, strict=False):
                if text:
                    (shown[id_],) = await in_steps(load_entries, [_text(text)])
            rest = rest[done:]
            if rest:
                rest[0] = rest[0][0], entry
        return shown

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Record:
        """Implement `HistoryStore.label`."""
        if title is not None:
            title = stored_title(title)
        pin = "" if pinned is None else int(pinned)
        folded = fold(title or "")
        return self._record(
            await self.server.run(scripts.LABEL, conversation_id, owner, _link(title), folded, pin, _link(instead_of))
        )

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        await delete_vectors(self, conversation_id, owner)
        if not await self.server.run(DELETE, conversation_id, owner, "", again=False):
            raise NotFound(NO_CONVERSATION)

    async def find_weaknesses(self) -> Sequence[tuple[str, str]]:
        """Return each setting of the server that can lose conversations, and what to do about it."""
        info, found = await self.server.info(), list[tuple[str, str]]()
        if not info.get("aof_enabled"):
            found.append(("it keeps no log of changes, so a restart can lose conversations", "Set appendonly to yes."))
        if (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
            message = f"its maxmemory-policy is {policy}, so it deletes conversations when its memory is full"
            found.append((message, "Set maxmemory-policy to noeviction."))
        if info.get("cluster_enabled"):
            found.append(("it is a node of a cluster, and only one node is asked", "Name a server of its own."))
        return found

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`. Calls in progress are finished first."""
        await self.server.aclose()

    def _record(self, stored: Sequence[Any]) -> Record:
        """Return the record of a reply. Raises `NotFound` if it is empty."""
        if not stored:
            raise NotFound(NO_CONVERSATION)
        return labelled(load_records([_text(stored[0])])[0], stored)


def _link(text: str | None) -> str:
    """Return a value that can be missing."""
    return "" if text is None else f"={text}"


def _text(stored: bytes | None) -> str:
    """Return a text that must be there."""
    return "" if stored is None else stored.decode()


def _broken_link(reply: Sequence[Any], record: Record) -> str:
    match reply:
        case [b"used", id_]:
            return f"Entry {id_.decode()!r} is stored already, and entries are never overwritten."
        case [b"parent", id_]:
            return f"Entry {id_.decode()!r} follows one that is not in its conversation."
        case _:
            return f"The newest entry {record.head_id!r} is not in the conversation."
