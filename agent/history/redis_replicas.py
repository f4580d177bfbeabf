"""The replicas of a Redis history. Redis does not notice a dead process, so the last sign of life decides alone.

Further keys: `replicas` is a sorted set of when each was last seen, by the server's clock. `reserved` is a hash of the
bytes that each is about to store, as JSON. `reservations` counts the changes of this hash.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from agent.errors import HistoryError
from agent.history.key_value import Item, RunState, unfinished_run
from agent.history.records import new_id
from agent.history.redis_storage import RedisStorage, RedisView
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

FORGOTTEN_SECONDS = 86400
"""The age of the last sign of life after which a replica is forgotten."""
UNKNOWN = float("inf")
"""The silence of a replica that has left, or was never there."""

log = logging.getLogger(__name__)


class RedisReplicas:
    """The `Replicas` of a Redis history."""

    def __init__(self, storage: RedisStorage) -> None:
        self._storage = storage
        storage.is_in_use = self.is_in_use
        self._steadiness = Steadiness()
        self._beating = asyncio.Lock()

    @property
    def id(self) -> str:
        """Implement `Replicas.id`."""
        return self._storage.replica

    async def time(self) -> datetime:
        """Implement `Replicas.time`."""

        async def work(view: RedisView) -> datetime:
            await view.ask(("EXISTS", view.key("replicas")))
            return view.clock()

        return await self._storage.read(work)

    async def beat(self) -> None:
        """Implement `Replicas.beat`."""

        async def work(view: RedisView) -> float:
            key, reserved = view.key("replicas"), view.key("reserved")
            known, reserving = await view.ask(("ZRANGE", key, 0, -1), ("HKEYS", reserved))
            at = view.server_time
            view.change(("ZADD", key, at, id_), ("ZREMRANGEBYSCORE", key, "-inf", at - FORGOTTEN_SECONDS))
            view.change(*(("HDEL", reserved, one) for one in reserving if one not in known))
            return at

        async with self._beating:
            id_ = self.id or new_id()
            self._steadiness.add(await self._storage.write(work))
            self._storage.replica = id_

    async def leave(self) -> None:
        """Implement `Replicas.leave`."""

        async def work(view: RedisView) -> None:
            view.change(("HDEL", view.key("reserved"), self.id), ("ZREM", view.key("replicas"), self.id))

        try:
            if self.id:
                await self._storage.write(work)
        except HistoryError as error:
            log.info("the replica could not say that it leaves: %s", error)
        self._storage.replica = ""

    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        """Implement `Replicas.lost_runs`."""

        async def work(view: RedisView) -> list[UnfinishedRun]:
            (writers,) = await view.ask(("ZRANGE", view.key("writers"), 0, -1))
            gone = await self._gone(view, [writer.decode() for writer in writers])
            ranges = await view.ask(
                *(("ZRANGE", view.key("writing", one), 0, -1, "WITHSCORES") for one in sorted(gone))
            )
            begun = [(float(reply[at + 1]), reply[at].decode()) for reply in ranges for at in range(0, len(reply), 2)]
            found = await view.running([run_id for _, run_id in sorted(begun)])
            return [unfinished_run(item, run_id) for run_id, item in found[: max(limit, 0)]]

        return await self._storage.read(work)

    async def take(self, run_id: str) -> bool:
        """Implement `Replicas.take`."""

        async def work(view: RedisView) -> bool:
            item = await view.with_run(run_id)
            run = item.runs[run_id] if item else RunState(ended_at=0)
            if item is None or run.ended_at is not None or not await self._gone(view, [run.replica], still=True):
                return False
            view.put(replace(item, runs={**item.runs, run_id: replace(run, replica=self.id)}))
            return True

        return await self._storage.write(work)

    async def unfinished_run(self, conversation_id: str, *, owner: str) -> str | None:
        """Implement `Replicas.unfinished_run`."""

        async def work(view: RedisView) -> str | None:
            item = await view.get(owner, conversation_id)
            if item is None or not item.is_live(view.clock()):
                return None
            return next((run_id for run_id, run in reversed([*item.runs.items()]) if run.ended_at is None), None)

        return await self._storage.read(work)

    async def is_answering(self, conversation_id: str) -> bool:
        """Implement `Replicas.is_answering`."""

        async def work(view: RedisView) -> bool:
            return await self._is_answering(view, await view.load([conversation_id]))

        return await self._storage.read(work)

    async def unfinished_conversations(self, owner: str) -> Sequence[str]:
        """Implement `Replicas.unfinished_conversations`."""

        async def work(view: RedisView) -> list[str]:
            (ids,) = await view.ask(("SMEMBERS", view.key("answering", owner)))
            return [item.id for item in await view.load([id_.decode() for id_ in ids]) if item.is_live(view.clock())]

        return await self._storage.read(work)

    async def request_stop(self, run_id: str, *, owner: str) -> bool:
        """Implement `Replicas.request_stop`."""
        return await self._storage.write(lambda view: _change_run(view, run_id, owner, is_stopped=True))

    async def watch(self, run_id: str, *, owner: str) -> None:
        """Implement `Replicas.watch`."""
        await self._storage.write(lambda view: _change_run(view, run_id, owner))

    async def own_runs(self) -> Sequence[OwnRun]:
        """Implement `Replicas.own_runs`."""

        async def work(view: RedisView) -> list[OwnRun]:
            (ids,) = await view.ask(("ZRANGE", view.key("writing", self.id), 0, -1))
            since, found = view.clock().timestamp() - WATCHED_SECONDS, list[OwnRun]()
            for run_id, item in await view.running([id_.decode() for id_ in ids]):
                run = item.runs[run_id]
                is_watched = run.watched_at > since
                found.append(OwnRun(unfinished_run(item, run_id), is_stopped=run.is_stopped, is_watched=is_watched))
            return found

        return await self._storage.read(work)

    async def reserve(self, sizes: Mapping[str, int]) -> None:
        """Implement `Replicas.reserve`."""

        async def work(view: RedisView) -> None:
            (seen,) = await view.ask(("ZSCORE", view.key("replicas"), self.id))
            key, text = view.key("reserved"), dump_sizes(sizes)
            view.change(("HSET", key, self.id, text) if seen and text else ("HDEL", key, self.id))
            view.change(("INCR", view.key("reservations")))

        await self._storage.write(work)

    async def reserved(self) -> Mapping[str, int]:
        """Implement `Replicas.reserved`."""
        return await self._storage.read(self._reserved)

    async def is_in_use(self, view: RedisView, owner: str, items: Sequence[Item]) -> bool:
        """Return True if a run would lose one of these conversations, or another replica stores a message of the owner.

        Nobody can reserve room for the owner between this and the changes of the view.
        """
        if await self._is_answering(view, items):
            return True
        key = view.key("reservations")
        (count,) = await view.ask(("GET", key))
        view.require(("GET", key), count or b"")
        return owner in await self._reserved(view)

    async def _reserved(self, view: RedisView) -> Mapping[str, int]:
        (reply,) = await view.ask(("HGETALL", view.key("reserved")))
        texts = {one.decode(): text.decode() for one, text in zip(reply[::2], reply[1::2], strict=True)}
        silence = await self._silence(view, texts.keys() - {self.id})
        return sum_of_sizes(texts[one] for one, seconds in silence.items() if seconds < SILENT_SECONDS)

    async def _is_answering(self, view: RedisView, items: Sequence[Item]) -> bool:
        """Return True if a run without an end would lose one of these conversations."""
        writers = set[str]()
        for item in items:
            found = {run.replica for run in item.runs.values() if run.ended_at is None}
            if found and item.is_live(view.clock()):
                return True
            writers |= found
        others = writers - {self.id}
        return bool(others - await self._gone(view, others))

    async def _gone(self, view: RedisView, writers: Collection[str], *, still: bool = False) -> set[str]:
        """Return the writers that are gone as this replica may judge. With `still`, also when changes are made."""
        others = {*writers} - {self.id}
        silence = await self._silence(view, {*others, self.id}, still=still)
        may_judge = self._steadiness.is_steady and silence[self.id] < STEADY_GAP_SECONDS
        return {one for one in others if silence[one] == UNKNOWN or (may_judge and silence[one] > SILENT_SECONDS)}

    async def _silence(self, view: RedisView, replicas: Collection[str], *, still: bool = False) -> dict[str, float]:
        """Return the seconds since each replica was seen, `UNKNOWN` if it has left or was never there."""
        commands = [("ZSCORE", view.key("replicas"), one) for one in replicas]
        seen = await view.ask(*commands)
        for command, score in zip(commands, seen, strict=True) if still else ():
            if command[2] != self.id:
                view.require(command, score or b"")
        ages = [UNKNOWN if score is None else abs(view.server_time - float(score)) for score in seen]
        return dict(zip(replicas, ages, strict=True))


async def _change_run(view: RedisView, run_id: str, owner: str, *, is_stopped: bool = False) -> bool:
    """Say that a page watches this owner's run, or that it is to stop. Return False if there is none without an end."""
    found = await view.running([run_id])
    if not found or found[0][1].owner != owner:
        return False
    _, item = found[0]
    run = item.runs[run_id]
    at = run.watched_at if is_stopped else view.clock().timestamp()
    run = replace(run, is_stopped=run.is_stopped or is_stopped, watched_at=at)
    view.put(replace(item, runs={**item.runs, run_id: run}))
    return True
