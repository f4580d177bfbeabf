"""Conversations on a Redis server, or one of its successors. Any number of processes and machines can share them.

It is as durable as the server is set to be, see docs/configuration.md.
"""

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agent.errors import AgentError, Conflict, HistoryError, NotFound, StoreUnavailable
from agent.history.codec import in_steps, load_conversations, load_undamaged
from agent.history.key_value import (
    ENDED_RUN_SECONDS,
    REMEMBERED,
    EntryPlace,
    Item,
    KeyValueStore,
    KnownLogs,
    RunState,
    SearchedEntry,
    StoredEntry,
)
from agent.history.redis_server import RedisCommand, RedisServer
from agent.history.search import fold, groups
from agent.history.values import CHANGED_ELSEWHERE, NO_CONVERSATION, Conversation, RunEvents, new_id, now, shift_of
from agent.i18n.text import _
from agent.system.threads import DECODING

SCHEMA = 2
"""The number of the layout above. The one before it had no `schema`, but always the key `owners`."""
PORTION = 200
"""Conversations or owners that are read at once."""
SEARCHED = 50
"""Conversations that are searched at once. There are fewer if their texts are long."""
HIDDEN_SECONDS = 3600.0
"""Conversations that expire so soon by this machine's clock are looked at: the server's clock can differ so much."""
TRIES = 200
"""The most attempts at a change whose data others change meanwhile."""
KNOWN_CLOCK_SECONDS = 10.0
"""Seconds for which this process knows the server's clock after it was read."""
TOKEN = 32
"""The length of a token."""
T = TypeVar("T")
_ITEM = TypeAdapter(Item)


class RedisStorage:
    """A `Storage` on a server, until `aclose`. Any number of processes can share it."""

    def __init__(self, server: RedisServer) -> None:
        self.server, self.clock = server, server.clock
        self.logs = KnownLogs()
        self.ahead, self.measured_at = 0.0, float("-inf")
        self._items = OrderedDict[str, tuple[bytes, Item]]()
        self._is_checked = False

    async def time(self) -> datetime:

        async def work(view: RedisView) -> datetime:
            await view.ask(("EXISTS", view.key("schema")))
            return view.clock()

        return await self.read(work)

    async def read(self, work: "Callable[[RedisView], Coroutine[Any, Any, T]]", *, is_long: bool = False) -> T:
        return await self.server.work.run(self._read(work), wait=not is_long)

    async def write(self, work: "Callable[[RedisView], Coroutine[Any, Any, T]]", *, is_end: bool = False) -> T:
        return await self.server.work.run(self._write(work))

    async def aclose(self) -> None:
        await self.server.aclose()

    async def _read(self, work: "Callable[[RedisView], Coroutine[Any, Any, T]]") -> T:
        await self._check_schema()
        return await work(RedisView(self))

    async def _write(self, work: "Callable[[RedisView], Coroutine[Any, Any, T]]") -> T:
        await self._check_schema()
        for number in range(TRIES):
            view = RedisView(self, assumes=not number)
            try:
                result = await work(view)
            except AgentError as error:
                if not view.has_assumed or isinstance(error, StoreUnavailable):
                    raise
            else:
                if await view.commit():
                    return result
        raise Conflict(CHANGED_ELSEWHERE)

    def remembered(self, id_: str) -> tuple[bytes, Item] | None:
        """Return what this process knows of a conversation, if it also knows the time. It can have changed since."""
        return self._items.get(id_) if monotonic() < self.measured_at + KNOWN_CLOCK_SECONDS else None

    def remember(self, id_: str, token: bytes, item: Item | None) -> None:
        """Remember a conversation, or forget it without an item."""
        self._items.pop(id_, None)
        if item is not None:
            self._items[id_] = token, item
            if len(self._items) > REMEMBERED:
                self._items.popitem(last=False)

    async def _check_schema(self) -> None:
        """Raise `HistoryError` if the server has a history of another version."""
        if self._is_checked:
            return
        prefix = self.server.prefix
        schema, has_owners = await self.server.ask([("GET", prefix + b"schema"), ("EXISTS", prefix + b"owners")])
        version = int(schema) if schema else SCHEMA - has_owners
        if version > SCHEMA:
            raise self.server.failure(_("it has schema {version}, of a newer version of this program", version=version))
        if version < SCHEMA:
            raise self.server.failure(
                _(
                    "it has schema {version}, of an older version of this program: export the chats with that one, "
                    "and import them into an empty database",
                    version=version,
                )
            )
        self._is_checked = True


