"""The replicas of a Redis history. Redis does not notice a dead process, so the last sign of life decides alone."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.errors import HistoryError
from agent.history import redis_replica_scripts as scripts
from agent.history.records import Record, new_id, versions_of
from agent.history.redis_server import RedisServer
from agent.history.replicas import OwnRun, Steadiness, dump_sizes, sum_of_sizes
from agent.history.run_events import UnfinishedRun

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
        return datetime.fromtimestamp(float(await self._server.run(scripts.TIME)), UTC)

    async def beat(self) -> None:
        """Implement `Replicas.beat`."""
        async with self._beating:
            id_ = self._id or new_id()
            self._steadiness.add(float(await self._server.run(scripts.BEAT, id_)))
            self._id = id_

    async def leave(self) -> None:
        """Implement `Replicas.leave`."""
        try:
            if self._id:
                await self._server.run(scripts.LEAVE, self._id)
        except HistoryError as error:
            log.info("the replica could not say that it leaves: %s", error)
        self._id = ""

    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        """Implement `Replicas.lost_runs`."""
        is_steady = int(self._steadiness.is_steady)
        return [_run(one) for one in await self._server.run(scripts.LOST, self._id, is_steady, max(limit, 0))]

    async def take(self, run_id: str) -> bool:
        """Implement `Replicas.take`."""
        is_steady = int(self._steadiness.is_steady)
        return bool(await self._server.run(scripts.TAKE, run_id, self._id, is_steady, again=False))

    async def unfinished_run(self, conversation_id: str, *, owner: str) -> str | None:
        """Implement `Replicas.unfinished_run`."""
        return (await self._server.run(scripts.UNFINISHED_RUN, conversation_id, owner)).decode() or None

    async def is_answering(self, conversation_id: str) -> bool:
        """Implement `Replicas.is_answering`."""
        is_steady = int(self._steadiness.is_steady)
        return bool(await self._server.run(scripts.IS_ANSWERING, conversation_id, self._id, is_steady))

    async def unfinished_conversations(self, owner: str) -> Sequence[str]:
        """Implement `Replicas.unfinished_conversations`."""
        return [id_.decode() for id_ in await self._server.run(scripts.UNFINISHED_OF, owner)]

    async def request_stop(self, run_id: str, *, owner: str) -> bool:
        """Implement `Replicas.request_stop`."""
        return bool(await self._server.run(scripts.REQUEST_STOP, run_id, owner))

    async def watch(self, run_id: str, *, owner: str) -> None:
        """Implement `Replicas.watch`."""
        await self._server.run(scripts.WATCH, run_id, owner)

    async def own_runs(self) -> Sequence[OwnRun]:
        """Implement `Replicas.own_runs`."""
        found = await self._server.run(scripts.OWN, self._id)
        return [OwnRun(_run(one), is_stopped=bool(one[4]), is_watched=bool(one[5])) for one in found]

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        versions, is_steady = versions_of(records), int(self._steadiness.is_steady)
        values = [value for *version, end in versions for value in (*version, "" if end is None else end)]
        reply = await self._server.run(
            scripts.ERASE_UNUSED, owner, self._id, is_steady, len(versions), *values, again=False
        )
        return bool(reply)

    async def reserve(self, sizes: Mapping[str, int]) -> None:
        """Implement `Replicas.reserve`."""
        await self._server.run(scripts.RESERVE, self._id, dump_sizes(sizes))

    async def reserved(self) -> Mapping[str, int]:
        """Implement `Replicas.reserved`."""
        return sum_of_sizes(text.decode() for text in await self._server.run(scripts.RESERVED, self._id))


def _run(found: Sequence[Any]) -> UnfinishedRun:
    run, conversation, owner, saved = found[:4]
    return UnfinishedRun(
        run_id=run.decode(), conversation_id=conversation.decode(), owner=owner.decode(), saved=int(saved)
    )