class RedisView:
    """A `View` of the items on a server: what it has read, and the changes that `commit` makes.

    If it `assumes`, what this process remembers is not read again: `commit` finds out whether it was right. What comes
    of it without changes does not count.
    """

    def __init__(self, storage: RedisStorage, *, assumes: bool = False) -> None:
        self._storage, self._server = storage, storage.server
        self._assumes, self.has_assumed = assumes, False
        self._time: datetime | None = None
        self.server_time = 0.0
        self._read = dict[str, tuple[bytes, Item | None]]()
        self._token = new_id().encode()
        self._checks, self._changed = list[tuple[RedisCommand, bytes]](), dict[str, tuple[RedisCommand, bytes]]()
        self._commands, self._on_commit = list[RedisCommand](), list[Callable[[], None]]()

    def steady(self) -> datetime:
        """Implement `View.steady` with the server's clock, which all processes share."""
        return self.clock()

    def clock(self) -> datetime:
        """Implement `View.clock` with the server's clock."""
        if self._time is None:
            shift = shift_of(self._storage.clock)
            self._time = datetime.fromtimestamp(monotonic() + self._storage.ahead + shift, UTC)
        return self._time

    async def ask(self, *commands: RedisCommand) -> list[Any]:
        """Return the replies to commands that change nothing."""
        if self.server_time or not commands:
            return await self._server.ask(commands) if commands else []
        asked_at = monotonic()  # before the server read its clock, so that what has expired there has expired here
        (seconds, micros), *replies = await self._server.ask([("TIME",), *commands])
        self.server_time = int(seconds) + int(micros) / 1e6
        self._time = datetime.fromtimestamp(self.server_time + shift_of(self._storage.clock), UTC)
        self._storage.measured_at, self._storage.ahead = asked_at, self.server_time - asked_at
        return replies

    def require(self, command: RedisCommand, reply: bytes) -> None:
        """Let the changes be made only if the reply to this command is the same then."""
        self._checks.append((command, reply))

    def change(self, *commands: RedisCommand) -> None:
        """Add commands to the changes."""
        self._commands += commands

    async def commit(self) -> bool:
        """Make the changes. Return False if something has changed that they depend on."""
        if not self._commands:
            return not self.has_assumed
        is_put = any(command[0] == "SET" for command in self._commands)
        token = self._token if is_put else b""
        is_done = await self._server.commit(token, [*self._changed.values(), *self._checks], self._commands)
        for call in self._on_commit if is_done else ():
            call()
        for id_ in self._changed:
            self._storage.remember(id_, *(self._read[id_] if is_done else (b"", None)))
        return is_done

    def key(self, kind: str, *names: str) -> bytes:
        """Return the key of this kind for an id, an owner or a run."""
        return self._server.prefix + ":".join((kind, *names)).encode("utf-8", "surrogatepass")

    # Conversations

    async def load(self, ids: Sequence[str]) -> list[Item]:
        """Return the conversations of any owners with these ids. Missing and damaged ones are left out."""
        for some in _portions([*dict.fromkeys(id_ for id_ in ids if id_ not in self._read)], PORTION):
            (values,) = await self.ask(("MGET", *(self.key("item", id_) for id_ in some)))
            items = await in_steps(_items_in, [value or b"" for value in values])
            found = zip(some, values, items, strict=True)
            self._read.update({id_: (value[:TOKEN] if value else b"", item) for id_, value, item in found})
        return [item for id_ in ids if (item := self._read[id_][1])]

    async def get(self, owner: str, id_: str) -> Item | None:
        if self._assumes and id_ not in self._read and (known := self._storage.remembered(id_)):
            self._read[id_], self.has_assumed = known, True
        await self.load([id_])
        token, item = self._read[id_]
        self._storage.remember(id_, token, item)
        if token and item is None:
            raise self._server.failure(_("it is damaged"))
        return item if item and item.owner == owner else None

    async def is_taken(self, id_: str) -> bool:
        await self.load([id_])
        return bool(self._read[id_][0])

    async def with_run(self, run_id: str) -> Item | None:
        item = await self._indexed("run-of", run_id)
        return item if item and run_id in item.runs else None

    async def with_link(self, digest: str) -> Item | None:
        item = await self._indexed("shared-by", digest)
        return item if item and digest in item.links else None

    async def of(self, owner: str) -> Sequence[Item]:
        key = self.key("list", owner)
        (ids,) = await self.ask(("ZREVRANGE", key, 0, -1))
        self.require(("ZCARD", key), str(len(ids)).encode())
        return await self.load([*map(_text, ids)])

    async def page(self, owner: str, pinned: bool | None, first: int, count: int) -> Sequence[Item]:
        """Implement `View.page`. Reads only the items of the page, unless some of them expire at this moment."""
        places, soon = self.key("list", owner), self._storage.clock().timestamp() + HIDDEN_SECONDS
        hidden = "ZRANGEBYSCORE", self.key("ends", owner), "-inf", soon, "WITHSCORES"
        newest = () if pinned else (("ZREVRANGE", places, 0, first + count - 1 if count else 0),)
        pins, ends, *rest = await self.ask(("SMEMBERS", self.key("pinned", owner)), hidden, *newest)
        gone = {id_ for id_, end in _pairs(ends) if end <= self.clock().timestamp()}
        ids: Sequence[bytes] = rest[0] if rest else ()
        if pinned:
            scores = zip(await self.ask(*(("ZSCORE", places, id_) for id_ in pins)), pins, strict=True)
            ids = [id_ for _, id_ in sorted(((float(score), id_) for score, id_ in scores if score), reverse=True)]
        elif count and (left_out := len(gone) + (len(pins) if pinned is False else 0)):
            (ids,) = await self.ask(("ZREVRANGE", places, 0, first + count + left_out - 1))
        left = {*gone, *(pins if pinned is False else ())}
        shown = [_text(id_) for id_ in ids if id_ not in left]
        found = await self.load(shown[first : first + count])
        return [one for one in found if one.conversation and pinned in (None, one.pinned) and one.is_live(self.clock())]

    async def searched(self, owner: str, words: Sequence[str]) -> AsyncGenerator[tuple[Item, Sequence[SearchedEntry]]]:
        """Implement `View.searched`. A thread looks for the words, because the texts can be long."""
        needles = [json.dumps(word, ensure_ascii=False)[1:-1].encode() for word in words]
        (ids,) = await self.ask(("ZREVRANGE", self.key("list", owner), 0, -1))
        for some in _portions([*map(_text, ids)], SEARCHED):
            sizes = await self.ask(*(("STRLEN", self.key("texts", id_)) for id_ in some))
            for group in groups(zip(some, sizes, strict=True), lambda one: int(one[1])):
                keys = [self.key(kind, id_) for kind in ("item", "texts") for id_, _size in group]
                (values,) = await self.ask(("MGET", *keys))
                pairs = [*zip(values[: len(group)], values[len(group) :], strict=True)]
                for item, entries in await DECODING.run(_with_words, pairs, needles):
                    if item.owner == owner and item.conversation and item.is_live(self.clock()):
                        yield item, entries

    async def expiring(self, by: float, owners: str, limit: int, skip: Collection[str]) -> Sequence[Item]:
        last = "LIMIT", 0, limit + len(skip)
        if owners:
            keys = [self.key("ends", owner) async for some in self._owners(owners) for owner in some]
        else:
            keys = [self.key("expiring")]
        found = list[tuple[float, bytes]]()
        for some in _portions(keys, PORTION):
            for reply in await self.ask(*(("ZRANGEBYSCORE", key, "-inf", by, "WITHSCORES", *last) for key in some)):
                found += [(end, id_) for id_, end in _pairs(reply)]
        due = [_text(id_) for _, id_ in sorted(found)]
        items = await self.load([id_ for id_ in due if id_ not in skip][:limit])
        # One can have been kept since its id was read.
        return [item for item in items if item.expires_at is not None and item.expires_at <= by]

    async def endless(self, owners: str) -> Sequence[Item]:
        found = list[Item]()
        async for some in self._owners(owners):
            ranges = (("ZRANGEBYSCORE", self.key("ends", owner), "+inf", "+inf") for owner in some)
            items = await self.load([_text(id_) for ids in await self.ask(*ranges) for id_ in ids])
            found += [item for item in items if item.expires_at is None]
        return found

    async def sizes(self, owners: str) -> Iterable[tuple[str, int, float]]:
        found = list[tuple[str, int, float]]()
        async for some in self._owners(owners):
            lasts = (("ZREVRANGE", self.key("ends", owner), 0, 0, "WITHSCORES") for owner in some)
            sizes, *ends = await self.ask(("HMGET", self.key("bytes"), *some), *lasts)
            each = zip(some, sizes, ends, strict=True)
            found += [(owner, int(size), float(last[1])) for owner, size, last in each if size and last]
        return found

    async def unfinished(self, owner: str | None, limit: int) -> Sequence[tuple[str, Item]]:
        if owner is not None:
            (names,) = await self.ask(("SMEMBERS", self.key("answering", owner)))
            items = [item for item in await self.load([*map(_text, names)]) if item.is_live(self.clock())]
            runs = [(item.runs[run_id].begun_at, run_id, item) for item in items for run_id in _open(item.runs)]
            return [(run_id, item) for _, run_id, item in sorted(runs, key=lambda run: run[:2])][:limit]
        (ids,) = await self.ask(("ZRANGE", self.key("unfinished"), 0, -1))
        found = list[tuple[str, Item]]()
        for some in _portions([*map(_text, ids)], PORTION):
            if len(found) < limit:
                found += await self.running(some)
        return found[:limit]

    async def running(self, run_ids: Sequence[str]) -> list[tuple[str, Item]]:
        """Return those of these runs that have no end, with their conversations, if these are live."""
        pairs = [*zip(run_ids, await self._with_runs(run_ids), strict=True)]
        return [
            (run_id, item)
            for run_id, item in pairs
            if item and item.is_live(self.clock()) and run_id in item.runs and item.runs[run_id].ended_at is None
        ]

    async def ended(self, before: float) -> Collection[tuple[str, str]]:
        (ids,) = await self.ask(("ZRANGEBYSCORE", self.key("ended"), "-inf", f"({before!r}"))
        return {(item.owner, item.id) for item in await self._with_runs([*map(_text, ids)]) if item}

    # Logs

    async def places(self, item: Item) -> Mapping[str, EntryPlace]:
        """Implement `View.places`. Reads only what is new since the last call."""
        known = self._storage.logs.of(item)
        if known.length < item.length:
            start = known.length
            (data,) = await self.ask(("GETRANGE", self.key("index", item.born), start, item.length - 1))
            if len(data) < item.length - start:
                raise NotFound(NO_CONVERSATION)
            if known.length == start:  # or else another task has added the same
                known.places.update({id_: EntryPlace(*place) for id_, *place in _lines_in(data)})
                known.length = item.length
        return known.places

    async def texts(self, wanted: Sequence[tuple[Item, EntryPlace]]) -> list[str]:
        """Implement `View.texts`. Entries that follow each other are one range."""
        ranges = list[tuple[bytes, int, int]]()
        for item, place in wanted:
            key = self.key("entries", item.born)
            if ranges and ranges[-1][0] == key and ranges[-1][2] == place.start:
                ranges[-1] = key, ranges[-1][1], place.end
            else:
                ranges.append((key, place.start, place.end))
        pieces = await self.ask(*(("GETRANGE", key, start, end - 1) for key, start, end in ranges))
        if any(len(piece) < end - start for piece, (_, start, end) in zip(pieces, ranges, strict=True)):
            raise NotFound(NO_CONVERSATION)
        data, found, at = b"".join(pieces), list[str](), 0
        for _item, place in wanted:
            found.append(data[at : (at := at + place.end - place.start)].decode(errors="replace"))
        return found

    async def events(self, run_id: str, after: int) -> tuple[Item, list[str]] | None:
        """Implement `View.events`. The item is read first, so that no event is missing that it counts."""
        (place,) = await self.ask(("HGET", self.key("run-of"), run_id))
        born, _, id_ = _text(place or b"").partition(" ")
        value, events = await self.ask(
            ("GET", self.key("item", id_)), ("LRANGE", self.key("events", born, run_id), after, -1)
        )
        (item,) = _items_in([value or b""])
        if item is None or item.born != born or run_id not in item.runs:
            return None
        count = max(item.runs[run_id].last - after, 0)
        return (item, [event.decode() for event in events[:count]]) if len(events) >= count else None

    # Changes

    def put(
        self,
        item: Item,
        entries: Sequence[StoredEntry] = (),
        events: RunEvents | None = None,
        *,
        is_newest: bool = False,
    ) -> None:
        (token, before), conversation = self._read[item.id], item.conversation
        if conversation is None:
            raise self.damaged(item)
        if before is None:
            self.change(("SET", self.key("schema"), SCHEMA))
        self._checks_of(item.id, token)
        item = self._with_entries(item, before, entries)
        value = b"%s%s\n%s\n%s" % (self._token, _dump(item), item.text.encode(), _dumped(fold(conversation.title)))
        self.change(("SET", self.key("item", item.id), value))
        if events is not None:
            self._add_events(item, events)
        if before is None or is_newest or item.place != before.place:
            self.change(("FIRST" if is_newest else "ZADD", self.key("list", item.owner), item.place, item.id))
        self.change(*self._index_runs(item, before), *self._index_item(item, before))
        self._read[item.id] = self._token, item

    async def searched_in(self, item: Item) -> Sequence[SearchedEntry]:
        (texts,) = await self.ask(("GET", self.key("texts", item.id)))
        return await DECODING.run(_searched, texts or b"")

    def rewrite(self, item: Item, entries: Sequence[StoredEntry]) -> None:
        before = self._read[item.id][1]
        self.remove([before] if before else [])
        self.put(item, entries)

    def remove(self, items: Sequence[Item]) -> None:
        for item in items:
            self._checks_of(item.id, self._read[item.id][0])
            self._read[item.id] = b"", None
            logs = [self.key("texts", item.id), *(self.key(kind, item.born) for kind in ("index", "entries"))]
            self.change(("UNLINK", self.key("item", item.id), *logs))
            self.change(*(("ZREM", self.key(kind, item.owner), item.id) for kind in ("list", "ends")))
            self.change(("ZREM", self.key("expiring"), item.id), ("SREM", self.key("pinned", item.owner), item.id))
            rest = replace(item, runs={}, links={})
            self.change(*self._index_runs(rest, item), *self._index_links(rest, item))
            self.change(("COUNT", self.key("bytes"), self.key("owners"), item.owner, -item.size))

    def damaged(self, item: Item) -> HistoryError:
        return self._server.failure(_("it is damaged"))

    def _checks_of(self, id_: str, token: bytes) -> None:
        self._changed.setdefault(id_, (("GETRANGE", self.key("item", id_), 0, TOKEN - 1), token))

    def _with_entries(self, item: Item, before: Item | None, entries: Sequence[StoredEntry]) -> Item:
        """Return the item after these entries were added to its logs."""
        if not entries:
            return item
        known, at = self._storage.logs.of(item), before.entries_size if before else 0
        places, lines, texts, bodies = dict[str, EntryPlace](), list[bytes](), list[bytes](), list[bytes]()
        for one in entries:
            body = one.json.encode()
            place = [one.id, one.parent_id, at, at := at + len(body)]
            places[one.id] = EntryPlace(one.parent_id, at - len(body), at)
            lines.append(_dumped(place))
            texts.append(_dumped([*place, one.searched]))
            bodies.append(body)
        index = b"".join(b"%s\n" % line for line in lines)
        self.change(("APPEND", self.key("index", item.born), index))
        self.change(("APPEND", self.key("texts", item.id), b"".join(b"%s\n" % line for line in texts)))
        self.change(("APPEND", self.key("entries", item.born), b"".join(bodies)))
        start, item = item.length, replace(item, length=item.length + len(index))

        def remember() -> None:
            if known.length == start:
                known.places.update(places)
                known.length = item.length

        self._on_commit.append(remember)
        return item

    def _add_events(self, item: Item, events: RunEvents) -> None:
        key = self.key("events", item.born, events.run_id)
        for some in _portions([event.json for event in events.events], PORTION):
            self.change(("RPUSH", key, *some))
        if events.has_ended:
            self.change(("EXPIRE", key, ENDED_RUN_SECONDS))

    def _index_item(self, item: Item, before: Item | None) -> Iterator[RedisCommand]:
        """Yield the commands for the keys that find this conversation by its pin, its expiry and its size."""
        owner, id_, end = item.owner, item.id, item.expires_at
        if before is None or before.expires_at != end:
            yield "ZADD", self.key("ends", owner), "+inf" if end is None else end, id_
            yield ("ZREM", self.key("expiring"), id_) if end is None else ("ZADD", self.key("expiring"), end, id_)
        if item.pinned != (before is not None and before.pinned):
            yield "SADD" if item.pinned else "SREM", self.key("pinned", owner), id_
        if added := item.size - (before.size if before else 0):
            yield "COUNT", self.key("bytes"), self.key("owners"), owner, added
        yield from self._index_links(item, before)

    def _index_links(self, item: Item, before: Item | None) -> Iterator[RedisCommand]:
        old: Collection[str] = before.links if before else ()
        key = self.key("shared-by")
        yield from (("HSET", key, digest, _place(item)) for digest in item.links if digest not in old)
        yield from (("HDEL", key, digest) for digest in old if digest not in item.links)

    def _index_runs(self, item: Item, before: Item | None) -> Iterator[RedisCommand]:
        """Yield the commands for the keys that find the runs of this conversation."""
        old: Mapping[str, RunState] = before.runs if before else {}
        if old == item.runs:
            return
        for run_id in old.keys() - item.runs.keys():
            yield "UNLINK", self.key("events", item.born, run_id)
            yield "HDEL", self.key("run-of"), run_id
            yield "ZREM", self.key("ended"), run_id
        yield from (("HSET", self.key("run-of"), run_id, _place(item)) for run_id in item.runs.keys() - old.keys())
        for run_id, run in item.runs.items():
            if run.ended_at is not None and (run_id not in old or old[run_id].ended_at is None):
                yield "ZADD", self.key("ended"), run.ended_at, run_id
        is_open, was_open = _open(item.runs), _open(old)
        for run_id in was_open - is_open:
            yield "ZREM", self.key("unfinished"), run_id
        for run_id in is_open - was_open:
            yield "ZADD", self.key("unfinished"), item.runs[run_id].begun_at, run_id
        if bool(is_open) != bool(was_open):
            yield "SADD" if is_open else "SREM", self.key("answering", item.owner), item.id

    # Indexes

    async def _indexed(self, kind: str, name: str) -> Item | None:
        """Return the conversation that an index names. If there is none, there must be none when changes are made."""
        command = "HGET", self.key(kind), name
        self.has_assumed = self.has_assumed or self._assumes
        (place,) = [None] if self._assumes else await self.ask(command)
        if place is None:
            self.require(command, b"")
            return None
        return next(iter(await self.load([_text(place).partition(" ")[2]])), None)

    async def _with_runs(self, run_ids: Sequence[str]) -> list[Item | None]:
        """Return the conversation of each run."""
        commands = [("HMGET", self.key("run-of"), *run_ids)] if run_ids else []
        places = [place for reply in await self.ask(*commands) for place in reply]
        ids = [None if place is None else _text(place).partition(" ")[2] for place in places]
        await self.load([id_ for id_ in ids if id_ is not None])
        return [None if id_ is None else self._read[id_][1] for id_ in ids]

    async def _owners(self, begin: str) -> AsyncGenerator[list[str]]:
        """Yield the owners that begin so, in portions."""
        prefix = begin.encode("utf-8", "surrogatepass")
        start: bytes | None = b"[" + prefix
        while start:
            last = b"[" + prefix + b"\xff"
            (names,) = await self.ask(("ZRANGEBYLEX", self.key("owners"), start, last, "LIMIT", 0, PORTION))
            start = b"(" + names[-1] if len(names) == PORTION else None
            if names:
                yield [*map(_text, names)]


def _place(item: Item) -> str:
    """Return what an index says to name this conversation."""
    return f"{item.born} {item.id}"


def _open(runs: Mapping[str, RunState]) -> Set[str]:
    """Return the runs without an end."""
    return {run_id for run_id, run in runs.items() if run.ended_at is None}


def _portions(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _pairs(reply: Sequence[bytes]) -> list[tuple[bytes, float]]:
    """Return the members and the scores of a reply."""
    return [*zip(reply[::2], map(float, reply[1::2]), strict=True)]


def _dump(item: Item) -> bytes:
    return _ITEM.dump_json(item, exclude={"conversation", "text"}, exclude_defaults=True)


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _lines_in(data: bytes) -> list[Any]:
    return json.loads(b"[%s]" % b",".join(data.splitlines()))


def _items_in(values: Sequence[bytes]) -> list[Item | None]:
    """Return the item of each value, None for an empty or a damaged one."""
    parts = [value[TOKEN:].split(b"\n") if value else [] for value in values]
    texts = [part[1].decode(errors="replace") if len(part) > 1 else "" for part in parts]
    try:
        loaded = iter(load_conversations(filter(None, texts)))
        conversations = [next(loaded) if text else None for text in texts]
    except HistoryError:
        conversations = [load_undamaged(text) if text else None for text in texts]
    return [_item(*each) for each in zip(parts, conversations, texts, strict=True)]


def _item(parts: Sequence[bytes], conversation: Conversation | None, text: str) -> Item | None:
    try:
        return replace(_ITEM.validate_json(parts[0]), conversation=conversation, text=text) if parts else None
    except ValidationError:
        return None


def _with_words(
    pairs: Sequence[tuple[bytes | None, bytes | None]], needles: Sequence[bytes]
) -> list[tuple[Item, list[SearchedEntry]]]:
    """Return the conversations of which the texts or the title have all words, with their texts."""
    found = [
        (value, texts or b"")
        for value, texts in pairs
        if value
        and (all(one in (texts or b"") for one in needles) or all(one in value.rpartition(b"\n")[2] for one in needles))
    ]
    items = _items_in([value for value, _ in found])
    return [(item, _searched(texts)) for item, (_, texts) in zip(items, found, strict=True) if item]


def _searched(texts: bytes) -> list[SearchedEntry]:
    return [SearchedEntry(id_, up, text, EntryPlace(up, start, end)) for id_, up, start, end, text in _lines_in(texts)]


class RedisStore(KeyValueStore):
    """A `HistoryStore` on a server. It owns its connections until `aclose`.

    A cancelled save has stored everything or nothing. If the connection breaks, a save is repeated and stored once. If
    the URL `is_secret`, errors don't name it.
    """

    is_shared = True

    def __init__(self, url: str, *, clock: Callable[[], datetime] = now, is_secret: bool = False) -> None:
        self.server = RedisServer(url, clock, is_secret=is_secret)
        storage = RedisStorage(self.server)
        super().__init__(storage)

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
